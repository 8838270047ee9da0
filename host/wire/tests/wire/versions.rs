//! Ends with different protocol versions report each other's number, whichever is newer.

use sandbar_wire::*;

use crate::raw::Raw;
use crate::support::*;

fn speaking(identity: &Identity, version: u8) -> Endpoint {
    let environment = EndpointEnvironment { version, ..EndpointEnvironment::udp(LOOPBACK).unwrap() };
    Endpoint::bind_on(environment, identity, WireLimits::default()).unwrap()
}

#[tokio::test]
async fn both_versions_are_named() {
    let cluster = Cluster::new();
    for (client, server) in [(1, 2), (2, 1), (1, 255), (255, 1), (9, 10)] {
        let (from, to) = (speaking(&cluster.node("c"), client), speaking(&cluster.node("s"), server));
        let address = to.address().unwrap();
        let error = from.connect(address, &ExpectedPeer::AnyNode).await.unwrap_err();
        let expected = ConnectError::Version { address, ours: client, theirs: Some(server) };
        assert_eq!(error, expected);
        let message = error.to_string();
        assert!(message.contains(&format!("uses sandbar/{server}, this end sandbar/{client}")), "{message}");
        assert!(!error.may_retry());
        assert_eq!(to.counts().refused, 1);
    }
    let (from, to) = (speaking(&cluster.node("c"), 7), speaking(&cluster.node("s"), 7));
    connect(&from, &to).await;
}

/// The server's reason, for clients that understand it.
#[tokio::test]
async fn the_reason_names_both() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    let raw = Raw::member(&cluster, Role::Node, "c");
    let close = raw.closed(server.address().unwrap(), "sandbar/77").await.unwrap();
    assert_eq!(close.0, CloseCode::Version);
    let expected = format!("sandbar/{PROTOCOL_VERSION} is required here, not sandbar/77; update one of them");
    assert_eq!(close.1, expected);
}

/// Clients with another protocol.
#[tokio::test]
async fn other_protocols_end_with_an_alert() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    let raw = Raw::member(&cluster, Role::Node, "c");
    for protocol in ["h3", "sandbar/0", "sandbar/256", "sandbar/01", "sandbar", "sandbar-join/1"] {
        let error = raw.connect(server.address().unwrap(), protocol).await.unwrap_err();
        assert_eq!(DisconnectReason::from(error), DisconnectReason::Alert { alert: 120 }, "{protocol}");
    }
}
