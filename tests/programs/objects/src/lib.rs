//! Programs whose objects exceed the memory limit.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use sandbar_guest::prelude::*;
use sandbar_guest::{Code, log};

/// Returns a batch whose values depend on `number` only.
#[task]
fn makes(number: u64, rows: u64) -> Batch {
    let mixed = |row: u64| (number << 32 ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let column: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..rows).map(mixed)));
    Batch(RecordBatch::try_from_iter([("numbers", column)]).expect("a column is a batch"))
}

/// Returns the rows of a batch: 0.25 to 1.75 times `rows`, depending on `number`.
fn rows_of(number: u64, rows: u64) -> u64 {
    rows / 4 + rows / 4 * (number % 7)
}

fn batch_of(number: u64, rows: u64) -> Batch {
    makes(number, rows_of(number, rows))
}

/// Stores batches, and returns how many of `gets` random reads give the stored batch.
#[task]
fn holds(objects: u64, rows: u64, gets: u64) -> Result<u64, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&batch_of(number, rows))).collect();
    let mut right = 0;
    for get in 0..gets {
        let number = (get.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % objects;
        right += u64::from(kept[number as usize].get()? == batch_of(number, rows));
    }
    Ok(right)
}

/// Returns 1 if a batch is the expected one.
#[task]
fn is_right(batch: Batch, number: u64, rows: u64) -> u64 {
    u64::from(batch == batch_of(number, rows))
}

/// Reads a batch of node 1 on `nodes` other nodes, and returns on how many it is right.
#[task]
fn spreads(rows: u64, nodes: u64) -> Result<u64, TaskError> {
    let batch = makes::options().resource("node-1", 1.0).submit(7, rows / 4);
    wait(std::slice::from_ref(&batch), 1, None);
    let places = (0..=nodes).filter(|node| *node != 1).map(|node| format!("node-{node}"));
    let checks: Vec<_> = places.map(|place| is_right::options().resource(place, 1.0).submit(&batch, 7, rows)).collect();
    Ok(get_all(&checks)?.iter().sum())
}

/// Passes batches from tasks to other tasks, and returns how many arrive right.
#[task]
fn passes(objects: u64, rows: u64) -> Result<u64, TaskError> {
    let results: Vec<_> = (0..objects).map(|number| makes::submit(number, rows_of(number, rows))).collect();
    // All batches exist, and most are spilled, before any is read.
    wait(&results, results.len(), None);
    let right: Vec<_> = (0..).zip(&results).map(|(number, result)| is_right::submit(result, number, rows)).collect();
    Ok(get_all(&right)?.iter().sum())
}

/// As `passes`, but reads only once a node provides `finish`. Until then runs short tasks with the same `retries`.
#[task]
fn outlives(objects: u64, rows: u64, retries: u32) -> Result<u64, TaskError> {
    let once = makes::options().max_retries(retries);
    let results: Vec<_> = (0..objects).map(|number| once.submit(number, rows_of(number, rows))).collect();
    wait(&results, results.len(), None);
    let finish = is_right::options().resource("finish", 1.0);
    loop {
        let checks = is_right::options().max_retries(retries);
        let right: Vec<_> = (0..4).map(|number| checks.submit(batch_of(number, 100), number, 100)).collect();
        assert_eq!(get_all(&right)?.iter().sum::<u64>(), 4);
        match finish.submit(batch_of(1, 100), 1, 100).get() {
            Err(e) if e.fault.code == Code::Infeasible => {}
            other => {
                other?;
                break;
            }
        }
    }
    let right: Vec<_> = (0..).zip(&results).map(|(number, result)| is_right::submit(result, number, rows)).collect();
    Ok(get_all(&right)?.iter().sum())
}

#[task]
fn counts(batch: Batch) -> u64 {
    batch.num_rows() as u64
}

/// Creates batches on nodes that provide `place`, and counts their rows in tasks on any node.
#[task]
fn visits(objects: u64, rows: u64, place: String) -> Result<u64, TaskError> {
    let there = makes::options().resource(&place, 0.01);
    let results: Vec<_> = (0..objects).map(|number| there.submit(number, rows)).collect();
    let counted: Vec<_> = results.iter().map(counts::submit).collect();
    Ok(get_all(&counted)?.iter().sum())
}

/// Stores small values, which travel in messages.
#[task]
fn holds_small(objects: u64, bytes: u64) -> Result<u64, TaskError> {
    let text = |number: u64| format!("{number:0width$}", width = bytes as usize);
    let kept: Vec<_> = (0..objects).map(|number| put(&text(number))).collect();
    let right = (0..).zip(&kept).map(|(number, kept)| Ok(u64::from(kept.get()? == text(number))));
    right.sum()
}

/// Stores more than fits. Returns whether all errors are `store-full`, whether some but not all values failed, and
/// whether a value fits once the others are released.
#[task]
fn fills(objects: u64, rows: u64) -> Result<String, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&batch_of(number, rows))).collect();
    let refused = kept.iter().filter_map(|kept| kept.get().err());
    let codes: Vec<_> = refused.map(|error| error.fault.code.as_str()).collect();
    let all = codes.iter().all(|code| *code == "store-full");
    let some = !codes.is_empty() && codes.len() < kept.len();
    drop(kept);
    let result = makes::submit(1, 1000).get()?;
    let stored = put(&result).get()?;
    Ok(format!("{all} {some} {}", stored == result))
}

/// Fails with the error of a value that does not fit.
#[task]
fn overfills(objects: u64, rows: u64) -> Result<u64, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&batch_of(number, rows))).collect();
    Ok(get_all(&kept)?.len() as u64)
}

/// Stores a value that exceeds the limit of all objects.
#[task]
fn too_large(rows: u64) -> Result<u64, TaskError> {
    Ok(put(&makes(0, rows)).get()?.num_rows() as u64)
}

/// Waits until the test kills this worker.
#[task]
fn waits_for_somebody() -> u64 {
    loop {
        std::hint::black_box(0u64);
    }
}

/// Returns what happened to spilled values that the test damages: `puts` stored ones and `tasks` results.
#[task]
fn is_damaged(puts: u64, tasks: u64, rows: u64) -> String {
    let kept: Vec<_> = (0..puts).map(|number| put(&makes(number, rows))).collect();
    let results: Vec<_> = (0..tasks).map(|number| makes::submit(number, rows)).collect();
    wait(&results, results.len(), None);
    let _ = waits_for_somebody::options().max_retries(0).submit().get();
    let outcome = |all: &[ObjectRef<Batch>]| {
        let (mut right, mut lost, mut wrong) = (0, 0, 0);
        for (number, object) in (0..).zip(all) {
            match object.get() {
                Ok(batch) if batch == makes(number, rows) => right += 1,
                Err(error) if error.fault.code.as_str() == "object-lost" => lost += 1,
                _ => wrong += 1,
            }
        }
        format!("{right} right, {} lost, {wrong} wrong", lost)
    };
    format!("{}; {}", outcome(&kept), outcome(&results))
}

/// Reads results of tasks with one retry while the test damages spilled values twice.
#[task]
fn is_damaged_twice(tasks: u64, rows: u64) -> Result<u64, TaskError> {
    let once = makes::options().max_retries(1);
    let results: Vec<_> = (0..tasks).map(|number| once.submit(number, rows)).collect();
    wait(&results, results.len(), None);
    for _ in 0..2 {
        let _ = waits_for_somebody::options().max_retries(0).submit().get();
        let mut right = 0;
        for (number, result) in (0..).zip(&results) {
            right += u64::from(result.get()? == makes(number, rows));
        }
        log::info!("{right} are right");
    }
    Ok(0)
}
