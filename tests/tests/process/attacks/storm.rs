//! Attacks drawn at random, by several tenants at once, beside a victim.
//!
//! `SANDBAR_HOSTILE_RUNS` sets the number of attacks, `SANDBAR_HOSTILE_TENANTS` that of the tenants with the victim, and
//! `SANDBAR_SEED` the seed. No time is a condition: what was measured is printed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use sandbar_seeds::{number_from_env, one_seed, seed_of_clock};
use sandbar_tests::{is_alive, print_line};

use super::scene::{ATTACKER_LIMITS, NodeMemory, Observed, Scene};
use super::{Kind, kinds};

/// Attacks and tenants by default.
const RUNS: u64 = 24;
const TENANTS: u64 = 3;
/// Maximum time of one attack.
const ATTACK_TIME_MAX: Duration = Duration::from_secs(3);
/// Runs of the victim alone, before and after: a fraction of the number of attacks.
const ALONE_PART: u64 = 10;
const ALONE_RUNS_MIN: u64 = 8;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Memory for objects of the node, in MiB.
const OBJECT_MEMORY_MIB: u64 = 128;

/// What happened during a storm.
#[derive(Default)]
struct Log {
    /// Times of the victim's jobs.
    times: Vec<Duration>,
    /// What must not happen.
    failures: Vec<String>,
    /// Runs of each kind, and those whose outcome was another one.
    runs: BTreeMap<&'static str, (u64, u64)>,
    /// The first other outcome of each kind.
    others: BTreeMap<&'static str, String>,
    /// Peak memory of the node.
    memory: NodeMemory,
}

#[test]
fn a_storm_of_attacks() {
    let runs = number_from_env("SANDBAR_HOSTILE_RUNS").unwrap_or(RUNS);
    let tenants = number_from_env("SANDBAR_HOSTILE_TENANTS").unwrap_or(TENANTS).max(2);
    let seed = one_seed(seed_of_clock());
    print_line(format_args!("SANDBAR_SEED={seed}: {runs} attacks by {} tenants beside a victim", tenants - 1));
    let object_memory = format!("{OBJECT_MEMORY_MIB}MiB");
    let mut scene = Scene::start(tenants as usize - 1, &["--workers", "2", "--object-memory", &object_memory]);
    let node = scene.nodes.process("node-1");
    let alone_runs = (runs / ALONE_PART).max(ALONE_RUNS_MIN);
    let alone = |first: u64| -> Vec<Duration> {
        (first..first + alone_runs).map(|seed| scene.victim_run(seed).expect("the victim's result alone")).collect()
    };
    let before = alone(1);
    let memory_before = scene.memory();
    let log = storm(&scene, runs, seed);
    let after = alone(1_000_000);
    assert!(is_alive(node), "the node has ended");
    let mut failures = log.failures.clone();
    failures.extend(scene.problem());
    report(&log, &before, &after, memory_before, tenants - 1);
    assert!(failures.is_empty(), "{} failures with SANDBAR_SEED={seed}:\n{}", failures.len(), failures.join("\n"));
}

/// Runs attacks until there were so many, and the victim meanwhile.
fn storm(scene: &Scene, runs: u64, seed: u64) -> Log {
    let all: Vec<&Kind> = kinds().collect();
    let (begun, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let log = Mutex::new(Log::default());
    std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..scene.attackers.len())
            .map(|at| {
                let (begun, log, all) = (&begun, &log, &all);
                scope.spawn(move || {
                    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(at as u64));
                    while begun.fetch_add(1, Relaxed) < runs {
                        let kind = all[(random.next_u64() % all.len() as u64) as usize];
                        let time = ATTACK_TIME_MAX.min(super::time_of(kind) * 5);
                        let observed = scene.attack(&scene.attackers[at], kind, time, &|| ());
                        record(&mut log.lock().unwrap(), kind, &observed);
                    }
                })
            })
            .collect();
        let victim = scope.spawn(|| {
            for seed in 100.. {
                if is_over.load(Relaxed) {
                    break;
                }
                match scene.victim_run(seed) {
                    Ok(time) => log.lock().unwrap().times.push(time),
                    Err(problem) => log.lock().unwrap().failures.push(problem),
                }
            }
        });
        let sampler = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let now = scene.memory();
                let peak = &mut log.lock().unwrap().memory;
                *peak = peak.max(now);
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        let attacked: Vec<_> = attackers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Relaxed);
        let failed = attacked.into_iter().filter(Result::is_err).count();
        if failed > 0 {
            log.lock().unwrap().failures.push(format!("{failed} attackers lost their connection to the node"));
        }
        victim.join().expect("the victim is served");
        sampler.join().expect("the memory can be read");
    });
    log.into_inner().unwrap()
}

