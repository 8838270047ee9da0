use sandbar_guest::prelude::*;

struct Thing;

#[task]
fn things() -> impl Iterator<Item = Thing> {
    std::iter::once(Thing)
}

#[task]
fn fails() -> impl Iterator<Item = Result<u64, Thing>> {
    std::iter::once(Err(Thing))
}

#[task]
fn numbers(n: u64) -> impl Iterator<Item = u64> {
    0..n
}

#[task]
fn takes(_numbers: Vec<u64>) {}

fn submits() {
    takes::submit(numbers::submit(1));
    takes::options().buffer(1).submit(vec![1]);
}

fn main() {}
