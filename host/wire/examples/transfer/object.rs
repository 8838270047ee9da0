//! Transfer of one large object between two processes.

use std::time::Instant;

use quinn::Connection;
use sandbar_core::NodeId;
use sandbar_wire::{FetchSpec, Holder, Priority, Transfers};
use tokio::io::AsyncReadExt;

use crate::holder::{BARE_STREAM, LARGE, root_of};
use crate::memory::File;
use crate::process::{Process, processor_s, read_line};
use crate::{median, setting};

pub fn run() {
    let mb = setting("SANDBAR_MB", 1024);
    let mut holder = Process::start(&["holder", &(mb << 20).to_string(), "0"]);
    let line = holder.line().unwrap();
    let mut client = Process::start(&["object-client"]);
    client.send_line(&format!("{line} {} {}", mb << 20, holder.id()));
    while let Some(line) = client.line() {
        println!("{line}");
    }
    client.end();
    holder.end();
}

/// Name of a measurement, its seconds by the clock, and the processor seconds of both processes.
type Row = (&'static str, Vec<f64>, Vec<[f64; 2]>);

/// Reads the holder's addresses from standard input.
pub async fn client() {
    let line = read_line().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let (quic, tcp, root) = (words[0].parse().unwrap(), words[1], root_of(words[2]));
    let (bytes, holder): (usize, u32) = (words[3].parse().unwrap(), words[4].parse().unwrap());
    // Created before connecting: it may take longer than the connection's idle timeout.
    let (warm, from) = (File::noise(bytes), File::noise(bytes));
    let endpoint = crate::loopback::endpoint(crate::transport());
    let connection = endpoint.connect(quic, "localhost").unwrap().await.unwrap();
    let transfers = crate::transfers();
    let ours = |file: File| {
        let holders = vec![Holder::connected(NodeId(1), connection.clone())];
        let bytes = bytes as u64;
        let spec = FetchSpec { object: LARGE, bytes, root, holders, priority: Priority::Get, finder: None };
        fetch(transfers.clone(), spec, file)
    };
    let rounds = setting("SANDBAR_ROUNDS", 5);
    let mut rows: Vec<Row> = Vec::new();
    // Cold memory comes last, as the kernel's work on freed memory affects later measurements for seconds.
    for (round, is_cold) in
        [false, true].into_iter().flat_map(|is_cold| (0..=rounds).map(move |round| (round, is_cold)))
    {
        let mut note = |name: &'static str, started: Instant, before: [f64; 2]| {
            let (seconds, after) = (started.elapsed().as_secs_f64(), processor_s(holder));
            let row = match rows.iter_mut().find(|row| row.0 == name) {
                Some(row) => row,
                None => {
                    rows.push((name, Vec::new(), Vec::new()));
                    rows.last_mut().unwrap()
                }
            };
            // The first round warms up.
            if round > 0 {
                row.1.push(seconds);
                row.2.push(std::array::from_fn(|i| after[i] - before[i]));
            }
        };
        let wants = |name: &str| {
            let is_selected = |only: String| only.split(',').any(|one| one == name);
            (name == "cold") == is_cold && std::env::var("SANDBAR_ONLY").map_or(true, is_selected)
        };
        if wants("memory") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            warm.write().copy_from_slice(from.as_ref());
            note("copy in memory, warm", started, processor);
        }
        if wants("tcp") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            bare_tcp(tcp, bytes).await;
            note("TCP, bytes dropped", started, processor);
        }
        if wants("bare") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            assert_eq!(bare_quic(&connection, None).await, bytes);
            note("bare QUIC stream, bytes dropped", started, processor);
        }
        if wants("copied") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            assert_eq!(bare_quic(&connection, Some(&warm)).await, bytes);
            note("bare QUIC stream, copied to warm memory", started, processor);
        }
        if wants("ours") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            ours(warm.clone()).await;
            note("ours, into warm memory", started, processor);
        }
        if wants("cold") {
            let (started, processor) = (Instant::now(), processor_s(holder));
            ours(File::new(bytes)).await;
            note("ours, into cold memory", started, processor);
        }
    }
    let whole = File::new(bytes);
    ours(whole.clone()).await;
    assert!(whole.as_ref() == File::noise(bytes).as_ref(), "what came is not what was sent");
    let bare = rows.iter().find(|row| row.0.starts_with("bare")).map(|row| row.1.clone());
    for (name, seconds, processor) in &rows {
        let rate = bytes as f64 / median(seconds.clone()) / 1e6;
        let ratio = bare.as_ref().map_or(String::new(), |bare| {
            let ratios = bare.iter().zip(seconds).map(|(bare, ours)| bare / ours).collect();
            format!("  {:.2} of bare QUIC", median(ratios))
        });
        let [client, holder] =
            [0, 1].map(|i| median(processor.iter().map(|used| used[i] / bytes as f64 * 1e9).collect()));
        let text = format!("{name:40} {rate:6.0} MB/s{ratio}  processor {client:.2} s, holder's {holder:.2} s a GB");
        crate::report(name, rate, "MB/s", &text);
    }
}

async fn fetch(transfers: Transfers, spec: FetchSpec, file: File) {
    transfers.fetch(spec, async |_| Ok(file)).await.unwrap();
}

async fn bare_tcp(address: &str, bytes: usize) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut len = 0;
    while len < bytes {
        len += stream.read(&mut buffer).await.unwrap();
    }
}

async fn bare_quic(connection: &Connection, to: Option<&File>) -> usize {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&[BARE_STREAM]).await.unwrap();
    let mut len = 0;
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await.unwrap() {
        if let Some(file) = to {
            file.write()[len..len + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        }
        len += chunk.bytes.len();
    }
    len
}
