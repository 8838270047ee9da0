//! `host-gpu`: the process that a node starts for each GPU of a job, and to enumerate GPUs.
//!
//! It is a separate program because it alone loads GPU drivers, which compile guests' kernels. The node kills it when a
//! driver hangs.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
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
