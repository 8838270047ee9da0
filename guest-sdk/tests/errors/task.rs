use sandbar_guest::prelude::*;

#[task]
fn generic<T>(_a: T) -> i64 {
    1
}

#[task]
fn family(_a: impl Into<i64>) -> i64 {
    1
}

#[task]
async fn later(a: i64) -> i64 {
    a
}

#[task]
unsafe fn trusting(a: i64) -> i64 {
    a
}

#[task]
fn borrows(name: &str, _values: &[f64], _batch: &Batch) -> usize {
    name.len()
}

#[task]
fn borrows_values(_values: &[f64]) {}

#[task]
fn borrows_batch(_batch: &mut Batch) {}

#[task]
fn lives<'a>(_name: std::borrow::Cow<'a, str>) {}

#[task(fast)]
fn fast(a: i64) -> i64 {
    a
}

#[task(retries = 2)]
fn retried(a: i64) -> i64 {
    a
}

#[task(returns = 0)]
fn none() {}

#[task(returns = 2)]
fn one() -> (i64, i64, i64) {
    (1, 2, 3)
}

#[task(returns = 2)]
fn nothing() {}

#[task]
fn sometimes(a: i64, #[cfg(test)] b: i64) -> i64 {
    a
}

#[task]
fn many(
    _a: u8,
    _b: u8,
    _c: u8,
    _d: u8,
    _e: u8,
    _f: u8,
    _g: u8,
    _h: u8,
    _i: u8,
    _j: u8,
    _k: u8,
    _l: u8,
    _m: u8,
) {
}

struct Thing;

impl Thing {
    #[task]
    fn method(&self, a: i64) -> i64 {
        a
    }
}

fn main() {}
