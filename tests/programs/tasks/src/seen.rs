//! Programs that tests inspect while they run and afterwards.

use sandbar_guest::log;
use sandbar_guest::prelude::*;

use crate::{add, computes, spins};

/// Runs until it is stopped: holds a value of `bytes` bytes, has run some tasks, and runs others that never end.
#[task]
fn stays(bytes: u32, others: u32) -> Result<i64, TaskError> {
    let held = put(&vec![7u8; bytes as usize]);
    add::submit(1, 2).get()?;
    log::info!("it stays");
    let others: Vec<_> = (0..others).map(|_| spins::submit()).collect();
    get_all(&others)?;
    Ok(held.get()?.len() as i64)
}

/// Runs until it is stopped, and holds `objects` values, the first of which is larger than the others.
#[task]
fn holds(objects: u32) -> Result<i64, TaskError> {
    let first = put(&vec![7u8; 5000]);
    let others: Vec<_> = (1..objects).map(|number| put(&number)).collect();
    log::info!("it holds");
    get_all(&[spins::submit(), spins::submit()])?;
    Ok(first.get()?.len() as i64 + others.len() as i64)
}

#[task]
fn warns(line: String) {
    log::warn!("{line}");
}

/// Runs `tasks` tasks that log the same line, and one that logs another.
#[task]
fn repeats(tasks: u32) -> Result<u32, TaskError> {
    let all: Vec<_> = (0..tasks).map(|_| warns::submit("the same".to_owned())).collect();
    get_all(&all)?;
    warns::submit("another".to_owned()).get()?;
    Ok(tasks)
}

/// Logs `lines` lines of a hundred bytes.
#[task]
fn talks(lines: u32) -> u32 {
    (0..lines).for_each(|line| log::info!("{line:0100}"));
    lines
}

/// Runs two tasks that request `bytes` bytes of the node's memory each, and compute for `steps` steps.
#[task]
fn hoards(bytes: u64, steps: u64) -> Result<u64, TaskError> {
    let all: Vec<_> = (0..2).map(|_| computes::options().memory(bytes).submit(steps)).collect();
    Ok(get_all(&all)?.len() as u64)
}
