//! Joins with tokens.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbar_wire::*;

use crate::raw::{Raw, closed};
use crate::support::*;

fn token(cluster: &Cluster, grant: JoinGrant) -> JoinToken {
    cluster.authority.token(grant, false, Duration::from_secs(TOKEN_LIFETIME_S), now()).unwrap()
}

/// A node that issues certificates.
fn gateway(cluster: &Cluster) -> Endpoint {
    let server = cluster.endpoint("gateway");
    server.serve_joins(cluster.issuer()).unwrap();
    server
}

async fn join_at(
    server: &Endpoint,
    token: &JoinToken,
    role: Role,
    name: &str,
    clock: i64,
) -> Result<Identity, JoinError> {
    let environment =
        EndpointEnvironment { clock: Arc::new(OffsetClock::by(clock)), ..EndpointEnvironment::udp(LOOPBACK).unwrap() };
    let key = Arc::new(Key::generate().unwrap());
    join(environment, server.address().unwrap(), token, key, role, &n(name), &WireLimits::default()).await
}

async fn join_now(server: &Endpoint, token: &JoinToken, role: Role, name: &str) -> Result<Identity, JoinError> {
    join_at(server, token, role, name, 0).await
}

#[tokio::test]
async fn a_token_gets_a_certificate() {
    let cluster = Cluster::new();
    let server = gateway(&cluster);
    let node = join_now(&server, &token(&cluster, JoinGrant::Node), Role::Node, "n1").await.unwrap();
    assert_eq!((node.own().role, node.own().name.as_str()), (Role::Node, "n1"));
    assert!(node.own().expires.abs_diff(now()).as_secs().abs_diff(CERTIFICATE_LIFETIME_S) < 10);
    let tenant =
        join_now(&server, &token(&cluster, JoinGrant::Tenant(n("acme"), TenantRole::Submitter)), Role::Tenant, "acme")
            .await
            .unwrap();
    for identity in [node, tenant] {
        connect(&bind(&identity), &server).await;
    }
    assert_eq!((server.counts().joined, server.counts().admitted), (2, 2));
}

