//! Programs with nearly empty tasks, which measure the node.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
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

/// Runs `tasks` empty tasks one after another.
#[task]
fn one_by_one(tasks: u32) -> Result<u32, TaskError> {
    for _ in 0..tasks {
        nothing::submit().get()?;
    }
    Ok(tasks)
}

/// Runs `parents` concurrent tasks with `children` tasks each, `times` times.
#[task]
fn nested(parents: u32, children: u32, times: u32) -> Result<u32, TaskError> {
    let mut done = 0;
    for _ in 0..times {
        let refs: Vec<_> = (0..parents).map(|_| flat::submit(children, children)).collect();
        done += get_all(&refs)?.iter().sum::<u32>();
    }
    Ok(done)
}

/// Yields `items` numbers.
#[task]
fn numbers(items: u32) -> impl Iterator<Item = u32> {
    0..items
}

/// Reads `items` items of a stream, one after another.
#[task]
fn stream(items: u32) -> Result<u32, TaskError> {
    for item in numbers::submit(items) {
        std::hint::black_box(item?.get()?);
    }
    Ok(0)
}

/// Submits itself recursively, `depth` levels deep. Returns the depth.
#[task]
fn deep(depth: u32) -> Result<u32, TaskError> {
    if depth == 0 { Ok(0) } else { Ok(1 + deep::submit(depth - 1).get()?) }
}

/// Spins forever.
#[task]
fn spins() {
    loop {
        std::hint::black_box(());
    }
}

/// A tree of tasks whose leaves wait for an endless task.
#[task]
fn endless(depth: u32, width: u32, never: Vec<ObjectRef<()>>) -> Result<(), TaskError> {
    let never = if never.is_empty() { vec![spins::submit()] } else { never };
    let below = if depth == 0 { 0 } else { width };
    let parts: Vec<_> = (0..below).map(|_| endless::submit(depth - 1, width, never.clone())).collect();
    get_all(if depth == 0 { &never } else { &parts })?;
    Ok(())
}

/// Computes for `steps` steps.
#[task]
fn mark(steps: u64) -> u64 {
    (0..steps).fold(1, |number, step| std::hint::black_box((number ^ step).wrapping_mul(0x9e37_79b9)))
}

/// Runs `tasks` tasks of `steps` steps at once. Returns their number.
#[task]
fn works(tasks: u32, steps: u64) -> Result<u32, TaskError> {
    let all: Vec<_> = (0..tasks).map(|_| mark::submit(steps)).collect();
    Ok(get_all(&all)?.len() as u32)
}

/// Keeps `at_once` tasks of `steps` steps unfinished, for ever.
#[task]
fn hungry(at_once: u32, steps: u64) -> Result<u32, TaskError> {
    let mut all: Vec<_> = (0..at_once).map(|_| mark::submit(steps)).collect();
    loop {
        let (ready, rest) = wait(&all, 1, None);
        get_all(&ready)?;
        all = rest;
        while all.len() < at_once as usize {
            all.push(mark::submit(steps));
        }
    }
}

/// Cancels a complete tree of endless tasks and returns their number.
#[task]
fn cancelled(width: u32) -> Result<u32, TaskError> {
    let root = endless::submit(2, width, Vec::new());
    wait(std::slice::from_ref(&root), 1, Some(Duration::from_secs(2)));
    mark::submit(1).get()?;
    cancel(&root, true);
    // Waits for the end of the last task.
    std::hint::black_box(mark(100_000_000));
    Ok(1 + width + width * width)
}

fn batch(bytes: u32) -> Batch {
    let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..u64::from(bytes) / 8));
    Batch(RecordBatch::try_from_iter([("numbers", numbers)]).expect("a column is a batch"))
}

/// Stores a batch of `bytes` bytes `times` times, and drops the references.
#[task]
fn puts(times: u32, bytes: u32) -> u32 {
    let batch = batch(bytes);
    (0..times).for_each(|_| drop(put(&batch)));
    0
}

/// Stores small values, `at_once` at a time, and reads them.
#[task]
fn small(times: u32, at_once: u32) -> Result<u32, TaskError> {
    for first in (0..times).step_by(at_once as usize) {
        let all: Vec<_> = (first..times.min(first + at_once)).map(|number| put(&u64::from(number))).collect();
        let sum: u64 = get_all(&all)?.iter().sum();
        std::hint::black_box(sum);
    }
    Ok(0)
}

/// Reads a few pages of a batch.
#[task]
fn peek(batch: Batch, at: u64) -> u64 {
    let numbers = batch.column(0).as_primitive::<UInt64Type>();
    (0..4).map(|page| numbers.value(((at * 7919 + page * 65_537) as usize) % numbers.len())).sum()
}

/// Runs tasks that read a few pages of one stored batch of `bytes` bytes, `at_once` at a time. Returns their number.
#[task]
fn peeks(tasks: u32, at_once: u32, bytes: u32) -> Result<u32, TaskError> {
    let stored = put(&batch(bytes));
    let mut done = 0;
    while done < tasks {
        let refs: Vec<_> =
            (0..at_once.min(tasks - done)).map(|task| peek::submit(&stored, u64::from(done + task))).collect();
        done += get_all(&refs)?.len() as u32;
    }
    Ok(done)
}

/// Stores a batch of `bytes` bytes `times` times and runs a task that reads a few pages of each; if the task runs on another
/// node, the batch is transferred.
#[task]
fn sent(times: u32, bytes: u32) -> Result<u32, TaskError> {
    let batch = batch(bytes);
    for at in 0..times {
        peek::submit(put(&batch), u64::from(at)).get()?;
    }
    Ok(times)
}

/// Actor with an empty method.
struct Echo;

#[actor]
impl Echo {
    pub fn new() -> Echo {
        Echo
    }

    pub fn nothing(&mut self) {}
}

/// Calls an actor `calls` times, `at_once` at a time, and waits for all of them each time.
#[task]
fn calls(calls: u32, at_once: u32) -> Result<u32, TaskError> {
    let echo = Echo::submit();
    let mut done = 0;
    while done < calls {
        let refs: Vec<_> = (0..at_once.min(calls - done)).map(|_| echo.nothing()).collect();
        done += get_all(&refs)?.len() as u32;
    }
    Ok(done)
}

/// Calls an actor `calls` times, one call after another.
#[task]
fn calls_one_by_one(calls: u32) -> Result<u32, TaskError> {
    let echo = Echo::submit();
    for _ in 0..calls {
        echo.nothing().get()?;
    }
    Ok(calls)
}

/// Creates `actors` live actors and calls each `times` times.
#[task]
fn alive(actors: u32, times: u32) -> Result<u32, TaskError> {
    let all: Vec<_> = (0..actors).map(|_| Echo::submit()).collect();
    for _ in 0..times {
        let calls: Vec<_> = all.iter().map(EchoHandle::nothing).collect();
        get_all(&calls)?;
    }
    Ok(actors)
}
