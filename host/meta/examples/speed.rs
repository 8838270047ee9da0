//! Measures the transaction rate of stores, and the time to open a large file: `cargo run --release -p sandbar-meta
//! --example speed [FOLDER [etcd://HOST:PORT,...]]`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_meta::{
    EtcdStore, EtcdTimeouts, Key, MemoryStore, MetaLimits, MetaStore, MetaValue, Operation, RedbStore, SystemClock,
    Transaction,
};

const TIME: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    let clock = || Arc::new(SystemClock::default());
    let mut stores: Vec<(&str, Arc<dyn MetaStore>)> = vec![
        ("memory", Arc::new(MemoryStore::new(MetaLimits::default(), clock()))),
        ("redb", Arc::new(open(&folder.path().join("meta")).await)),
    ];
    if let Some(address) = arguments.next() {
        let address = address.parse().expect("an address of etcd");
        let etcd = EtcdStore::connect(&address, MetaLimits::default(), EtcdTimeouts::default(), Seed::new(1)).await;
        stores.push(("etcd", Arc::new(etcd.expect("etcd answers"))));
    }
    for (name, store) in stores {
        for clients in [1, 64] {
            let rate = rate(&store, clients).await;
            let each = 1e6 * clients as f64 / rate;
            eprintln!("{name}, {clients} clients: {rate:.0} transactions/s, {each:.0} us each");
        }
    }
    opening(&folder.path().join("large")).await;
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes().to_vec()).expect("a key")
}

async fn open(path: &Path) -> RedbStore {
    RedbStore::open(path, MetaLimits::default(), Arc::new(SystemClock::default())).await.expect("a file")
}

/// Measures transactions a second, each a put of 100 bytes, with `clients` clients that each wait for their response.
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
                        .transact(Transaction::new().then(Operation::put(key, MetaValue::new(vec![7; 100]))))
                        .await
                        .expect("it is done");
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for client in clients {
        done += client.await.expect("it is done");
    }
    done as f64 / started.elapsed().as_secs_f64()
}

/// Measures the time to open a file of 100,000 entries, all of which are read.
async fn opening(path: &Path) {
    let store = open(path).await;
    for batch in 0..1000 {
        let puts = (0..100).map(|i| Operation::put(key(&format!("k{batch}/{i}")), MetaValue::new(vec![7; 900])));
        store.transact(Transaction { then: puts.collect(), ..Transaction::default() }).await.expect("it is put");
    }
    store.close().await;
    let bytes = std::fs::metadata(path).expect("a file").len();
    let started = Instant::now();
    let store = open(path).await;
    eprintln!("a file of {} MiB with 100,000 entries opens in {} ms", bytes >> 20, started.elapsed().as_millis());
    store.close().await;
}
