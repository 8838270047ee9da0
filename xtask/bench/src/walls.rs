//! The cost of the walls of workers: the same benchmarks with a worker program that was built without them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::failure::Failure;
use crate::paths;
use crate::report::{Report, progress};
use crate::timing::{Effort, median};

/// The worker program without walls, which `cargo xtask bench walls` builds.
const WITHOUT_WALLS: &str = "host-worker-without-walls";
/// Measured benchmarks, and those of their figures that are compared, with their units.
const MEASURED: [(&str, &[(&str, &str)]); 2] = [
    ("tasks", &[("tasks/in flight", "/s"), ("tasks/one at a time", "µs"), ("tasks/two parents", "/s")]),
    ("training", &[("training/linear", "s"), ("training/three models", "s")]),
];

/// Runs each benchmark with and without walls, in turn, and compares the medians.
pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let without = programs_without_walls()?;
    for (bench, figures) in MEASURED {
        let mut all = [vec![Vec::new(); figures.len()], vec![Vec::new(); figures.len()]];
        for run in 0..effort.runs {
            progress(&format!("{bench} with and without walls: run {} of {}", run + 1, effort.runs));
            // Each is the first one in every other run.
            for turn in 0..2 {
                let at = (run + turn) % 2;
                let lines = measure(bench, (at == 1).then_some(&without), effort)?;
                for ((name, _), values) in figures.iter().zip(&mut all[at]) {
                    let value = lines.iter().find(|line| line["name"] == *name).and_then(|line| line["value"].as_f64());
                    values.push(value.ok_or_else(|| format!("`{name}` was not measured"))?);
                }
            }
        }
        let [with, without] = all;
        for (((name, unit), with), without) in figures.iter().zip(with).zip(without) {
            report.compare(&format!("{name} with walls"), median(with), unit, "without walls", median(without));
        }
    }
    Ok(())
}

/// Runs a benchmark with one run of each job, and returns its lines.
fn measure(bench: &str, programs: Option<&PathBuf>, effort: Effort) -> Result<Vec<Value>, Failure> {
    let mut measure = Command::new(std::env::current_exe()?);
    measure.args([bench, "--json", "--runs", "1", "--rows", &effort.rows.to_string()]).stderr(Stdio::null());
    if let Some(programs) = programs {
        measure.env(paths::PROGRAMS_VARIABLE, programs);
    }
    let output = measure.output()?;
    if !output.status.success() {
        return Err(format!("`{bench}` failed: {}", output.status).into());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(serde_json::from_slice).collect::<Result<_, _>>()?)
}

/// Returns a folder with the programs of a node, whose workers have no walls.
fn programs_without_walls() -> Result<PathBuf, Failure> {
    let folder = paths::data()?.join("without-walls");
    std::fs::create_dir_all(&folder)?;
    let copy = |from: &Path, name: &str| std::fs::copy(from, folder.join(name)).map(drop);
    copy(&paths::program("host")?, "host")?;
    copy(&paths::program(WITHOUT_WALLS)?, "host-worker")?;
    Ok(folder)
}
