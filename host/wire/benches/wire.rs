//! Handshakes, frames and requests over loopback, compared with UDP sockets and QUIC streams.
//!
//! Both ends are in this process. `cargo bench -p sandbar-wire`.

#![allow(clippy::print_stdout, reason = "figures are for people")]
#![expect(dead_code, reason = "the tests use the rest of these modules")]

#[path = "../tests/wire/raw.rs"]
mod raw;
#[path = "../tests/wire/support.rs"]
mod support;

use std::time::{Duration, Instant};

use sandbar_wire::*;
use support::*;

/// Total time of each measurement.
const TIME: Duration = Duration::from_secs(2);
/// Runs of each measurement; the median counts.
const RUNS: usize = 5;
const CONTROL: Channel = Channel::new(0);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        handshakes().await;
        round_trips().await;
        throughput().await;
    });
}

/// Returns the median of several runs.
async fn median<F: Future<Output = f64>>(mut run: impl FnMut() -> F) -> f64 {
    let mut all = Vec::new();
    for _ in 0..RUNS {
        all.push(run().await);
    }
    all.sort_by(f64::total_cmp);
    all[RUNS / 2]
}

/// Returns the rate of sequential operations, per second.
async fn rate<F: Future<Output = ()>>(mut one: impl FnMut() -> F) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME / RUNS as u32 {
        one().await;
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

async fn handshakes() {
    let cluster = Cluster::new();
    let limits = WireLimits {
        connections_per_tenant_max: 1000,
        tenants_max: 1000,
        handshakes_unproved_max: 1000,
        ..WireLimits::default()
    };
    let server = bind_with(&cluster.node("s"), limits);
    let accepting = tokio::spawn({
        let server = server.clone();
        async move {
            while let Some(connection) = server.accept(Role::Tenant).await {
                tokio::spawn(async move { connection.closed().await });
            }
        }
    });
    let client = bind(&cluster.tenant("acme"));
    let address = server.address().unwrap();
    for at_once in [1, 16] {
        let connect = || async {
            let connecting = (0..at_once).map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.connect(address, &ExpectedPeer::AnyNode).await.unwrap() })
            });
            for connection in connecting.collect::<Vec<_>>() {
                drop(connection.await.unwrap());
            }
        };
        let rate = median(|| rate(connect)).await * f64::from(at_once);
        println!("handshakes, {at_once:>2} at once, until the welcome: {rate:>8.0} /s");
    }
    accepting.abort();
}

async fn round_trips() {
    let udp = median(udp_trips).await;
    println!("round trip, UDP sockets:         {:>8.1} µs", 1e6 / udp);
    let plain = plain().await;
    let quic = median(|| stream_trips(&plain)).await;
    println!("round trip, QUIC stream:         {:>8.1} µs, {:.2} of UDP's", 1e6 / quic, udp / quic);
    let (ends, outgoing, accepted) = connected().await;
    let frames = median(|| frame_trips(&outgoing, &accepted)).await;
    println!("round trip, frame of 64 B:       {:>8.1} µs, {:.2} of a stream's", 1e6 / frames, quic / frames);
    let requests = median(|| request_trips(&outgoing, &accepted)).await;
    println!("round trip, request and answer:  {:>8.1} µs, {:.2} of a stream's", 1e6 / requests, quic / requests);
    drop(ends);
}

async fn connected() -> ((Endpoint, Endpoint), Connection, Connection) {
    let cluster = Cluster::new();
    let ends = (cluster.endpoint("a"), cluster.endpoint("b"));
    let (outgoing, accepted) = connect(&ends.0, &ends.1).await;
    (ends, outgoing, accepted)
}

async fn udp_trips() -> f64 {
    let (a, b) =
        (tokio::net::UdpSocket::bind(LOOPBACK).await.unwrap(), tokio::net::UdpSocket::bind(LOOPBACK).await.unwrap());
    a.connect(b.local_addr().unwrap()).await.unwrap();
    b.connect(a.local_addr().unwrap()).await.unwrap();
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 64];
        while b.recv(&mut bytes).await.is_ok() {
            b.send(&bytes).await.unwrap();
        }
    });
    let trips = rate(|| async {
        let mut bytes = [0; 64];
        a.send(&bytes).await.unwrap();
        a.recv(&mut bytes).await.unwrap();
    });
    let trips = trips.await;
    echo.abort();
    trips
}

/// Both ends of a plain QUIC connection.
struct PlainConnection {
    outgoing: quinn::Connection,
    accepted: quinn::Connection,
}

