//! Certificates that the authority issues, and those that are rejected.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519, SanType,
};
use sandbar_seeds::{PrintSeedOnPanic, seeds};
use sandbar_wire::*;

use crate::support::*;

#[test]
fn a_certificate_names_its_holder() {
    let cluster = Cluster::new();
    for (role, name) in [(Role::Node, "n1"), (Role::Tenant, "acme")] {
        let at = now();
        let identity = cluster.identity_of(role, name, at, DAY);
        let own = identity.own();
        assert_eq!(own.principal(), principal(role, name));
        assert_eq!((own.role, own.name.as_str()), (role, name));
        assert_eq!(&own.cluster, cluster.authority.trust().cluster());
        assert_eq!(own.key, identity.key().id());
        assert_eq!(own.expires, Timestamp(at.0 + DAY));
        assert_eq!(own.begins, Timestamp(at.0 - CLOCK_SKEW_S_MAX));
        assert_ne!(own.serial, cluster.identity(role, name).own().serial);
    }
}

#[test]
fn the_next_certificate_is_due_after_two_thirds() {
    let cluster = Cluster::new();
    let identity = cluster.identity_of(Role::Node, "n1", now(), 3 * DAY - CLOCK_SKEW_S_MAX);
    assert_eq!(identity.renew_at(), Timestamp(identity.own().begins.0 + 2 * DAY));
}

/// Requests a certificate and expects an error code, or none.
fn check(request: &[u8], lifetime_s: u64, code: Option<&str>) {
    let cluster = Cluster::new();
    let lifetime = Duration::from_secs(lifetime_s);
    let certified = cluster.authority.certify(request, &principal(Role::Node, "n1"), lifetime, now());
    assert_eq!(certified.as_ref().err().map(|error| error.code()), code, "{certified:?}");
}

#[test]
fn requests_are_signed_only_if_they_are_whole() {
    let good = Key::generate().unwrap().request().unwrap();
    check(&good, DAY, None);
    check(&good, 0, Some("lifetime"));
    check(&good, CERTIFICATE_LIFETIME_S_MAX + 1, Some("lifetime"));
    check(&good[..good.len() - 1], DAY, Some("bad-request"));
    check(b"", DAY, Some("bad-request"));
    check(&vec![0x30; 5000], DAY, Some("bad-request"));
    let mut other_key = good.clone();
    // Within the public key, so that the signature does not match.
    let at = other_key.len() / 3;
    other_key[at] ^= 1;
    check(&other_key, DAY, Some("bad-request"));
    let p256 = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let request = CertificateParams::default().serialize_request(&p256).unwrap();
    check(request.der(), DAY, Some("bad-request"));
}

/// The certificate contains nothing of the request but the key.
#[test]
fn a_certificate_takes_only_the_key_of_its_request() {
    let cluster = Cluster::new();
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut wish = CertificateParams::default();
    wish.subject_alt_names = vec![SanType::URI("sandbar://other/node/root".try_into().unwrap())];
    wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let request = wish.serialize_request(&pair).unwrap();
    let certificate =
        cluster.authority.certify(request.der(), &principal(Role::Tenant, "acme"), Duration::from_secs(DAY), now());
    let certificate = certificate.unwrap();
    let text = String::from_utf8_lossy(&certificate).into_owned();
    assert!(text.contains("/tenant/acme") && !text.contains("root"), "{text}");
    assert!(TrustAnchor::new(certificate.into()).is_err(), "it is an authority");
}

/// A change of any byte invalidates the certificate; three bits of each byte are tried.
#[test]
fn changed_certificates_are_refused() {
    let cluster = Cluster::new();
    let key = std::sync::Arc::new(Key::generate().unwrap());
    let request = key.request().unwrap();
    let good =
        cluster.authority.certify(&request, &principal(Role::Node, "n1"), Duration::from_secs(DAY), now()).unwrap();
    let authority = cluster.authority.trust().certificate().to_vec();
    let identity = |certificate: Vec<u8>| Identity::new(key.clone(), certificate, authority.clone(), now());
    identity(good.clone()).unwrap();
    for at in 0..good.len() {
        for bit in [0, 3, 7] {
            let mut changed = good.clone();
            changed[at] ^= 1 << bit;
            assert!(identity(changed).is_err(), "byte {at}, bit {bit}");
        }
    }
    for length in 0..good.len() {
        assert!(identity(good[..length].to_vec()).is_err(), "cut to {length}");
    }
}

