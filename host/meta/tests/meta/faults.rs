//! Clusters whose members are killed and partitioned while clients work: no acknowledged write is lost, none is applied
//! twice, watches deliver every change, leases end in time and not early, and every call ends in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_meta::{
    Change, Condition, EtcdTimeouts, KeyRange, MetaError, MetaLimits, MetaStore, MetaValue, Operation, Revision,
    Transaction, Watcher,
};
use sandbar_seeds::one_seed;
use tokio::time::{sleep, timeout};

use crate::cluster::Cluster;
use crate::driver::key;

const CLIENTS: u64 = 4;
const COUNTER: &str = "counter";
/// Time that a call may take beyond its time-out on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// Time within which a client makes progress after a fault.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(30);

/// Outcome of an attempt to count.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AttemptOutcome {
    /// Committed at this revision.
    Done(Revision),
    /// Another client was faster.
    Lost,
    /// Unknown.
    Unknown,
    /// No member responded, and nothing was applied.
    Unavailable,
}

/// Client and its attempt, which the value contains.
type Attempt = (u64, u64);

#[derive(Clone)]
struct Clients {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

/// Clients increment a counter by compare-and-swap. The counter's history has each acknowledged increment exactly once.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_done_twice() {
    let seed = one_seed(1);
    let mut cluster = Cluster::start(3).await;
    let limits = MetaLimits::default();
    let store = cluster.connect("count", limits).await;
    let first = store.transact(put(COUNTER, "0 0 0")).await.unwrap().revision;
    let clients = Clients { stop: Arc::default(), done: Arc::default() };
    let mut tasks = Vec::new();
    let mut watches = Vec::new();
    for client in 1..=CLIENTS {
        // Each client starts with a different member.
        let store = cluster.connect_with("count", limits, EtcdTimeouts::default(), client).await;
        let watcher = store.watch(&KeyRange::all(), first.next()).await.unwrap();
        watches.push(tokio::spawn(watch(watcher, clients.clone())));
        tasks.push(tokio::spawn(count(store, client, clients.clone())));
    }
    inject_faults(&mut cluster, Seed::new(seed), &clients.done).await;
    clients.stop.store(true, Ordering::Relaxed);
    let mut tries = BTreeMap::new();
    for task in tasks {
        tries.extend(task.await.unwrap());
    }
    // Marks the end for the watchers.
    let last = loop {
        match store.transact(put("end", "")).await {
            Ok(transacted) => break transacted.revision,
            Err(e) => eprintln!("the last put: {e}"),
        }
    };
    let watcher = store.watch(&KeyRange::all(), first.next()).await.unwrap();
    let history = watch_until(watcher, last).await;
    check_history(&tries, &history);
    for watch in watches {
        assert!(timeout(RECOVERY_TIME_MAX, watch).await.unwrap().unwrap() == history, "a watcher saw something else");
    }
    let count = |ended: fn(&AttemptOutcome) -> bool| tries.values().filter(|e| ended(e)).count();
    eprintln!(
        "{} tries: {} done, {} unknown, {} unavailable",
        tries.len(),
        count(|e| matches!(e, AttemptOutcome::Done(_))),
        count(|e| *e == AttemptOutcome::Unknown),
        count(|e| *e == AttemptOutcome::Unavailable)
    );
}

pub fn put(name: &str, value: &str) -> Transaction {
    Transaction::new().then(Operation::put(key(name), value.into()))
}

/// Injects faults one after another; clients make progress after each.
async fn inject_faults(cluster: &mut Cluster, mut seed: Seed, done: &AtomicU64) {
    expect_progress(done, "nothing").await;
    for kind in 0..6 {
        let leader = cluster.leader().await;
        let other = (leader + 1 + seed.below(2) as usize) % cluster.len();
        let long = Duration::from_millis(1500 + u64::from(seed.below(2000)));
        match kind {
            0 => {
                cluster.kill(leader);
                expect_progress(done, "the leader was killed").await;
                cluster.restart(leader);
            }
            1 => {
                cluster.cut_off(leader);
                sleep(long).await;
                expect_progress(done, "the leader was cut off").await;
                cluster.join_again(leader);
            }
            // Writes that one member received are applied without a response: repeats, so that some are.
            2 => {
                for time in 0..6 {
                    let other = (leader + 1 + time % 2) % cluster.len();
                    cluster.kill(other);
                    expect_progress(done, "another was killed").await;
                    cluster.restart(other);
                    expect_progress(done, "it was started again").await;
                }
            }
            3 => {
                cluster.cut_off(other);
                sleep(long).await;
                expect_progress(done, "another was cut off").await;
                cluster.join_again(other);
            }
            4 => {
                // No majority.
                cluster.cut_off(leader);
                cluster.cut_off(other);
                sleep(long).await;
                cluster.join_again(other);
                expect_progress(done, "a majority was cut off").await;
                cluster.join_again(leader);
            }
            _ => {
                (0..cluster.len()).for_each(|member| cluster.kill(member));
                sleep(Duration::from_millis(300)).await;
                (0..cluster.len()).for_each(|member| cluster.restart(member));
            }
        }
        expect_progress(done, "all was well again").await;
    }
}

