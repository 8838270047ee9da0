//! Frames and requests between well-behaved ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_seeds::{PrintSeedOnPanic, seeds};
use sandbar_wire::*;

use crate::support::*;

const CONTROL: Channel = Channel::new(0);
const TASKS: Channel = Channel::new(1);

/// Two connected ends and their endpoints.
pub struct Pair {
    pub a: Connection,
    pub b: Connection,
    _ends: (Endpoint, Endpoint),
}

pub async fn pair_with(limits: WireLimits) -> Pair {
    let cluster = Cluster::new();
    let ends = (bind_with(&cluster.node("a"), limits), bind_with(&cluster.node("b"), limits));
    let (a, b) = connect(&ends.0, &ends.1).await;
    Pair { a, b, _ends: ends }
}

pub async fn pair() -> Pair {
    pair_with(WireLimits::default()).await
}

/// Opens a channel from `a` and returns both ends, after its first frame.
pub async fn channel(pair: &Pair, channel: Channel) -> (Frames, Frames) {
    let a = pair.a.open(channel).await.unwrap();
    a.send(b"hello").await.unwrap();
    let (number, mut b) = pair.b.accept().await.unwrap();
    assert_eq!(number, channel);
    assert_eq!(b.recv().await.unwrap().unwrap(), &b"hello"[..]);
    (a, b)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("it takes too long")
}

#[tokio::test]
async fn frames_arrive_in_order_both_ways() {
    let pair = pair().await;
    let (mut a, mut b) = channel(&pair, CONTROL).await;
    for seed in seeds(20) {
        let _seed = PrintSeedOnPanic(seed);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let frames: Vec<Vec<u8>> = (0..200)
            .map(|_| {
                let bits = random.next_u32() % 17;
                let mut frame = vec![0; (random.next_u32() & ((1 << bits) - 1)) as usize];
                random.fill_bytes(&mut frame);
                frame
            })
            .collect();
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let sending = async {
                for frame in &frames {
                    from.send(frame).await.unwrap();
                }
            };
            let receiving = async {
                for frame in &frames {
                    assert_eq!(to.recv().await.unwrap().unwrap(), frame);
                }
            };
            soon(async { tokio::join!(sending, receiving) }).await;
        }
    }
}

#[tokio::test]
async fn the_longest_frame_arrives_and_a_longer_one_is_not_sent() {
    let pair = pair().await;
    let (a, mut b) = channel(&pair, CONTROL).await;
    let longest = vec![7; 1 << 20];
    a.send(&longest).await.unwrap();
    assert_eq!(b.recv().await.unwrap().unwrap(), longest);
    let error = a.send(&vec![7; (1 << 20) + 1]).await.unwrap_err();
    assert_eq!((error.code(), error.blame()), ("oversized", Blame::Host), "{error}");
    assert!(error.to_string().contains("wire.frame_bytes_max"), "{error}");
    a.send(b"and on").await.unwrap();
    assert_eq!(b.recv().await.unwrap().unwrap(), &b"and on"[..]);
}

#[tokio::test]
async fn a_channel_ends_when_its_senders_are_dropped() {
    let pair = pair().await;
    let (a, b) = channel(&pair, CONTROL).await;
    let (sender, mut from_b) = a.split();
    let (b_sender, mut from_a) = b.split();
    let other = sender.clone();
    for number in 0..100_u8 {
        if number % 2 == 0 { &sender } else { &other }.send(&[number]).await.unwrap();
    }
    drop(sender);
    drop(other);
    for number in 0..100_u8 {
        assert_eq!(from_a.recv().await.unwrap().unwrap()[..], [number]);
    }
    assert_eq!(from_a.recv().await, Ok(None));
    // The other direction stays open.
    b_sender.send(b"still").await.unwrap();
    assert_eq!(from_b.recv().await.unwrap().unwrap(), &b"still"[..]);
    drop(b_sender);
    assert_eq!(from_b.recv().await, Ok(None));
}

