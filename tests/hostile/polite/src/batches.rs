//! Batch and scalar functions that never return, or return too much.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use sandbar_guest::prelude::*;

/// Never returns.
#[batch]
pub fn batch_loops(batch: RecordBatch) -> RecordBatch {
    while black_box(true) {
        std::hint::spin_loop();
    }
    batch
}

/// Logs a line, and never returns.
#[batch]
#[allow(clippy::print_stdout, reason = "it is what is tested")]
pub fn batch_says_it_loops(batch: RecordBatch) -> RecordBatch {
    println!("{} rows, on and on", batch.num_rows());
    batch_loops(batch)
}

/// Sleeps for a moment.
#[batch]
pub fn batch_sleeps(batch: RecordBatch) -> RecordBatch {
    std::thread::sleep(std::time::Duration::from_millis(10));
    batch
}

/// Computes for tens or hundreds of milliseconds.
#[batch]
pub fn batch_dawdles(batch: RecordBatch) -> RecordBatch {
    for turn in 0..600_000_000 {
        black_box(turn);
    }
    batch
}

/// Prints a few lines, and reads the environment.
#[batch]
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "it is what is tested")]
pub fn batch_prints(batch: RecordBatch) -> RecordBatch {
    println!("{} rows", batch.num_rows());
    eprintln!("\nwhere is {:?}?\n", std::env::var("HOME").ok());
    print!("no end");
    let _ = std::io::Write::flush(&mut std::io::stdout());
    batch
}

/// Allocates until there is no memory left.
#[batch]
pub fn batch_takes_memory(batch: RecordBatch) -> RecordBatch {
    let mut taken = Vec::new();
    loop {
        taken.push(vec![black_box(1u8); 1 << 20]);
        if black_box(&taken).is_empty() {
            return batch;
        }
    }
}

/// Panics.
#[batch]
pub fn batch_panics(batch: RecordBatch) -> RecordBatch {
    panic!("{} columns are too many for me", batch.num_columns())
}

/// Returns 32 MiB for any input.
#[batch]
pub fn batch_gives_too_much(_batch: RecordBatch) -> Result<RecordBatch, String> {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float64, false)]));
    let column = Arc::new(Float64Array::from(vec![1.0; 4 << 20]));
    RecordBatch::try_new(schema, vec![column]).map_err(|e| e.to_string())
}

/// Returns 10 million rows in one batch: less than 4 MiB of bits, which is 40 MB at four bytes a row.
#[batch]
pub fn batch_gives_bits(batch: RecordBatch) -> Result<RecordBatch, String> {
    let rows = if batch.num_rows() == 0 { 0 } else { 10_000_000 };
    let bits: ArrayRef = Arc::new(BooleanArray::from(vec![true; rows]));
    RecordBatch::try_from_iter([("key", bits.clone()), ("x", bits.clone()), ("y", bits)]).map_err(|e| e.to_string())
}

/// Returns a long error.
#[batch]
pub fn batch_refuses(_batch: RecordBatch) -> Result<RecordBatch, String> {
    Err("no, ".repeat(1 << 20))
}

/// Logs a line, and returns an error.
#[batch]
pub fn batch_complains(_batch: RecordBatch) -> Result<RecordBatch, String> {
    sandbar_guest::log::warn!("I have seen better rows");
    Err("not with me".to_owned())
}

/// Counts the batches it has seen, and returns the count as `k` in each row.
#[batch]
pub fn batch_remembers(batch: RecordBatch) -> Result<RecordBatch, String> {
    static SEEN: AtomicI64 = AtomicI64::new(0);
    let seen = Arc::new(Int64Array::from_value(SEEN.fetch_add(1, Relaxed) + 1, batch.num_rows())) as ArrayRef;
    let columns = ["x", "y"].map(|name| (name, batch.column_by_name(name).expect("it is there").clone()));
    RecordBatch::try_from_iter([("k", seen)].into_iter().chain(columns)).map_err(|e| e.to_string())
}

/// Counts the rows it has seen, and returns how many batches of 16,384 rows they fill, including the current one.
#[scalar]
pub fn scalar_remembers(_x: i64) -> i64 {
    static SEEN: AtomicI64 = AtomicI64::new(0);
    1 + SEEN.fetch_add(1, Relaxed) / 16_384
}

/// Panics at one value.
#[scalar]
pub fn scalar_panics(x: f64) -> f64 {
    assert!(x < 3.0, "{x} is more than I can take");
    x
}

/// Has five columns, so that a batch of 16,384 rows is evaluated in chunks.
#[scalar]
pub fn scalar_of_five(a: i64, b: i64, c: i64, d: i64, e: i64) -> i64 {
    a + b + (c - d) * e
}

/// Divides by zero.
#[scalar]
pub fn scalar_divides(x: f64) -> i64 {
    1_000 / black_box(x as i64 - 3)
}

/// Returns an error for negative numbers.
#[scalar]
pub fn scalar_refuses(x: i64) -> Result<i64, String> {
    if x < 0 { Err(format!("{x} is negative")) } else { Ok(x) }
}

/// Parameters of [`batch_keeps`].
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kept {
    /// Rows to keep of each batch.
    rows: usize,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { rows: 1 << 20 }
    }
}

/// Keeps the first rows of each batch.
#[batch]
pub fn batch_keeps(batch: RecordBatch, params: &Kept) -> RecordBatch {
    batch.slice(0, params.rows.min(batch.num_rows()))
}
