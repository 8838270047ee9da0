//! Issuing of certificates to applicants that a policy admits.

use std::fmt;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};

use crate::clock::Timestamp;
use crate::identity::{
    Authority, CERTIFICATE_LIFETIME_S, Identity, IdentityError, JoinToken, TrustAnchor, request_key,
};
use crate::name::{KeyId, Principal, Role};
use crate::protocol::{IssuedCertificate, JoinRefusal, JoinResponse};

/// A client that requests a certificate.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// Principal of the certificate: for a join as the token allows, for a renewal as in the connection's certificate.
    pub principal: &'a Principal,
    /// Key of the connection.
    pub key: KeyId,
    /// The join token, whose signature, validity period and grant were checked; `None` for a renewal.
    pub token: Option<&'a JoinToken>,
    /// End of the certificate's validity.
    pub expires: Timestamp,
    /// The client's address.
    pub address: SocketAddr,
}

/// Decides about certificates, in addition to the token. The implementation knows the cluster's state, and so whether a
/// name is taken, and whether a token was used or revoked.
pub trait JoinPolicy: Send + Sync + 'static {
    /// Decides about one applicant. A client that waits for the decision occupies its handshake slot.
    ///
    /// # Errors
    /// The reason, for the applicant.
    fn admit<'a>(&'a self, applicant: &'a Applicant<'a>) -> BoxFuture<'a, Result<(), JoinRefusal>>;
}

impl<F: Fn(&Applicant<'_>) -> Result<(), JoinRefusal> + Send + Sync + 'static> JoinPolicy for F {
    fn admit<'a>(&'a self, applicant: &'a Applicant<'a>) -> BoxFuture<'a, Result<(), JoinRefusal>> {
        ready(self(applicant)).boxed()
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

    /// Checks that a node with this identity may use the issuer.
    pub(super) fn check(&self, identity: &Identity) -> Result<(), IdentityError> {
        let (trust, role) = (identity.trust(), identity.own().role);
        if role != Role::Node || self.authority.trust().fingerprint() != trust.fingerprint() {
            let reason = format!("it is not of cluster {}, or this end is not a node", trust.cluster());
            return Err(IdentityError::Malformed { item: "the authority", reason });
        }
        Ok(())
    }

    /// Returns the authority's certificate.
    pub(super) fn trust(&self) -> &TrustAnchor {
        self.authority.trust()
    }

    /// Returns the end of the validity of a certificate that is issued now.
    pub(super) fn expiry(&self, now: Timestamp) -> Timestamp {
        now.after(self.lifetime).min(self.trust().ends())
    }

    /// Issues a certificate if the policy admits the applicant.
    pub(super) async fn issue(&self, applicant: &Applicant<'_>, request: &[u8], now: Timestamp) -> JoinResponse {
        let wrong = |error: IdentityError| match error {
            IdentityError::Request(reason) => JoinRefusal::Request(reason),
            other => JoinRefusal::Host(other.to_string()),
        };
        if request_key(request).map_err(wrong)? != applicant.key {
            return Err(JoinRefusal::Request("it is for another key than the connection's".to_owned()));
        }
        self.policy.admit(applicant).await?;
        let certificate = self.authority.certify(request, applicant.principal, self.lifetime, now);
        Ok(IssuedCertificate {
            certificate: certificate.map_err(wrong)?,
            authority: self.trust().certificate().to_vec(),
            clock: now,
        })
    }
}

impl fmt::Debug for CertificateIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateIssuer({:?}, {:?})", self.authority, self.lifetime)
    }
}
