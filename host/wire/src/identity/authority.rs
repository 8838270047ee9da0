//! The authority of a cluster: the key that signs every certificate and join token.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SerialNumber,
    SigningKey, date_time_ymd,
};
use rustls::pki_types::CertificateSigningRequestDer;

use super::crypto::{crypto_error, random_bytes, random_serial};
use super::folder::SecretFolder;
use super::key::key_id;
use super::token::{JoinGrant, JoinToken, TokenBody};
use super::token_text;
use super::trust::AUTHORITY;
use super::{IdentityError, Key, TrustAnchor};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, KeyId, Principal, SCHEME, Subject, TokenId};

const KEY: &str = "authority.key";
const CERTIFICATE: &str = "authority.crt";

/// Default lifetime of a certificate, in seconds: a week. Nodes renew after two thirds of it.
pub const CERTIFICATE_LIFETIME_S: u64 = 7 * 86_400;
/// Maximum lifetime of a certificate, in seconds: a year.
pub const CERTIFICATE_LIFETIME_S_MAX: u64 = 365 * 86_400;
/// Lifetime of an authority's certificate, in seconds: ten years.
const AUTHORITY_LIFETIME_S: u64 = 10 * 365 * 86_400;
/// Maximum bytes of a signing request. An Ed25519 request has about 200.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// The authority of a cluster with its private key. The key can impersonate any node or tenant.
pub struct Authority {
    key: Key,
    trust: TrustAnchor,
}

impl Authority {
    /// Creates the authority of a new cluster and stores it in a folder.
    ///
    /// # Errors
    /// The folder has an authority already, can't be written, or is readable by others.
    pub fn create(folder: &Path, now: Timestamp) -> Result<Authority, IdentityError> {
        let folder = SecretFolder::create(folder)?;
        let _lock = folder.lock()?;
        // The certificate is written last: no node ever trusted a key without one.
        if folder.read(CERTIFICATE)?.is_some() {
            return Err(IdentityError::Exists { path: folder.path().to_owned() });
        }
        let key = Key::generate()?;
        let cluster = format!("c{}", token_text::base32(&random_bytes::<8>()?));
        let cluster = ClusterId(cluster.parse().map_err(crypto_error)?);
        let trust = TrustAnchor::new(own_certificate(&key, &cluster, now)?.into())?;
        folder.write(KEY, key.der())?;
        folder.write(CERTIFICATE, trust.certificate())?;
        Ok(Authority { key, trust })
    }

