//! Floods of a node by unauthenticated clients in another process: memory stays bounded, and connected peers are
//! served.
//!
//! Prints measurements; no time is a condition. `SANDBAR_FLOOD_S` sets the seconds of each flood, `SANDBAR_FLOOD_RATE`
//! the attempts a second (2,000).

#![expect(dead_code, reason = "other tests use the rest of these modules")]

#[path = "wire/raw.rs"]
mod raw;
#[path = "wire/support.rs"]
mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use raw::Raw;
use sandbar_seeds::number_from_env;
use sandbar_wire::*;
use support::*;

const MEMORY_GROWTH_BYTES_MAX: usize = 64 << 20;
/// Addresses of the attacker.
const ADDRESSES: u8 = 64;

fn seconds() -> u64 {
    number_from_env("SANDBAR_FLOOD_S").unwrap_or(3)
}

/// Attempts a second that the attacker makes, if its processor allows.
fn rate() -> u64 {
    number_from_env("SANDBAR_FLOOD_RATE").unwrap_or(2_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stands_floods() {
    let cluster = Cluster::new();
    let node = cluster.endpoint("n1");
    node.serve_joins(cluster.issuer()).unwrap();
    let peer = cluster.endpoint("n2");
    let (outgoing, accepted) = connect(&peer, &node).await;
    let echo = tokio::spawn(async move {
        let (_, mut frames) = accepted.accept().await.unwrap();
        while let Ok(Some(frame)) = frames.recv().await {
            frames.send(&frame).await.unwrap();
        }
    });
    let mut frames = outgoing.open(Channel::new(0)).await.unwrap();
    let calm = measure(&mut frames, || (), Duration::from_secs(1)).await;
    report("nothing", &calm, 0, 0, &node.counts());
    for attack in ["garbage", "forged", "half-open", "self-signed", "joins"] {
        let (before, memory) = (node.counts(), resident());
        let mut peak = memory;
        let mut attacker = attacker(attack, node.address().unwrap());
        // A node of the cluster that reconnects during the flood, from a known address.
        let (late, address) = (cluster.endpoint(attack), node.address().unwrap());
        let back = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let start = Instant::now();
            late.connect(address, &ExpectedPeer::AnyNode).await.unwrap();
            start.elapsed()
        });
        let trips = measure(&mut frames, || peak = peak.max(resident()), Duration::from_secs(seconds())).await;
        let attempts = ended(&mut attacker);
        eprintln!("{attack:>12}: another node of the cluster was let in after {:?}", back.await.unwrap());
        let grown = peak.saturating_sub(memory);
        report(attack, &trips, attempts, grown, &since(&before, &node.counts()));
        assert!(attempts > 1_000 * seconds(), "the attacker outgoing {attempts} attempts");
        assert!(grown <= MEMORY_GROWTH_BYTES_MAX, "{attack}: {grown} bytes");
    }
    // The floods do not affect later connections.
    let late = cluster.endpoint("n3");
    late.connect(node.address().unwrap(), &ExpectedPeer::AnyNode).await.unwrap();
    drop(frames);
    echo.await.unwrap();
}

/// Measures round trips of a frame with pauses in between. Every frame must come back.
async fn measure(frames: &mut Frames, mut meanwhile: impl FnMut(), time: Duration) -> Vec<Duration> {
    let (start, mut trips) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let sent = Instant::now();
        frames.send(&[7; 64]).await.unwrap();
        let back = tokio::time::timeout(Duration::from_secs(4), frames.recv()).await.expect("it is not served");
        assert_eq!(back.unwrap().unwrap()[..], [7; 64]);
        trips.push(sent.elapsed());
        meanwhile();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    trips.sort();
    trips
}

fn report(attack: &str, trips: &[Duration], attempts: u64, grown: usize, counts: &EndpointCounts) {
    let at = |part: usize| trips[(trips.len() - 1) * part / 1000];
    eprintln!(
        "{attack:>12}: {attempts:>6} attempts; {:>4} round trips: median {:?}, 99% {:?}, slowest {:?}; memory +{} KiB; {counts:?}",
        trips.len(),
        at(500),
        at(990),
        at(1000),
        grown >> 10,
    );
}

fn since(before: &EndpointCounts, now: &EndpointCounts) -> EndpointCounts {
    EndpointCounts {
        admitted: now.admitted - before.admitted,
        refused: now.refused - before.refused,
        failed: now.failed - before.failed,
        retried: now.retried - before.retried,
        ignored: now.ignored - before.ignored,
        joined: now.joined - before.joined,
    }
}

