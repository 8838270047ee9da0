//! Broadcast of one object to many processes: each fetches from the nodes that `Locations` assigns, and serves what it
//! has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use quinn::{Connection, Endpoint};
use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::{
    FailedHolder, FetchSpec, HeldObject, Holder, HolderFinder, HolderLink, LocationLimits, Locations, ObjectSource,
    Priority, SourceAssignment,
};

use crate::holder::{LARGE, root_of};
use crate::memory::File;
use crate::process::{Process, read_line};
use crate::setting;

pub fn run() {
    let (mb, receivers) = (setting("SANDBAR_BROADCAST_MB", 256), setting("SANDBAR_RECEIVERS", 8) as u32);
    let many = |fan_out_max| LocationLimits { fan_out_max, ..LocationLimits::default() };
    for (name, limits) in [("all from the source", many(1000)), ("as a tree", many(2)), ("in a row", many(1))] {
        let (seconds, sent) = broadcast(mb << 20, receivers, limits);
        let rate = f64::from(receivers) * (mb << 20) as f64 / seconds / 1e6;
        let times = sent as f64 / (mb << 20) as f64;
        let text = format!(
            "{mb} MiB to {receivers} processes, {name}: {seconds:.2} s, {rate:.0} MB/s, the source sent it {times:.2} times"
        );
        crate::report(&format!("{name}, sent by the source"), times, "x", &text);
    }
}

/// Returns the seconds until all receivers have the object, and the bytes that the source sent.
fn broadcast(bytes: u64, receivers: u32, limits: LocationLimits) -> (f64, u64) {
    let mut source = Process::start(&["holder", &bytes.to_string(), "0"]);
    let line = source.line().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let mut addresses: BTreeMap<u32, String> = [(0, words[0].to_owned())].into();
    let mut nodes: Vec<Process> =
        (1..=receivers).map(|node| Process::start(&["receiver", &node.to_string()])).collect();
    for (node, process) in (1..).zip(&mut nodes) {
        process.send_line(&format!("{} {bytes}", words[2]));
        addresses.insert(node, process.line().unwrap());
    }
    let mut locations = Locations::new(limits);
    locations.add_holder(LARGE, NodeId(0));
    // Lines of all receivers, with the node of each.
    let (to, lines) = mpsc::channel();
    for (node, process) in (1..).zip(&mut nodes) {
        let (to, mut from) = (to.clone(), process.take_output());
        std::thread::spawn(move || {
            while let Some(line) = crate::process::line(&mut from) {
                let _ = to.send((node, line));
            }
        });
    }
    let started = Instant::now();
    nodes.iter_mut().for_each(|process| process.send_line("go"));
    let mut left = receivers;
    while left > 0 {
        let (node, line) = lines.recv().unwrap();
        let mut words = line.split(' ');
        match words.next() {
            Some("has") => {
                locations.add_holder(LARGE, NodeId(node));
                left -= 1;
            }
            Some("wants") => {
                let failed: Vec<NodeId> = words.map(|word| NodeId(word.parse().unwrap())).collect();
                let SourceAssignment::Holders(from) = locations.reassign(LARGE, NodeId(node), &failed) else {
                    panic!("{node} finds nobody")
                };
                let from: Vec<String> = from.iter().map(|from| format!("{from}={}", addresses[&from.0])).collect();
                nodes[node as usize - 1].send_line(&from.join(" "));
            }
            _ => panic!("{node} says {line}"),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    nodes.into_iter().for_each(|process| drop(process.end()));
    (seconds, source.end().parse().unwrap())
}

/// Runs a process that fetches an object and serves its fetched groups.
pub async fn receiver(node: u32) {
    let line = read_line().unwrap();
    let (root, bytes) = line.split_once(' ').unwrap();
    let (root, bytes): (_, u64) = (root_of(root), bytes.parse().unwrap());
    let target = File::noise(bytes as usize);
    let (transfers, endpoint) = (crate::transfers(), crate::loopback::endpoint(crate::transport()));
    let whole = Arc::new(Mutex::new(HeldObject::NotFound));
    let source: Arc<dyn ObjectSource> = Arc::new(ReceiverSource { transfers: transfers.clone(), whole: whole.clone() });
    tokio::spawn({
        let (endpoint, transfers) = (endpoint.clone(), transfers.clone());
        async move {
            while let Some(incoming) = endpoint.accept().await {
                let (transfers, source) = (transfers.clone(), source.clone());
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        transfers.serve(connection, NodeId(0), source).await;
                    }
                });
            }
        }
    });
    println!("{}", endpoint.local_addr().unwrap());
    assert_eq!(tokio::task::spawn_blocking(read_line).await.unwrap().unwrap(), "go");
    let finder = Arc::new(ParentFinder { endpoint, node });
    let holders = finder.find_more(LARGE, &[]).await;
    let priority = Priority::Get;
    let spec = FetchSpec { object: LARGE, bytes, root, holders, priority, finder: Some(finder) };
    let fetched = transfers.fetch(spec, async |_| Ok(target)).await.unwrap();
    *whole.lock().unwrap() = HeldObject::Whole(Arc::new(fetched.target));
    println!("has");
    tokio::task::spawn_blocking(|| while read_line().is_some() {}).await.unwrap();
}

/// The whole object once it has been fetched; before, its fetched groups.
struct ReceiverSource {
    transfers: sandbar_wire::Transfers,
    whole: Arc<Mutex<HeldObject>>,
}

impl ObjectSource for ReceiverSource {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        match self.whole.lock().unwrap().clone() {
            HeldObject::NotFound => self.transfers.partial(object).map_or(HeldObject::NotFound, HeldObject::Partial),
            held => held,
        }
    }
}

/// Asks the parent process for holders.
struct ParentFinder {
    endpoint: Endpoint,
    node: u32,
}

impl HolderFinder for ParentFinder {
    fn find_more(&self, _: ObjectId, failed: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>> {
        let failed: String = failed.iter().map(|failed| format!(" {}", failed.holder)).collect();
        let endpoint = self.endpoint.clone();
        if !failed.is_empty() {
            eprintln!("node {} lost {failed}", self.node);
        }
        println!("wants{failed}");
        async move {
            let line = tokio::task::spawn_blocking(read_line).await.unwrap().unwrap();
            let holder = |word: &str| {
                let (node, address) = word.split_once('=').unwrap();
                let link = Arc::new(DialLink(endpoint.clone(), address.parse().unwrap()));
                Holder { node: NodeId(node.parse().unwrap()), link }
            };
            line.split(' ').map(holder).collect()
        }
        .boxed()
    }
}

struct DialLink(Endpoint, SocketAddr);

impl HolderLink for DialLink {
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>> {
        let connecting = self.0.connect(self.1, "localhost");
        async move { connecting.map_err(|e| e.to_string())?.await.map_err(|e| e.to_string()) }.boxed()
    }
}