/// Randomly damaged certificates give errors, never a panic.
#[test]
fn damaged_authorities_are_refused() {
    use rand_xoshiro::rand_core::{RngCore, SeedableRng};
    let cluster = Cluster::new();
    let good = cluster.authority.trust().certificate().to_vec();
    for seed in seeds(2_000) {
        let _seed = PrintSeedOnPanic(seed);
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut bytes = good.clone();
        for _ in 0..1 + random.next_u32() % 4 {
            let at = random.next_u32() as usize % bytes.len();
            match random.next_u32() % 4 {
                0 => bytes[at] = random.next_u32() as u8,
                1 => bytes.truncate(at + 1),
                2 => bytes.insert(at, random.next_u32() as u8),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        // What still parses as an authority has another fingerprint.
        if let Ok(trust) = TrustAnchor::new(bytes.clone().into())
            && bytes != good
        {
            assert_ne!(trust.fingerprint(), cluster.authority.trust().fingerprint());
        }
    }
}

/// Certificates in another form with the authority's signature, by a thief of the key or a later version.
#[test]
fn certificates_have_one_form() {
    let cluster = Cluster::new();
    let key = std::fs::read(cluster.folder("authority").join("authority.key")).unwrap();
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&key.as_slice().into(), &PKCS_ED25519).unwrap();
    let authority = cluster.authority.trust().certificate();
    let issuer = Issuer::from_ca_cert_der(authority, key).unwrap();
    let own = std::sync::Arc::new(Key::generate().unwrap());
    let uri = |path: &str| SanType::URI(format!("sandbar://{path}").try_into().unwrap());
    let good = format!("{}/node/n1", cluster.authority.trust().cluster());
    let dns = SanType::DnsName("n1".try_into().unwrap());
    let clients = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let both = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    for (names, uses, is_ca, expected_text) in [
        (vec![uri(&good)], &both, IsCa::ExplicitNoCa, ""),
        (vec![], &both, IsCa::ExplicitNoCa, "exactly one name"),
        (vec![uri(&good), uri(&good)], &both, IsCa::ExplicitNoCa, "exactly one name"),
        (vec![uri(&good), dns.clone()], &both, IsCa::ExplicitNoCa, "exactly one name"),
        (vec![dns], &both, IsCa::ExplicitNoCa, "exactly one name"),
        (vec![uri("other/node/n1")], &both, IsCa::ExplicitNoCa, "it is of cluster other"),
        (vec![uri(&good.replace("node", "admin"))], &both, IsCa::ExplicitNoCa, "names no node or tenant"),
        (vec![uri(&good.replace("node", "tenant"))], &both, IsCa::ExplicitNoCa, "names no node or tenant"),
        (
            vec![uri(&format!("{}/owner/{TOKEN}", good.replace("node", "tenant")))],
            &both,
            IsCa::ExplicitNoCa,
            "names no node or tenant",
        ),
        (vec![uri(&good.replace("node/n1", "authority"))], &both, IsCa::ExplicitNoCa, "names no node or tenant"),
        (vec![uri(&good)], &clients, IsCa::ExplicitNoCa, "malformed"),
        (vec![uri(&good)], &both, IsCa::Ca(BasicConstraints::Unconstrained), "malformed"),
    ] {
        let request = rcgen::CertificateSigningRequestParams::from_der(&own.request().unwrap().into()).unwrap();
        let mut params = CertificateParams::default();
        params.serial_number = Some(vec![7; 16].into());
        params.subject_alt_names = names;
        params.extended_key_usages = uses.clone();
        params.is_ca = is_ca;
        let certificate = params.signed_by(&request.public_key, &issuer).unwrap();
        let identity = Identity::new(own.clone(), certificate.der().to_vec(), authority.to_vec(), now());
        let message = identity.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(
            message.contains(expected_text) && message.is_empty() == expected_text.is_empty(),
            "`{expected_text}`: {message}"
        );
    }
}