async fn expect_progress(done: &AtomicU64, since: &str) {
    let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
    while done.load(Ordering::Relaxed) < before + 20 {
        assert!(started.elapsed() < RECOVERY_TIME_MAX, "since {since} nothing was done");
        sleep(Duration::from_millis(10)).await;
    }
    eprintln!("since {since}: went on after {} ms", started.elapsed().as_millis());
}

async fn count(store: Arc<dyn MetaStore>, client: u64, clients: Clients) -> Vec<(Attempt, AttemptOutcome)> {
    let mut tries = Vec::new();
    let bound = Duration::from_millis(EtcdTimeouts::default().call_ms_max.into()) + SLACK;
    for number in 0.. {
        if clients.stop.load(Ordering::Relaxed) {
            break;
        }
        let before = match timeout(bound, store.get(&key(COUNTER))).await.expect("a look ends in time") {
            Ok(response) => response.entry.expect("the counter is there"),
            Err(MetaError::Unavailable { .. }) => continue,
            Err(e) => panic!("client {client}: {e}"),
        };
        let (_, _, count) = parse(&before.value);
        let value = MetaValue::from(&*format!("{client} {number} {}", count + 1));
        let transaction = Transaction::new()
            .when(Condition::unchanged(key(COUNTER), before.mod_revision))
            .then(Operation::put(key(COUNTER), value));
        let ended = match timeout(bound, store.transact(transaction)).await.expect("a transaction ends in time") {
            Ok(transacted) if transacted.succeeded => {
                clients.done.fetch_add(1, Ordering::Relaxed);
                AttemptOutcome::Done(transacted.revision)
            }
            Ok(_) => AttemptOutcome::Lost,
            Err(MetaError::Unknown { .. }) => AttemptOutcome::Unknown,
            Err(MetaError::Unavailable { .. }) => AttemptOutcome::Unavailable,
            Err(e) => panic!("client {client}: {e}"),
        };
        tries.push(((client, number), ended));
    }
    tries
}

fn parse(value: &MetaValue) -> (u64, u64, u64) {
    let text = std::str::from_utf8(value.as_bytes()).unwrap();
    let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    (numbers[0], numbers[1], numbers[2])
}

/// Collects a watcher's changes up to the final put.
async fn watch(mut watcher: Box<dyn Watcher>, clients: Clients) -> Vec<Change> {
    let mut all = Vec::new();
    loop {
        match watcher.next().await {
            Ok(changes) => {
                let is_end = changes.iter().any(|change| change.key() == &key("end"));
                all.extend(changes);
                if is_end {
                    return all;
                }
            }
            Err(MetaError::Unavailable { .. }) => {
                assert!(!clients.stop.load(Ordering::Relaxed), "it does not come back")
            }
            Err(e) => panic!("{e}"),
        }
    }
}

async fn watch_until(mut watcher: Box<dyn Watcher>, last: Revision) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    while all.last().is_none_or(|change| change.revision() < last) {
        all.extend(timeout(RECOVERY_TIME_MAX, watcher.next()).await.unwrap().unwrap());
    }
    all
}

/// Each change increments the counter, and belongs to an attempt that may have made it: a committed attempt made
/// exactly one change at its revision, an unknown one at most one, any other none.
fn check_history(tries: &BTreeMap<Attempt, AttemptOutcome>, history: &[Change]) {
    let mut grants = BTreeMap::new();
    for (expected, change) in (1..).zip(history.iter().filter(|change| change.key() == &key(COUNTER))) {
        let Change::Put(entry) = change else { panic!("the counter was deleted") };
        let (client, number, count) = parse(&entry.value);
        assert_eq!(count, expected, "at revision {}", entry.mod_revision);
        assert!(
            grants.insert((client, number), entry.mod_revision).is_none(),
            "try {number} of client {client} counted twice"
        );
    }
    for (tried, ended) in tries {
        match (ended, grants.remove(tried)) {
            (AttemptOutcome::Done(answered), Some(revision)) => assert_eq!(*answered, revision, "{tried:?}"),
            (AttemptOutcome::Done(answered), None) => {
                panic!("{tried:?} was answered by revision {answered}, and is lost")
            }
            (AttemptOutcome::Unknown, _) | (_, None) => {}
            (ended, Some(revision)) => panic!("{tried:?} is {ended:?}, and was done by revision {revision}"),
        }
    }
    assert!(grants.is_empty(), "{grants:?} were requested by no client");
}