/// The packets of clients arrive before the node is bound, as when all nodes of a cluster start at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_join_during_a_start_are_admitted() {
    let (cluster, limits) = (Cluster::new(), WireLimits::default());
    let gateway = cluster.node("gateway");
    for _ in 0..10 {
        let environment = EndpointEnvironment::udp(LOOPBACK).unwrap();
        let (address, token) = (environment.socket.local_addr().unwrap(), token(&cluster, JoinGrant::Node));
        let joins = tokio::spawn(async move {
            let (environment, key) = (EndpointEnvironment::udp(LOOPBACK).unwrap(), Arc::new(Key::generate().unwrap()));
            join(environment, address, &token, key, Role::Node, &n("n1"), &limits).await
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        let _server = Endpoint::bind_with_joins(environment, &gateway, limits, cluster.issuer()).unwrap();
        assert_eq!(joins.await.unwrap().unwrap().own().name.as_str(), "n1");
    }
    // A node with another cluster's authority is rejected.
    let environment = EndpointEnvironment::udp(LOOPBACK).unwrap();
    assert!(Endpoint::bind_with_joins(environment, &gateway, limits, Cluster::new().issuer()).is_err());
}

#[tokio::test]
async fn tokens_that_are_no_good_are_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let server = gateway(&cluster);
    let tenant = token(&cluster, JoinGrant::Tenant(n("acme"), TenantRole::Submitter));
    let minute = Duration::from_secs(60);
    let late = cluster.authority.token(JoinGrant::Node, false, minute, ago(DAY)).unwrap();
    for (token, role, name, code) in [
        (&tenant, Role::Tenant, "other", "token-other-role"),
        (&tenant, Role::Node, "acme", "token-other-role"),
        (&late, Role::Node, "n1", "token-expired"),
        (&token(&other, JoinGrant::Node), Role::Node, "n1", "untrusted"),
    ] {
        let error = join_now(&server, token, role, name).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!(server.counts().joined, 0);
}

/// A client with a wrong clock: the errors show both clocks.
#[tokio::test]
async fn joining_with_a_clock_that_is_off() {
    let cluster = Cluster::new();
    let server = gateway(&cluster);
    let good = token(&cluster, JoinGrant::Node);
    let skew = CLOCK_SKEW_S_MAX as i64;
    let hour = 3600;
    for (clock, expected, expected_text) in [
        (0, Ok(()), ""),
        (skew - 5, Ok(()), ""),
        (5 - skew, Ok(()), ""),
        // Behind the token's time of issue.
        (-2 * hour, Err("token-not-yet"), "set the clock"),
        // Ahead of the token's expiry.
        (2 * hour, Err("token-expired"), "or set the clock"),
        // Ahead, within the token's validity: the answer shows the node's clock.
        (hour / 2, Err("clock"), "the clock here says"),
    ] {
        let joined = join_at(&server, &good, Role::Node, "n1", clock).await;
        let message = joined.as_ref().map_or_else(ToString::to_string, |identity| identity.own().to_string());
        assert_eq!(joined.map(drop).map_err(|error| error.code()), expected, "{message}");
        assert!(message.contains(expected_text), "{message}");
        if expected.is_err() {
            assert_eq!(message.matches('Z').count(), 2, "two clocks: {message}");
        }
    }
    // The server's clock is behind: by it, neither its certificate nor the token is valid yet.
    let behind = bind_at(&cluster.node("behind"), &OffsetClock::by(-2 * hour));
    behind.serve_joins(cluster.issuer()).unwrap();
    let error = join_now(&behind, &good, Role::Node, "n1").await.unwrap_err();
    assert_eq!(error.code(), "token-not-yet", "{error}");
    assert_eq!(error.to_string().matches('Z').count(), 3, "when it was outgoing, and two clocks: {error}");
}

#[tokio::test]
async fn the_policy_rejects_taken_names() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("gateway");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let admit = {
        let seen = seen.clone();
        move |applicant: &Applicant<'_>| {
            let (name, id) = (applicant.principal.name().clone(), applicant.token.map(JoinToken::id));
            seen.lock().unwrap().push((name.clone(), id));
            match name.as_str() {
                "taken" => Err(JoinRefusal::Name { name, reason: "node `taken` is alive".to_owned() }),
                "revoked" => Err(TokenError::Revoked { id: TOKEN }.into()),
                "later" => Err(JoinRefusal::Unavailable("no leader".to_owned())),
                _ => Ok(()),
            }
        }
    };
    server.serve_joins(CertificateIssuer::new(cluster.authority.clone(), admit)).unwrap();
    let token = token(&cluster, JoinGrant::Node);
    let error = join_now(&server, &token, Role::Node, "taken").await.unwrap_err();
    assert_eq!(error.code(), "name-taken");
    assert!(error.to_string().contains("the name `taken` is not available: node `taken` is alive"), "{error}");
    for (name, code, may_retry) in [("revoked", "token-revoked", false), ("later", "unavailable", true)] {
        let error = join_now(&server, &token, Role::Node, name).await.unwrap_err();
        assert_eq!((error.code(), error.may_retry()), (code, may_retry), "{error}");
    }
    join_now(&server, &token, Role::Node, "free").await.unwrap();
    let names = ["taken", "revoked", "later", "free"].map(|name| (name, Some(token.id())));
    assert_eq!(*seen.lock().unwrap(), names.map(|(name, id)| (n(name), id)));
}

#[tokio::test]
async fn a_node_without_the_authority_s_key_admits_no_node() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let server = cluster.endpoint("n1");
    let error = join_now(&server, &token(&cluster, JoinGrant::Node), Role::Node, "n2").await.unwrap_err();
    assert_eq!(error.code(), "no-authority", "{error}");
    assert!(server.serve_joins(other.issuer()).is_err());
    assert!(bind(&cluster.tenant("acme")).serve_joins(cluster.issuer()).is_err());
}

