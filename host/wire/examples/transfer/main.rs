//! Benchmark of object transfers between processes on one machine, compared with memory copies, TCP and bare QUIC.
//!
//! `cargo run --release -p sandbar-wire --example transfer [-- MODE]` runs one mode, or all of them: `object` (1 GiB
//! between two processes, compared with memory, TCP and bare QUIC in turn), `small` (10 KiB each), `broadcast` (256 MiB
//! to eight processes). Environment variables:
//!
//! - `SANDBAR_MB`, `SANDBAR_ROUNDS`: size of the object in MiB, and number of rounds.
//! - `SANDBAR_THREADS`: threads of each process's runtime (default 1).
//! - `SANDBAR_JSON`: print figures as JSON.
//! - `SANDBAR_ADDRESS`: address of all endpoints (default 127.0.0.1).
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod broadcast;
mod holder;
#[path = "../../src/transfer/tests/loopback.rs"]
mod loopback;
mod memory;
mod object;
mod process;
mod small;

use std::sync::Arc;

// Names that `loopback` imports.
use sandbar_wire::{Admission, Offload, TransferLimits, Transfers};
use sandbar_wire::{SOCKET_BUFFER_BYTES, WireLimits, transport_config};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            object::run();
            small::run();
            broadcast::run();
        }
        ["object"] => object::run(),
        ["small"] => small::run(),
        ["broadcast"] => broadcast::run(),
        ["holder", bytes, small] => runtime().block_on(holder::run(number(bytes), number(small))),
        ["object-client"] => runtime().block_on(object::client()),
        ["small-client"] => runtime().block_on(small::client()),
        ["receiver", node] => runtime().block_on(broadcast::receiver(number(node) as u32)),
        _ => panic!("unknown mode {arguments:?}: expected object, small, broadcast or none"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| number(&text))
}

fn runtime() -> tokio::runtime::Runtime {
    let threads = setting("SANDBAR_THREADS", 1) as usize;
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().unwrap()
}

fn transfers() -> Transfers {
    let limits = TransferLimits {
        piece_bytes_max: setting("SANDBAR_PIECE_KIB", 1024) << 10,
        pieces_in_flight_max: setting("SANDBAR_PIECES", 64) as usize,
        ..TransferLimits::default()
    };
    let admission: Arc<Admission> = Admission::new(16 << 30, 1000);
    Transfers::new(limits, admission, None, Offload::Threads).unwrap()
}

fn transport() -> Arc<quinn::TransportConfig> {
    Arc::new(transport_config(&WireLimits::default()))
}

/// Prints a figure as text, or with `SANDBAR_JSON` as one line of JSON.
fn report(name: &str, value: f64, unit: &str, text: &str) {
    match std::env::var_os("SANDBAR_JSON") {
        Some(_) => println!("{{\"name\": \"{name}\", \"value\": {value}, \"unit\": \"{unit}\"}}"),
        None => println!("{text}"),
    }
}

/// Returns the median.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
