//! Renewal of certificates during connections.

use std::sync::Arc;
use std::time::Duration;

use sandbar_wire::*;

use crate::support::*;

const CONTROL: Channel = Channel::new(0);

/// A node renews while frames flow and its old certificate expires: the connection stays and no frame is lost.
#[tokio::test]
async fn renewing_while_frames_flow() {
    let cluster = Cluster::new();
    let clock = OffsetClock::default();
    let gateway = bind_at(&cluster.node("gateway"), &clock);
    gateway.serve_joins(cluster.issuer().with_lifetime(Duration::from_secs(30 * DAY))).unwrap();
    let before = cluster.identity_of(Role::Node, "n1", now(), DAY);
    let node = bind_at(&before, &clock);
    let (to_gateway, of_node) = connect(&node, &gateway).await;

    let frames = to_gateway.open(CONTROL).await.unwrap();
    frames.send(&0_u64.to_le_bytes()).await.unwrap();
    let (_, mut received) = of_node.accept().await.unwrap();
    let (sender, _receiver) = frames.split();
    let sending = tokio::spawn(async move {
        for number in 1..800_u64 {
            sender.send(&number.to_le_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        sender
    });

    let next = node.renew(&to_gateway).await.unwrap();
    assert_eq!((next.own().name.as_str(), next.own().key), ("n1", before.own().key));
    assert_ne!(next.own().serial, before.own().serial);
    assert_eq!(next.own().expires.0 / 60, now().after(Duration::from_secs(30 * DAY)).0 / 60);
    node.set_identity(&next).unwrap();
    // Long after the first certificate's end; the sweep runs every second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    clock.set_offset(3 * DAY as i64);

    for number in 0..800_u64 {
        assert_eq!(received.recv().await.unwrap().unwrap(), number.to_le_bytes()[..]);
    }
    drop(sending.await.unwrap());
    assert!(to_gateway.peer().name.as_str() == "gateway" && of_node.peer().serial == before.own().serial);
    // New connections present the next certificate.
    let (_again, of_again) = connect(&node, &gateway).await;
    assert_eq!(of_again.peer().serial, next.own().serial);
}

#[tokio::test]
async fn only_the_same_end_s_certificate_can_be_shown() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let identity = cluster.node("n1");
    let node = bind(&identity);
    for wrong in [
        cluster.node("n1"),
        cluster.identity_for(identity.key().clone(), Role::Node, "n2", now(), DAY),
        cluster.identity_for(identity.key().clone(), Role::Tenant, "n1", now(), DAY),
        other.identity_for(identity.key().clone(), Role::Node, "n1", now(), DAY),
    ] {
        assert_eq!(node.set_identity(&wrong).unwrap_err().code(), "identity-malformed", "{}", wrong.own());
    }
    node.set_identity(&cluster.identity_for(identity.key().clone(), Role::Node, "n1", now(), DAY)).unwrap();
}

#[tokio::test]
async fn renewals_are_refused_without_key_or_permission() {
    let cluster = Cluster::new();
    let (plain, gateway) = (cluster.endpoint("plain"), cluster.endpoint("gateway"));
    let refuse = |applicant: &Applicant<'_>| match applicant.token {
        None => {
            let reason = "it was put on leave".to_owned();
            Err(JoinRefusal::Name { name: applicant.principal.name().clone(), reason })
        }
        Some(_) => Ok(()),
    };
    let node = cluster.endpoint("n1");
    let (to_plain, _kept) = connect(&node, &plain).await;
    assert_eq!(node.renew(&to_plain).await.unwrap_err().code(), "no-authority");

    gateway.serve_joins(CertificateIssuer::new(cluster.authority.clone(), refuse)).unwrap();
    let (to_gateway, _of_node) = connect(&node, &gateway).await;
    let error = node.renew(&to_gateway).await.unwrap_err();
    assert!(error.code() == "name-taken" && error.to_string().contains("put on leave"), "{error}");
    // At most one a second.
    assert_eq!(node.renew(&to_gateway).await.unwrap_err().code(), "busy");
}

/// A peer that announces another peer's certificate as its renewed one.
#[tokio::test]
async fn a_newer_certificate_has_to_be_the_same_peer_s() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    let key = Arc::new(Key::generate().unwrap());
    let lifetime = Duration::from_secs(DAY);
    let certify = |role, name: &str| {
        cluster.authority.certify(&key.request().unwrap(), &principal(role, name), lifetime, now()).unwrap()
    };
    for (certificate, code) in [
        (certify(Role::Node, "n1"), CloseCode::Untrusted),
        (certify(Role::Node, "n2"), CloseCode::Name),
        (certify(Role::Tenant, "n1"), CloseCode::Untrusted),
        (b"no certificate".to_vec(), CloseCode::Untrusted),
    ] {
        let raw = crate::raw::Raw::member(&cluster, Role::Node, "n1");
        let quinn = raw.connect_in(&server).await;
        let (mut send, _receive) = quinn.open_bi().await.unwrap();
        send.write_all(&[66]).await.unwrap();
        send.write_all(&certificate).await.unwrap();
        send.finish().unwrap();
        let _accepted = server.accept(Role::Node).await.unwrap();
        let lost = crate::raw::closed(&quinn).await;
        assert!(matches!(&lost, DisconnectReason::Closed { code: actual, .. } if *actual == code), "{code}: {lost}");
    }
}
