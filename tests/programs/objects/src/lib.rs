//! Programs whose objects are more than memory is to hold.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use sandbar_guest::prelude::*;
use sandbar_guest::{Code, log};

/// A batch whose numbers are a function of its own.
#[task]
fn makes(number: u64, rows: u64) -> Batch {
    let mixed = |row: u64| (number << 32 ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let column: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..rows).map(mixed)));
    Batch(RecordBatch::try_from_iter([("numbers", column)]).expect("a column is a batch"))
}

/// So many rows that batches are of different sizes: up to 1.75 times `rows`, and `rows` on average.
fn rows_of(number: u64, rows: u64) -> u64 {
    rows / 4 + rows / 4 * (number % 7)
}

fn made(number: u64, rows: u64) -> Batch {
    makes(number, rows_of(number, rows))
}

/// Stores batches, and says how many of those that it then looks at, anywhere, are what was stored.
#[task]
fn holds(objects: u64, rows: u64, gets: u64) -> Result<u64, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&made(number, rows))).collect();
    let mut right = 0;
    for get in 0..gets {
        let number = (get.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % objects;
        right += u64::from(kept[number as usize].get()? == made(number, rows));
    }
    Ok(right)
}

/// Whether a batch that it is given is what it should be.
#[task]
fn is_right(batch: Batch, number: u64, rows: u64) -> u64 {
    u64::from(batch == made(number, rows))
}

/// A batch of node 1, at which so many other nodes look at once. Says on how many it is what it should be.
#[task]
fn spreads(rows: u64, nodes: u64) -> Result<u64, TaskError> {
    let made = makes::options().resource("node-1", 1.0).submit(7, rows / 4);
    wait(std::slice::from_ref(&made), 1, None);
    let places = (0..=nodes).filter(|node| *node != 1).map(|node| format!("node-{node}"));
    let looks: Vec<_> = places.map(|place| is_right::options().resource(place, 1.0).submit(&made, 7, rows)).collect();
    Ok(get_all(&looks)?.iter().sum())
}

/// The same of what tasks return, which other tasks take.
#[task]
fn passes(objects: u64, rows: u64) -> Result<u64, TaskError> {
    let results: Vec<_> = (0..objects).map(|number| makes::submit(number, rows_of(number, rows))).collect();
    // All are there, and most of them on disk, before any is looked at.
    wait(&results, results.len(), None);
    let right: Vec<_> = (0..).zip(&results).map(|(number, result)| is_right::submit(result, number, rows)).collect();
    Ok(get_all(&right)?.iter().sum())
}

/// The same of results that can be made again only so often, once some node has what is called `finish`: until then short tasks
/// run, as often.
#[task]
fn outlives(objects: u64, rows: u64, retries: u32) -> Result<u64, TaskError> {
    let once = makes::options().max_retries(retries);
    let results: Vec<_> = (0..objects).map(|number| once.submit(number, rows_of(number, rows))).collect();
    wait(&results, results.len(), None);
    let finish = is_right::options().resource("finish", 1.0);
    loop {
        let looks = is_right::options().max_retries(retries);
        let right: Vec<_> = (0..4).map(|number| looks.submit(made(number, 100), number, 100)).collect();
        assert_eq!(get_all(&right)?.iter().sum::<u64>(), 4);
        match finish.submit(made(1, 100), 1, 100).get() {
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

/// Has batches made where there is what is called so, and counts the rows of all of them, anywhere.
#[task]
fn visits(objects: u64, rows: u64, place: String) -> Result<u64, TaskError> {
    let there = makes::options().resource(&place, 0.01);
    let results: Vec<_> = (0..objects).map(|number| there.submit(number, rows)).collect();
    let counted: Vec<_> = results.iter().map(counts::submit).collect();
    Ok(get_all(&counted)?.iter().sum())
}

/// Small values, which travel in messages.
#[task]
fn holds_small(objects: u64, bytes: u64) -> Result<u64, TaskError> {
    let text = |number: u64| format!("{number:0width$}", width = bytes as usize);
    let kept: Vec<_> = (0..objects).map(|number| put(&text(number))).collect();
    let right = (0..).zip(&kept).map(|(number, kept)| Ok(u64::from(kept.get()? == text(number))));
    right.sum()
}

/// Stores more than there is room for: says with what the first value comes that there was none for, and that all goes on.
#[task]
fn fills(objects: u64, rows: u64) -> Result<String, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&made(number, rows))).collect();
    let refused = kept.iter().filter_map(|kept| kept.get().err());
    let codes: Vec<_> = refused.map(|error| error.fault.code.as_str()).collect();
    let all = codes.iter().all(|code| *code == "store-full");
    let some = !codes.is_empty() && codes.len() < kept.len();
    drop(kept);
    let result = makes::submit(1, 1000).get()?;
    let stored = put(&result).get()?;
    Ok(format!("{all} {some} {}", stored == result))
}

/// Fails with what there was no room for.
#[task]
fn overfills(objects: u64, rows: u64) -> Result<u64, TaskError> {
    let kept: Vec<_> = (0..objects).map(|number| put(&made(number, rows))).collect();
    Ok(get_all(&kept)?.len() as u64)
}

/// A value that is larger than all objects may be.
#[task]
fn too_large(rows: u64) -> Result<u64, TaskError> {
    Ok(put(&makes(0, rows)).get()?.num_rows() as u64)
}

/// Waits until whoever looks on has ended a worker.
#[task]
fn waits_for_somebody() -> u64 {
    loop {
        std::hint::black_box(0u64);
    }
}

/// What became of values that are on disk, while somebody does something to that: of `puts` that were put, and of `tasks`
/// that were returned.
#[task]
fn is_damaged(puts: u64, tasks: u64, rows: u64) -> String {
    let kept: Vec<_> = (0..puts).map(|number| put(&makes(number, rows))).collect();
    let results: Vec<_> = (0..tasks).map(|number| makes::submit(number, rows)).collect();
    wait(&results, results.len(), None);
    let _ = waits_for_somebody::options().max_retries(0).submit().get();
    let told = |all: &[ObjectRef<Batch>]| {
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
    format!("{}; {}", told(&kept), told(&results))
}

/// What tasks have returned that may be begun again once, while somebody does something to what is on disk, twice.
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