    /// Opens the authority in a folder.
    ///
    /// # Errors
    /// The folder has none or is readable by others, the authority's certificate is expired, or its key does not match.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Authority, IdentityError> {
        let folder = SecretFolder::open(folder)?;
        let missing = |item| IdentityError::Missing { path: folder.path().to_owned(), item };
        let key = Key::from_der(&folder.read(KEY)?.ok_or_else(|| missing(KEY))?)?;
        let certificate = folder.read(CERTIFICATE)?.ok_or_else(|| missing(CERTIFICATE))?;
        let trust = TrustAnchor::new(certificate.into())?;
        let proof = key.pair().sign(PROOF).map_err(crypto_error)?;
        if !trust.signed_message(PROOF, &proof) {
            let reason = "its key does not match".to_owned();
            return Err(IdentityError::Malformed { item: "the authority's certificate", reason });
        }
        if trust.ends() < now {
            return Err(IdentityError::AuthorityEnded { ended: trust.ends(), now });
        }
        Ok(Authority { key, trust })
    }

    /// Returns the public part: the authority's certificate.
    pub fn trust(&self) -> &TrustAnchor {
        &self.trust
    }

    /// Issues a certificate (DER) for the key of a signing request (PKCS #10, DER), and ignores everything else in the
    /// request. The validity begins [`CLOCK_SKEW_S_MAX`] before `now` and ends no later than the authority's own.
    ///
    /// # Errors
    /// The request was not signed with its key, or the lifetime is out of range.
    pub fn certify(
        &self,
        request: &[u8],
        principal: &Principal,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Vec<u8>, IdentityError> {
        let requested_s = lifetime.as_secs();
        if !(1..=CERTIFICATE_LIFETIME_S_MAX).contains(&requested_s) {
            return Err(IdentityError::Lifetime { requested_s, max_s: CERTIFICATE_LIFETIME_S_MAX });
        }
        if self.trust.ends() <= now {
            return Err(IdentityError::AuthorityEnded { ended: self.trust.ends(), now });
        }
        let request = parse_request(request)?;
        let subject = Subject { cluster: self.trust.cluster().clone(), principal: principal.clone() };
        let mut params = CertificateParams::default();
        set_validity(&mut params, now, now.after(lifetime).min(self.trust.ends()));
        params.serial_number = Some(SerialNumber::from_slice(&random_serial()?.0));
        params.distinguished_name = common_name(principal.name().as_str());
        params.subject_alt_names = vec![SanType::URI(subject.uri().try_into().map_err(crypto_error)?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match principal {
            Principal::Node(_) => vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth],
            // Tenants never accept connections.
            Principal::Tenant(..) => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(self.trust.certificate(), self.key.pair()).map_err(crypto_error)?;
        let certificate = params.signed_by(&request.public_key, &issuer).map_err(crypto_error)?;
        Ok(certificate.der().to_vec())
    }

    /// Issues a join token. Its text is a secret. A token for one use is valid for the first key that is certified
    /// with it: [`JoinPolicy`](crate::JoinPolicy) counts.
    ///
    /// # Errors
    /// The lifetime is out of range, or the system has no randomness.
    pub fn token(
        &self,
        grant: JoinGrant,
        use_once: bool,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<JoinToken, IdentityError> {
        let (requested_s, max_s) = (lifetime.as_secs(), super::TOKEN_LIFETIME_S_MAX);
        if !(1..=max_s).contains(&requested_s) {
            return Err(IdentityError::Lifetime { requested_s, max_s });
        }
        let body = TokenBody {
            id: TokenId(random_bytes()?),
            cluster: self.trust.cluster().clone(),
            grant,
            use_once,
            issued: now,
            expires: now.after(lifetime),
            authority: self.trust.fingerprint(),
        };
        JoinToken::sign(body, |message| self.key.pair().sign(message).map_err(crypto_error))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.trust.cluster())
    }
}

/// Message signed to test whether a key belongs to a certificate. No certificate and no token begins like this.
const PROOF: &[u8] = b"sandbar: is this the authority's key?";

/// Returns the key of a signing request.
///
/// # Errors
/// The request was not signed with that key.
pub(crate) fn request_key(request: &[u8]) -> Result<KeyId, IdentityError> {
    Ok(key_id(&parse_request(request)?.public_key.subject_public_key_info()))
}

fn parse_request(request: &[u8]) -> Result<CertificateSigningRequestParams, IdentityError> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(IdentityError::Request(format!("it has {} bytes, at most {REQUEST_BYTES_MAX}", request.len())));
    }
    let parsed = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request));
    let parsed = parsed.map_err(|e| IdentityError::Request(e.to_string()))?;
    match parsed.public_key.algorithm() == &PKCS_ED25519 {
        true => Ok(parsed),
        false => Err(IdentityError::Request("its key is not an Ed25519 key".to_owned())),
    }
}

fn own_certificate(key: &Key, cluster: &ClusterId, now: Timestamp) -> Result<Vec<u8>, IdentityError> {
    let mut params = CertificateParams::default();
    set_validity(&mut params, now, now.after(Duration::from_secs(AUTHORITY_LIFETIME_S)));
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?.0));
    params.distinguished_name = common_name(cluster.0.as_str());
    let uri = format!("{SCHEME}{cluster}{AUTHORITY}");
    params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(crypto_error)?)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(key.pair()).map_err(crypto_error)?;
    Ok(certificate.der().to_vec())
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Sets the validity, from [`CLOCK_SKEW_S_MAX`] before `now`: the recipient's clock may be behind.
fn set_validity(params: &mut CertificateParams, now: Timestamp, ends: Timestamp) {
    let date = |time: Timestamp| date_time_ymd(1970, 1, 1) + Duration::from_secs(time.0.min(LAST_S));
    params.not_before = date(now.before(Duration::from_secs(CLOCK_SKEW_S_MAX)));
    params.not_after = date(ends);
}

/// End of the year 9999, in seconds since 1970.
const LAST_S: u64 = 253_402_300_799;
