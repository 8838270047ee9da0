//! Demands for resources that do not exist, or that nobody else then has.

use std::time::Duration;

use sandbar_guest::prelude::*;
use sandbar_guest::{NodeId, RetryOn, Strategy};

use crate::{Attack, distinct, outcome, sleeps, spins};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("demands-what-never-fits", || {
        let all = [
            nothing::options().cpus(1e9).submit(),
            nothing::options().gpus(1e6).submit(),
            nothing::options().memory(u64::MAX).submit(),
            nothing::options().resource("gold", 1.0).submit(),
            nothing::options().strategy(Strategy::Node { node: NodeId(4_000_000_000), soft: false }).submit(),
        ];
        Ok(distinct(all.iter().map(code)))
    }),
    ("demands-no-numbers", || {
        let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0, 1e-300, 1e300];
        let of_cpus = numbers.map(|cpus| nothing::options().cpus(cpus).submit());
        let of_others = numbers.map(|amount| nothing::options().gpus(amount).resource("", amount).submit());
        Ok(distinct(of_cpus.iter().chain(&of_others).map(code)))
    }),
    ("demands-thousands-of-resources", || {
        let options = (0..5_000).fold(nothing::options(), |options, number| options.resource(number.to_string(), 1.0));
        Ok(code(&options.submit()))
    }),
    ("reserves-all-processors", || {
        let groups: Vec<_> = (0..4).map(|_| PlacementGroup::new([Bundle::cpus(1.0)], GroupStrategy::Pack)).collect();
        let _ = groups[0].ready();
        Ok(sleeps().to_string())
    }),
    ("reserves-groups-without-end", || {
        let mut kept = Vec::new();
        for _ in 0..1_100 {
            kept.push(PlacementGroup::new([Bundle::cpus(1.0)], GroupStrategy::StrictSpread));
        }
        Ok(distinct(kept.iter().skip(1_050).map(|group| outcome(group.ready()))))
    }),
    ("reserves-what-never-fits", || {
        let all = (0..200).map(|_| PlacementGroup::new([Bundle::cpus(1e6), Bundle::cpus(1e6)], GroupStrategy::Spread));
        let all: Vec<_> = all.collect();
        Ok(distinct(
            all.iter()
                .map(|group| group.ready().map_or_else(|e| e.fault.code.as_str().to_owned(), |()| "ok".to_owned())),
        ))
    }),
    ("reserves-memory", || {
        let all: Vec<_> = (0..2000).map(|_| sleeps::options().memory(64 << 20).submit()).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("spins-without-processors", || {
        let all: Vec<_> = (0..300).map(|_| spins::options().cpus(0.0).submit()).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("spins", || {
        let all: Vec<_> = (0..16).map(|_| spins::submit()).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("urges", || {
        let first = nothing::options().priority(i32::MAX);
        loop {
            let all: Vec<_> = (0..1_000).map(|_| first.submit()).collect();
            let _ = get_all(&all);
        }
    }),
    ("retries-without-end", || {
        let again = fails::options().max_retries(u32::MAX).retry_on(RetryOn::All);
        let all: Vec<_> = (0..16).map(|_| again.submit()).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("exceeds-its-time", || {
        let short = spins::options().timeout(Duration::from_millis(1)).max_retries(0);
        loop {
            let all: Vec<_> = (0..8).map(|_| short.submit()).collect();
            let _ = get_all(&all);
        }
    }),
    ("does-not-stop", || {
        loop {
            let all: Vec<_> = (0..8).map(|_| spins::submit()).collect();
            wait(&all, 1, Some(Duration::from_millis(5)));
            all.iter().for_each(|task| cancel(task, false));
        }
    }),
    ("sleeps-in-thousands", || {
        let all: Vec<_> = (0..3_000).map(|_| sleeps::submit()).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("grabs-the-gpu", || {
        let all: Vec<_> = (0..8).map(|_| nothing::options().gpus(1.0).submit()).collect();
        Ok(distinct(all.iter().map(code)))
    }),
];

#[task]
fn nothing() -> u64 {
    1
}

#[task]
fn fails() -> Result<u64, String> {
    Err("on purpose".to_owned())
}

/// Returns the code of a task's error, `ok`, or `waits`.
fn code(task: &ObjectRef<u64>) -> String {
    match task.get_timeout(Duration::from_millis(500)) {
        Ok(_) => "ok".to_owned(),
        Err(error) if error.fault.code == sandbar_guest::Code::GetTimeOut => "waits".to_owned(),
        Err(error) => error.fault.code.as_str().to_owned(),
    }
}
