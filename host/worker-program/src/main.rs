//! `host-worker`: the process that a node starts for each worker, and to compile components.
//!
//! It is a separate program, which cannot link the node, clients or the network: it starts faster, and a guest that escapes
//! its sandbox finds less code to use.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use sandbar_train::{create_block_collector, create_row_group_reader};
use sandbar_worker::program::{PROGRAM_ARGUMENT, run_program_worker};
use sandbar_worker::{
    COMPILER_ARGUMENT, NativeHandlers, WALLS_ARGUMENT, WORKER_ARGUMENT, report_walls, run_compiler, run_worker,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the process that the first argument names.
pub fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        Some(WORKER_ARGUMENT) => {
            run_worker(NativeHandlers { collectors: create_block_collector, readers: create_row_group_reader })
        }
        Some(PROGRAM_ARGUMENT) => run_program_worker(),
        Some(COMPILER_ARGUMENT) => run_compiler(),
        Some(WALLS_ARGUMENT) => report_walls(),
        _ => Err(std::io::Error::other("this program is started by `host`")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // The node has ended.
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "host-worker: {e}");
            ExitCode::FAILURE
        }
    }
}
