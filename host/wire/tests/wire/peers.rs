//! Admission of peers, by both ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandbar_wire::*;

use crate::support::*;

/// Connects and checks the client's result, and whether the server admitted it.
async fn check(from: &Endpoint, to: &Endpoint, expect: ExpectedPeer, expected: Result<(), &str>) -> String {
    let before = to.counts();
    let connected = from.connect(to.address().unwrap(), &expect).await;
    let message = connected.as_ref().map_or_else(ToString::to_string, |connection| connection.peer().to_string());
    assert_eq!(connected.as_ref().map(drop).map_err(|error| error.code()), expected, "{message}");
    // If the client rejects, the server may have admitted it before it disconnected.
    if !message.contains("is rejected") {
        assert_eq!(to.counts().admitted - before.admitted, u64::from(expected.is_ok()), "{message}");
    }
    message
}

#[tokio::test]
async fn nodes_and_tenants_connect_to_nodes() {
    let cluster = Cluster::new();
    let (server, node, tenant) = (cluster.endpoint("n1"), cluster.endpoint("n2"), bind(&cluster.tenant("acme")));
    check(&node, &server, ExpectedPeer::AnyNode, Ok(())).await;
    check(&tenant, &server, ExpectedPeer::Node(n("n1")), Ok(())).await;
    assert_eq!(server.accept(Role::Node).await.unwrap().peer().to_string(), "node `n2`");
    let accepted = server.accept(Role::Tenant).await.unwrap();
    assert_eq!(accepted.peer(), cluster_peer(&accepted));
    assert_eq!((accepted.peer().role, accepted.peer().name.as_str()), (Role::Tenant, "acme"));
}

fn cluster_peer(connection: &Connection) -> &PeerIdentity {
    connection.peer()
}

#[tokio::test]
async fn another_authority_s_peers_are_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let (server, stranger) = (cluster.endpoint("n1"), other.endpoint("n2"));
    // The client checks first.
    let message = check(&stranger, &server, ExpectedPeer::AnyNode, Err("untrusted")).await;
    assert!(message.contains("was not signed by the authority of cluster"), "{message}");
}

#[tokio::test]
async fn an_end_finds_whom_it_expects() {
    let cluster = Cluster::new();
    let (server, client) = (cluster.endpoint("n1"), cluster.endpoint("n2"));
    let message = check(&client, &server, ExpectedPeer::Node(n("n3")), Err("name")).await;
    assert!(message.contains("`n3` was expected, but this is `n1`"), "{message}");
}

/// Expired certificates and wrong clocks, at either end. The client checks first.
#[tokio::test]
async fn certificates_begin_and_end() {
    let cluster = Cluster::new();
    let skew = CLOCK_SKEW_S_MAX as i64;
    let day = DAY as i64;
    let fresh = |name| cluster.node(name);
    let ended = |name| cluster.identity_of(Role::Node, name, ago(2 * DAY), DAY);
    let future = |name| cluster.identity_of(Role::Node, name, now().after(Duration::from_secs(DAY)), DAY);
    for (client, client_clock, server, server_clock, expected, expected_text) in [
        (fresh("c"), 0, fresh("s"), 0, Ok(()), ""),
        (fresh("c"), skew, fresh("s"), -skew, Ok(()), ""),
        (fresh("c"), 0, ended("s"), 0, Err("expired"), "the clock here says"),
        (
            ended("c"),
            0,
            fresh("s"),
            0,
            Err("expired"),
            "the peer closed the connection: the presented certificate expired",
        ),
        (fresh("c"), 0, future("s"), 0, Err("expired"), "the presented certificate is not valid before"),
        (
            future("c"),
            0,
            fresh("s"),
            0,
            Err("expired"),
            "the peer closed the connection: the presented certificate is not valid before",
        ),
        (fresh("c"), 30 * day, fresh("s"), 0, Err("expired"), "the presented certificate expired"),
        (fresh("c"), -30 * day, fresh("s"), 0, Err("expired"), "check both clocks"),
        (
            fresh("c"),
            0,
            fresh("s"),
            30 * day,
            Err("expired"),
            "the peer closed the connection: the presented certificate expired",
        ),
        (
            fresh("c"),
            0,
            fresh("s"),
            -30 * day,
            Err("expired"),
            "the peer closed the connection: the presented certificate is not valid before",
        ),
        (ended("c"), -day, ended("s"), -day, Ok(()), ""),
    ] {
        let client = bind_at(&client, &OffsetClock::by(client_clock));
        let server = bind_at(&server, &OffsetClock::by(server_clock));
        let message = check(&client, &server, ExpectedPeer::AnyNode, expected).await;
        assert!(message.contains(expected_text), "{message}");
    }
}

