//! Clients without a certificate of the authority, or with one for another role.

use rcgen::{CertificateParams, Issuer, KeyPair, PKCS_ED25519, SanType};
use sandbar_wire::*;

use crate::raw::{Raw, alpn};
use crate::support::*;

/// Connects to a node that issues certificates and to one that does not, and expects how each refuses.
async fn check(raw: &Raw, alone: Result<CloseCode, u8>, with_joins: Result<CloseCode, u8>) {
    let cluster = Cluster::new();
    for (joins, expected) in [(false, alone), (true, with_joins)] {
        let server = cluster.endpoint("s");
        if joins {
            server.serve_joins(cluster.issuer()).unwrap();
        }
        let closing = raw.closed(server.address().unwrap(), &alpn()).await;
        let closing = closing.map(|(code, _)| code).map_err(|lost| match lost {
            DisconnectReason::Alert { alert } => alert,
            other => panic!("{other}"),
        });
        assert_eq!(closing, expected, "takes strangers in: {joins}");
        assert_eq!(server.counts().admitted, 0);
    }
}

const UNKNOWN_CA: u8 = 48;
const BAD_CERTIFICATE: u8 = 42;
const CERTIFICATE_REQUIRED: u8 = 116;

#[tokio::test]
async fn self_signed_certificates_are_none() {
    let as_node = Raw::self_signed(&["sandbar://c/node/n1"]);
    check(&as_node, Err(UNKNOWN_CA), Err(UNKNOWN_CA)).await;
    let nameless = Raw::self_signed(&[]);
    check(&nameless, Err(UNKNOWN_CA), Err(UNKNOWN_CA)).await;
    // A client that joins uses another protocol.
    let stranger = Raw::self_signed(&["sandbar-join:"]);
    check(&stranger, Err(UNKNOWN_CA), Ok(CloseCode::Untrusted)).await;
    let both = Raw::self_signed(&["sandbar-join:", "sandbar://c/node/n1"]);
    check(&both, Err(UNKNOWN_CA), Err(UNKNOWN_CA)).await;
}

#[tokio::test]
async fn some_certificate_has_to_be_shown() {
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let none = Raw::with(pair, Vec::new());
    check(&none, Err(CERTIFICATE_REQUIRED), Err(CERTIFICATE_REQUIRED)).await;
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let garbage = Raw::with(pair, vec![vec![0x30; 100].into()]);
    check(&garbage, Err(BAD_CERTIFICATE), Err(BAD_CERTIFICATE)).await;
}

/// A node signs a certificate with its own key, as if it were an authority.
#[tokio::test]
async fn nodes_are_no_authorities() {
    let cluster = Cluster::new();
    let member = Raw::member(&cluster, Role::Node, "n1");
    let lifetime = std::time::Duration::from_secs(DAY);
    let request = CertificateParams::default().serialize_request(&member.pair).unwrap();
    let own = cluster.authority.certify(request.der(), &principal(Role::Node, "n1"), lifetime, now()).unwrap();
    let issuer = Issuer::from_ca_cert_der(&own.clone().into(), &member.pair).unwrap();
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut params = CertificateParams::default();
    let uri = format!("sandbar://{}/node/n2", cluster.authority.trust().cluster());
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    let signed = params.signed_by(&pair, &issuer).unwrap();
    let forger = Raw::with(pair, vec![signed.into(), own.into()]);
    let server = cluster.endpoint("s");
    let lost = forger.closed(server.address().unwrap(), &alpn()).await.unwrap_err();
    assert_eq!(lost, DisconnectReason::Alert { alert: UNKNOWN_CA });
}

/// A tenant's certificate is not accepted as a node's, neither as a server nor as a client, and vice versa.
#[tokio::test]
async fn a_tenant_can_t_be_a_node() {
    let cluster = Cluster::new();
    let tenant = Raw::member(&cluster, Role::Tenant, "acme");
    let impostor = quinn::Endpoint::server(tenant.server(&alpn()), LOOPBACK).unwrap();
    let accepting = impostor.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            tokio::spawn(async { incoming.await.unwrap().closed().await });
        }
    });
    let client = cluster.endpoint("n1");
    let error = client.connect(impostor.local_addr().unwrap(), &ExpectedPeer::AnyNode).await.unwrap_err();
    assert_eq!(error.code(), "untrusted", "{error}");
    // The tenant appears only in the tenants' queue.
    let server = cluster.endpoint("s");
    let quinn = tenant.connect_in(&server).await;
    let accepted = server.accept(Role::Tenant).await.unwrap();
    assert_eq!(accepted.peer().role, Role::Tenant);
    let result = tokio::time::timeout(std::time::Duration::from_millis(50), server.accept(Role::Node)).await;
    assert!(result.is_err());
    drop(quinn);
    // Conversely, a node is not a tenant.
    let node = Raw::member(&cluster, Role::Node, "acme");
    let _quinn = node.connect_in(&server).await;
    assert_eq!(server.accept(Role::Node).await.unwrap().peer().role, Role::Node);
    let result = tokio::time::timeout(std::time::Duration::from_millis(50), server.accept(Role::Tenant)).await;
    assert!(result.is_err());
}
