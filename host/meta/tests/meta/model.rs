//! Random histories: after each step a store responds as `MemoryStore` does, has the same content, and its watchers
//! have seen the same changes.
//!
//! `SANDBAR_SEED=7 cargo test --release -p sandbar-meta --test meta -- model --nocapture` replays one history and
//! prints it; `SANDBAR_SEEDS` sets the number of seeds otherwise.

use sandbar_meta::{KeyRange, MetaLimits};
use sandbar_seeds::{chosen_seed, seeds};

use crate::cluster::Cluster;
use crate::driver::{Driver, Step, StoreKind};
use crate::random::{HistoryFeatures, Steps, WATCHERS};

const STEPS: usize = 120;
const SEEDS_OF_FILES: u64 = 150;
const SEEDS_OF_CLUSTERS: u64 = 12;

/// Small limits, which histories reach.
fn limits() -> MetaLimits {
    MetaLimits {
        history_changes_max: 8,
        history_bytes_max: 60,
        leases_max: 8,
        watchers_max: WATCHERS,
        store_bytes_max: 22,
        page_entries_max: 3,
        page_bytes_max: 12,
        ..MetaLimits::default()
    }
}

/// Limits for clusters, which have some of their own.
fn limits_of_clusters() -> MetaLimits {
    MetaLimits { watchers_max: WATCHERS, page_entries_max: 3, page_bytes_max: 12, ..MetaLimits::default() }
}

#[tokio::test]
async fn files_match_the_model() {
    let print = chosen_seed().is_some();
    for seed in seeds(SEEDS_OF_FILES) {
        let kinds = HistoryFeatures { time: true, reopen: true };
        let mut history = History::new(seed, kinds, Driver::memory(limits()), Driver::redb(limits()).await, print);
        history.run().await;
    }
}

#[tokio::test]
async fn clusters_match_the_model() {
    let cluster = Cluster::start(3).await;
    let print = chosen_seed().is_some();
    for seed in seeds(SEEDS_OF_CLUSTERS) {
        let limits = limits_of_clusters();
        let store = cluster.connect(&format!("seed{seed}"), limits).await;
        let mut history =
            History::new(seed, HistoryFeatures::default(), Driver::memory(limits), Driver::other(store).await, print);
        history.run().await;
    }
}

/// Guards against histories in which nothing happens.
#[tokio::test]
async fn a_bit_of_everything_happens() {
    let mut lines = Vec::new();
    for seed in 0..60 {
        let mut history = History::new(
            seed,
            HistoryFeatures { time: true, reopen: true },
            Driver::memory(limits()),
            Driver::memory(limits()),
            false,
        );
        history.run().await;
        lines.extend(history.lines);
    }
    for (event_text, at_least) in [
        (" then put", 200),
        (" otherwise put", 50),
        (" deleted 2", 20),
        ("meta-compacted", 20),
        ("meta-duplicate-key", 100),
        ("meta-lease-not-found", 100),
        ("meta-full", 50),
        ("meta-limit", 20),
        (" ...", 20),
        (")L", 100),
        ("-@", 100),
        ("Reopen", 20),
        ("saw: ", 200),
    ] {
        let count = lines.iter().filter(|line| line.contains(event_text)).count();
        assert!(count >= at_least, "`{event_text}` occurs {count} times, of {} lines", lines.len());
    }
}

struct History {
    seed: u64,
    steps: Steps,
    model: Driver,
    store: Driver,
    print: bool,
    lines: Vec<String>,
}

impl History {
    fn new(seed: u64, kinds: HistoryFeatures, model: Driver, store: Driver, print: bool) -> History {
        History { seed, steps: Steps::new(seed, kinds), model, store, print, lines: vec![] }
    }

    async fn run(&mut self) {
        for _ in 0..STEPS {
            let step = self.steps.next();
            self.step(&step).await;
            match step {
                Step::Reopen => self.steps.watchers = 0,
                Step::Watch(..) if self.lines.last().is_some_and(|line| line.contains(": watcher")) => {
                    self.steps.watchers += 1;
                    // Some watches are dropped; the others read later, or never.
                    if self.steps.watchers > WATCHERS / 2 {
                        let dropped = self.steps.seed.below(self.steps.watchers as u32) as usize;
                        self.step(&Step::Unwatch(dropped)).await;
                    }
                }
                _ => {}
            }
            self.compare().await;
        }
    }

    async fn step(&mut self, step: &Step) -> String {
        let (expected, came) = (self.model.step(step).await, self.store.step(step).await);
        self.note(format!("{step:?}: {expected}"));
        assert_eq!(came, expected, "seed {}: SANDBAR_SEED={0} replays it; {step:?}", self.seed);
        if let Some(revision) = expected.strip_prefix('@').and_then(|rest| rest.split(' ').next()) {
            self.steps.revision = revision.parse().unwrap();
        }
        expected
    }

    /// Compares the whole content, and the changes of one watcher.
    async fn compare(&mut self) {
        let mut span = KeyRange::all();
        for _ in 0..10 {
            let page = self.step(&Step::Range(span.clone(), 0)).await;
            let Some((_, next)) = page.split_once("...") else { break };
            let key = crate::driver::key(&next.replace("\\x7f", "\u{7f}"));
            span = span.starting_at(&key);
        }
        let some = self.steps.seed.below(3) != 0;
        if self.steps.watchers == 0 || some {
            return;
        }
        let watcher = self.steps.seed.below(self.steps.watchers as u32) as usize;
        let expected = self.model.step(&Step::Changes(watcher, None)).await;
        self.note(format!("watcher {watcher} saw: {expected}"));
        let count = match self.store.kind {
            StoreKind::Other if expected.starts_with("meta-") || expected == "no watcher" => Some(1),
            StoreKind::Other => Some(expected.split_whitespace().count()),
            StoreKind::Memory | StoreKind::Redb { .. } => None,
        };
        let came = self.store.step(&Step::Changes(watcher, count)).await;
        assert_eq!(came, expected, "seed {}: SANDBAR_SEED={0} replays it; watcher {watcher}", self.seed);
    }

    fn note(&mut self, line: String) {
        if self.print {
            eprintln!("{line}");
        }
        self.lines.push(line);
    }
}
