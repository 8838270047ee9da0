//! Hostile peers and clients: one attack each, with its expected outcome.

use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_seeds::{PrintSeedOnPanic, seeds};
use sandbar_wire::*;

use crate::raw::{Raw, closed};
use crate::support::*;

/// A node, an admitted hostile peer, and the node's connection to it.
struct Attack {
    _server: Endpoint,
    _raw: Raw,
    quinn: quinn::Connection,
    accepted: Connection,
}

async fn attack_with(limits: WireLimits) -> Attack {
    let cluster = Cluster::new();
    let server = bind_with(&cluster.node("s"), limits);
    let raw = Raw::member(&cluster, Role::Tenant, "acme");
    let quinn = raw.connect_in(&server).await;
    let accepted = server.accept(Role::Tenant).await.unwrap();
    Attack { _server: server, _raw: raw, quinn, accepted }
}

/// Writes bytes to a new stream, and reads frames at the other end until an error.
async fn check_frames(bytes: &[u8], ends: bool, code: CloseCode, expected_text: &str) {
    let limits = WireLimits { frame_time_ms_max: 300, ..WireLimits::default() };
    let attack = attack_with(limits).await;
    let (mut send, _receive) = attack.quinn.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    if ends {
        send.finish().unwrap();
    }
    let (_, mut frames) = attack.accepted.accept().await.unwrap();
    let error = loop {
        match frames.recv().await {
            Ok(frame) => assert!(frame.is_some(), "it ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.blame(), Blame::Peer, "{error}");
    let DisconnectReason::Closed { code: actual, reason } = closed(&attack.quinn).await else { panic!("{error}") };
    assert_eq!(actual, code, "{reason}");
    assert!(reason.contains(expected_text), "{reason}");
}

#[tokio::test]
async fn malformed_frames_close_the_connection() {
    let over = (1_u32 << 20) + 1;
    let head = |length: u32| [&[0][..], &length.to_le_bytes()].concat();
    let good_then = |bad: &[u8]| [&[0, 2, 0, 0, 0, 7, 7][..], bad].concat();
    check_frames(
        &head(over),
        false,
        CloseCode::Malformed,
        "frame too long: 1048577 bytes received, at most 1048576 allowed",
    )
    .await;
    check_frames(&head(u32::MAX), false, CloseCode::Malformed, "frame too long: 4294967295 bytes").await;
    check_frames(&good_then(&over.to_le_bytes()), false, CloseCode::Malformed, "frame too long: 1048577 bytes").await;
    check_frames(&head(100), true, CloseCode::Malformed, "in the middle of a frame").await;
    check_frames(&[0, 1, 0], true, CloseCode::Malformed, "in the middle of a frame").await;
    // A frame that does not complete.
    check_frames(&head(100), false, CloseCode::Slow, "a frame did not arrive completely within 300 ms").await;
    check_frames(&good_then(&[1]), false, CloseCode::Slow, "a frame did not arrive completely within 300 ms").await;
}

#[tokio::test]
async fn streams_that_are_nothing_close_the_connection() {
    for head in [67, 80, 95] {
        let attack = attack_with(WireLimits::default()).await;
        let (mut send, _receive) = attack.quinn.open_bi().await.unwrap();
        send.write_all(&[head]).await.unwrap();
        let lost = closed(&attack.quinn).await;
        assert!(matches!(&lost, DisconnectReason::Closed { code: CloseCode::Malformed, .. }), "{head}: {lost}");
    }
}

/// Streams without a first byte (slowloris) are reset after a timeout, and other streams continue meanwhile.
#[tokio::test]
async fn silent_streams_time_out() {
    let limits = WireLimits { stream_head_ms_max: 200, streams_max: 32, ..WireLimits::default() };
    let attack = attack_with(limits).await;
    let mut silent = Vec::new();
    for _ in 0..31 {
        silent.push(attack.quinn.open_bi().await.unwrap());
    }
    // Opening the last stream opens all streams before it.
    let (mut send, _receive) = attack.quinn.open_bi().await.unwrap();
    send.write_all(&[0, 1, 0, 0, 0, 9]).await.unwrap();
    let (_, mut frames) = attack.accepted.accept().await.unwrap();
    assert_eq!(frames.recv().await.unwrap().unwrap()[..], [9]);
    let start = Instant::now();
    for (send, mut receive) in silent {
        assert_eq!(receive.read(&mut [0]).await, Err(quinn::ReadError::Reset(3_u32.into())));
        assert!(send.stopped().await.unwrap().is_some());
    }
    // Less than the default timeout of 5 s.
    assert!(start.elapsed() < Duration::from_secs(4));
    // Their capacity is free again.
    tokio::time::timeout(Duration::from_secs(10), attack.quinn.open_bi()).await.unwrap().unwrap();
}

/// A request that arrives byte by byte.
#[tokio::test]
async fn slow_requests_time_out() {
    let limits = WireLimits { request_time_ms_max: 300, ..WireLimits::default() };
    let attack = attack_with(limits).await;
    let (mut send, mut receive) = attack.quinn.open_bi().await.unwrap();
    send.write_all(&[64]).await.unwrap();
    let dripping = tokio::spawn(async move {
        while send.write_all(&[1]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut request = attack.accepted.next_request().await.unwrap();
    let start = Instant::now();
    assert_eq!(request.read().await.unwrap_err().code(), "slow");
    // Less than the default timeout of 10 s.
    assert!(start.elapsed() < Duration::from_secs(8));
    drop(request);
    assert!(receive.read(&mut [0]).await.is_err());
    dripping.await.unwrap();
}

/// An endless request is stopped at the maximum length.
#[tokio::test]
async fn endless_requests_are_rejected() {
    let attack = attack_with(WireLimits::default()).await;
    let (mut send, _receive) = attack.quinn.open_bi().await.unwrap();
    send.write_all(&[64]).await.unwrap();
    let pouring = tokio::spawn(async move { while send.write_all(&[1; 10_000]).await.is_ok() {} });
    let mut request = attack.accepted.next_request().await.unwrap();
    let error = request.read().await.unwrap_err();
    assert!(matches!(error, ChannelError::TooLong { kind: "request", .. }), "{error}");
    pouring.await.unwrap();
}

/// An answer that the peer does not read.
#[tokio::test]
async fn answers_that_are_not_received_are_abandoned() {
    let limits = WireLimits { request_time_ms_max: 300, ..WireLimits::default() };
    let cluster = Cluster::new();
    let server = bind_with(&cluster.node("s"), limits);
    let raw = Raw::member(&cluster, Role::Tenant, "acme");
    let mut config = raw.config(&format!("sandbar/{PROTOCOL_VERSION}"));
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(1000_u32.into());
    config.transport_config(transport.into());
    let connecting = raw.endpoint.connect_with(config, server.address().unwrap(), "sandbar").unwrap();
    let quinn = connecting.await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    send.write_all(&[64]).await.unwrap();
    send.finish().unwrap();
    let accepted = server.accept(Role::Tenant).await.unwrap();
    let mut request = accepted.next_request().await.unwrap();
    assert!(request.read().await.unwrap().is_empty());
    assert_eq!(request.respond(&[1; 100_000]).await.unwrap_err().code(), "slow");
}

/// A client that is not admitted yet can send few bytes.
#[tokio::test]
async fn strangers_can_send_little() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    server.serve_joins(cluster.issuer()).unwrap();
    let stranger = Raw::self_signed(&["sandbar-join:"]);
    let quinn = stranger.connect(server.address().unwrap(), JOIN_ALPN).await.unwrap();
    let (mut send, _receive) = quinn.open_bi().await.unwrap();
    let mut sent = 0;
    while let Ok(Ok(count)) = tokio::time::timeout(Duration::from_millis(200), send.write(&[0; 1024])).await {
        sent += count;
    }
    // Plus what was read before the request was found too long.
    assert!(sent <= (32 << 10) + (8 << 10) + 2048, "{sent} bytes");
    assert!(quinn.open_uni().await.is_err());
}

/// Half-open handshakes use up only the capacity of their own address. 400 clients start and fall silent.
#[tokio::test]
async fn half_open_handshakes_do_not_hold_others_up() {
    let cluster = Cluster::new();
    // Far longer than other load can delay this test.
    let limits = WireLimits { handshake_time_ms_max: 30_000, ..WireLimits::default() };
    let server = bind_with(&cluster.node("s"), limits);
    let address = server.address().unwrap();
    // Two datagrams: the first one, and the one that validates the address. The handshake is never completed.
    let silent = Raw::self_signed(&["sandbar://c/node/n1"]);
    let _begun: Vec<_> = (0..400).map(|_| silent.begin([127, 0, 0, 2].into(), address, 2)).collect();
    let peer = bind_with(&cluster.node("n1"), limits);
    let start = Instant::now();
    let (outgoing, accepted) = connect(&peer, &server).await;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let counts = server.counts();
    assert!(counts.retried > 300, "{counts:?}");
    drop((outgoing, accepted));
    // They time out and release what they hold.
    until("them to fail", || server.counts().failed >= 64).await;
    let counts = server.counts();
    assert!(
        counts.failed == 64 && counts.ignored > 200,
        "32 that proved their address, and 32 that did not: {counts:?}"
    );
}

/// Garbage and damaged packets do not affect a connection.
#[tokio::test]
async fn garbage_costs_nothing() {
    let cluster = Cluster::new();
    let server = cluster.endpoint("s");
    let peer = cluster.endpoint("n1");
    let (outgoing, accepted) = connect(&peer, &server).await;
    let frames = outgoing.open(Channel::new(0)).await.unwrap();
    frames.send(&[0]).await.unwrap();
    let (_, mut received) = accepted.accept().await.unwrap();
    received.recv().await.unwrap();
    let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    for seed in seeds(50) {
        let _seed = PrintSeedOnPanic(seed);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        for _ in 0..100 {
            let mut datagram = vec![0; random.next_u32() as usize % 1400];
            random.fill_bytes(&mut datagram);
            // Half of them look like a first packet of version 1.
            if random.next_u32() % 2 == 0 && datagram.len() > 40 {
                let first = 0xc0 | datagram[0] & 0x0f;
                datagram[..6].copy_from_slice(&[first, 0, 0, 0, 1, 8]);
                datagram[14] = 8;
                datagram[23] = 0;
            }
            socket.send_to(&datagram, server.address().unwrap()).unwrap();
        }
        frames.send(&seed.to_le_bytes()).await.unwrap();
        let received = tokio::time::timeout(Duration::from_secs(5), received.recv()).await.unwrap();
        assert_eq!(received.unwrap().unwrap(), seed.to_le_bytes()[..]);
    }
    assert_eq!(server.counts().admitted, 1);
}

/// Random bytes on streams of an admitted peer give errors, never a panic, and the node continues.
#[tokio::test]
async fn peers_that_talk_nonsense_do_no_harm() {
    let cluster = Cluster::new();
    let server = bind_with(&cluster.node("s"), WireLimits { frame_time_ms_max: 100, ..WireLimits::default() });
    let serving = tokio::spawn({
        let server = server.clone();
        async move {
            while let Some(connection) = server.accept(Role::Tenant).await {
                tokio::spawn(async move {
                    let channels = async {
                        while let Ok((_, mut frames)) = connection.accept().await {
                            while let Ok(Some(_)) = frames.recv().await {}
                        }
                    };
                    let requests = async {
                        while let Ok(mut request) = connection.next_request().await {
                            let _ = request.read().await;
                        }
                    };
                    tokio::join!(channels, requests)
                });
            }
        }
    });
    let raw = Raw::member(&cluster, Role::Tenant, "acme");
    for seed in seeds(200) {
        let _seed = PrintSeedOnPanic(seed);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let quinn = raw.connect_in(&server).await;
        for _ in 0..1 + random.next_u32() % 8 {
            let Ok((mut send, mut receive)) = quinn.open_bi().await else { break };
            let mut bytes = vec![0; random.next_u32() as usize % 300];
            random.fill_bytes(&mut bytes);
            if let Some(head) = bytes.first_mut() {
                *head %= 70;
            }
            let _ = send.write_all(&bytes).await;
            let _ = match random.next_u32() % 4 {
                0 => send.finish(),
                1 => send.reset(5_u32.into()),
                2 => receive.stop(5_u32.into()),
                _ => Ok(()),
            };
        }
        quinn.close(0_u32.into(), b"");
    }
    assert!(!serving.is_finished());
    let peer = cluster.endpoint("n1");
    peer.connect(server.address().unwrap(), &ExpectedPeer::AnyNode).await.unwrap();
    serving.abort();
}

/// A peer that is revoked while it sends bulk data receives the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_connection_is_closed_with_its_reason() {
    let cluster = Cluster::new();
    let identity = cluster.node("a");
    let (a, b) = (bind(&identity), cluster.endpoint("b"));
    let (by_a, by_b) = connect(&a, &b).await;
    let pouring: Vec<_> = [&by_a, &by_b]
        .into_iter()
        .map(|connection| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let frames = connection.open(Channel::new(5)).await.unwrap();
                while frames.send(&[1; 100_000]).await.is_ok() {}
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    b.set_accepted(AccessList { revoked_keys: [identity.own().key].into(), ..AccessList::default() });
    let lost = tokio::time::timeout(Duration::from_secs(2), by_a.closed()).await.unwrap();
    assert!(matches!(&lost, DisconnectReason::Closed { code: CloseCode::Revoked, .. }), "{lost}");
    for task in pouring {
        task.await.unwrap();
    }
}