/// Connects plain QUIC with the same datagram and window sizes.
async fn plain() -> PlainConnection {
    let cluster = Cluster::new();
    let raw = raw::Raw::member(&cluster, Role::Node, "a");
    let limits = WireLimits::default();
    let transport = || {
        let (mut transport, mut mtu) = (quinn::TransportConfig::default(), quinn::MtuDiscoveryConfig::default());
        mtu.upper_bound(limits.datagram_bytes_max);
        transport.mtu_discovery_config(Some(mtu)).stream_receive_window(limits.stream_window_bytes.into());
        transport.receive_window(limits.node_window_bytes.into()).send_window(limits.send_window_bytes);
        std::sync::Arc::new(transport)
    };
    let bound = |server| {
        let mut config = quinn::EndpointConfig::default();
        config.max_udp_payload_size(limits.datagram_bytes_max).unwrap();
        let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
        quinn::Endpoint::new(config, server, socket, std::sync::Arc::new(quinn::TokioRuntime)).unwrap()
    };
    let mut server = raw.server("plain");
    server.transport_config(transport());
    let mut client = raw.config("plain");
    client.transport_config(transport());
    let (server, from) = (bound(Some(server)), bound(None));
    let connecting = from.connect_with(client, server.local_addr().unwrap(), "sandbar").unwrap();
    let (outgoing, accepted) = tokio::join!(connecting, async { server.accept().await.unwrap().await });
    PlainConnection { outgoing: outgoing.unwrap(), accepted: accepted.unwrap() }
}

type Stream = (quinn::SendStream, quinn::RecvStream);

async fn streams(plain: &PlainConnection) -> (Stream, Stream) {
    let mut a = plain.outgoing.open_bi().await.unwrap();
    a.0.write_all(b"t").await.unwrap();
    let mut b = plain.accepted.accept_bi().await.unwrap();
    b.1.read_exact(&mut [0]).await.unwrap();
    (a, b)
}

async fn stream_trips(plain: &PlainConnection) -> f64 {
    let ((mut send, mut receive), (mut echo_send, mut echo_receive)) = streams(plain).await;
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 64];
        while echo_receive.read_exact(&mut bytes).await.is_ok() {
            echo_send.write_all(&bytes).await.unwrap();
        }
    });
    let (start, mut count, mut bytes) = (Instant::now(), 0, [0; 64]);
    while start.elapsed() < TIME / RUNS as u32 {
        send.write_all(&bytes).await.unwrap();
        receive.read_exact(&mut bytes).await.unwrap();
        count += 1;
    }
    echo.abort();
    f64::from(count) / start.elapsed().as_secs_f64()
}

async fn frame_trips(outgoing: &Connection, accepted: &Connection) -> f64 {
    let mut frames = outgoing.open(CONTROL).await.unwrap();
    let accepted = accepted.clone();
    let echo = tokio::spawn(async move {
        let (_, mut frames) = accepted.accept().await.unwrap();
        while let Ok(Some(frame)) = frames.recv().await {
            frames.send(&frame).await.unwrap();
        }
    });
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME / RUNS as u32 {
        frames.send(&[1; 64]).await.unwrap();
        frames.recv().await.unwrap().unwrap();
        count += 1;
    }
    drop(frames);
    echo.await.unwrap();
    f64::from(count) / start.elapsed().as_secs_f64()
}

async fn request_trips(outgoing: &Connection, accepted: &Connection) -> f64 {
    let accepted = accepted.clone();
    let answering = tokio::spawn(async move {
        while let Ok(mut request) = accepted.next_request().await {
            let request_bytes = request.read().await.unwrap();
            request.respond(&request_bytes).await.unwrap();
        }
    });
    let trips = rate(|| async {
        outgoing.request(&[1; 64], Duration::from_secs(5)).await.unwrap();
    });
    let trips = trips.await;
    answering.abort();
    trips
}

async fn throughput() {
    for (size, count) in [(64, 400_000), (64 << 10, 4_000)] {
        let (_ends, outgoing, accepted) = connected().await;
        let bytes = (size * count) as f64;
        let plain = plain().await;
        let stream = median(|| stream_bytes(&plain, size * count)).await;
        let frames = median(|| many_frames(&outgoing, &accepted, size, count)).await;
        println!(
            "frames of {size:>5} B: {frames:>9.0} /s, {:>6.0} MiB/s, {:.2} of a stream's {:>6.0} MiB/s",
            frames * size as f64 / 1048576.0,
            frames * size as f64 / (bytes * stream),
            bytes * stream / 1048576.0,
        );
    }
}

/// Returns the rate at which a plain stream transfers this number of bytes, per second.
async fn stream_bytes(plain: &PlainConnection, bytes: usize) -> f64 {
    let ((mut send, _back), (_, mut receive)) = streams(plain).await;
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        let block = bytes::Bytes::from(vec![1; 64 << 10]);
        for _ in 0..bytes.div_ceil(block.len()) {
            send.write_chunk(block.clone()).await.unwrap();
        }
        send.finish().unwrap();
        _back
    });
    let mut pieces = [const { bytes::Bytes::new() }; 32];
    while receive.read_chunks(&mut pieces).await.unwrap().is_some() {}
    let rate = 1.0 / start.elapsed().as_secs_f64();
    drop(sending.await.unwrap());
    rate
}

/// Returns the frames a second on one channel.
async fn many_frames(outgoing: &Connection, accepted: &Connection, size: usize, count: usize) -> f64 {
    let frames = outgoing.open(CONTROL).await.unwrap();
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        let frame = vec![1; size];
        for _ in 0..count {
            frames.send(&frame).await.unwrap();
        }
        frames
    });
    let (_, mut received) = accepted.accept().await.unwrap();
    for _ in 0..count {
        received.recv().await.unwrap().unwrap();
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    drop(sending.await.unwrap());
    rate
}
