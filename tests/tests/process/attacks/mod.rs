//! Attacks of tenants on their node and on other tenants, each beside a victim whose results are checked.
//!
//! A kind of attack is a row of a table: its name, what it does, how it runs, and its expected outcome. The test runs each
//! kind once. The storm runs kinds that it draws at random, by several tenants at once, beside the victim; `cargo xtask
//! hostile` runs it for long, and prints what it measured.

mod absence;
mod client;
mod components;
mod door;
mod marks;
mod programs;
mod scene;
mod storm;

use std::time::Duration;

use sandbar_tests::print_line;

use client::Account;
use scene::Scene;

/// A kind of attack.
pub struct Kind {
    pub name: &'static str,
    /// What it does, in one line.
    pub what: &'static str,
    pub attack: Attack,
    pub outcome: Outcome,
}

/// How an attack runs.
pub enum Attack {
    /// By the attack of this name in `tests/hostile/program`.
    Program,
    /// By requests to the node. Returns what they were answered.
    Door(fn(&Scene, &Account) -> String),
}

/// Expected outcome of an attack.
pub enum Outcome {
    /// It ends, and reports a text that contains this, or is refused with it.
    Says(&'static str),
    /// Its job fails with this code.
    Fails(&'static str),
    /// It never ends by itself: it waits, or gets the share of its tenant.
    GoesOn,
    /// One of these, which depends on the machine's speed.
    Either(&'static Outcome, &'static Outcome),
}

/// Returns all kinds.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    [programs::KINDS, door::KINDS, components::KINDS].into_iter().flatten()
}

/// Time for which an attack that never ends runs, and maximum time of others, on a busy machine.
const ENDLESS_TIME: Duration = Duration::from_millis(200);
const ENDING_TIME_MAX: Duration = Duration::from_secs(90);

fn time_of(kind: &Kind) -> Duration {
    if matches!(kind.outcome, Outcome::GoesOn) { ENDLESS_TIME } else { ENDING_TIME_MAX }
}

#[test]
fn there_are_many_kinds_of_attacks() {
    let names: std::collections::BTreeSet<&str> = kinds().map(|kind| kind.name).collect();
    assert_eq!(names.len(), kinds().count(), "each has a name of its own");
    assert!(names.len() >= 60, "{}", names.len());
    assert!(kinds().all(|kind| !kind.what.is_empty()));
}

/// Runs each kind of a table once.
fn run_each(kinds: &[Kind]) {
    let mut scene = Scene::start(1, &["--workers", "2", "--object-memory", "128MiB"]);
    let mut wrong = Vec::new();
    for kind in kinds {
        let since = std::time::Instant::now();
        let problems = std::cell::RefCell::new(Vec::new());
        let victim = || {
            if let Err(problem) = scene.victim_run(since.elapsed().as_millis() as u64) {
                problems.borrow_mut().push(problem);
            }
        };
        scene.reset_peak();
        let observed = scene.attack(&scene.attackers[0], kind, time_of(kind), &victim);
        if std::env::var_os("SANDBAR_ATTACKS").is_some() {
            let (time, mib) = (since.elapsed(), scene.peak_memory() >> 20);
            print_line(format_args!("{} ({time:?}, node at most {mib} MiB): {observed:?}", kind.name));
        }
        let mut problems = problems.into_inner();
        if !observed.matches(&kind.outcome) {
            problems.push(format!("it ended so: {observed:?}"));
        }
        problems.extend(scene.problem());
        wrong.extend(problems.into_iter().map(|problem| format!("{}: {problem}", kind.name)));
        assert!(!scene.nodes.running[0].has_ended(), "{wrong:#?}");
    }
    assert!(wrong.is_empty(), "{} of {} kinds are wrong:\n{}", wrong.len(), kinds.len(), wrong.join("\n"));
}

#[test]
fn programs_that_attack() {
    run_each(programs::KINDS);
}

#[test]
fn requests_that_attack() {
    run_each(door::KINDS);
}

#[test]
fn components_that_attack() {
    run_each(components::KINDS);
}
