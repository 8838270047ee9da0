//! Who is let in, and who is not; by both ends.

use std::collections::BTreeSet;
use std::time::Duration;

use sandbar_wire::*;

use crate::support::*;

/// Connects, and says how it went: what the client got, and whether the server let it in.
async fn check(from: &Endpoint, to: &Endpoint, expect: Expect, wanted: Result<(), &str>) -> String {
    let before = to.counts();
    let connected = from.connect(to.address().unwrap(), &expect).await;
    let said = connected.as_ref().map_or_else(ToString::to_string, |connection| connection.peer().to_string());
    assert_eq!(connected.as_ref().map(drop).map_err(|error| error.code()), wanted, "{said}");
    // Where the client refuses, the server may have let it in before it went away.
    if !said.contains("is not let in") {
        assert_eq!(to.counts().let_in - before.let_in, u64::from(wanted.is_ok()), "{said}");
    }
    said
}

#[tokio::test]
async fn nodes_and_tenants_connect_to_nodes() {
    let cluster = Cluster::new();
    let (server, node, tenant) = (cluster.endpoint("n1"), cluster.endpoint("n2"), bind(&cluster.tenant("acme")));
    check(&node, &server, Expect::AnyNode, Ok(())).await;
    check(&tenant, &server, Expect::Node(n("n1")), Ok(())).await;
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
    // The client looks first.
    let said = check(&stranger, &server, Expect::AnyNode, Err("untrusted")).await;
    assert!(said.contains("was not signed by the authority of cluster"), "{said}");
}

#[tokio::test]
async fn an_end_finds_whom_it_expects() {
    let cluster = Cluster::new();
    let (server, client) = (cluster.endpoint("n1"), cluster.endpoint("n2"));
    let said = check(&client, &server, Expect::Node(n("n3")), Err("name")).await;
    assert!(said.contains("`n3` was expected, and this is `n1`"), "{said}");
}

/// What two ends whose clocks are off, or whose certificates have ended, say to each other. The client looks first.
#[tokio::test]
async fn certificates_begin_and_end() {
    let cluster = Cluster::new();
    let skew = CLOCK_SKEW_S_MAX as i64;
    let day = DAY as i64;
    let fresh = |name| cluster.node(name);
    let ended = |name| cluster.identity_of(Role::Node, name, ago(2 * DAY), DAY);
    let future = |name| cluster.identity_of(Role::Node, name, now().after(Duration::from_secs(DAY)), DAY);
    for (client, client_clock, server, server_clock, wanted, words) in [
        (fresh("c"), 0, fresh("s"), 0, Ok(()), ""),
        (fresh("c"), skew, fresh("s"), -skew, Ok(()), ""),
        (fresh("c"), 0, ended("s"), 0, Err("expired"), "the clock here says"),
        (
            ended("c"),
            0,
            fresh("s"),
            0,
            Err("expired"),
            "the peer closed the connection and says: the certificate shown ended",
        ),
        (fresh("c"), 0, future("s"), 0, Err("expired"), "the certificate shown begins"),
        (
            future("c"),
            0,
            fresh("s"),
            0,
            Err("expired"),
            "the peer closed the connection and says: the certificate shown begins",
        ),
        (fresh("c"), 30 * day, fresh("s"), 0, Err("expired"), "the certificate shown ended"),
        (fresh("c"), -30 * day, fresh("s"), 0, Err("expired"), "look at both clocks"),
        (
            fresh("c"),
            0,
            fresh("s"),
            30 * day,
            Err("expired"),
            "the peer closed the connection and says: the certificate shown ended",
        ),
        (
            fresh("c"),
            0,
            fresh("s"),
            -30 * day,
            Err("expired"),
            "the peer closed the connection and says: the certificate shown begins",
        ),
        (ended("c"), -day, ended("s"), -day, Ok(()), ""),
    ] {
        let client = bind_at(&client, &TurnedClock::by(client_clock));
        let server = bind_at(&server, &TurnedClock::by(server_clock));
        let said = check(&client, &server, Expect::AnyNode, wanted).await;
        assert!(said.contains(words), "{said}");
    }
}

fn revoked(serials: &[Serial], names: &[(Role, &str)]) -> Revoked {
    Revoked {
        serials: serials.iter().copied().collect(),
        names: names.iter().map(|(role, name)| (*role, n(name))).collect(),
        tokens: BTreeSet::new(),
    }
}

#[tokio::test]
async fn revoked_peers_are_refused() {
    let cluster = Cluster::new();
    let identity = cluster.node("n2");
    let serial = identity.own().serial;
    let (server, client) = (cluster.endpoint("n1"), bind(&identity));
    for (set, wanted) in [
        (revoked(&[serial], &[]), Err("revoked")),
        (revoked(&[], &[(Role::Node, "n2")]), Err("revoked")),
        (revoked(&[], &[(Role::Tenant, "n2"), (Role::Node, "n22")]), Ok(())),
        (Revoked::default(), Ok(())),
    ] {
        server.revoke(set.clone());
        let said = check(&client, &server, Expect::AnyNode, wanted).await;
        assert!(wanted.is_ok() || said.contains("node `n2` was removed"), "{said}");
    }
    // The client refuses as well.
    client.revoke(revoked(&[], &[(Role::Node, "n1")]));
    check(&client, &server, Expect::AnyNode, Err("revoked")).await;
}

