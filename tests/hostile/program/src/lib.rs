//! Hostile programs: what a tenant's tasks try against their node and its other tenants.
//!
//! A job of the program runs one attack, selected by its name. The tables in `tests/process/attacks` have the expected
//! outcomes.
#![cfg(target_family = "wasm")]

mod actors;
mod demands;
mod floods;
mod forged;
mod imports;
mod marks;
mod memory;

use sandbar_guest::prelude::*;

/// An attack. Returns what it observed, or the message with which its task fails.
type Attack = fn() -> Result<String, String>;

/// Runs the attack of this name.
#[task]
fn attack(kind: String) -> Result<String, String> {
    let tables = [actors::ATTACKS, demands::ATTACKS, floods::ATTACKS, forged::ATTACKS, memory::ATTACKS];
    let found = tables.into_iter().flatten().find(|(name, _)| *name == kind);
    let (_, attack) = found.ok_or_else(|| format!("there is no attack `{kind}`"))?;
    attack()
}

/// Loops endlessly without touching memory.
#[task]
fn spins() -> u64 {
    let mut number = 1u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(3) + 1);
        if number == 0 {
            return 0;
        }
    }
}

/// Sleeps for an hour.
#[task]
fn sleeps() -> u64 {
    std::thread::sleep(std::time::Duration::from_secs(3600));
    0
}

/// Returns how a task ended: `ok`, or the code and the message of its error.
fn outcome<T>(result: Result<T, TaskError>) -> String {
    result.map_or_else(|error| format!("{}: {}", error.fault.code.as_str(), error.fault.message), |_| "ok".to_owned())
}

/// Returns the distinct texts, sorted.
fn distinct(texts: impl IntoIterator<Item = String>) -> String {
    let texts: std::collections::BTreeSet<String> = texts.into_iter().collect();
    texts.into_iter().collect::<Vec<_>>().join("; ")
}
