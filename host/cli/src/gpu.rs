//! `host-gpu`: what a node starts for each GPU that a job uses, and to find out which GPUs there are.
//!
//! A program of its own: drivers are loaded into it and nowhere else, what guests wrote is compiled by them, and it is
//! ended where they don't come back.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match sandbar_gpu::run_gpu(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "host-gpu: {e}");
            ExitCode::FAILURE
        }
    }
}
