//! Connections that end without being closed.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use sandbar_wire::*;

use crate::support::*;

/// A socket that can be disconnected.
#[derive(Debug)]
struct Cable {
    socket: Arc<dyn AsyncUdpSocket>,
    is_cut: Arc<AtomicBool>,
}

impl AsyncUdpSocket for Cable {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.is_cut.load(Ordering::Relaxed) { Ok(()) } else { self.socket.try_send(transmit) }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.socket.poll_recv(cx, buffers, meta) {
                Poll::Ready(Ok(_)) if self.is_cut.load(Ordering::Relaxed) => {}
                other => return other,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

fn bind_by_cable(identity: &Identity) -> (Endpoint, Arc<AtomicBool>) {
    let is_cut = Arc::new(AtomicBool::new(false));
    let environment = EndpointEnvironment::udp(LOOPBACK).unwrap();
    let socket = Arc::new(Cable { socket: environment.socket.clone(), is_cut: is_cut.clone() });
    let endpoint =
        Endpoint::bind_on(EndpointEnvironment { socket, ..environment }, identity, WireLimits::default()).unwrap();
    (endpoint, is_cut)
}

/// A dead peer is detected within 5 s, with and without traffic.
#[tokio::test]
async fn a_peer_that_falls_silent_is_lost_within_5_s() {
    let cluster = Cluster::new();
    let (a, cut) = bind_by_cable(&cluster.node("a"));
    let (b, c) = (cluster.endpoint("b"), cluster.endpoint("c"));
    let (by_b, _of_b) = connect(&b, &a).await;
    let (by_c, _of_c) = connect(&c, &a).await;
    // The keep-alive preserves the idle connection.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    cut.store(true, Ordering::Relaxed);
    let start = Instant::now();
    let busy = tokio::spawn({
        let by_c = by_c.clone();
        async move {
            let frames = by_c.open(Channel::new(0)).await.unwrap();
            while frames.send(b"are you there").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    for connection in [&by_b, &by_c] {
        let lost = connection.closed().await;
        let after = start.elapsed();
        assert_eq!(lost, DisconnectReason::Silent);
        assert!(after > Duration::from_secs(2) && after < Duration::from_secs(15), "{after:?}");
        assert!(lost.may_retry());
    }
    busy.await.unwrap();
}

/// A restarted node resets its peers' old connections.
#[tokio::test]
async fn a_restarted_peer_is_recognized() {
    let cluster = Cluster::new();
    let identity = cluster.node("a");
    let (a, cut) = bind_by_cable(&identity);
    let address = a.address().unwrap();
    let b = cluster.endpoint("b");
    let (by_b, of_b) = connect(&b, &a).await;
    // Like a killed process: no close packet is sent.
    cut.store(true, Ordering::Relaxed);
    drop((a, of_b));
    let again = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            match Endpoint::bind(address, &identity, WireLimits::default()) {
                Ok(endpoint) => return endpoint,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    let _again = again.await.expect("the port is free soon");
    let start = Instant::now();
    assert_eq!(by_b.closed().await, DisconnectReason::Restarted);
    // Earlier than the idle timeout of 4 s.
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// A client that changes its address loses the connection.
#[tokio::test]
async fn connections_do_not_move() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    let raw = crate::raw::Raw::member(&cluster, Role::Node, "c");
    let quinn = raw.connect_in(&server).await;
    let accepted = server.accept(Role::Node).await.unwrap();
    raw.endpoint.rebind(std::net::UdpSocket::bind(LOOPBACK).unwrap()).unwrap();
    let _ = quinn.open_bi().await.unwrap().0.write_all(&[0]).await;
    assert_eq!(accepted.closed().await, DisconnectReason::Silent);
}

#[tokio::test]
async fn a_closed_endpoint_notifies_its_peers() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.endpoint("a"), cluster.endpoint("b"));
    let (by_a, by_b) = connect(&a, &b).await;
    let accepting = tokio::spawn({
        let b = b.clone();
        async move { b.accept(Role::Node).await.is_none() }
    });
    b.close("maintenance").await;
    let lost = by_a.closed().await;
    assert_eq!(lost, DisconnectReason::Closed { code: CloseCode::Stopping, reason: "maintenance".to_owned() });
    assert!(lost.may_retry());
    assert_eq!(by_b.closed().await, DisconnectReason::Local);
    assert!(accepting.await.unwrap());
}

#[tokio::test]
async fn a_connection_that_is_dropped_is_closed() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.endpoint("a"), cluster.endpoint("b"));
    let (by_a, by_b) = connect(&a, &b).await;
    let clone = by_a.clone();
    drop(by_a);
    assert!(tokio::time::timeout(Duration::from_millis(100), by_b.closed()).await.is_err());
    drop(clone);
    assert!(matches!(by_b.closed().await, DisconnectReason::Closed { code: CloseCode::Done, .. }));
    until("both tables to be empty", || (a.connections(), b.connections()) == ((0, 0), (0, 0))).await;
}
