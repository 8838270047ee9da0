//! `host-worker`: the process that a node starts for each worker, and to compile components.
//!
//! It is a separate program without the code that finds files and parses jobs: it starts faster, and a guest that
//! breaks out of its sandbox finds less code to use.

// No input of a guest, a peer, a file or a user may end this process.
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
