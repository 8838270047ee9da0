//! Who there is: an authority and the identities that it signed, made once for all histories, as they take long.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use sandbar_simulation::EPOCH_S;
use sandbar_wire::{Authority, Grant, Identity, JoinToken, Key, Name, Role, Timestamp};

const EPOCH: Timestamp = Timestamp(EPOCH_S);
const DAY: Duration = Duration::from_secs(86_400);
pub const MEMBERS_MAX: usize = 4;
pub const LIAR: &str = "liar";

pub struct People {
    pub authority: Arc<Authority>,
    members: Vec<Identity>,
    /// The liar's key (PKCS #8) and certificate, to be used without this room's help.
    pub liar: (Vec<u8>, Vec<u8>),
    pub token: JoinToken,
    /// Tokens that are no good, and what is said of each.
    pub wrong_tokens: Vec<(JoinToken, &'static str)>,
}

pub fn people() -> &'static People {
    static PEOPLE: OnceLock<People> = OnceLock::new();
    PEOPLE.get_or_init(People::new)
}

/// Of the member with this number.
pub fn name(member: usize) -> Name {
    format!("n{member}").parse().unwrap()
}

impl People {
    fn new() -> People {
        let (authority, other) = (authority(), authority());
        let members = (0..MEMBERS_MAX).map(|member| {
            let key = Arc::new(Key::generate().unwrap());
            let request = key.request().unwrap();
            let certificate = authority.certify(&request, Role::Node, &name(member), DAY, EPOCH).unwrap();
            Identity::new(key, certificate, authority.trust().certificate().to_vec(), EPOCH).unwrap()
        });
        let members = members.collect();
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&pair).unwrap();
        let certificate = authority.certify(request.der(), Role::Node, &LIAR.parse().unwrap(), DAY, EPOCH).unwrap();
        let hour = Duration::from_secs(3_600);
        let token = authority.token(Grant::Node, hour, EPOCH).unwrap();
        let ended = authority.token(Grant::Node, hour, EPOCH.before(DAY)).unwrap();
        let tenant = authority.token(Grant::Tenant("t".parse().unwrap()), hour, EPOCH).unwrap();
        let foreign = other.token(Grant::Node, hour, EPOCH).unwrap();
        let wrong_tokens = vec![(ended, "token-expired"), (tenant, "token-other-role"), (foreign, "untrusted")];
        People { authority, members, liar: (pair.serialize_der(), certificate), token, wrong_tokens }
    }

    pub fn member(&self, member: usize) -> Identity {
        self.members[member].clone()
    }
}

fn authority() -> Arc<Authority> {
    let folder = tempfile::TempDir::new().unwrap();
    Arc::new(Authority::create(&folder.path().join("authority"), EPOCH).unwrap())
}
