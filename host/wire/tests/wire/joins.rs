//! From a token to a certificate.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbar_wire::*;

use crate::raw::{Raw, closed};
use crate::support::*;

fn token(cluster: &Cluster, grant: Grant) -> JoinToken {
    cluster.authority.token(grant, Duration::from_secs(TOKEN_LIFETIME_S), now()).unwrap()
}

/// A node that takes strangers in.
fn gateway(cluster: &Cluster) -> Endpoint {
    let server = cluster.endpoint("gateway");
    server.serve_joins(cluster.registry()).unwrap();
    server
}

async fn join_at(
    server: &Endpoint,
    token: &JoinToken,
    role: Role,
    name: &str,
    clock: i64,
) -> Result<Identity, JoinError> {
    let ground = Ground { clock: Arc::new(TurnedClock::by(clock)), ..Ground::udp(LOOPBACK).unwrap() };
    let key = Arc::new(Key::generate().unwrap());
    join(ground, server.address().unwrap(), token, key, (role, &n(name)), &WireLimits::default()).await
}

async fn join_now(server: &Endpoint, token: &JoinToken, role: Role, name: &str) -> Result<Identity, JoinError> {
    join_at(server, token, role, name, 0).await
}

#[tokio::test]
async fn who_has_a_token_gets_a_certificate() {
    let cluster = Cluster::new();
    let server = gateway(&cluster);
    let node = join_now(&server, &token(&cluster, Grant::Node), Role::Node, "n1").await.unwrap();
    assert_eq!((node.own().role, node.own().name.as_str()), (Role::Node, "n1"));
    assert!(node.own().expires.apart(now()).as_secs().abs_diff(CERTIFICATE_LIFETIME_S) < 10);
    let tenant = join_now(&server, &token(&cluster, Grant::Tenant(n("acme"))), Role::Tenant, "acme").await.unwrap();
    for identity in [node, tenant] {
        connect(&bind(&identity), &server).await;
    }
    assert_eq!((server.counts().joined, server.counts().let_in), (2, 2));
}

/// Strangers whose packets are there before the node is: nodes of a cluster are started at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_while_a_node_begins_is_taken_in() {
    let (cluster, limits) = (Cluster::new(), WireLimits::default());
    let gateway = cluster.node("gateway");
    for _ in 0..10 {
        let ground = Ground::udp(LOOPBACK).unwrap();
        let (address, token) = (ground.socket.local_addr().unwrap(), token(&cluster, Grant::Node));
        let joins = tokio::spawn(async move {
            let (ground, key) = (Ground::udp(LOOPBACK).unwrap(), Arc::new(Key::generate().unwrap()));
            join(ground, address, &token, key, (Role::Node, &n("n1")), &limits).await
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        let _server = Endpoint::bind_with_joins(ground, &gateway, limits, cluster.registry()).unwrap();
        assert_eq!(joins.await.unwrap().unwrap().own().name.as_str(), "n1");
    }
    // And who has another authority takes nobody in.
    let ground = Ground::udp(LOOPBACK).unwrap();
    assert!(Endpoint::bind_with_joins(ground, &gateway, limits, Cluster::new().registry()).is_err());
}

#[tokio::test]
async fn tokens_that_are_no_good_are_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let server = gateway(&cluster);
    let tenant = token(&cluster, Grant::Tenant(n("acme")));
    let minute = Duration::from_secs(60);
    let late = cluster.authority.token(Grant::Node, minute, ago(DAY)).unwrap();
    let revoked = token(&cluster, Grant::Node);
    server.revoke(Revoked { tokens: BTreeSet::from([revoked.id()]), ..Revoked::default() });
    for (token, role, name, code) in [
        (&tenant, Role::Tenant, "other", "token-other-role"),
        (&tenant, Role::Node, "acme", "token-other-role"),
        (&late, Role::Node, "n1", "token-expired"),
        (&revoked, Role::Node, "n1", "token-revoked"),
        (&token(&other, Grant::Node), Role::Node, "n1", "untrusted"),
    ] {
        let error = join_now(&server, token, role, name).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!(server.counts().joined, 0);
}

/// A join whose clock is off: what is said shows both clocks.
#[tokio::test]
async fn joining_with_a_clock_that_is_off() {
    let cluster = Cluster::new();
    let server = gateway(&cluster);
    let good = token(&cluster, Grant::Node);
    let skew = CLOCK_SKEW_S_MAX as i64;
    let hour = 3600;
    for (clock, wanted, words) in [
        (0, Ok(()), ""),
        (skew - 5, Ok(()), ""),
        (5 - skew, Ok(()), ""),
        // Behind, before the token was made.
        (-2 * hour, Err("token-not-yet"), "set the clock"),
        // Ahead, after it ended.
        (2 * hour, Err("token-expired"), "or set the clock"),
        // Ahead, within its time: the answer shows the other clock.
        (hour / 2, Err("clock"), "the clock here says"),
    ] {
        let joined = join_at(&server, &good, Role::Node, "n1", clock).await;
        let said = joined.as_ref().map_or_else(ToString::to_string, |identity| identity.own().to_string());
        assert_eq!(joined.map(drop).map_err(|error| error.code()), wanted, "{said}");
        assert!(said.contains(words), "{said}");
        if wanted.is_err() {
            assert_eq!(said.matches('Z').count(), 2, "two clocks: {said}");
        }
    }
    // The server's clock is the one that is off: its certificate has not begun by it, and the token is not made yet.
    let behind = bind_at(&cluster.node("behind"), &TurnedClock::by(-2 * hour));
    behind.serve_joins(cluster.registry()).unwrap();
    let error = join_now(&behind, &good, Role::Node, "n1").await.unwrap_err();
    assert_eq!(error.code(), "token-not-yet", "{error}");
    assert_eq!(error.to_string().matches('Z').count(), 3, "when it was made, and two clocks: {error}");
}

#[tokio::test]
async fn who_knows_the_members_says_which_names_are_taken() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("gateway");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let admit = {
        let seen = seen.clone();
        move |applicant: &Applicant<'_>| {
            seen.lock().unwrap().push((applicant.name.clone(), applicant.token));
            if applicant.name.as_str() == "taken" { Err("node `taken` is alive".to_owned()) } else { Ok(()) }
        }
    };
    server.serve_joins(Registry::new(cluster.authority.clone(), admit)).unwrap();
    let token = token(&cluster, Grant::Node);
    let error = join_now(&server, &token, Role::Node, "taken").await.unwrap_err();
    assert_eq!(error.code(), "name-taken");
    assert!(error.to_string().contains("the name `taken` can't be had: node `taken` is alive"), "{error}");
    join_now(&server, &token, Role::Node, "free").await.unwrap();
    let names = [("taken", Some(token.id())), ("free", Some(token.id()))];
    assert_eq!(*seen.lock().unwrap(), names.map(|(name, id)| (n(name), id)));
}

