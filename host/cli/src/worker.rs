//! `host-worker`: what a node starts for each of its workers, and to compile components.
//!
//! A program of its own: it has none of what finds files and parses jobs, which keeps its start short and leaves a
//! guest that breaks out of its sandbox less to use.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use sandbar_node::{
    COMPILER_ARGUMENT, PROGRAM_ARGUMENT, WORKER_ARGUMENT, run_compiler, run_program_worker, run_worker,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        Some(WORKER_ARGUMENT) => run_worker(),
        Some(PROGRAM_ARGUMENT) => run_program_worker(),
        Some(COMPILER_ARGUMENT) => run_compiler(),
        _ => Err(std::io::Error::other("this program is started by `host`")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // Its node has ended.
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "host-worker: {e}");
            ExitCode::FAILURE
        }
    }
}
