//! The authority of a cluster: the key that signs every certificate and join token.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SerialNumber,
    SigningKey, date_time_ymd,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateSigningRequestDer;

use super::folder::SecretFolder;
use super::key::{crypto, key_id};
use super::token::{Grant, JoinToken, TokenBody};
use super::token_text;
use super::trust::AUTHORITY;
use super::{IdentityError, Key, Trust};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::name::{ClusterId, KeyId, Name, Role, SCHEME, Serial, Subject, TokenId};

const KEY: &str = "authority.key";
const CERTIFICATE: &str = "authority.crt";

/// How long a certificate lasts if nobody says otherwise, in seconds: a week, renewed after two thirds of it.
pub const CERTIFICATE_LIFETIME_S: u64 = 7 * 86_400;
/// The longest that a certificate lasts, in seconds: a year.
pub const CERTIFICATE_LIFETIME_S_MAX: u64 = 365 * 86_400;
/// How long an authority lasts, in seconds: ten years.
const AUTHORITY_LIFETIME_S: u64 = 10 * 365 * 86_400;
/// The longest request that is looked at, in bytes: one of Ed25519 has about 200.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// The key of a cluster's authority. Who has it can be any node or tenant.
pub struct Authority {
    key: Key,
    trust: Trust,
}

impl Authority {
    /// Makes the authority of a new cluster, and keeps it in a folder.
    ///
    /// # Errors
    /// When there is one already, the folder can't be written, or others can read it.
    pub fn create(folder: &Path, now: Timestamp) -> Result<Authority, IdentityError> {
        let folder = SecretFolder::create(folder)?;
        let _lock = folder.lock()?;
        // The certificate is written last: a key alone was never trusted by anybody.
        if folder.read(CERTIFICATE)?.is_some() {
            return Err(IdentityError::Exists { path: folder.path().to_owned() });
        }
        let key = Key::generate()?;
        let cluster = format!("c{}", token_text::base32(&draw::<8>()?));
        let cluster = ClusterId(cluster.parse().map_err(crypto)?);
        let trust = Trust::new(own_certificate(&key, &cluster, now)?.into())?;
        folder.write(KEY, key.der())?;
        folder.write(CERTIFICATE, trust.certificate())?;
        Ok(Authority { key, trust })
    }

    /// The authority that is kept in a folder.
    ///
    /// # Errors
    /// When there is none, it has ended, its parts do not fit each other, or others can read it.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Authority, IdentityError> {
        let folder = SecretFolder::open(folder)?;
        let missing = |what| IdentityError::Missing { path: folder.path().to_owned(), what };
        let key = Key::from_der(&folder.read(KEY)?.ok_or_else(|| missing(KEY))?)?;
        let certificate = folder.read(CERTIFICATE)?.ok_or_else(|| missing(CERTIFICATE))?;
        let trust = Trust::new(certificate.into())?;
        let proof = key.pair().sign(PROOF).map_err(crypto)?;
        if !trust.signed_message(PROOF, &proof) {
            let reason = "its key is another one".to_owned();
            return Err(IdentityError::Malformed { what: "the authority's certificate", reason });
        }
        if trust.ends() < now {
            return Err(IdentityError::AuthorityEnded { ended: trust.ends(), now });
        }
        Ok(Authority { key, trust })
    }

    /// What others know of it.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// A certificate (DER) for the key of a signing request (PKCS #10, DER). Nothing else of the request counts. It begins
    /// [`CLOCK_SKEW_S_MAX`] before now, and ends no later than the authority's own.
    ///
    /// # Errors
    /// When the request was not signed with its key, or the lifetime is none.
    pub fn certify(
        &self,
        request: &[u8],
        role: Role,
        name: &Name,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Vec<u8>, IdentityError> {
        let asked_s = lifetime.as_secs();
        if !(1..=CERTIFICATE_LIFETIME_S_MAX).contains(&asked_s) {
            return Err(IdentityError::Lifetime { asked_s, most_s: CERTIFICATE_LIFETIME_S_MAX });
        }
        if self.trust.ends() <= now {
            return Err(IdentityError::AuthorityEnded { ended: self.trust.ends(), now });
        }
        let request = parse_request(request)?;
        let subject = Subject { cluster: self.trust.cluster().clone(), role, name: name.clone() };
        let mut params = CertificateParams::default();
        lasts(&mut params, now, now.after(lifetime).min(self.trust.ends()));
        params.serial_number = Some(SerialNumber::from_slice(&draw_serial()?.0));
        params.distinguished_name = common_name(name.as_str());
        params.subject_alt_names = vec![SanType::URI(subject.uri().try_into().map_err(crypto)?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match role {
            Role::Node => vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth],
            // Nobody is ever connected to a tenant.
            Role::Tenant => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(self.trust.certificate(), self.key.pair()).map_err(crypto)?;
        let certificate = params.signed_by(&request.public_key, &issuer).map_err(crypto)?;
        Ok(certificate.der().to_vec())
    }

    /// A token with which one may join, until it ends. It is a secret.
    ///
    /// # Errors
    /// When the lifetime is none, or the system has no randomness.
    pub fn token(&self, grant: Grant, lifetime: Duration, now: Timestamp) -> Result<JoinToken, IdentityError> {
        let (asked_s, most_s) = (lifetime.as_secs(), super::TOKEN_LIFETIME_S_MAX);
        if !(1..=most_s).contains(&asked_s) {
            return Err(IdentityError::Lifetime { asked_s, most_s });
        }
        let body = TokenBody {
            id: TokenId(draw()?),
            cluster: self.trust.cluster().clone(),
            grant,
            issued: now,
            expires: now.after(lifetime),
            authority: self.trust.fingerprint(),
        };
        JoinToken::sign(body, |message| self.key.pair().sign(message).map_err(crypto))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.trust.cluster())
    }
}

/// Signed to see whether a key is a certificate's. No certificate and no token begins like this.
const PROOF: &[u8] = b"sandbar: is this the authority's key?";

/// Which key a signing request is for.
///
/// # Errors
/// When it was not signed with that key.
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
        false => Err(IdentityError::Request("its key is not of Ed25519".to_owned())),
    }
}

fn own_certificate(key: &Key, cluster: &ClusterId, now: Timestamp) -> Result<Vec<u8>, IdentityError> {
    let mut params = CertificateParams::default();
    lasts(&mut params, now, now.after(Duration::from_secs(AUTHORITY_LIFETIME_S)));
    params.serial_number = Some(SerialNumber::from_slice(&draw_serial()?.0));
    params.distinguished_name = common_name(cluster.0.as_str());
    let uri = format!("{SCHEME}{cluster}{AUTHORITY}");
    params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(crypto)?)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(key.pair()).map_err(crypto)?;
    Ok(certificate.der().to_vec())
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn draw<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| IdentityError::Crypto("there is no randomness".to_owned()))?;
    Ok(bytes)
}

pub(super) fn draw_serial() -> Result<Serial, IdentityError> {
    let mut bytes = draw::<16>()?;
    // Positive, and of full length, in DER.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(Serial(bytes))
}

/// From [`CLOCK_SKEW_S_MAX`] before now on: who gets it may have a clock that is behind.
fn lasts(params: &mut CertificateParams, now: Timestamp, ends: Timestamp) {
    let date = |time: Timestamp| date_time_ymd(1970, 1, 1) + Duration::from_secs(time.0.min(LAST_S));
    params.not_before = date(now.before(Duration::from_secs(CLOCK_SKEW_S_MAX)));
    params.not_after = date(ends);
}

/// The end of the year 9999, in seconds since 1970.
const LAST_S: u64 = 253_402_300_799;