#[tokio::test]
async fn a_dropped_receiver_stops_the_channel() {
    let pair = pair().await;
    let (a, b) = channel(&pair, CONTROL).await;
    drop(b);
    let error = soon(async {
        loop {
            if let Err(error) = a.send(b"are you there").await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(error, ChannelError::Stopped(StopReason::Dropped));
    assert!(a.send(b"").await.is_err());
    // The connection stays open.
    channel(&pair, TASKS).await;
}

/// The sender waits when the receiver does not read: both ends' buffers are bounded.
#[tokio::test]
async fn a_slow_reader_holds_the_sender_up() {
    let limits = WireLimits {
        stream_window_bytes: 256 << 10,
        send_queue_bytes_max: 256 << 10,
        frame_bytes_max: 64 << 10,
        ..WireLimits::default()
    };
    let pair = pair_with(limits).await;
    let (a, mut b) = channel(&pair, CONTROL).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let sending = tokio::spawn({
        let sent = sent.clone();
        async move {
            for number in 0..1000_u32 {
                a.send(&vec![number as u8; 10_000]).await.unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
            a
        }
    });
    let mut last = 0;
    until("it to be held up", || {
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut last, now) == now && now > 0
    })
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = sent.load(Ordering::Relaxed) * 10_004;
    assert!((256 << 10..600 << 10).contains(&held), "{held} bytes");
    // Other channels continue.
    let (other, mut of_other) = channel(&pair, TASKS).await;
    soon(async {
        for number in 0..100_u8 {
            other.send(&[number]).await.unwrap();
            assert_eq!(of_other.recv().await.unwrap().unwrap()[..], [number]);
        }
    })
    .await;
    for number in 0..1000_u32 {
        assert_eq!(soon(b.recv()).await.unwrap().unwrap(), vec![number as u8; 10_000]);
    }
    drop(sending.await);
}

/// Futures dropped at random: sent frames arrive once and in order, and no others arrive.
#[tokio::test]
async fn sending_and_receiving_can_be_dropped() {
    for seed in seeds(10) {
        let _seed = PrintSeedOnPanic(seed);
        let limits = WireLimits {
            stream_window_bytes: 64 << 10,
            send_queue_bytes_max: 8 << 10,
            frame_bytes_max: 4 << 10,
            ..WireLimits::default()
        };
        let pair = pair_with(limits).await;
        let (a, mut b) = channel(&pair, CONTROL).await;
        let sending = tokio::spawn(async move {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (mut sent, mut dropped) = (0_u32, 0);
            while sent < 2_000 {
                let mut frame = sent.to_le_bytes().to_vec();
                frame.resize(4 + random.next_u32() as usize % 4000, 0);
                let patience = Duration::from_micros(u64::from(random.next_u32() % 300));
                match tokio::time::timeout(patience, a.send(&frame)).await {
                    Ok(done) => {
                        done.unwrap();
                        sent += 1;
                    }
                    Err(_) => dropped += 1,
                }
            }
            a.send(&[]).await.unwrap();
            (a, dropped)
        });
        let mut random = Xoshiro256PlusPlus::seed_from_u64(!seed);
        let mut next = 0_u32;
        soon(async {
            loop {
                let patience = Duration::from_micros(u64::from(random.next_u32() % 300));
                let Ok(frame) = tokio::time::timeout(patience, b.recv()).await else { continue };
                let frame = frame.unwrap().unwrap();
                if frame.is_empty() {
                    break;
                }
                assert_eq!(frame[..4], next.to_le_bytes(), "seed {seed}");
                next += 1;
            }
        })
        .await;
        assert_eq!(next, 2_000);
        sending.await.unwrap();
    }
}

/// Control frames are not delayed by bulk channels, neither by unread ones whose windows are full nor by read ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_is_not_held_up_by_bulk() {
    let pair = pair().await;
    let (control, mut of_control) = channel(&pair, CONTROL).await;
    let bulk = Channel::new(63);
    let mut kept = Vec::new();
    for reads in [false, false, false, false, true, true, true] {
        let (sender, mut receiver) = channel(&pair, bulk).await;
        kept.push(tokio::spawn(async move {
            let block = vec![1; 1 << 20];
            while sender.send(&block).await.is_ok() {}
        }));
        kept.push(tokio::spawn(async move {
            while reads && receiver.recv().await.is_ok() {}
            std::future::pending::<()>().await;
            drop(receiver);
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut slowest = Duration::ZERO;
    for number in 0..200_u8 {
        let start = Instant::now();
        soon(control.send(&[number])).await.unwrap();
        assert_eq!(soon(of_control.recv()).await.unwrap().unwrap()[..], [number]);
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    eprintln!("the slowest of 200 frames took {slowest:?} beside bulk");
    kept.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn there_are_as_many_channels_as_there_may_be() {
    let pair = pair_with(WireLimits { channels_max: 3, ..WireLimits::default() }).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(channel(&pair, TASKS).await);
    }
    let mut fourth = pair.a.open(TASKS).await.unwrap();
    let _ = fourth.send(b"one more").await;
    assert_eq!(soon(fourth.recv()).await, Err(ChannelError::Stopped(StopReason::Busy)));
    drop(open.pop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    channel(&pair, TASKS).await;
}

#[tokio::test]
async fn requests_are_answered() {
    let pair = pair().await;
    let answering = tokio::spawn({
        let b = pair.b.clone();
        async move {
            while let Ok(mut request) = b.next_request().await {
                let request_bytes = request.read().await.unwrap();
                match &request_bytes[..] {
                    b"drop" => drop(request),
                    b"long" => {
                        let error = request.respond(&vec![0; (1 << 20) + 1]).await.unwrap_err();
                        assert_eq!(error.code(), "oversized");
                    }
                    b"late" => tokio::time::sleep(Duration::from_millis(300)).await,
                    _ => request.respond(&request_bytes).await.unwrap(),
                }
            }
        }
    });
    let second = Duration::from_secs(1);
    for (request_bytes, time, expected) in [
        (&b"echo"[..], second, Ok(())),
        (b"", second, Ok(())),
        (&[3; 1 << 20], second, Ok(())),
        (&[3; (1 << 20) + 1], second, Err("oversized")),
        (b"drop", second, Err("stopped")),
        (b"long", second, Err("stopped")),
        (b"late", second / 10, Err("slow")),
    ] {
        let response = pair.a.request(request_bytes, time).await;
        assert_eq!(
            response.as_ref().map(|response| assert_eq!(response, request_bytes)).map_err(|e| e.code()),
            expected,
            "{response:?}"
        );
    }
    let many: Vec<_> = (0..500_u32)
        .map(|number| {
            let a = pair.a.clone();
            tokio::spawn(async move { a.request(&number.to_le_bytes(), 10 * second).await })
        })
        .collect();
    let mut busy = 0;
    for (number, request_bytes) in many.into_iter().enumerate() {
        match request_bytes.await.unwrap() {
            Ok(response) => assert_eq!(response[..], (number as u32).to_le_bytes()),
            Err(error) => {
                assert_eq!(error, ChannelError::Stopped(StopReason::Busy));
                busy += 1;
            }
        }
    }
    assert!(busy < 500, "{busy} were refused");
    pair.a.close(CloseCode::Done, "that was all");
    soon(answering).await.unwrap();
}

#[tokio::test]
async fn requests_that_are_not_accepted_are_refused() {
    let pair = pair_with(WireLimits { requests_waiting_max: 2, ..WireLimits::default() }).await;
    let second = Duration::from_secs(1);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let a = pair.a.clone();
            tokio::spawn(async move { a.request(b"anybody", second).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(pair.a.request(b"anybody", second).await, Err(ChannelError::Stopped(StopReason::Busy)));
    for request_bytes in waiting {
        assert_eq!(request_bytes.await.unwrap().unwrap_err().code(), "slow");
    }
}

/// A request that is cancelled halfway fails; no receiver takes it for a complete one.
#[tokio::test]
async fn half_a_request_is_none() {
    let limits = WireLimits { stream_window_bytes: 64 << 10, ..WireLimits::default() };
    let pair = pair_with(limits).await;
    let request_bytes = pair.a.request(&[1; 500_000], Duration::from_millis(100));
    let (request_bytes, request) = tokio::join!(request_bytes, pair.b.next_request());
    assert_eq!(request_bytes.unwrap_err().code(), "slow");
    assert_eq!(request.unwrap().read().await.unwrap_err().code(), "stopped");
}
