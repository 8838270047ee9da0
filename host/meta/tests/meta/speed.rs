//! How many transactions a file takes: `cargo test --release -p sandbar-meta --test meta -- --ignored --nocapture speed`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_meta::{Memory, MetaLimits, MetaStore, Operation, Redb, SystemClock, Transaction, Value};

use crate::cluster::Cluster;
use crate::driver::{folder, key};

const TIME: Duration = Duration::from_secs(4);

/// Transactions a second, each a put of 100 bytes, by so many clients that each wait for theirs.
async fn rate(store: &Arc<dyn MetaStore>, clients: usize) -> f64 {
    let end = Instant::now() + TIME;
    let started = Instant::now();
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0u64;
                while Instant::now() < end {
                    let key = key(&format!("c{client}/{}", done % 1000));
                    store
                        .transact(Transaction::new().then(Operation::put(key, Value::new(vec![7; 100]))))
                        .await
                        .unwrap();
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for client in clients {
        done += client.await.unwrap();
    }
    done as f64 / started.elapsed().as_secs_f64()
}

async fn redb(path: &Path) -> Arc<dyn MetaStore> {
    Arc::new(Redb::open(path, MetaLimits::default(), Arc::new(SystemClock::default())).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn transactions_a_second() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = folder();
    let cluster = Cluster::start(3).await;
    let stores: [(&str, Arc<dyn MetaStore>); 4] = [
        ("memory", Arc::new(Memory::new(MetaLimits::default(), Arc::new(SystemClock::default())))),
        ("redb, in memory", redb(&memory.path().join("meta")).await),
        ("redb, on disk", redb(&disk.path().join("meta")).await),
        ("etcd, three members in memory", cluster.connect("speed", MetaLimits::default()).await),
    ];
    for (name, store) in stores {
        for clients in [1, 64] {
            let rate = rate(&store, clients).await;
            eprintln!(
                "{name}, {clients} clients: {rate:.0} transactions/s, {:.0} us each",
                1e6 * clients as f64 / rate
            );
        }
    }
}

/// How long it takes to open a file of so many entries: all of it is read.
#[tokio::test]
#[ignore = "a measurement"]
async fn opening() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = disk.path().join("meta");
    let store = Redb::open(&path, MetaLimits::default(), Arc::new(SystemClock::default())).await.unwrap();
    for batch in 0..1000 {
        let puts = (0..100).map(|i| Operation::put(key(&format!("k{batch}/{i}")), Value::new(vec![7; 900])));
        store.transact(Transaction { then: puts.collect(), ..Transaction::default() }).await.unwrap();
    }
    store.close().await;
    let bytes = std::fs::metadata(&path).unwrap().len();
    let started = Instant::now();
    let store = Redb::open(&path, MetaLimits::default(), Arc::new(SystemClock::default())).await.unwrap();
    eprintln!("a file of {} MiB with 100,000 entries opens in {} ms", bytes >> 20, started.elapsed().as_millis());
    store.close().await;
}
