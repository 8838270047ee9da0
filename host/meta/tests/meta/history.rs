//! Behaviour specific to etcd clusters: their own compaction, and their limits of responses.

use std::time::Duration;

use sandbar_meta::{KeyRange, MetaError, MetaLimits, MetaValue, Operation, Transaction};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::driver::key;
use crate::faults::put;

const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

/// Compaction is always reported, and never mistaken: deletes at the very revision are the hardest case.
#[tokio::test]
async fn compacted_history_is_not_passed_over() {
    let cluster = Cluster::start(1).await;
    let store = cluster.connect("compacted", MetaLimits::default()).await;
    let mut revisions = Vec::new();
    for transaction in
        [put("a", "1"), put("b", "1"), Transaction::new().then(Operation::delete(&key("a"))), put("b", "2")]
    {
        revisions.push(store.transact(transaction).await.unwrap().revision);
    }
    cluster.compact(revisions[2].0);
    for (from, expected) in
        [(revisions[0], None), (revisions[1], None), (revisions[2], None), (revisions[3], Some(revisions[3]))]
    {
        let seen = match store.watch(&KeyRange::all(), from).await {
            Ok(mut watcher) => watcher.next().await,
            Err(e) => Err(e),
        };
        let compacted = MetaError::Compacted { from, compacted: revisions[2] };
        match expected {
            Some(revision) => assert_eq!(seen.unwrap()[0].revision(), revision),
            None => assert_eq!(seen, Err(compacted)),
        }
    }
}

/// More than fits a response or a message of a watch.
#[tokio::test]
async fn large_values_come_in_pieces() {
    let cluster = Cluster::start(1).await;
    let store = cluster.connect("large", MetaLimits::default()).await;
    let value = MetaValue::new(vec![7; 1 << 20]);
    for number in 0..24 {
        let transaction = Transaction::new().then(Operation::put(key(&format!("k{number:02}")), value.clone()));
        store.transact(transaction).await.unwrap();
    }
    let (mut span, mut entries, mut first) = (KeyRange::all(), 0, None);
    loop {
        let page = store.range(&span, 0).await.unwrap();
        first = first.or(page.entries.first().map(|entry| entry.mod_revision));
        assert!(page.entries.len() <= 2 && page.entries.iter().all(|entry| entry.value == value));
        entries += page.entries.len();
        let Some(next) = page.next else { break };
        span = span.starting_at(&next);
    }
    assert_eq!(entries, 24);
    let mut watcher = store.watch(&KeyRange::all(), first.unwrap()).await.unwrap();
    let mut seen = 0;
    while seen < 24 {
        seen += timeout(CHANGE_TIME_MAX, watcher.next()).await.unwrap().unwrap().len();
    }
    // The deletes are one transaction, however many.
    store.transact(Transaction::new().then(Operation::Delete(KeyRange::all()))).await.unwrap();
    let deleted = timeout(CHANGE_TIME_MAX, watcher.next()).await.unwrap().unwrap();
    assert_eq!(deleted.len(), 24);
}
