//! The server side of joining: a node with the authority's key issues certificates to clients that have a join token.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};

use super::accept::chain;
use super::environment::canonical;
use super::peers::close;
use super::{Shared, transport};
use crate::channel::{ByteLimit, ChannelError, read_whole, send_answer};
use crate::identity::{
    Authority, CERTIFICATE_LIFETIME_S, Identity, IdentityError, JoinToken, request_key, self_signed_key,
};
use crate::name::{KeyId, Name, Role, TokenId};
use crate::protocol::{CERTIFICATES_BYTES_MAX, CloseCode, IssuedCertificate, JoinRefusal, JoinRequest, JoinResponse};

/// A client that requests a certificate.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// Requested role.
    pub role: Role,
    /// Requested name.
    pub name: &'a Name,
    /// Key of the connection.
    pub key: KeyId,
    /// Id of the join token; `None` for a renewal, whose connection has a certificate of this name.
    pub token: Option<TokenId>,
    /// The client's address.
    pub address: SocketAddr,
}

/// Decides about certificates, in addition to the token. The implementation knows the cluster's members, and so whether a
/// name is taken or a token was used.
pub trait JoinPolicy: Send + Sync + 'static {
    /// Decides about one applicant. Runs on a runtime thread, so it must not block.
    ///
    /// # Errors
    /// The reason, as text for the applicant.
    fn admit(&self, applicant: &Applicant<'_>) -> Result<(), String>;
}

impl<F: Fn(&Applicant<'_>) -> Result<(), String> + Send + Sync + 'static> JoinPolicy for F {
    fn admit(&self, applicant: &Applicant<'_>) -> Result<(), String> {
        self(applicant)
    }
}

/// Issues certificates to applicants that a policy admits.
#[derive(Clone)]
pub struct CertificateIssuer {
    authority: Arc<Authority>,
    lifetime: Duration,
    policy: Arc<dyn JoinPolicy>,
}

impl CertificateIssuer {
    /// Creates an issuer of certificates with a lifetime of [`CERTIFICATE_LIFETIME_S`].
    pub fn new(authority: Arc<Authority>, policy: impl JoinPolicy) -> CertificateIssuer {
        CertificateIssuer { authority, lifetime: Duration::from_secs(CERTIFICATE_LIFETIME_S), policy: Arc::new(policy) }
    }

    /// Sets another lifetime.
    #[must_use]
    pub fn with_lifetime(self, lifetime: Duration) -> CertificateIssuer {
        CertificateIssuer { lifetime, ..self }
    }
}

impl fmt::Debug for CertificateIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateIssuer({:?}, {:?})", self.authority, self.lifetime)
    }
}

/// Checks that a node with this identity may use the issuer.
pub(super) fn check(identity: &Identity, issuer: &CertificateIssuer) -> Result<(), IdentityError> {
    let (trust, role) = (identity.trust(), identity.own().role);
    if role != Role::Node || issuer.authority.trust().fingerprint() != trust.fingerprint() {
        let reason = format!("it is not of cluster {}, or this end is not a node", trust.cluster());
        return Err(IdentityError::Malformed { what: "the authority", reason });
    }
    Ok(())
}

pub(super) fn enable(shared: &Arc<Shared>, issuer: CertificateIssuer) -> Result<(), IdentityError> {
    let trust = {
        let identity = shared.identity();
        check(&identity, &issuer)?;
        identity.trust().clone()
    };
    let version = shared.environment.version;
    let server =
        transport::server(&shared.limits, &shared.environment.clock, shared.resolver.clone(), &trust, version, true)?;
    *shared.issuer() = Some(issuer);
    shared.quinn.set_server_config(Some(server));
    Ok(())
}

