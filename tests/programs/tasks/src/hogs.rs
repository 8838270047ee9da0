//! Programs that take more than their share.

use sandbar_guest::prelude::*;

use crate::{computes, spins};

/// Waits for `count` tasks that never end.
#[task]
fn hogs(count: u32) -> Result<i64, TaskError> {
    let all: Vec<_> = (0..count).map(|_| spins::submit()).collect();
    Ok(get_all(&all)?.iter().sum())
}

/// Runs `count` tasks of the highest priority.
#[task]
fn urgent(count: u64, steps: u64) -> Result<u64, TaskError> {
    let first = computes::options().priority(i32::MAX);
    let all: Vec<_> = (0..count).map(|_| first.submit(steps)).collect();
    Ok(get_all(&all)?.len() as u64)
}

/// Runs trees of tasks, one after another, for ever.
#[task]
fn forks(depth: u32, width: u32) -> Result<u64, TaskError> {
    let mut leaves = 0;
    loop {
        leaves += crate::tree::submit(depth, width, 1_000).get()?;
        if leaves == u64::MAX {
            return Ok(leaves);
        }
    }
}

/// Runs a chain of tasks, each of which computes and then waits for the next, and then another, for ever.
#[task]
fn digs(depth: u32) -> Result<u64, TaskError> {
    loop {
        descends::submit(depth).get()?;
    }
}

#[task]
fn descends(depth: u32) -> Result<u64, TaskError> {
    let computed = computes(1_000_000);
    if depth == 0 { Ok(computed) } else { descends::submit(depth - 1).get() }
}

/// Puts texts of this many bytes and keeps them, until one can't be had. Returns its error.
#[task]
fn fills(bytes: u64) -> String {
    let text = "x".repeat(bytes as usize);
    let mut kept = Vec::new();
    loop {
        kept.extend((0..256).map(|_| put(&text)));
        if let Some(Err(error)) = kept.last().map(ObjectRef::get) {
            // The result needs room as well.
            drop(kept);
            return error.to_string();
        }
    }
}

/// Submits tasks with arguments of this many bytes that wait for one that never ends.
#[task]
fn piles(bytes: u64) -> Result<u64, TaskError> {
    let (never, text) = (spins::submit(), "x".repeat(bytes as usize));
    let mut all = Vec::new();
    loop {
        all.push(measures::submit(&never, text.clone()));
        if all.len() == usize::MAX {
            return Ok(get_all(&all)?.iter().sum());
        }
    }
}

#[task]
fn measures(_after: i64, text: String) -> u64 {
    text.len() as u64
}