/// Returns a list that revokes the keys of nodes, and accepts these tokens of tenants.
fn accepted(revoked: &[KeyId], tenants: Option<&[(&str, TokenId)]>) -> AccessList {
    let tenants = match tenants {
        None => AcceptedTenants::Unknown,
        Some(all) => {
            AcceptedTenants::Tokens(all.iter().map(|(name, token)| (n(name), BTreeSet::from([*token]))).collect())
        }
    };
    AccessList { revoked_keys: revoked.iter().copied().collect(), tenants }
}

#[tokio::test]
async fn revoked_peers_are_refused() {
    let cluster = Cluster::new();
    let [node, tenant] = [Role::Node, Role::Tenant].map(|role| cluster.identity(role, "n2"));
    let (key, own) = (node.own().key, cluster.node("n1"));
    let (server, client, ada) = (bind(&own), bind(&node), bind(&tenant));
    let other = TokenId([8; 16]);
    for (list, of_node, of_tenant) in [
        (accepted(&[key], None), Err("revoked"), Err("busy")),
        (accepted(&[tenant.own().key], Some(&[])), Ok(()), Err("revoked")),
        (accepted(&[], Some(&[("n2", TOKEN)])), Ok(()), Ok(())),
        (accepted(&[], Some(&[("n2", other), ("n22", TOKEN)])), Ok(()), Err("revoked")),
        (AccessList::default(), Ok(()), Ok(())),
    ] {
        server.set_accepted(list);
        for (endpoint, expected, name) in [(&client, of_node, "node `n2`"), (&ada, of_tenant, "tenant `n2`")] {
            let message = check(endpoint, &server, ExpectedPeer::AnyNode, expected).await;
            assert!(expected != Err("revoked") || message.contains(name), "{message}");
        }
    }
    // The client checks its own list.
    client.set_accepted(accepted(&[own.own().key], Some(&[])));
    check(&client, &server, ExpectedPeer::AnyNode, Err("revoked")).await;
}

#[tokio::test]
async fn revoking_ends_connections() {
    let cluster = Cluster::new();
    let identity = cluster.node("n2");
    let (server, removed, stays) = (cluster.endpoint("n1"), bind(&identity), cluster.endpoint("n3"));
    let ada = bind(&cluster.tenant("ada"));
    let (by_ada, _of_ada) = connect(&ada, &server).await;
    let (by_removed, of_removed) = connect(&removed, &server).await;
    let (by_stays, _of_stays) = connect(&stays, &server).await;
    let (_to_removed, to_removed) = connect(&server, &removed).await;
    server.set_accepted(accepted(&[identity.own().key], Some(&[("ada", TokenId([8; 16]))])));
    for connection in [&by_removed, &to_removed, &by_ada] {
        let lost = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await.unwrap();
        assert!(matches!(&lost, DisconnectReason::Closed { code: CloseCode::Revoked, .. }), "{lost}");
        assert!(!lost.may_retry());
    }
    assert_eq!(of_removed.closed().await, DisconnectReason::Local);
    assert!(tokio::time::timeout(Duration::from_millis(100), by_stays.closed()).await.is_err());
}

/// A certificate of a living node's name with another key, as a thief of a token might get.
#[tokio::test]
async fn another_key_does_not_push_a_connected_node_out() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("n1");
    let older = cluster.identity_of(Role::Node, "n2", ago(60), DAY);
    let (living, other) = (bind(&older), cluster.endpoint("n2"));
    let (by_living, of_living) = connect(&living, &server).await;
    let message = check(&other, &server, ExpectedPeer::AnyNode, Err("replaced")).await;
    assert!(message.contains("connected with another key"), "{message}");
    assert!(!by_living.is_closed() && !of_living.is_closed());
    // An operator has removed the node: its name is free.
    server.set_accepted(accepted(&[older.own().key], None));
    assert_eq!(of_living.closed().await, DisconnectReason::Local);
    connect(&other, &server).await;
}

/// A certificate that expires during a connection.
#[tokio::test]
async fn connections_end_with_certificates_that_are_not_renewed() {
    let cluster = Cluster::new();
    let clock = OffsetClock::default();
    let (server, client) = (bind_at(&cluster.node("n1"), &clock), cluster.endpoint("n2"));
    let (outgoing, _accepted) = connect(&client, &server).await;
    clock.set_offset(7 * DAY as i64 + 60);
    assert!(tokio::time::timeout(Duration::from_millis(1500), outgoing.closed()).await.is_err(), "within the skew");
    clock.set_offset(8 * DAY as i64);
    let lost = tokio::time::timeout(Duration::from_secs(3), outgoing.closed()).await.unwrap();
    assert!(matches!(&lost, DisconnectReason::Closed { code: CloseCode::Expired, .. }), "{lost}");
}

