//! Requests, channels and certificates: everything on a connection but objects.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sandbar_simulation::environment;
use sandbar_wire::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::command::Command;
use crate::identities::{identities, name};
use crate::member::{Member, clock, is_of_network};
use crate::scenario::Scenario;
use crate::world::SLACK_MS;

const CHANNEL: Channel = Channel::new(3);
/// First byte of requests that are answered together, once as many have arrived as can be open at once.
const TOGETHER: u8 = 1;
const ALONE: u8 = 0;

pub async fn run(member: Rc<Member>, command: Command) {
    match command {
        Command::Request { to, bytes, must_succeed } => request(&member, to, bytes, must_succeed).await,
        Command::Frames { to, count, bytes_max } => frames(&member, to, count, bytes_max).await,
        Command::FillStreams { to } => fill_streams(&member, to).await,
        Command::JoinWithBadToken { token } => join_with_bad_token(&member, token).await,
        Command::Renew => renew(&member).await,
        other => unreachable!("{other:?}"),
    }
}

async fn request(member: &Member, to: usize, bytes: usize, must_succeed: bool) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("a request of host {host}"));
    let Some(connection) = member.links.get(to) else { return assert!(!must_succeed, "host {to} is not connected") };
    let number = world.begin(String::new()).number();
    let mut body = vec![ALONE];
    body.extend(number.to_le_bytes());
    body.resize(9 + bytes, number as u8);
    let (ms, started) = (1_000, Instant::now());
    let response = connection.request(&body, Duration::from_millis(ms)).await;
    let duration_ms = started.elapsed().as_millis() as u64;
    assert!(duration_ms <= ms + SLACK_MS, "a request took {duration_ms} ms");
    let times = world.state().answered.get(&number).copied().unwrap_or(0);
    match response {
        Ok(response) => {
            assert!(response.iter().eq(body.iter().rev()), "another answer came");
            assert_eq!(times, 1, "a request was answered so often");
            world.note(format_args!("host {host} has an answer of host {to}"));
        }
        Err(error) => {
            world.note(format_args!("host {host} has no answer of host {to}: {}", error.code()));
            assert!(!must_succeed && (world.is_rough() || is_slow(&error)), "host {host} asked host {to}: {error}");
            assert!(is_expected(&error), "host {host} asked host {to}: {error}");
        }
    }
}

/// Returns whether the request timed out, which happens in a calm network too if it is large.
fn is_slow(error: &ChannelError) -> bool {
    matches!(error, ChannelError::Slow { .. })
}

/// Returns whether the error can result from dead hosts and lost packets.
fn is_expected(error: &ChannelError) -> bool {
    match error {
        ChannelError::Disconnected(lost) => is_of_network(lost.code()) || lost.code() == "replaced",
        other => matches!(other, ChannelError::Slow { .. } | ChannelError::Stopped(_)),
    }
}

/// Answers a peer's requests.
pub async fn serve_requests(member: &Rc<Member>, connection: &Connection) {
    let mut answering = JoinSet::new();
    let mut together = Vec::new();
    while let Ok(mut request) = connection.next_request().await {
        while answering.try_join_next().is_some() {}
        let Ok(body) = request.read().await else { continue };
        if body[0] == TOGETHER {
            together.push((request, body));
            if together.len() == at_once(&member.world.scenario) as usize {
                for (request, body) in together.drain(..) {
                    answering.spawn_local(async move { drop(request.respond(&body).await) });
                }
            }
            continue;
        }
        let number = u64::from_le_bytes(body[1..9].try_into().unwrap());
        let times = {
            let state = &mut *member.world.state();
            let times = state.answered.entry(number).or_default();
            *times += 1;
            *times
        };
        assert_eq!(times, 1, "request {number} came so often");
        let response: Vec<u8> = body.iter().rev().copied().collect();
        let pause_ms = member.random.borrow_mut().below(30);
        answering.spawn_local(async move {
            sleep(Duration::from_millis(pause_ms)).await;
            drop(request.respond(&response).await);
        });
    }
}

/// Streams that can always be open at once: QUIC grants a peer further streams only after an eighth of them has ended.
fn at_once(scenario: &Scenario) -> u32 {
    scenario.wire.streams_max - scenario.wire.streams_max / 8
}

