//! Actors: their names, processors, calls and restarts.

use sandbar_guest::prelude::*;

use crate::{Attack, distinct, outcome};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("finds-actors-of-others", || {
        let names = ["honest", "HONEST", "honest\0", "../ada/honest", "hоnest", "*", "", " honest"];
        let found = names.map(|name| VictimHandle::find(name).and_then(|actor| actor.add(1).get()));
        Ok(distinct(
            found.map(|found| found.map_or_else(|error| error.fault.code.as_str().to_owned(), |n| n.to_string())),
        ))
    }),
    ("squats-names", || {
        let squat = |name: String| Victim::options().name(name).detached().submit(0);
        let all: Vec<_> =
            ["honest".to_owned()].into_iter().chain((0..40).map(|n| format!("honest {n}"))).map(squat).collect();
        Ok(distinct(all.iter().map(|actor| outcome(actor.ready()))))
    }),
    ("names-with-tricks", || {
        let names =
            ["\u{202e}tsenoh", "\u{1b}[2J\u{1b}[H", "a\rb\nc", "hon\u{200b}est", "\u{feff}honest", "\0", "x/../../y"];
        let long = "n".repeat(1 << 20);
        let all =
            names.into_iter().chain([long.as_str()]).map(|name| Victim::options().name(name).detached().submit(0));
        Ok(distinct(all.map(|actor| outcome(actor.ready()).chars().take(60).collect())))
    }),
    ("holds-processors", || {
        // Some of them never start.
        let all: Vec<_> = (0..8).map(|_| Victim::options().name(next_name()).detached().cpus(1.0).submit(0)).collect();
        outcome_of(all[0].add(1).get())
    }),
    ("spins-in-actors", || {
        let all: Vec<_> = (0..60).map(|_| Victim::submit(0)).collect();
        let calls: Vec<_> = all.iter().map(|actor| actor.spins()).collect();
        outcome_of(get_all(&calls))
    }),
    ("restarts-for-ever", || {
        let actor = Victim::options().max_restarts(u32::MAX).submit(0);
        loop {
            let _ = actor.panics().get();
        }
    }),
    ("creates-without-end", || {
        let mut kept = Vec::new();
        loop {
            let actor = Victim::submit(0);
            if let Err(error) = actor.ready() {
                return Ok(format!("{} after some: {}", error.fault.code.as_str(), !kept.is_empty()));
            }
            kept.push(actor);
        }
    }),
    ("piles-calls", || {
        let (actor, text) = (Victim::submit(0), "x".repeat(50_000));
        let spins = actor.spins();
        let mut all = Vec::new();
        loop {
            all.push(actor.takes(text.clone()));
            if all.len() == usize::MAX {
                return outcome_of(spins.get());
            }
        }
    }),
    ("calls-itself", || {
        let actor = Victim::submit(0);
        outcome_of(actor.calls(actor.clone()).get())
    }),
];

/// An actor with what attacks need.
pub struct Victim(u64);

#[actor]
impl Victim {
    pub fn new(start: u64) -> Victim {
        Victim(start)
    }

    pub fn add(&mut self, number: u64) -> u64 {
        self.0 += number;
        self.0
    }

    pub fn takes(&mut self, text: String) -> u64 {
        text.len() as u64
    }

    pub fn spins(&mut self) -> u64 {
        crate::spins()
    }

    pub fn panics(&mut self) -> u64 {
        panic!("on purpose")
    }

    pub fn calls(&mut self, other: VictimHandle) -> Result<u64, TaskError> {
        other.add(1).get()
    }
}

/// Returns a name that this job has not used.
fn next_name() -> String {
    thread_local! { static NAMES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) }; }
    format!("hog {}", NAMES.replace(NAMES.get() + 1))
}

fn outcome_of<T>(result: Result<T, TaskError>) -> Result<String, String> {
    Ok(outcome(result))
}
