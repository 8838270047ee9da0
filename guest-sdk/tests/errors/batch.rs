use sandbar_guest::prelude::*;

#[batch]
fn takes_a_number(a: i64) -> RecordBatch {
    std::process::exit(a as i32)
}

#[batch]
fn returns_a_number(batch: RecordBatch) -> Result<i64, String> {
    Ok(batch.num_rows() as i64)
}

#[batch]
fn returns_nothing(_batch: RecordBatch) {}

#[batch]
fn takes_too_much(batch: RecordBatch, _a: (), _b: ()) -> RecordBatch {
    batch
}

#[batch(rows("a"))]
fn names_no_columns(batch: RecordBatch) -> RecordBatch {
    batch
}

struct NotDeserialize;

#[batch]
fn wrong_params(batch: RecordBatch, _params: &NotDeserialize) -> RecordBatch {
    batch
}

fn main() {}
