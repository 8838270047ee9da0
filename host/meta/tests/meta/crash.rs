//! Kills a process that writes a file at random moments: all acknowledged transactions survive.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbar_core::Seed;
use sandbar_meta::{
    KeyRange, MetaLimits, MetaStore, MetaValue, Operation, RedbStore, Revision, SystemClock, Transaction,
};
use sandbar_seeds::seeds;

use crate::driver::key;

const FILE: &str = "SANDBAR_META_TEST_FILE";
const FIRST: &str = "SANDBAR_META_TEST_FIRST";
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 25;
/// More than the number of transactions of a round.
const ROUND: u64 = 1_000_000;

fn limits() -> MetaLimits {
    MetaLimits { history_changes_max: 200, ..MetaLimits::default() }
}

async fn open(path: &Path) -> RedbStore {
    RedbStore::open(path, limits(), Arc::new(SystemClock::default())).await.unwrap()
}

/// Entry point of the process that is killed. Each transaction puts its number, and reports the last acknowledged one.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let store = Arc::new(open(Path::new(&path)).await);
    let next = Arc::new(AtomicU64::new(first));
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(write(store.clone(), next.clone()))).collect();
    for client in clients {
        client.await.unwrap();
    }
}

async fn write(store: Arc<RedbStore>, next: Arc<AtomicU64>) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let value = MetaValue::from(&*number.to_string());
        let transaction = Transaction::new()
            .then(Operation::put(key(&format!("n/{number}")), value.clone()))
            .then(Operation::put(key("last"), value));
        let revision = store.transact(transaction).await.unwrap().revision;
        // A single write call, which the kernel completes even if this process dies.
        std::io::stdout().write_all(format!("done {number} {revision}\n").as_bytes()).unwrap();
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    for number in seeds(1) {
        // On a disk, not in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("meta");
        let mut seed = Seed::new(number);
        let mut answered = Vec::new();
        for round in 0..ROUNDS {
            let before = answered.len();
            answered.extend(run_and_kill(&path, round * ROUND, Duration::from_millis(seed.below(80).into())));
            assert!(answered.len() > before, "seed {number}, round {round}: nothing was done");
            check(&path, &answered).await;
        }
    }
}

/// Runs the process until it is killed. Returns the acknowledged numbers with their revisions.
fn run_and_kill(path: &Path, first: u64, after: Duration) -> Vec<(u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::child", "--exact", "--nocapture"])
        .env(FILE, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut done = lines.filter_map(|line| {
        let (number, revision) = line.strip_prefix("done ")?.split_once(' ')?;
        Some((number.parse().unwrap(), revision.parse().unwrap()))
    });
    let mut all = Vec::from_iter(done.next());
    let pid = rustix::process::Pid::from_child(&child);
    let kill = std::thread::spawn(move || {
        std::thread::sleep(after);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
    });
    all.extend(done);
    kill.join().unwrap().unwrap();
    child.wait().unwrap();
    all
}

async fn check(path: &Path, answered: &[(u64, u64)]) {
    let store = open(path).await;
    for (number, revision) in answered {
        let entry = store.get(&key(&format!("n/{number}"))).await.unwrap().entry;
        assert_eq!(entry.map(|entry| entry.mod_revision), Some(Revision(*revision)), "of {number}");
    }
    // Each transaction put one number, and nothing else wrote.
    let (mut count, mut span, revision) =
        (0, KeyRange::prefix("n/").unwrap(), store.get(&key("last")).await.unwrap().revision);
    loop {
        let page = store.range(&span, 0).await.unwrap();
        count += page.entries.len() as u64;
        let Some(next) = page.next else { break };
        span = span.starting_at(&next);
    }
    assert_eq!(count, revision.0 - 1, "numbers of revision {revision}");
    let last = store.get(&key("last")).await.unwrap().entry.unwrap();
    assert_eq!((last.mod_revision, last.version), (revision, count));
    // The history reaches the last revision.
    let from = Revision(revision.0.saturating_sub(50).max(2));
    let mut watcher = store.watch(&KeyRange::key(&key("last")), from).await.unwrap();
    let seen = watcher.next().await.unwrap();
    assert!(seen.iter().map(|change| change.revision().0).eq(from.0..=revision.0));
    drop(watcher);
    store.close().await;
}