/// Serves one join request of a client. Returns whether a certificate was issued.
pub(super) async fn serve(shared: &Arc<Shared>, quinn: &quinn::Connection) -> bool {
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    let (code, is_granted) = match timeout(time, exchange(shared, quinn)).await {
        Err(_) => (CloseCode::Slow, false),
        Ok(Err(code)) => (code, false),
        Ok(Ok(is_granted)) => (CloseCode::Done, is_granted),
    };
    close(quinn, code, "join finished");
    is_granted
}

/// Returns whether a certificate was issued, or the code to close with.
async fn exchange(shared: &Shared, quinn: &quinn::Connection) -> Result<bool, CloseCode> {
    let disconnected = |_| CloseCode::Done;
    let (send, mut receive) = quinn.accept_bi().await.map_err(disconnected)?;
    let max = ByteLimit { what: "request to join", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    // Never reached: the caller's timeout is shorter.
    let ms = shared.limits.join_time_ms_max * 2;
    let request = read_whole(&mut receive, max, Instant::now() + Duration::from_millis(ms), ms).await;
    let malformed = |_| CloseCode::Malformed;
    let request = request.map_err(|error| match error {
        ChannelError::TooLong { .. } => CloseCode::Malformed,
        _ => CloseCode::Done,
    })?;
    let request = postcard::from_bytes(&request).map_err(malformed)?;
    let answer = decide(shared, quinn, &request);
    let (role, name, address) = (request.role, &request.name, canonical(quinn.remote_address()));
    match &answer {
        Ok(_) => log::info!("{role} `{name}` at {address} got a certificate with a join token"),
        Err(refusal) => log::warn!("refused {role} `{name}` at {address}, which has a join token: {refusal}"),
    }
    send_answer(send, &postcard::to_stdvec(&answer).map_err(malformed)?).await.map_err(|_| CloseCode::Done)?;
    // The client closes the connection once it has read the answer.
    quinn.closed().await;
    Ok(answer.is_ok())
}

fn decide(shared: &Shared, quinn: &quinn::Connection, request: &JoinRequest) -> JoinResponse {
    let issuer = shared.issuer().clone().ok_or(JoinRefusal::NoAuthority)?;
    let now = shared.environment.clock.now();
    let token: JoinToken = request.token.parse().map_err(JoinRefusal::Token)?;
    token.check(issuer.authority.trust(), request.role, &request.name, now)?;
    if shared.peers.is_token_revoked(&token.id()) {
        return Err(crate::identity::TokenError::Revoked { id: token.id() }.into());
    }
    let key = chain(quinn).first().and_then(|certificate: &CertificateDer<'_>| self_signed_key(certificate));
    let applicant = Applicant {
        role: request.role,
        name: &request.name,
        key: key.ok_or_else(|| JoinRefusal::Request("the connection has a certificate already".to_owned()))?,
        token: Some(token.id()),
        address: canonical(quinn.remote_address()),
    };
    issue(shared, &issuer, &applicant, &request.request)
}

/// Issues a certificate if the policy admits the applicant.
pub(super) fn issue(
    shared: &Shared,
    issuer: &CertificateIssuer,
    applicant: &Applicant<'_>,
    request: &[u8],
) -> JoinResponse {
    let now = shared.environment.clock.now();
    let wrong = |error: IdentityError| match error {
        IdentityError::Request(reason) => JoinRefusal::Request(reason),
        other => JoinRefusal::Host(other.to_string()),
    };
    if request_key(request).map_err(wrong)? != applicant.key {
        return Err(JoinRefusal::Request("it is for another key than the connection's".to_owned()));
    }
    let refused = |reason| JoinRefusal::Name { name: applicant.name.clone(), reason };
    issuer.policy.admit(applicant).map_err(refused)?;
    let authority = &issuer.authority;
    let certificate = authority.certify(request, applicant.role, applicant.name, issuer.lifetime, now);
    Ok(IssuedCertificate {
        certificate: certificate.map_err(wrong)?,
        authority: authority.trust().certificate().to_vec(),
        clock: now,
    })
}
