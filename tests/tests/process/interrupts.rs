//! Ctrl-C at any moment of a program: the exit code is the one that shells expect, and no process or file remains.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use sandbar_seeds::{one_seed, seed_of_clock};
use sandbar_tests::{Lab, children, component, is_alive};

use crate::lifecycle::until;

/// Endless programs of the tests, with their arguments and further options.
#[rustfmt::skip]
const ENDLESS: &[(&str, &str, &[&str], &[&str])] = &[
    ("tasks",   "spins",         &[],                                        &[]),
    ("tasks",   "endless",       &["depth=2", "width=20"],                   &[]),
    ("tasks",   "floods",        &[],                                        &[]),
    ("tasks",   "stores",        &["bytes=100000", "kept=400"],              &["--object-memory", "20MiB"]),
    ("actors",  "never_returns", &["cpus=0"],                                &[]),
    ("actors",  "never_returns", &["cpus=1"],                                &[]),
    ("streams", "taken_by_many", &["tasks=4", "items=1000000000", "steps=0"], &[]),
];
/// Interruptions of each program, and the latest moment.
const TIMES: usize = 4;
const TIME_MAX: Duration = Duration::from_millis(500);
/// Maximum time until an interrupted command has ended, on a busy machine too.
const END_TIME_MAX: Duration = Duration::from_secs(60);

#[test]
fn an_interrupt_at_any_moment_leaves_nothing() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(one_seed(seed_of_clock()));
    for _ in 0..TIMES {
        for (program, task, arguments, settings) in ENDLESS {
            let moment = TIME_MAX.mul_f64(random.next_u64() as f64 / u64::MAX as f64);
            let program = format!("{}#{task}", component(&format!("tests/programs/{program}")).display());
            let mut line = vec!["submit", &program];
            line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
            line.extend(*settings);
            interrupt(&line, moment);
        }
    }
}

fn interrupt(line: &[&str], moment: Duration) {
    let lab = Lab::new();
    let mut host = lab.start(line);
    let (started, mut processes) = (Instant::now(), BTreeSet::new());
    let mut is_interrupted = false;
    while host.is_running() {
        assert!(started.elapsed() < END_TIME_MAX, "{line:?} goes on, though it was interrupted after {moment:?}");
        processes.extend(children(host.process()));
        if !is_interrupted && started.elapsed() >= moment {
            host.interrupt();
            is_interrupted = true;
        }
    }
    let ended = host.wait();
    let context = format!("{} after {moment:?}: {}\n{}", ended.line, ended.status, ended.stderr);
    // Before the host has installed its handler, the signal kills it: shells report the same code for both.
    let code = ended.status.code().or(ended.status.signal().map(|signal| 128 + signal));
    assert!(is_interrupted && code == Some(130), "{context}");
    until(&context, || !processes.iter().any(|process| is_alive(*process)));
    assert_eq!(lab.names(), Vec::<String>::new(), "{context}");
    let jobs = lab.host(&["jobs", "list", "--json"]).expect_code(0).json();
    let is_stopped = |job: &serde_json::Value| job["state"] == "stopped";
    assert!(jobs["jobs"].as_array().is_some_and(|jobs| jobs.iter().all(is_stopped)), "{context}{jobs}");
}
