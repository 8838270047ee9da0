//! Copies and mappings into and out of a sandbox, by size.

use std::hint::black_box;

use crate::failure::Failure;
use crate::paths;
use crate::report::Report;
use crate::sandbox::{Data, LoadedGuest, SANDBOXES_MAX, as_bytes};
use crate::timing::{Effort, least};

const SIZES: [(usize, &str); 3] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")];
/// Size of the object that many sandboxes read.
const SHARED_BYTES: usize = 64 << 20;

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let time = effort.time.mul_f64(0.4);
    let guest = LoadedGuest::new(&paths::guest("xtask/bench/guest")?)?;
    // Runs first: memory that other measurements free could return to the kernel while this one reads PSS.
    let ways = if effort.many_copies { &["map", "copy"][..] } else { &["map"] };
    shared(report, &guest, ways)?;
    for (bytes, size) in SIZES {
        let words: Vec<u64> = (0..bytes as u64 / 8).collect();
        let data = Data::new(as_bytes(&words))?;
        let native = least(time, || _ = black_box(bench_guest::sum(black_box(&words))));
        let mut copy = vec![0u64; words.len()];
        let copied = least(time, || black_box(&mut copy).copy_from_slice(black_box(&words)));
        for way in ["copy", "stream", "map"] {
            let function = guest.function(way)?;
            let fresh = || -> Result<(), Failure> {
                data.start_call();
                let mut sandbox = guest.instantiate(&data)?;
                sandbox.open(function, "{}", 0)?;
                Ok(sandbox.process(&(bytes as u64).to_le_bytes())?)
            };
            fresh()?;
            let seconds = least(time, || fresh().expect("the first call succeeded"));
            report.compare(
                &format!("boundary/in/{way}/{size}/fresh"),
                seconds * 1e6,
                "µs",
                "the same sum, native",
                native * 1e6,
            );
            let mut sandbox = guest.instantiate(&data)?;
            sandbox.open(function, "{}", 0)?;
            let seconds = least(time, || {
                data.start_call();
                sandbox.process(&(bytes as u64).to_le_bytes()).expect("the first call succeeded");
            });
            report.compare(
                &format!("boundary/in/{way}/{size}/warm"),
                seconds * 1e6,
                "µs",
                "the same sum, native",
                native * 1e6,
            );
        }
        let mut sandbox = guest.instantiate(&data)?;
        sandbox.open(guest.function("out")?, "{}", 0)?;
        let seconds = least(time, || {
            data.start_call();
            sandbox.process(&(bytes as u64).to_le_bytes()).expect("the first call succeeded");
        });
        report.compare(&format!("boundary/out/{size}/warm"), seconds * 1e6, "µs", "memcpy", copied * 1e6);
    }
    Ok(())
}

/// Measures the real memory of many sandboxes that each read one whole object, in addition to that object.
fn shared(report: Report, guest: &LoadedGuest, ways: &[&str]) -> Result<(), Failure> {
    let words: Vec<u64> = (0..SHARED_BYTES as u64 / 8).collect();
    let data = Data::new(as_bytes(&words))?;
    for way in ways {
        let before = real_memory()?;
        let mut alive = Vec::new();
        for _ in 0..SANDBOXES_MAX {
            let mut sandbox = guest.instantiate(&data)?;
            sandbox.open(guest.function(way)?, "{}", 0)?;
            sandbox.process(&(SHARED_BYTES as u64).to_le_bytes())?;
            alive.push(sandbox);
        }
        let extra = real_memory()? - before;
        report.value(&format!("boundary/{SANDBOXES_MAX} sandboxes over 64 MiB/{way}"), extra / 1024.0, "MiB");
    }
    Ok(())
}

/// Returns this process's share of real memory (PSS), in KiB.
fn real_memory() -> Result<f64, Failure> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("/proc/self/smaps_rollup has no Pss line")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
