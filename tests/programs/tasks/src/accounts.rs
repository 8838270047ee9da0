//! Jobs whose use of a node is known.

use sandbar_guest::prelude::*;
use sandbar_guest::{RetryOn, log};

/// Computes, logs a line of nine bytes, and fails.
#[task]
fn fails_late(steps: u64) -> Result<u64, String> {
    super::computes(steps);
    log::info!("it fails!");
    Err("on purpose".to_owned())
}

/// Runs `tasks` tasks that succeed and one that fails three times, and stores 64 KiB.
#[task]
fn books(tasks: u64, steps: u64) -> Result<u64, TaskError> {
    let failing = fails_late::options().max_retries(2).retry_on(RetryOn::All).submit(steps);
    let results: Vec<_> = (0..tasks).map(|_| super::computes::submit(steps)).collect();
    let stored = put(&vec![7u8; 64 << 10]);
    let count = get_all(&results)?.len() as u64;
    assert!(failing.get().is_err() && stored.get()?.len() == 64 << 10);
    Ok(count)
}
