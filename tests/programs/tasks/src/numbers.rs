//! Numbers that JSON lacks, texts that look like numbers, and failed tasks in a program that succeeds.

use sandbar_guest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::fails;

/// A user's `serde` type.
#[derive(Serialize, Deserialize)]
struct Trained {
    loss: f64,
    best: Option<f32>,
    steps: Vec<f64>,
}

#[derive(Serialize, Deserialize)]
struct Code(String);

/// Returns a number by its name.
#[task]
fn number(name: String) -> f64 {
    match name.as_str() {
        "nan" => f64::NAN,
        "inf" => f64::INFINITY,
        "neg" => f64::NEG_INFINITY,
        "sum" => 0.1 + 0.2,
        _ => f64::MAX,
    }
}

/// Returns numbers in a list in a structure.
#[task]
fn within(loss: f64, best: Option<f32>) -> Trained {
    Trained { loss, best, steps: vec![loss, 0.5] }
}

#[task]
fn large() -> (u64, u128, i128) {
    (u64::MAX, u128::MAX, i128::MIN)
}

/// Returns its arguments as text.
#[task]
fn texts(text: String, maybe: Option<String>, code: Option<Code>) -> String {
    format!("{text:?} {maybe:?} {:?}", code.map(|code| code.0))
}

/// Runs `tasks` tasks that fail, and ignores the errors.
#[task]
fn minds_nothing(tasks: u32) -> u32 {
    let all: Vec<_> = (0..tasks).map(|_| fails::submit("on purpose".to_owned())).collect();
    all.iter().filter(|task| task.get().is_err()).count() as u32
}