fn record(log: &mut Log, kind: &Kind, observed: &Observed) {
    let counts = log.runs.entry(kind.name).or_default();
    counts.0 += 1;
    // Beside others an attack may take longer than it may here.
    if !observed.matches(&kind.outcome) && *observed != Observed::WentOn {
        counts.1 += 1;
        log.others.entry(kind.name).or_insert_with(|| format!("{observed:?}").chars().take(300).collect());
    }
    if *observed == Observed::DidNotStop {
        log.failures.push(format!("{} did not stop", kind.name));
    }
}

/// Returns the time that this share of the runs did not exceed.
fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted
        .get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn report(log: &Log, before: &[Duration], after: &[Duration], memory_before: NodeMemory, attackers: u64) {
    let line = |label: &str, times: &[Duration]| {
        let total: f64 = times.iter().map(Duration::as_secs_f64).sum();
        let (median, last) = (quantile(times, 0.5), quantile(times, 0.99));
        let rate = times.len() as f64 / total.max(1e-9);
        print_line(format_args!("victim {label}: {} jobs, {rate:.2}/s, p50 {median:.0?}, p99 {last:.0?}", times.len()));
        (rate, last.as_secs_f64())
    };
    let alone = line("alone", &[before, after].concat());
    let beside = line("beside the attacks", &log.times);
    let tenants = attackers + 1;
    print_line(format_args!(
        "rate {:.2} of that alone (fair share of {tenants} tenants: {:.2}), p99 {:.1} times that alone, {:.1} times that \
         with a fair share",
        beside.0 / alone.0,
        1.0 / tenants as f64,
        beside.1 / alone.1,
        beside.1 / alone.1 / tenants as f64,
    ));
    let mib = |bytes: u64| bytes >> 20;
    let tenant_mib: u64 = ATTACKER_LIMITS[0].1.trim_end_matches("MiB").parse().expect("a limit in MiB");
    let budget = mib(memory_before.own) + attackers * tenant_mib;
    print_line(format_args!(
        "memory of the node's process at most {} MiB (before {} MiB; budget with {attackers} x {tenant_mib} MiB of tenants: \
         {budget} MiB); of the others {} MiB (before {} MiB); of memory files {} MiB (before {} MiB; objects have \
         {OBJECT_MEMORY_MIB} MiB)",
        mib(log.memory.own),
        mib(memory_before.own),
        mib(log.memory.others),
        mib(memory_before.others),
        mib(log.memory.shared),
        mib(memory_before.shared),
    ));
    let runs: u64 = log.runs.values().map(|(runs, _)| runs).sum();
    let others: u64 = log.runs.values().map(|(_, others)| others).sum();
    print_line(format_args!("{runs} attacks of {} kinds; {others} ended in another way than alone", log.runs.len()));
    for (kind, other) in &log.others {
        print_line(format_args!("  {kind} ({} of {}): {other}", log.runs[kind].1, log.runs[kind].0));
    }
}

#[test]
fn quantiles_are_of_the_sorted_times() {
    let times: Vec<Duration> = [3, 1, 2].map(Duration::from_secs).into();
    assert_eq!((quantile(&times, 0.5), quantile(&times, 0.99)), (Duration::from_secs(2), Duration::from_secs(3)));
    assert_eq!(quantile(&[], 0.5), Duration::ZERO);
}
