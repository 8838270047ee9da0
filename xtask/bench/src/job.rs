//! Whole jobs: a `host submit`, the same work in this process, and peers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::native;
use crate::peers::Peers;
use crate::places;
use crate::report::{Report, say};
use crate::timing::{Effort, median};

/// A job of the benchmark, in every form in which it is run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bench {
    /// As it is called in the report.
    pub name: String,
    pub input: Vec<PathBuf>,
    pub filter: Option<String>,
    /// Whether the rows go through `udfs/taxi#clean`.
    pub clean: bool,
    pub keys: Vec<String>,
    pub per_file: bool,
    pub features: Vec<String>,
    pub target: String,
    pub models: Vec<native::Model>,
}

/// What `host submit --json` says.
#[derive(Debug, Deserialize)]
struct Summary {
    groups: u64,
    models: u64,
    failed: u64,
    peak_memory_bytes: u64,
}

/// How a figure is given.
#[derive(Clone, Copy)]
pub enum Figure {
    Seconds,
    ModelsPerSecond,
}

impl Bench {
    /// Runs it in sandboxes, natively, and with the peers that are there.
    pub fn run(&self, report: Report, figure: Figure, effort: Effort, peers: Option<&Peers>) -> Result<(), Failure> {
        let Effort { runs, pause, .. } = effort;
        let (mut seconds, mut native_seconds) = (Vec::new(), Vec::new());
        let mut last = None;
        // In turn, so that both see the same machine; the first of each warms the caches. Either begins every other
        // time: a process finds what memory the last one gave back warm, and no more.
        for run in 0..=runs {
            say(&format!("{}: run {run} of {runs}", self.name));
            let natively_first = if run % 2 == 1 { Some(self.natively(pause)?) } else { None };
            let (took, summary) = self.submit(pause, &[])?;
            let (native_took, native_models) = natively_first.map_or_else(|| self.natively(pause), Ok)?;
            if native_models != summary.models || summary.failed > 0 {
                let counts = format!("{} models, {} failed, {native_models} natively", summary.models, summary.failed);
                return Err(format!("{}: {counts}", self.name).into());
            }
            if run > 0 {
                seconds.push(took);
                native_seconds.push(native_took);
            }
            last = Some(summary);
        }
        let summary = last.ok_or("there was no run")?;
        let (took, native_took) = (median(seconds), median(native_seconds));
        let (unit, given) = match figure {
            Figure::Seconds => ("s", (|seconds, _| seconds) as fn(f64, f64) -> f64),
            Figure::ModelsPerSecond => ("/s", (|seconds, models| models / seconds) as fn(f64, f64) -> f64),
        };
        let value = given(took, summary.models as f64);
        report.compare(&self.name, value, unit, "the same code, native", given(native_took, summary.models as f64));
        report.value(
            &format!("{}/peak memory", self.name),
            summary.peak_memory_bytes as f64 / f64::from(1 << 20),
            "MiB",
        );
        report.value(&format!("{}/groups", self.name), summary.groups as f64, "");
        for peer in peers.map(|peers| peers.run(self)).transpose()?.into_iter().flatten() {
            let models = peer.models.unwrap_or(summary.models as f64);
            report.compare(&self.name, value, unit, &peer.name, given(peer.seconds, models));
        }
        Ok(())
    }

    /// Runs it with each of these arguments, in turn, and gives the median of the seconds.
    pub fn run_with(&self, Effort { runs, pause, .. }: Effort, all: &[&[&str]]) -> Result<Vec<f64>, Failure> {
        let mut seconds = vec![Vec::new(); all.len()];
        for run in 0..=runs {
            say(&format!("{}: run {run} of {runs}", self.name));
            for (arguments, seconds) in all.iter().zip(&mut seconds) {
                let (took, summary) = self.submit(pause, arguments)?;
                if summary.failed > 0 {
                    return Err(format!("{} {arguments:?}: {} groups failed", self.name, summary.failed).into());
                }
                if run > 0 {
                    seconds.push(took);
                }
            }
        }
        Ok(seconds.into_iter().map(median).collect())
    }

    /// Seconds of the same work in a process of its own that has no sandboxes, and how many models it made.
    fn natively(&self, pause: Duration) -> Result<(f64, u64), Failure> {
        let mut native = Command::new(std::env::current_exe()?);
        native.arg(native::ARGUMENT).arg(serde_json::to_string(self)?).stderr(Stdio::inherit());
        sleep(pause);
        let started = Instant::now();
        let output = native.output()?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("{}: natively it ended with {}", self.name, output.status).into());
        }
        Ok((seconds, serde_json::from_slice(&output.stdout)?))
    }

    /// Seconds of `host submit`, from its start to its end.
    fn submit(&self, pause: Duration, arguments: &[&str]) -> Result<(f64, Summary), Failure> {
        let file = places::data()?.join("job.toml");
        std::fs::write(&file, self.toml()?)?;
        let mut submit = Command::new(places::program("host")?);
        submit.arg("submit").arg(&file).args(["--json", "--quiet"]).args(arguments).current_dir(places::root());
        submit.env("CARGO_TARGET_DIR", places::target()?).stderr(Stdio::inherit());
        sleep(pause);
        let started = Instant::now();
        let output = submit.output()?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("{}: host submit ended with {}", self.name, output.status).into());
        }
        Ok((seconds, serde_json::from_slice(&output.stdout)?))
    }

    fn toml(&self) -> Result<String, Failure> {
        let root = places::root();
        let quoted = |text: &str| format!("{text:?}");
        let list = |texts: &[String]| texts.iter().map(|t| quoted(t)).collect::<Vec<_>>().join(", ");
        let paths: Vec<_> = self.input.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let mut toml = format!("name = \"bench\"\n[input]\npaths = [{}]\n", list(&paths));
        if let Some(filter) = &self.filter {
            writeln!(toml, "filter = {}", quoted(filter))?;
        }
        if self.clean {
            writeln!(toml, "[[transform]]\nudf = {}", quoted(&format!("{}#clean", at(&root, "udfs/taxi"))))?;
        }
        let udf = |model: &native::Model| {
            let (trainer, params) = model.trainer();
            let udf = quoted(&format!("{}#{trainer}", at(&root, "udfs/models")));
            format!("{{ udf = {udf}, name = {}, params = {params} }}", quoted(&model.label()))
        };
        let models: Vec<String> = self.models.iter().map(udf).collect();
        writeln!(toml, "[train]\ngroup_by = [{}]\nper_file = {}", list(&self.keys), self.per_file)?;
        writeln!(toml, "features = [{}]\ntarget = {}", list(&self.features), quoted(&self.target))?;
        writeln!(toml, "test = 0.25\nseed = 201\nmin_rows = 4\nmetric = \"mae\"\nmodels = [{}]", models.join(", "))?;
        writeln!(toml, "[output]\npath = {}", quoted(&places::data()?.join("models.parquet").to_string_lossy()))?;
        Ok(toml)
    }
}

fn at(root: &Path, folder: &str) -> String {
    root.join(folder).to_string_lossy().into_owned()
}
