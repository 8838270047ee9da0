//! Pi from darts thrown at a square: the share that hits the inscribed circle. Many tasks throw, and the results are
//! counted as they finish.
//!
//! `host submit examples/pi --arg tasks=200 --arg darts=1000000`
//!
//! `host submit examples/pi#watch` shows the estimates as they improve.

use sandbar_guest::prelude::*;
use sandbar_guest::random::{self, rand_core::RngCore};

/// The number of darts that hit.
#[task]
fn throw(darts: u64) -> u64 {
    let mut random = random::rng();
    let mut side = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    (0..darts).filter(|_| side().powi(2) + side().powi(2) < 1.0).count() as u64
}

/// Estimates pi.
#[task]
fn main(tasks: Option<u64>, darts: Option<u64>) -> Result<f64, TaskError> {
    let (tasks, darts) = (tasks.unwrap_or(100), darts.unwrap_or(100_000));
    let mut rest: Vec<_> = (0..tasks).map(|_| throw::submit(darts)).collect();
    let (mut hits, mut thrown) = (0, 0);
    while !rest.is_empty() {
        let half = rest.len().div_ceil(2);
        let (ready, others) = wait(&rest, half, None);
        rest = others;
        hits += get_all(&ready)?.iter().sum::<u64>();
        thrown += darts * ready.len() as u64;
        sandbar_guest::log::info!("pi is about {:.6} after {thrown} darts", 4.0 * hits as f64 / thrown as f64);
    }
    Ok(4.0 * hits as f64 / thrown as f64)
}

/// Estimates of increasing precision: after each task, the number of tasks and the estimate.
#[task]
fn estimates(tasks: u64, darts: u64) -> impl Iterator<Item = Result<(u64, f64), TaskError>> {
    let results = throw::pool().in_flight(16).imap((0..tasks).map(move |_| darts));
    let mut hits = 0;
    results.zip(1..).map(move |(result, thrown)| {
        hits += result?;
        Ok((thrown, 4.0 * hits as f64 / (thrown * darts) as f64))
    })
}

/// Estimates pi, and logs the intermediate estimates.
#[task]
fn watch(tasks: Option<u64>, darts: Option<u64>) -> Result<f64, TaskError> {
    let (tasks, darts) = (tasks.unwrap_or(100), darts.unwrap_or(100_000));
    let (mut pi, mut reported) = (0.0, 0);
    for estimate in estimates::submit(tasks, darts) {
        let (thrown, about) = estimate?.get()?;
        pi = about;
        let percent = 100 * thrown / tasks;
        if percent / 10 > reported / 10 {
            sandbar_guest::log::info!("{percent} %: pi is about {pi:.6}");
            reported = percent;
        }
    }
    Ok(pi)
}

#[cfg(test)]
mod tests {
    use sandbar_guest::testing;

    #[test]
    fn it_is_about_pi() {
        for task in ["main", "watch"] {
            let pi: f64 = testing::run(task, r#"{"tasks": 20, "darts": 10000}"#).unwrap();
            assert!((pi - std::f64::consts::PI).abs() < 0.05, "{pi}");
        }
    }
}
