//! The authority and the identities of all histories, created once, as this is slow.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use sandbar_simulation::EPOCH_S;
use sandbar_wire::{Authority, Identity, JoinGrant, JoinToken, Key, Name, Principal, TenantRole, Timestamp};

const EPOCH: Timestamp = Timestamp(EPOCH_S);
const DAY: Duration = Duration::from_secs(86_400);
pub const MEMBERS_MAX: usize = 4;
pub const LIAR: &str = "liar";

pub struct Identities {
    pub authority: Arc<Authority>,
    members: Vec<Identity>,
    /// The liar's key (PKCS #8) and certificate, for use without `host/wire`.
    pub liar: (Vec<u8>, Vec<u8>),
    pub token: JoinToken,
    /// Invalid tokens, and the error code of each.
    pub bad_tokens: Vec<(JoinToken, &'static str)>,
}

pub fn identities() -> &'static Identities {
    static IDENTITIES: OnceLock<Identities> = OnceLock::new();
    IDENTITIES.get_or_init(Identities::new)
}

/// Returns the name of a member.
pub fn name(member: usize) -> Name {
    format!("n{member}").parse().unwrap()
}

impl Identities {
    fn new() -> Identities {
        let (authority, other) = (authority(), authority());
        let members = (0..MEMBERS_MAX).map(|member| {
            let key = Arc::new(Key::generate().unwrap());
            let request = key.request().unwrap();
            let certificate = authority.certify(&request, &Principal::Node(name(member)), DAY, EPOCH).unwrap();
            Identity::new(key, certificate, authority.trust().certificate().to_vec(), EPOCH).unwrap()
        });
        let members = members.collect();
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&pair).unwrap();
        let certificate =
            authority.certify(request.der(), &Principal::Node(LIAR.parse().unwrap()), DAY, EPOCH).unwrap();
        let hour = Duration::from_secs(3_600);
        let token = authority.token(JoinGrant::Node, false, hour, EPOCH).unwrap();
        let ended = authority.token(JoinGrant::Node, false, hour, EPOCH.before(DAY)).unwrap();
        let tenant =
            authority.token(JoinGrant::Tenant("t".parse().unwrap(), TenantRole::Viewer), false, hour, EPOCH).unwrap();
        let foreign = other.token(JoinGrant::Node, false, hour, EPOCH).unwrap();
        let bad_tokens = vec![(ended, "token-expired"), (tenant, "token-other-role"), (foreign, "untrusted")];
        Identities { authority, members, liar: (pair.serialize_der(), certificate), token, bad_tokens }
    }

    pub fn member(&self, member: usize) -> Identity {
        self.members[member].clone()
    }
}

fn authority() -> Arc<Authority> {
    let folder = tempfile::TempDir::new().unwrap();
    Arc::new(Authority::create(&folder.path().join("authority"), EPOCH).unwrap())
}