/// Returns this process's resident bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn attacker(attack: &str, to: SocketAddr) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_attacker", "--nocapture"]).stdout(Stdio::null()).stderr(Stdio::piped());
    command.env("SANDBAR_ATTACK", attack).env("SANDBAR_ATTACKED", to.to_string()).spawn().unwrap()
}

/// Waits for the attacker and returns the number of its attempts.
fn ended(attacker: &mut Child) -> u64 {
    let mut output = String::new();
    std::io::Read::read_to_string(&mut attacker.stderr.take().unwrap(), &mut output).unwrap();
    assert!(attacker.wait().unwrap().success(), "{output}");
    let attempts = output.lines().find_map(|line| line.strip_prefix("attempts: "));
    attempts.unwrap_or_else(|| panic!("{output}")).parse().unwrap()
}

/// Runs the attacker in a child process; without `SANDBAR_ATTACK` it does nothing.
#[tokio::test]
async fn the_attacker() {
    let Ok(attack) = std::env::var("SANDBAR_ATTACK") else { return };
    let to: SocketAddr = std::env::var("SANDBAR_ATTACKED").unwrap().parse().unwrap();
    let addresses: Vec<IpAddr> = (1..=ADDRESSES).map(|number| [127, 0, 9, number].into()).collect();
    let protocol = format!("sandbar/{PROTOCOL_VERSION}");
    let attempts = match &*attack {
        "garbage" => datagrams(to, &addresses, |random| random_bytes(random, 40 + random % 1300)).await,
        "forged" => datagrams(to, &addresses, forged_initial).await,
        "half-open" => handshakes(to, &addresses, &protocol, Raw::self_signed(&["sandbar://c/node/n"]), true).await,
        "self-signed" => handshakes(to, &addresses, &protocol, Raw::self_signed(&["sandbar://c/node/n"]), false).await,
        "joins" => handshakes(to, &addresses, JOIN_ALPN, Raw::self_signed(&["sandbar-join:"]), false).await,
        other => panic!("{other}"),
    };
    eprintln!("attempts: {attempts}");
}

/// Calls `attempt` at the configured rate for the configured time.
async fn at_rate(mut attempt: impl FnMut(u64)) -> u64 {
    let (start, time, rate, mut attempts) = (Instant::now(), Duration::from_secs(seconds()), rate() as f64, 0);
    while start.elapsed() < time {
        let due = (start.elapsed().as_secs_f64() * rate) as u64;
        while attempts < due {
            attempt(attempts);
            attempts += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    attempts
}

async fn datagrams(to: SocketAddr, addresses: &[IpAddr], make: impl Fn(u64) -> Vec<u8>) -> u64 {
    let sockets: Vec<_> = addresses.iter().map(|address| UdpSocket::bind((*address, 0)).unwrap()).collect();
    at_rate(|number| {
        let _ = sockets[number as usize % sockets.len()].send_to(&make(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), to);
    })
    .await
}

fn random_bytes(seed: u64, length: u64) -> Vec<u8> {
    use rand_xoshiro::rand_core::{RngCore, SeedableRng};
    let mut bytes = vec![0; length as usize];
    rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Returns a datagram that looks like the first packet of a connection until it is decrypted.
fn forged_initial(random: u64) -> Vec<u8> {
    let mut bytes = random_bytes(random, 1200);
    bytes[0] = 0xc0 | bytes[0] & 0x0f;
    bytes[1..5].copy_from_slice(&1_u32.to_be_bytes());
    (bytes[5], bytes[14], bytes[23]) = (8, 8, 0);
    // Payload length: everything that follows.
    bytes[24..26].copy_from_slice(&(0x4000_u16 | (1200 - 26)).to_be_bytes());
    bytes
}

/// Starts handshakes of real clients that never complete or never send a request.
async fn handshakes(to: SocketAddr, addresses: &[IpAddr], protocol: &str, raw: Raw, half_open: bool) -> u64 {
    let config = raw.config(protocol);
    let endpoints = addresses.iter().map(|address| match half_open {
        true => raw::limited_endpoint(*address, usize::MAX, true),
        false => quinn::Endpoint::client((*address, 0).into()).unwrap(),
    });
    let endpoints: Vec<_> = endpoints.collect();
    at_rate(|number| {
        let endpoint = &endpoints[number as usize % endpoints.len()];
        let connecting = endpoint.connect_with(config.clone(), to, "sandbar").unwrap();
        tokio::spawn(async move {
            let _connection = tokio::time::timeout(Duration::from_secs(2), connecting).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
    })
    .await
}
