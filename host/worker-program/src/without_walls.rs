//! `host-worker` without walls, to measure what they cost: `cargo xtask bench walls`.

#[path = "main.rs"]
mod host_worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    host_worker::main()
}
