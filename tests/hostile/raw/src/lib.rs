//! Hostile guests written against the bare contract: what no user of the SDK can do by accident.
//!
//! Each function of this component is one attack, named after what it does. The table in `tests/process/hostile` has
//! the expected outcomes.
#![cfg(target_family = "wasm")]

mod batches;
mod bindings;
mod requests;
mod trainers;

use std::cell::Cell;

use bindings::guest::{Function, Guest, Kind};

/// The attack and the call that runs it; all other calls are honest.
#[derive(Clone, Copy)]
enum Behavior {
    /// A batch function.
    Process(fn(&[u8])),
    /// A scalar function.
    Scalar(fn(&[u8])),
    /// A trainer's fit.
    Fit(fn()),
    /// A trainer's fit, which ends with the returned error.
    GiveUp(fn() -> String),
    /// A trainer's prediction.
    Predict(fn()),
    /// A trainer's opening.
    Open(fn() -> Result<(), String>),
    /// A batch function with an invalid schema in its description.
    Described(&'static [u8]),
}

type Attack = (&'static str, Behavior);

fn attacks() -> impl Iterator<Item = Attack> {
    batches::ATTACKS.iter().chain(requests::ATTACKS).chain(trainers::ATTACKS).copied()
}

thread_local! {
    static OPENED: Cell<Option<Attack>> = const { Cell::new(None) };
}

struct Component;

impl Guest for Component {
    fn describe() -> Vec<Function> {
        let describe = |(name, does): Attack| {
            let (kind, arguments) = match does {
                Behavior::Process(_) => (Kind::Batch, &[][..]),
                Behavior::Scalar(_) => (Kind::Scalar, &batches::ONE_NUMBER[..]),
                Behavior::Described(schema) => (Kind::Batch, schema),
                Behavior::Fit(_) | Behavior::GiveUp(_) | Behavior::Predict(_) | Behavior::Open(_) => {
                    (Kind::Trainer, &[][..])
                }
            };
            Function { name: name.into(), kind, arguments: arguments.into(), returns: Vec::new(), about: String::new() }
        };
        attacks().map(describe).collect()
    }

    fn open(function: u32, _params: String, _seed: u64) -> Result<(), String> {
        let attack = attacks().nth(function as usize).ok_or("there is no such attack")?;
        OPENED.set(Some(attack));
        match attack.1 {
            Behavior::Open(open) => open(),
            _ => Ok(()),
        }
    }

    fn process(header: Vec<u8>) -> Result<(), String> {
        match opened() {
            Behavior::Process(attack) | Behavior::Scalar(attack) => attack(&header),
            _ => return Err("this attack is no batch function".into()),
        }
        Ok(())
    }

    fn fit(_header: Vec<u8>) -> Result<(), String> {
        match opened() {
            Behavior::Fit(attack) => attack(),
            Behavior::GiveUp(why) => return Err(why()),
            _ => trainers::honest_fit(),
        }
        Ok(())
    }

    fn predict(_header: Vec<u8>) -> Result<(), String> {
        match opened() {
            Behavior::Predict(attack) => attack(),
            _ => trainers::honest_predict(),
        }
        Ok(())
    }
}

fn opened() -> Behavior {
    OPENED.get().expect("a host opens a function first").1
}