/// A lease that is renewed survives kills of members; another ends, and not before its time.
#[tokio::test(flavor = "multi_thread")]
async fn leases_end_in_time_and_not_before() {
    const TTL_S: u32 = 4;
    let mut cluster = Cluster::start(3).await;
    let store = cluster.connect("leases", MetaLimits::default()).await;
    let started = Instant::now();
    let (kept, left) = (store.grant(TTL_S).await.unwrap(), store.grant(TTL_S).await.unwrap());
    assert_eq!((kept.ttl_s, left.ttl_s), (TTL_S, TTL_S));
    for (name, lease) in [("kept", kept.lease), ("left", left.lease)] {
        store.transact(Transaction::new().then(Operation::put_leased(key(name), "".into(), lease))).await.unwrap();
    }
    let mut watcher = store.watch(&KeyRange::all(), store.get(&key("x")).await.unwrap().revision.next()).await.unwrap();
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let renewing_store = store.clone();
    let renewals = tokio::spawn(async move {
        loop {
            match renewing_store.keep_alive(kept.lease).await {
                Ok(_) => sleep(Duration::from_millis(500)).await,
                Err(MetaError::LeaseNotFound(_)) => return,
                Err(e) => eprintln!("not kept alive: {e}"),
            }
        }
    });
    let deleted = timeout(RECOVERY_TIME_MAX, watcher.next()).await.unwrap().unwrap();
    assert_eq!(deleted.iter().map(|change| change.key().to_string()).collect::<Vec<_>>(), ["left"]);
    let after = started.elapsed();
    // A new leader restarts the period of each lease.
    let delay_max = Duration::from_secs(2 * u64::from(TTL_S)) + SLACK;
    assert!(after >= Duration::from_secs(TTL_S.into()) && after < delay_max, "the lease ended after {after:?}");
    assert!(store.keep_alive(left.lease).await.is_err());
    assert!(store.get(&key("kept")).await.unwrap().entry.is_some());
    store.revoke(kept.lease).await.unwrap();
    timeout(RECOVERY_TIME_MAX, renewals).await.unwrap().unwrap();
    let deleted = timeout(RECOVERY_TIME_MAX, watcher.next()).await.unwrap().unwrap();
    assert_eq!(deleted[0].key(), &key("kept"));
    cluster.restart(leader);
}

/// Without any response, calls fail in time with the members' names; they succeed again once a member responds.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_away_is_named() {
    let mut cluster = Cluster::start(3).await;
    let times = EtcdTimeouts {
        call_ms_max: 2000,
        attempt_ms_max: 500,
        ping_ms: 5500,
        ping_response_ms_max: 500,
        ..EtcdTimeouts::default()
    };
    let store = cluster.connect_with("away", MetaLimits::default(), times, 3).await;
    let put_a = || Transaction::new().then(Operation::put(key("a"), "".into()));
    let before = store.transact(put_a()).await.unwrap().revision;
    let mut watcher = store.watch(&KeyRange::all(), before.next()).await.unwrap();
    // A write is not sent to a member without a recent response.
    sleep(Duration::from_millis(times.fresh_ms.into())).await;
    for state in ["cut off", "killed"] {
        for member in 0..3 {
            if state == "killed" { cluster.kill(member) } else { cluster.cut_off(member) }
        }
        let started = Instant::now();
        let all = cluster.address("away").endpoints;
        for error in [store.get(&key("a")).await.unwrap_err(), store.transact(put_a()).await.unwrap_err()] {
            assert!(
                matches!(&error, MetaError::Unavailable { endpoints, .. } if *endpoints == all),
                "{state}: {error}"
            );
        }
        let ended = timeout(RECOVERY_TIME_MAX, watcher.next()).await.expect("the watcher returns").unwrap_err();
        assert_eq!(ended.code(), "meta-unavailable", "{state}: {ended}");
        assert!(started.elapsed() < Duration::from_secs(16) + SLACK, "{state}: {:?}", started.elapsed());
        for member in 0..3 {
            if state == "killed" { cluster.restart(member) } else { cluster.join_again(member) }
        }
        cluster.leader().await;
    }
    let put = loop {
        match store.transact(put_a()).await {
            Ok(transacted) => break transacted.revision,
            Err(e) => eprintln!("not yet: {e}"),
        }
    };
    let seen = loop {
        match watcher.next().await {
            Ok(changes) => break changes,
            Err(e) => eprintln!("not yet: {e}"),
        }
    };
    assert!(seen.iter().any(|change| change.revision() <= put));
    assert_eq!(watcher.position(), seen.last().unwrap().revision().next());
}
