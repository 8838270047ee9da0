//! Programs whose tasks do next to nothing: what is measured is the node.

use sandbar_guest::prelude::*;

/// Does nothing.
#[task]
fn nothing() {}

/// Submits `tasks` tasks that do nothing, `at_once` at a time, and waits for all of them each time.
#[task]
fn flat(tasks: u32, at_once: u32) -> Result<u32, TaskError> {
    let mut done = 0;
    while done < tasks {
        let refs: Vec<_> = (0..at_once.min(tasks - done)).map(|_| nothing::submit()).collect();
        done += get_all(&refs)?.len() as u32;
    }
    Ok(done)
}

/// One after another.
#[task]
fn one_by_one(tasks: u32) -> Result<u32, TaskError> {
    for _ in 0..tasks {
        nothing::submit().get()?;
    }
    Ok(tasks)
}

/// `parents` tasks side by side with `children` each, `times` times.
#[task]
fn nested(parents: u32, children: u32, times: u32) -> Result<u32, TaskError> {
    let mut done = 0;
    for _ in 0..times {
        let refs: Vec<_> = (0..parents).map(|_| flat::submit(children, children)).collect();
        done += get_all(&refs)?.iter().sum::<u32>();
    }
    Ok(done)
}

/// A task that is submitted by the one before, `depth` deep. Gives how deep it went.
#[task]
fn deep(depth: u32) -> Result<u32, TaskError> {
    if depth == 0 { Ok(0) } else { Ok(1 + deep::submit(depth - 1).get()?) }
}
