use sandbar_guest::prelude::*;

struct Thing;

#[task]
fn unnamed() -> impl Iterator {
    std::iter::once(1)
}

#[task]
fn displays() -> impl std::fmt::Display {
    1
}

#[task]
fn begins() -> Result<impl Iterator<Item = u64>, String> {
    Ok(std::iter::once(1))
}

#[task(returns = 2)]
fn two() -> impl Iterator<Item = (u64, u64)> {
    std::iter::once((1, 2))
}

struct Maker;

#[actor]
impl Maker {
    pub fn new() -> Maker {
        Maker
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        std::iter::once(1)
    }
}

fn main() {
    let _ = Thing;
}