#[tokio::test]
async fn a_node_without_the_authority_s_key_takes_nobody_in() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let server = cluster.endpoint("n1");
    let error = join_now(&server, &token(&cluster, Grant::Node), Role::Node, "n2").await.unwrap_err();
    assert_eq!(error.code(), "no-authority", "{error}");
    assert!(server.serve_joins(other.registry()).is_err());
    assert!(bind(&cluster.tenant("acme")).serve_joins(cluster.registry()).is_err());
}

/// The token goes to nobody but the cluster that it names: here somebody answers with a certificate of another authority.
#[tokio::test]
async fn the_cluster_has_to_show_itself_first() {
    let (cluster, impostor) = (Cluster::new(), Cluster::new());
    let server = gateway(&impostor);
    let error = join_now(&server, &token(&cluster, Grant::Node), Role::Node, "n1").await.unwrap_err();
    assert_eq!(error.code(), "untrusted", "{error}");
    until("it to fail", || server.counts().failed == 1).await;
    assert_eq!(server.counts().joined, 0);
}

/// What a stranger may say: one request, of few bytes, soon.
#[tokio::test]
async fn a_stranger_may_say_one_thing() {
    let cluster = Cluster::new();
    let limits = WireLimits { join_time_ms_max: 300, ..WireLimits::default() };
    let server = bind_with(&cluster.node("gateway"), limits);
    server.serve_joins(cluster.registry()).unwrap();
    let stranger = Raw::self_signed(&["sandbar-join:"]);
    let connect = || stranger.connect(server.address().unwrap(), JOIN_ALPN);

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    send.write_all(b"what is this").await.unwrap();
    send.finish().unwrap();
    assert!(matches!(closed(&quinn).await, Lost::Closed { code: CloseCode::Malformed, .. }));

    let quinn = connect().await.unwrap();
    assert!(matches!(closed(&quinn).await, Lost::Closed { code: CloseCode::Slow, .. }), "says nothing");

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    send.write_all(&[0; 100]).await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(100), quinn.open_bi()).await;
    assert!(second.is_err(), "a second stream");
    assert!(matches!(closed(&quinn).await, Lost::Closed { code: CloseCode::Slow, .. }), "half a request");

    let quinn = connect().await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    let flood = send.write_all(&vec![0; 1 << 20]).await;
    assert!(flood.is_err(), "a megabyte");
    assert!(matches!(closed(&quinn).await, Lost::Closed { code: CloseCode::Malformed, .. }));

    // A member does not join.
    let member = Raw::member(&cluster, Role::Node, "n1");
    let quinn = member.connect(server.address().unwrap(), JOIN_ALPN).await.unwrap();
    assert!(matches!(closed(&quinn).await, Lost::Closed { code: CloseCode::Slow, .. }));
    assert_eq!(server.counts().joined, 0);
}

/// A token in the hands of somebody who asks for a key that is not the connection's.
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
    let token = token(&cluster, Grant::Node).to_text();
    let request = JoinRequest { token, role: Role::Node, name: n("n1"), request };
    send.write_all(&postcard::to_stdvec(&request).unwrap()).await.unwrap();
    send.finish().unwrap();
    let answer = receive.read_to_end(8 << 10).await.unwrap();
    let answer: Result<(Vec<u8>, Vec<u8>, Timestamp), JoinRefusal> = postcard::from_bytes(&answer).unwrap();
    let refusal = JoinRefusal::Request("it is for another key than the connection's".to_owned());
    assert_eq!(answer.unwrap_err(), refusal);
}