/// The client sends the token only to the token's cluster. This server has another authority's certificate.
#[tokio::test]
async fn the_cluster_has_to_show_itself_first() {
    let (cluster, impostor) = (Cluster::new(), Cluster::new());
    let server = gateway(&impostor);
    let error = join_now(&server, &token(&cluster, JoinGrant::Node), Role::Node, "n1").await.unwrap_err();
    assert_eq!(error.code(), "untrusted", "{error}");
    until("it to fail", || server.counts().failed == 1).await;
    assert_eq!(server.counts().joined, 0);
}

/// A client may send one short request, within the timeout.
#[tokio::test]
async fn a_stranger_may_send_one_request() {
    let cluster = Cluster::new();
    let limits = WireLimits { join_time_ms_max: 300, ..WireLimits::default() };
    let server = bind_with(&cluster.node("gateway"), limits);
    server.serve_joins(cluster.issuer()).unwrap();
    let stranger = Raw::self_signed(&["sandbar-join:"]);
    let connect = || stranger.connect(server.address().unwrap(), JOIN_ALPN);

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    send.write_all(b"what is this").await.unwrap();
    send.finish().unwrap();
    assert!(matches!(closed(&quinn).await, DisconnectReason::Closed { code: CloseCode::Malformed, .. }));

    let quinn = connect().await.unwrap();
    assert!(matches!(closed(&quinn).await, DisconnectReason::Closed { code: CloseCode::Slow, .. }), "says nothing");

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    send.write_all(&[0; 100]).await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(100), quinn.open_bi()).await;
    assert!(second.is_err(), "a second stream");
    assert!(matches!(closed(&quinn).await, DisconnectReason::Closed { code: CloseCode::Slow, .. }), "half a request");

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    let flood = send.write_all(&vec![0; 1 << 20]).await;
    assert!(flood.is_err(), "a megabyte");
    assert!(matches!(closed(&quinn).await, DisconnectReason::Closed { code: CloseCode::Malformed, .. }));

    // A peer with a certificate can't join.
    let member = Raw::member(&cluster, Role::Node, "n1");
    let quinn = member.connect(server.address().unwrap(), JOIN_ALPN).await.unwrap();
    assert!(matches!(closed(&quinn).await, DisconnectReason::Closed { code: CloseCode::Slow, .. }));
    assert_eq!(server.counts().joined, 0);
}

/// A client with a token requests a certificate for another key than the connection's.
#[tokio::test]
async fn a_certificate_is_for_the_key_of_the_connection() {
    #[derive(serde::Serialize)]
    struct JoinRequest {
        token: String,
        role: Role,
        name: Name,
        request: Vec<u8>,
    }
    let cluster = Cluster::new();
    let server = gateway(&cluster);
    let stranger = Raw::self_signed(&["sandbar-join:"]);
    let quinn = stranger.connect(server.address().unwrap(), JOIN_ALPN).await.unwrap();
    let (mut send, mut receive) = quinn.open_bi().await.unwrap();
    let request = Key::generate().unwrap().request().unwrap();
    let token = token(&cluster, JoinGrant::Node).to_text();
    let request = JoinRequest { token, role: Role::Node, name: n("n1"), request };
    send.write_all(&postcard::to_stdvec(&request).unwrap()).await.unwrap();
    send.finish().unwrap();
    let response = receive.read_to_end(8 << 10).await.unwrap();
    let response: Result<(Vec<u8>, Vec<u8>, Timestamp), JoinRefusal> = postcard::from_bytes(&response).unwrap();
    let refusal = JoinRefusal::Request("it is for another key than the connection's".to_owned());
    assert_eq!(response.unwrap_err(), refusal);
}