/// Opens as many requests as there may be streams, all at once, which fails if earlier streams leaked.
async fn fill_streams(member: &Member, to: usize) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("filling streams of host {host}"));
    let Some(connection) = member.links.get(to) else { panic!("host {to} is not connected to host {host}") };
    let streams = at_once(&world.scenario);
    let asking = (0..streams).map(|number| {
        let connection = connection.clone();
        async move { connection.request(&[TOGETHER, number as u8], Duration::from_millis(1_900)).await }
    });
    for response in join_all(asking).await {
        if let Err(error) = response {
            panic!("host {host} can't open {streams} streams to host {to} at once: {error}");
        }
    }
}

fn frame(number: u64, bytes: u64) -> Vec<u8> {
    let mut frame = number.to_le_bytes().to_vec();
    frame.resize(8 + bytes as usize, number as u8 ^ 0x5a);
    frame
}

/// Sends frames and waits for the peer's count of them.
async fn frames(member: &Member, to: usize, count: u64, bytes_max: u64) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("frames of host {host}"));
    let Some(connection) = member.links.get(to) else { return };
    let sizes: Vec<u64> = (0..count).map(|_| member.random.borrow_mut().below(bytes_max)).collect();
    let sending = async {
        let frames = connection.open(CHANNEL).await?;
        let (sender, mut receiver) = frames.split();
        for (number, bytes) in sizes.iter().enumerate() {
            sender.send(&frame(number as u64, *bytes)).await?;
        }
        drop(sender);
        receiver.recv().await
    };
    match sending.await {
        Ok(Some(came)) => assert_eq!(came[..], count.to_le_bytes(), "frames that came"),
        Ok(None) => assert!(world.is_rough(), "host {to} did not say how many frames came"),
        Err(error) => {
            world.note(format_args!("host {host} sends frames to host {to}: {}", error.code()));
            let is_busy = matches!(error, ChannelError::Stopped(StopReason::Busy));
            assert!(world.is_rough() || is_busy, "host {host} sends frames to host {to}: {error}");
            assert!(is_expected(&error), "host {host} sends frames to host {to}: {error}");
        }
    }
}

/// Receives frames and checks that each is complete, in order and unchanged.
pub async fn serve_channels(member: &Rc<Member>, connection: &Connection) {
    let mut listening = JoinSet::new();
    while let Ok((channel, frames)) = connection.accept().await {
        while listening.try_join_next().is_some() {}
        assert_eq!(channel, CHANNEL);
        let world = member.world.clone();
        listening.spawn_local(async move {
            let (sender, mut receiver) = frames.split();
            let mut count = 0_u64;
            loop {
                match receiver.recv().await {
                    Ok(Some(came)) => {
                        assert!(came[..] == frame(count, came.len() as u64 - 8), "frame {count} is another one");
                        count += 1;
                    }
                    Ok(None) => break,
                    Err(error) => return assert!(is_expected(&error), "{error}"),
                }
            }
            if let Err(error) = sender.send(&count.to_le_bytes()).await {
                assert!(world.is_rough() && is_expected(&error), "{error}");
            }
        });
    }
}

async fn join_with_bad_token(member: &Member, token: usize) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("joining with a bad token at host {host}"));
    let (token, code) = &identities().bad_tokens[token % identities().bad_tokens.len()];
    let address = SocketAddr::new(world.address(host).ip(), 0);
    let seed = member.random.borrow_mut().bytes();
    let environment = environment(&world.net, address, clock(world, host), seed).await.unwrap();
    let (key, limits) = (Arc::new(Key::generate().unwrap()), &world.scenario.wire);
    let joined = join(environment, world.address(0), token, key, Role::Node, &name(1), limits).await;
    let error = joined.expect_err("the token is no good");
    world.note(format_args!("host {host} joins with a bad token: {}", error.code()));
    let is_known = error.code() == *code || world.is_rough() && is_of_network(error.code());
    assert!(is_known, "joining with a token that is {code}: {error}");
}

async fn renew(member: &Member) {
    let (world, host) = (&member.world, member.host);
    let _pending = world.begin(format!("renewing of host {host}"));
    let Some(connection) = member.links.get(0) else { return };
    match member.endpoint.renew(&connection).await {
        Ok(identity) => {
            member.endpoint.set_identity(&identity).unwrap();
            world.note(format_args!("host {host} renews: ok"));
            world.state().hosts[host].identity = Some(identity);
        }
        Err(error) => {
            world.note(format_args!("host {host} renews: {}", error.code()));
            let is_expected = is_of_network(error.code()) || error.code() == "replaced";
            assert!(is_expected && (world.is_rough() || error.code() == "busy"), "host {host} renews: {error}");
        }
    }
}
