//! Random fetches: any length, from holders that lie, stall or die at random points.
//!
//! `SANDBAR_SEED=7 cargo test --release -p sandbar-wire transfer::tests::random` replays one; `SANDBAR_SEEDS` sets how
//! many are tried otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_seeds::{for_each_seed, seeds};

use super::super::layout::{BLOCK_GROUPS, GROUP_BYTES};
use super::super::message::Refusal;
use super::super::*;
use super::hostile::ScriptedResponse;
use super::world::{Host, Liar, Lie, lie, limits, noise};

const SEEDS: u64 = 150;

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn len(&mut self) -> u64 {
        let (group, block) = (GROUP_BYTES, GROUP_BYTES * u64::from(BLOCK_GROUPS));
        let near = [0, 1, group, 2 * group, 4 * group, 8 * group, block, block + group];
        match self.below(3) {
            0 => self.below(3 * group),
            1 => self.below(6 << 20),
            _ => (near[self.below(near.len() as u64) as usize] + self.below(3)).saturating_sub(1),
        }
    }
}

/// Behavior of a holder.
#[derive(Debug, Clone, Copy, PartialEq)]
enum HolderBehavior {
    Honest,
    /// Answers that it has nothing yet, this many times.
    Late(u64),
    /// Delays each answer by this many milliseconds.
    Slow(u64),
    /// Corrupts one of this many groups, on average.
    Corrupts(u64),
    /// Truncates one of this many answers, on average.
    Cuts(u64),
    /// Closes the connection after this many answers.
    Dies(u64),
    /// Stops answering after this many answers.
    Stalls(u64),
    Refuses,
}

impl HolderBehavior {
    fn random(random: &mut Random) -> HolderBehavior {
        match random.below(10) {
            0..3 => HolderBehavior::Honest,
            3 => HolderBehavior::Late(random.below(4)),
            4 => HolderBehavior::Slow(random.below(30)),
            5 => HolderBehavior::Corrupts(1 + random.below(40)),
            6 => HolderBehavior::Cuts(1 + random.below(5)),
            7 => HolderBehavior::Dies(random.below(5)),
            8 => HolderBehavior::Stalls(random.below(5)),
            _ => HolderBehavior::Refuses,
        }
    }

    fn gives_all(self) -> bool {
        matches!(self, HolderBehavior::Honest | HolderBehavior::Late(_) | HolderBehavior::Slow(_))
    }

    fn explains(self, error: &HolderError) -> bool {
        match self {
            HolderBehavior::Honest | HolderBehavior::Late(_) | HolderBehavior::Slow(_) => false,
            HolderBehavior::Corrupts(_) => matches!(error, HolderError::BadChunk { .. }),
            HolderBehavior::Cuts(_) => matches!(error, HolderError::Protocol(_)),
            HolderBehavior::Dies(_) => matches!(error, HolderError::ConnectionLost(_) | HolderError::Unreachable(_)),
            HolderBehavior::Stalls(_) => matches!(error, HolderError::Stalled { .. }),
            HolderBehavior::Refuses => *error == HolderError::NotFound,
        }
    }

    fn lie(self, bytes: Arc<Vec<u8>>, seed: u64) -> Lie {
        let (answered, tree) = (Arc::new(AtomicU64::new(0)), Arc::new(HashTree::build(&bytes)));
        lie(move |request, mut send, connection| {
            let (bytes, tree, before) = (bytes.clone(), tree.clone(), answered.fetch_add(1, Ordering::Relaxed));
            let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(seed + before));
            async move {
                let mut response = ScriptedResponse::new(&bytes, &tree, &request);
                match self {
                    HolderBehavior::Corrupts(odds) => {
                        for body in response.bodies.iter_mut().filter(|body| !body.is_empty()) {
                            if random.below(odds) == 0 {
                                let at = random.below(body.len() as u64) as usize;
                                body[at] ^= 1 << random.below(8);
                            }
                        }
                    }
                    HolderBehavior::Late(count) if before < count => {
                        let mut status = Vec::new();
                        Refusal::NotYet.write(&mut status);
                        return drop(send.write_all(&status).await);
                    }
                    HolderBehavior::Slow(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    HolderBehavior::Dies(count) if before >= count => return connection.close(0u32.into(), b"dies"),
                    HolderBehavior::Stalls(count) if before >= count => return std::future::pending().await,
                    HolderBehavior::Refuses => {
                        let mut status = Vec::new();
                        Refusal::NotFound.write(&mut status);
                        return drop(send.write_all(&status).await);
                    }
                    _ => {}
                }
                let mut all = response.bytes();
                if let HolderBehavior::Cuts(odds) = self
                    && random.below(odds) == 0
                {
                    all.truncate(random.below(all.len() as u64) as usize);
                }
                let _ = send.write_all(&all).await;
            }
        })
    }
}

async fn history(seed: u64) {
    let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(seed));
    let bytes = Arc::new(noise(random.len() as usize, seed));
    let limits = TransferLimits {
        pieces_in_flight_max: 1 + random.below(6) as usize,
        holders_max: 1 + random.below(3) as usize,
        piece_bytes_max: GROUP_BYTES * (1 + random.below(8)),
        ..limits()
    };
    let receiver = Host::start(0, limits);
    let behaviors: Vec<HolderBehavior> =
        (0..1 + random.below(4)).map(|_| HolderBehavior::random(&mut random)).collect();
    let liar = |(i, behavior): (usize, &HolderBehavior)| {
        Liar::start(1 + i as u32, behavior.lie(bytes.clone(), seed + 1000 * i as u64))
    };
    let liars: Vec<Liar> = behaviors.iter().enumerate().map(liar).collect();
    let holders = liars.iter().map(|liar| receiver.holder_of_liar(liar)).collect();
    let result = receiver.fetch(&bytes, holders).await;
    let failed = match &result {
        Ok(report) => &report.failed,
        Err(FetchError::NoHolder { failed, .. }) => failed,
        Err(other) => panic!("{other}"),
    };
    for failed in &failed.0 {
        let behavior = behaviors[failed.holder.0 as usize - 1];
        assert!(behavior.explains(&failed.error), "{behavior:?} does not explain this failure: {failed:?}");
    }
    if behaviors.iter().any(|behavior| behavior.gives_all()) || bytes.is_empty() {
        assert!(result.is_ok(), "{behaviors:?}: {result:?}");
    } else if result.is_err() {
        assert_eq!(failed.0.len(), behaviors.len(), "{behaviors:?}: {result:?}");
    }
    assert_eq!((receiver.admission.used(), receiver.admission.waiting()), (0, 0));
}

#[test]
fn every_fetch_ends_with_equal_bytes_or_a_right_error() {
    for_each_seed(seeds(SEEDS), |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_secs(60);
        runtime.block_on(async { tokio::time::timeout(limit, history(seed)).await.expect("it never ends") });
    });
}
