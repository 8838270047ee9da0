use sandbar_guest::prelude::*;

#[scalar]
fn no_return(_a: i64) {}

#[scalar]
fn no_columns() -> i64 {
    1
}

#[scalar]
fn generic<T>(_a: T) -> i64 {
    1
}

#[scalar]
fn sized<const N: usize>(_a: i64) -> i64 {
    N as i64
}

#[scalar]
async fn later(a: i64) -> i64 {
    a
}

#[scalar]
unsafe fn trusting(a: i64) -> i64 {
    a
}

#[scalar(fast)]
fn fast(a: i64) -> i64 {
    a
}

#[scalar]
fn sometimes(a: i64, #[cfg(test)] b: i64) -> i64 {
    a
}

#[batch]
fn changes(batch: RecordBatch, params: &mut Thing) -> RecordBatch {
    batch
}

struct Thing;

impl Thing {
    #[scalar]
    fn method(&self, a: i64) -> i64 {
        a
    }
}

fn main() {}
