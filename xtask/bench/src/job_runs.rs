//! Runs of jobs: `host submit`, the same work natively, and peers.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::failure::Failure;
use crate::job::Bench;
use crate::native;
use crate::paths;
use crate::peers::Peers;
use crate::report::{Report, progress};
use crate::timing::{Effort, median};

/// Output of `host submit --json`.
#[derive(Debug, Deserialize)]
struct Summary {
    groups: u64,
    models: u64,
    failed: u64,
    peak_memory_bytes: u64,
}

/// Unit of a job's figure.
#[derive(Clone, Copy)]
pub enum Figure {
    Seconds,
    ModelsPerSecond,
}

impl Bench {
    /// Runs the job in sandboxes, natively, and with the given peers.
    pub fn run(&self, report: Report, figure: Figure, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
        let Effort { runs, pause, .. } = effort;
        let (mut seconds, mut native_seconds) = (Vec::new(), Vec::new());
        let mut last = None;
        // Both run in turn on the same machine state; the first run of each warms the caches. Each starts first in every
        // other round: a process finds only the memory warm that the previous process released.
        for run in 0..=runs {
            progress(&format!("{}: run {run} of {runs}", self.name));
            let natively_first = if run % 2 == 1 { Some(self.natively(pause)?) } else { None };
            let (seconds_median, summary) = self.submit(pause, &[])?;
            let (native_median, native_models) = natively_first.map_or_else(|| self.natively(pause), Ok)?;
            if native_models != summary.models || summary.failed > 0 {
                let counts = format!("{} models, {} failed, {native_models} natively", summary.models, summary.failed);
                return Err(format!("{}: {counts}", self.name).into());
            }
            if run > 0 {
                seconds.push(seconds_median);
                native_seconds.push(native_median);
            }
            last = Some(summary);
        }
        let summary = last.ok_or("no run of the job was requested")?;
        let (seconds_median, native_median) = (median(seconds), median(native_seconds));
        let (unit, measure) = match figure {
            Figure::Seconds => ("s", (|seconds, _| seconds) as fn(f64, f64) -> f64),
            Figure::ModelsPerSecond => ("/s", (|seconds, models| models / seconds) as fn(f64, f64) -> f64),
        };
        let value = measure(seconds_median, summary.models as f64);
        report.compare(&self.name, value, unit, "the same code, native", measure(native_median, summary.models as f64));
        report.value(
            &format!("{}/peak memory", self.name),
            summary.peak_memory_bytes as f64 / f64::from(1 << 20),
            "MiB",
        );
        report.value(&format!("{}/groups", self.name), summary.groups as f64, "");
        for peer in peers.map(|peers| peers.run(self)).transpose()?.into_iter().flatten() {
            let models = peer.models.unwrap_or(summary.models as f64);
            report.compare(&self.name, value, unit, &peer.name, measure(peer.seconds, models));
        }
        Ok(())
    }

    /// Runs the job with each list of arguments, in turn, and returns the median seconds of each.
    pub fn run_with(&self, Effort { runs, pause, .. }: Effort, all: &[&[&str]]) -> Result<Vec<f64>, Failure> {
        let mut seconds = vec![Vec::new(); all.len()];
        for run in 0..=runs {
            progress(&format!("{}: run {run} of {runs}", self.name));
            for (arguments, seconds) in all.iter().zip(&mut seconds) {
                let (seconds_median, summary) = self.submit(pause, arguments)?;
                if summary.failed > 0 {
                    return Err(format!("{} {arguments:?}: {} groups failed", self.name, summary.failed).into());
                }
                if run > 0 {
                    seconds.push(seconds_median);
                }
            }
        }
        Ok(seconds.into_iter().map(median).collect())
    }

    /// Returns the seconds of the same work in a native process, and the number of its models.
    fn natively(&self, pause: Duration) -> Result<(f64, u64), Failure> {
        let mut native = Command::new(std::env::current_exe()?);
        native.arg(native::ARGUMENT).arg(serde_json::to_string(self)?).stderr(Stdio::inherit());
        sleep(pause);
        let started = Instant::now();
        let output = native.output()?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("{}: the native process failed: {}", self.name, output.status).into());
        }
        Ok((seconds, serde_json::from_slice(&output.stdout)?))
    }

    /// Returns the seconds of the whole process `host submit`, and its summary.
    fn submit(&self, pause: Duration, arguments: &[&str]) -> Result<(f64, Summary), Failure> {
        let file = paths::data()?.join("job.toml");
        std::fs::write(&file, self.toml()?)?;
        let mut submit = Command::new(paths::program("host")?);
        submit.arg("submit").arg(&file).args(["--json", "--quiet"]).args(arguments).current_dir(paths::root());
        submit.env("CARGO_TARGET_DIR", paths::target()?).stderr(Stdio::inherit());
        sleep(pause);
        let started = Instant::now();
        let output = submit.output()?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("{}: host submit failed: {}", self.name, output.status).into());
        }
        Ok((seconds, serde_json::from_slice(&output.stdout)?))
    }
}
