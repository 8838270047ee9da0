//! Transfer of many small objects between two processes.

use std::time::Instant;

use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::{Holder, Priority, RootHash, SmallSpec};

use crate::holder::{SMALL_BYTES, small_object};
use crate::process::{Process, read_line};
use crate::{median, setting};

const COUNT: u64 = 10_000;

pub fn run() {
    let mut holder = Process::start(&["holder", "0", &COUNT.to_string()]);
    let line = holder.line().unwrap();
    let mut client = Process::start(&["small-client"]);
    client.send_line(&line);
    while let Some(line) = client.line() {
        println!("{line}");
    }
    client.end();
    holder.end();
}

pub async fn client() {
    let line = read_line().unwrap();
    let quic = line.split(' ').next().unwrap().parse().unwrap();
    let endpoint = crate::loopback::endpoint(crate::transport());
    let connection = endpoint.connect(quic, "localhost").unwrap().await.unwrap();
    let holder = Holder::connected(NodeId(1), connection);
    let transfers = crate::transfers();
    let small =
        |id| SmallSpec { object: ObjectId(id), bytes: SMALL_BYTES as u32, root: RootHash::hash(&small_object(id)) };
    let all: Vec<SmallSpec> = (0..COUNT).map(small).collect();
    let mut rates = Vec::new();
    for _ in 0..=setting("SANDBAR_ROUNDS", 5) * 3 {
        let started = Instant::now();
        let fetched = transfers.fetch_small(&holder, &all, Priority::Get).await.unwrap();
        rates.push(COUNT as f64 / started.elapsed().as_secs_f64());
        assert!(fetched.objects.iter().all(Result::is_ok));
    }
    let rate = median(rates[1..].to_vec());
    let text = format!("{COUNT} objects of 10 KiB: {rate:.0} a second, {:.0} MB/s", rate * SMALL_BYTES as f64 / 1e6);
    crate::report("objects of 10 KiB", rate, "/s", &text);
}
