//! Issuing of certificates to applicants that a policy admits.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::identity::{Authority, CERTIFICATE_LIFETIME_S, Identity, IdentityError, TrustAnchor, request_key};
use crate::name::{KeyId, Name, Role, TokenId};
use crate::protocol::{IssuedCertificate, JoinRefusal, JoinResponse};

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

    /// Issues a certificate if the policy admits the applicant.
    pub(super) fn issue(&self, applicant: &Applicant<'_>, request: &[u8], now: Timestamp) -> JoinResponse {
        let wrong = |error: IdentityError| match error {
            IdentityError::Request(reason) => JoinRefusal::Request(reason),
            other => JoinRefusal::Host(other.to_string()),
        };
        if request_key(request).map_err(wrong)? != applicant.key {
            return Err(JoinRefusal::Request("it is for another key than the connection's".to_owned()));
        }
        let refused = |reason| JoinRefusal::Name { name: applicant.name.clone(), reason };
        self.policy.admit(applicant).map_err(refused)?;
        let certificate = self.authority.certify(request, applicant.role, applicant.name, self.lifetime, now);
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
