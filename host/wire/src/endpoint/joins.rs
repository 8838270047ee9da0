//! Taking in strangers: a node that has the authority's key gives certificates to who has a join token.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};

use super::door::chain;
use super::ground::canonical;
use super::peers::close;
use super::{Shared, transport};
use crate::channel::{ChannelError, Most, read_whole, tell};
use crate::identity::{
    Authority, CERTIFICATE_LIFETIME_S, Identity, IdentityError, JoinToken, is_stranger, request_key,
};
use crate::name::{KeyId, Name, Role, TokenId};
use crate::protocol::{CERTIFICATES_BYTES_MAX, CloseCode, Granted, JoinAnswer, JoinRefusal, JoinRequest};

/// Who would like a certificate.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// As what.
    pub role: Role,
    /// Under which name.
    pub name: &'a Name,
    /// For which key.
    pub key: KeyId,
    /// With which token; none if it has a certificate of this name, and renews it.
    pub token: Option<TokenId>,
    /// From where.
    pub address: SocketAddr,
}

/// Who may have a certificate, beside what the token says: whoever knows the members of a cluster knows whether a name is
/// taken, or a token was used.
pub trait Admit: Send + Sync + 'static {
    /// Whether it may. Called on a thread of the runtime: it must not wait.
    ///
    /// # Errors
    /// Why not, in words for who applies.
    fn admit(&self, applicant: &Applicant<'_>) -> Result<(), String>;
}

impl<F: Fn(&Applicant<'_>) -> Result<(), String> + Send + Sync + 'static> Admit for F {
    fn admit(&self, applicant: &Applicant<'_>) -> Result<(), String> {
        self(applicant)
    }
}

/// With what a node gives certificates.
#[derive(Clone)]
pub struct Registry {
    authority: Arc<Authority>,
    lifetime: Duration,
    admit: Arc<dyn Admit>,
}

impl Registry {
    /// Certificates for [`CERTIFICATE_LIFETIME_S`].
    pub fn new(authority: Arc<Authority>, admit: impl Admit) -> Registry {
        Registry { authority, lifetime: Duration::from_secs(CERTIFICATE_LIFETIME_S), admit: Arc::new(admit) }
    }

    /// For so long instead.
    #[must_use]
    pub fn lasting(self, lifetime: Duration) -> Registry {
        Registry { lifetime, ..self }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({:?}, {:?})", self.authority, self.lifetime)
    }
}

/// Whether a node of this identity can give certificates with it.
pub(super) fn check(identity: &Identity, registry: &Registry) -> Result<(), IdentityError> {
    let (trust, role) = (identity.trust(), identity.own().role);
    if role != Role::Node || registry.authority.trust().fingerprint() != trust.fingerprint() {
        let reason = format!("it is not of {}, or this end is no node", trust.cluster());
        return Err(IdentityError::Malformed { what: "the authority", reason });
    }
    Ok(())
}

pub(super) fn serve(shared: &Arc<Shared>, registry: Registry) -> Result<(), IdentityError> {
    let trust = {
        let identity = shared.identity();
        check(&identity, &registry)?;
        identity.trust().clone()
    };
    let version = shared.ground.version;
    let server = transport::server(&shared.limits, &shared.ground.clock, shared.shown.clone(), &trust, version, true)?;
    *shared.registry() = Some(registry);
    shared.quinn.set_server_config(Some(server));
    Ok(())
}

/// One request of a stranger, and its answer. Whether it got a certificate.
pub(super) async fn answer(shared: &Arc<Shared>, quinn: &quinn::Connection) -> bool {
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    let (code, is_granted) = match timeout(time, converse(shared, quinn)).await {
        Err(_) => (CloseCode::Slow, false),
        Ok(Err(code)) => (code, false),
        Ok(Ok(is_granted)) => (CloseCode::Done, is_granted),
    };
    close(quinn, code, "joining has ended");
    is_granted
}

/// Whether a certificate was given, or how to close.
async fn converse(shared: &Shared, quinn: &quinn::Connection) -> Result<bool, CloseCode> {
    let gone = |_| CloseCode::Done;
    let (send, mut receive) = quinn.accept_bi().await.map_err(gone)?;
    let most = Most { what: "request to join", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    // Whoever calls has a shorter time.
    let ms = shared.limits.join_time_ms_max * 2;
    let request = read_whole(&mut receive, most, Instant::now() + Duration::from_millis(ms), ms).await;
    let malformed = |_| CloseCode::Malformed;
    let request = request.map_err(|error| match error {
        ChannelError::TooLong { .. } => CloseCode::Malformed,
        _ => CloseCode::Done,
    })?;
    let request = postcard::from_bytes(&request).map_err(malformed)?;
    let answer = decide(shared, quinn, &request);
    let (role, name, address) = (request.role, &request.name, canonical(quinn.remote_address()));
    match &answer {
        Ok(_) => log::info!("{role} `{name}` at {address} got a certificate by a token"),
        Err(refusal) => log::warn!("refused {role} `{name}` at {address}, who has a token: {refusal}"),
    }
    tell(send, &postcard::to_stdvec(&answer).map_err(malformed)?).await.map_err(|_| CloseCode::Done)?;
    // It closes when it has read the answer.
    quinn.closed().await;
    Ok(answer.is_ok())
}

fn decide(shared: &Shared, quinn: &quinn::Connection, request: &JoinRequest) -> JoinAnswer {
    let registry = shared.registry().clone().ok_or(JoinRefusal::NoAuthority)?;
    let now = shared.ground.clock.now();
    let token: JoinToken = request.token.parse().map_err(JoinRefusal::Token)?;
    token.check(registry.authority.trust(), request.role, &request.name, now)?;
    if shared.peers.is_token_revoked(&token.id()) {
        return Err(crate::identity::TokenError::Revoked { id: token.id() }.into());
    }
    let key = chain(quinn).first().and_then(|certificate: &CertificateDer<'_>| is_stranger(certificate));
    let applicant = Applicant {
        role: request.role,
        name: &request.name,
        key: key.ok_or_else(|| JoinRefusal::Request("the connection has a certificate already".to_owned()))?,
        token: Some(token.id()),
        address: canonical(quinn.remote_address()),
    };
    grant(shared, &registry, &applicant, &request.request)
}

/// A certificate for who may have one.
pub(super) fn grant(shared: &Shared, registry: &Registry, applicant: &Applicant<'_>, request: &[u8]) -> JoinAnswer {
    let now = shared.ground.clock.now();
    let wrong = |error: IdentityError| match error {
        IdentityError::Request(reason) => JoinRefusal::Request(reason),
        other => JoinRefusal::Host(other.to_string()),
    };
    if request_key(request).map_err(wrong)? != applicant.key {
        return Err(JoinRefusal::Request("it is for another key than the connection's".to_owned()));
    }
    let taken = |reason| JoinRefusal::Name { name: applicant.name.clone(), reason };
    registry.admit.admit(applicant).map_err(taken)?;
    let authority = &registry.authority;
    let certificate = authority.certify(request, applicant.role, applicant.name, registry.lifetime, now);
    Ok(Granted {
        certificate: certificate.map_err(wrong)?,
        authority: authority.trust().certificate().to_vec(),
        clock: now,
    })
}