#[tokio::test]
async fn revoking_ends_connections() {
    let cluster = Cluster::new();
    let (server, removed, stays) = (cluster.endpoint("n1"), cluster.endpoint("n2"), cluster.endpoint("n3"));
    let (by_removed, of_removed) = connect(&removed, &server).await;
    let (by_stays, _of_stays) = connect(&stays, &server).await;
    let (_to_removed, to_removed) = connect(&server, &removed).await;
    server.revoke(revoked(&[], &[(Role::Node, "n2")]));
    for connection in [&by_removed, &to_removed] {
        let lost = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await.unwrap();
        assert!(matches!(&lost, Lost::Closed { code: CloseCode::Revoked, .. }), "{lost}");
        assert!(!lost.may_retry());
    }
    assert_eq!(of_removed.closed().await, Lost::Local);
    assert!(tokio::time::timeout(Duration::from_millis(100), by_stays.closed()).await.is_err());
}

/// A certificate that ends while its owner is connected.
#[tokio::test]
async fn connections_end_with_certificates_that_are_not_renewed() {
    let cluster = Cluster::new();
    let clock = TurnedClock::default();
    let (server, client) = (bind_at(&cluster.node("n1"), &clock), cluster.endpoint("n2"));
    let (made, _accepted) = connect(&client, &server).await;
    clock.turn(7 * DAY as i64 + 60);
    assert!(tokio::time::timeout(Duration::from_millis(1500), made.closed()).await.is_err(), "within the skew");
    clock.turn(8 * DAY as i64);
    let lost = tokio::time::timeout(Duration::from_secs(3), made.closed()).await.unwrap();
    assert!(matches!(&lost, Lost::Closed { code: CloseCode::Expired, .. }), "{lost}");
}

/// The second connection of one identity: a node that was started again is let in, and its old connection ends.
#[tokio::test]
async fn a_node_that_connects_again_takes_the_place_of_its_old_connection() {
    let cluster = Cluster::new();
    let identity = cluster.node("n2");
    let server = cluster.endpoint("n1");
    let (first, second) = (bind(&identity), bind(&identity));
    let (old, of_old) = connect(&first, &server).await;
    let (new, of_new) = connect(&second, &server).await;
    let lost = old.closed().await;
    assert!(matches!(&lost, Lost::Closed { code: CloseCode::Replaced, .. }), "{lost}");
    assert!(!lost.may_retry(), "two processes would push each other out for ever");
    assert_eq!(of_old.closed().await, Lost::Local);
    assert!(tokio::time::timeout(Duration::from_millis(100), new.closed()).await.is_err());
    assert_eq!(server.connections(), (1, 0));
    drop(of_new);
}

/// Two nodes of one name: whoever has the newer certificate stays.
#[tokio::test]
async fn an_older_certificate_does_not_push_a_newer_one_out() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("n1");
    let older = bind(&cluster.identity_of(Role::Node, "n2", ago(60), DAY));
    let newer = bind(&cluster.node("n2"));
    let (_made, _accepted) = connect(&newer, &server).await;
    let said = check(&older, &server, Expect::AnyNode, Err("replaced")).await;
    assert!(said.contains("connected with a newer certificate"), "{said}");
    drop((_made, _accepted));
    until("the newer one to be gone", || server.connections().0 == 0).await;
    connect(&older, &server).await;
}

#[tokio::test]
async fn there_are_as_many_as_there_may_be() {
    let cluster = Cluster::new();
    let limits = WireLimits { nodes_max: 2, tenants_max: 3, connections_per_tenant_max: 2, ..WireLimits::default() };
    let server = bind_with(&cluster.node("n0"), limits);
    let mut kept = Vec::new();
    for (role, name, wanted) in [
        (Role::Node, "n1", Ok(())),
        (Role::Node, "n2", Ok(())),
        (Role::Node, "n3", Err("busy")),
        (Role::Tenant, "a", Ok(())),
        (Role::Tenant, "a", Ok(())),
        (Role::Tenant, "a", Err("busy")),
        (Role::Tenant, "b", Ok(())),
        (Role::Tenant, "c", Err("busy")),
    ] {
        let client = bind(&cluster.identity(role, name));
        let connected = client.connect(server.address().unwrap(), &Expect::AnyNode).await;
        assert_eq!(connected.as_ref().map(drop).map_err(|error| error.code()), wanted, "{role} {name}");
        if let Err(error) = &connected {
            assert!(error.may_retry(), "{error}");
        }
        if let Ok(connection) = connected {
            kept.push((server.accept(role).await.unwrap(), connection, client));
        }
    }
}

/// What nobody accepts does not pile up.
#[tokio::test]
async fn who_is_not_accepted_is_told_to_come_later() {
    let cluster = Cluster::new();
    let server = bind_with(&cluster.node("n0"), WireLimits { accept_queue_max: 2, ..WireLimits::default() });
    let clients: Vec<_> = (1..=3).map(|number| cluster.endpoint(&format!("n{number}"))).collect();
    let _first = clients[0].connect(server.address().unwrap(), &Expect::AnyNode).await.unwrap();
    let _second = clients[1].connect(server.address().unwrap(), &Expect::AnyNode).await.unwrap();
    check(&clients[2], &server, Expect::AnyNode, Err("busy")).await;
    server.accept(Role::Node).await.unwrap();
    check(&clients[2], &server, Expect::AnyNode, Ok(())).await;
}

#[tokio::test]
async fn nobody_answers() {
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
        let error = client.connect(address, &Expect::AnyNode).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
}