/// A restarted node is admitted, and its old connection is closed.
#[tokio::test]
async fn a_node_that_connects_again_takes_the_place_of_its_old_connection() {
    let cluster = Cluster::new();
    let identity = cluster.node("n2");
    let server = cluster.endpoint("n1");
    let (first, second) = (bind(&identity), bind(&identity));
    let (old, of_old) = connect(&first, &server).await;
    let (new, of_new) = connect(&second, &server).await;
    let lost = old.closed().await;
    assert!(matches!(&lost, DisconnectReason::Closed { code: CloseCode::Replaced, .. }), "{lost}");
    assert!(!lost.may_retry(), "two processes would push each other out for ever");
    assert_eq!(of_old.closed().await, DisconnectReason::Local);
    assert!(tokio::time::timeout(Duration::from_millis(100), new.closed()).await.is_err());
    assert_eq!(server.connections(), (1, 0));
    drop(of_new);
}

/// Of two processes with one key, the one with the newer certificate stays.
#[tokio::test]
async fn an_older_certificate_does_not_push_a_newer_one_out() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("n1");
    let key = Arc::new(Key::generate().unwrap());
    let older = bind(&cluster.identity_for(key.clone(), Role::Node, "n2", ago(60), DAY));
    let newer = bind(&cluster.identity_for(key, Role::Node, "n2", now(), DAY));
    let (_outgoing, _accepted) = connect(&newer, &server).await;
    let message = check(&older, &server, ExpectedPeer::AnyNode, Err("replaced")).await;
    assert!(message.contains("connected with a newer certificate"), "{message}");
    drop((_outgoing, _accepted));
    until("the newer connection to be closed", || server.connections().0 == 0).await;
    connect(&older, &server).await;
}

#[tokio::test]
async fn there_are_as_many_as_there_may_be() {
    let cluster = Cluster::new();
    let limits = WireLimits { nodes_max: 2, tenants_max: 3, connections_per_tenant_max: 2, ..WireLimits::default() };
    let server = bind_with(&cluster.node("n0"), limits);
    let mut kept = Vec::new();
    for (role, name, expected) in [
        (Role::Node, "n1", Ok(())),
        (Role::Node, "n2", Ok(())),
        (Role::Node, "n3", Err("busy")),
        (Role::Tenant, "a", Ok(())),
        (Role::Tenant, "a", Ok(())),
        (Role::Tenant, "a", Err("busy")),
        (Role::Tenant, "b", Ok(())),
        // The tenant with the most connections loses its newest one.
        (Role::Tenant, "c", Ok(())),
        (Role::Tenant, "a", Err("busy")),
        (Role::Tenant, "d", Err("busy")),
    ] {
        let client = bind(&cluster.identity(role, name));
        let connected = client.connect(server.address().unwrap(), &ExpectedPeer::AnyNode).await;
        assert_eq!(connected.as_ref().map(drop).map_err(|error| error.code()), expected, "{role} {name}");
        if let Err(error) = &connected {
            assert!(error.may_retry(), "{error}");
        }
        if let Ok(connection) = connected {
            kept.push((server.accept(role).await.unwrap(), connection, client));
        }
    }
    let closed: Vec<usize> = (0..kept.len()).filter(|at| kept[*at].0.is_closed()).collect();
    assert_eq!(closed, [3]);
}

/// The accept queue is bounded.
#[tokio::test]
async fn connections_over_the_limit_are_refused_for_now() {
    let cluster = Cluster::new();
    let server = bind_with(&cluster.node("n0"), WireLimits { accept_queue_max: 2, ..WireLimits::default() });
    let clients: Vec<_> = (1..=3).map(|number| cluster.endpoint(&format!("n{number}"))).collect();
    let _first = clients[0].connect(server.address().unwrap(), &ExpectedPeer::AnyNode).await.unwrap();
    let _second = clients[1].connect(server.address().unwrap(), &ExpectedPeer::AnyNode).await.unwrap();
    check(&clients[2], &server, ExpectedPeer::AnyNode, Err("busy")).await;
    server.accept(Role::Node).await.unwrap();
    check(&clients[2], &server, ExpectedPeer::AnyNode, Ok(())).await;
}

#[tokio::test]
async fn connecting_to_a_silent_address_fails() {
    let cluster = Cluster::new();
    let silent = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    let limits = WireLimits { connect_time_ms_max: 300, ..WireLimits::default() };
    let client = bind_with(&cluster.node("n1"), limits);
    let tenant = bind(&cluster.tenant("acme"));
    for (address, code) in [
        (silent.local_addr().unwrap(), "unreachable"),
        (tenant.address().unwrap(), "unreachable"),
        (([127, 0, 0, 1], 0).into(), "address"),
    ] {
        let error = client.connect(address, &ExpectedPeer::AnyNode).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
}
