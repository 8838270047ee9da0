//! Peers on the same data: scikit-learn in one process, Ray, and PyTorch.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::job::Bench;
use crate::paths;
use crate::report::progress;

const SCRIPT: &str = include_str!("../peers.py");
const TASKS: &str = include_str!("../tasks.py");
const ACTORS: &str = include_str!("../actors.py");
const OBJECTS: &str = include_str!("../objects.py");
const QUEUE: &str = include_str!("../queue.py");
const TRANSFER: &str = include_str!("../transfer.py");
const GPU: &str = include_str!("../gpu.py");
const PACKAGES: [&str; 5] = ["numpy", "pandas", "pyarrow", "ray", "scikit-learn"];

/// Python environment with scikit-learn and Ray.
pub struct Peers {
    python: PathBuf,
}

/// Figure of a peer.
#[derive(Debug, Deserialize)]
pub struct Peer {
    /// Name of the peer or of its workload.
    pub name: String,
    /// Duration.
    pub seconds: f64,
    /// Number of models, if the peer trains only a part of them because it is too slow for all.
    pub models: Option<f64>,
    /// Number of tasks or calls.
    pub tasks: Option<f64>,
}

impl Peers {
    /// Installs the peers into a virtual environment unless it exists.
    pub fn install() -> Result<Peers, Failure> {
        Ok(Peers { python: python_with("peers", &PACKAGES)? })
    }

    /// Runs the peers of a job.
    pub fn run(&self, bench: &Bench) -> Result<Vec<Peer>, Failure> {
        let mut python = Command::new(&self.python);
        python.args(["-c", SCRIPT]).arg(serde_json::to_string(&serde_json::json!({
            "name": bench.name,
            "input": bench.input,
            "keys": bench.keys,
            "features": bench.features,
            "target": bench.target,
            "clean": bench.clean,
            "models": bench.models.iter().map(|m| m.label()).collect::<Vec<_>>(),
        }))?);
        figures_of(&mut python, &bench.name)
    }

    /// Runs empty tasks.
    pub fn tasks(&self) -> Result<Vec<Peer>, Failure> {
        figures_of(Command::new(&self.python).args(["-c", TASKS]), "tasks")
    }

    /// Calls an empty method of an actor.
    pub fn actors(&self) -> Result<Vec<Peer>, Failure> {
        figures_of(Command::new(&self.python).args(["-c", ACTORS]), "actors")
    }

    /// Stores and reads objects; the large one has `bytes` bytes.
    pub fn objects(&self, bytes: u64) -> Result<Vec<Peer>, Failure> {
        figures_of(Command::new(&self.python).args(["-c", OBJECTS, &bytes.to_string()]), "objects")
    }

    /// Transfers objects from one node to another; the large one has `bytes` bytes.
    pub fn transfer(&self, bytes: u64) -> Result<Vec<Peer>, Failure> {
        figures_of(Command::new(&self.python).args(["-c", TRANSFER, &bytes.to_string()]), "transfer")
    }

    /// Queues many tasks.
    pub fn queue(&self) -> Result<Vec<Peer>, Failure> {
        figures_of(Command::new(&self.python).args(["-c", QUEUE]), "queue")
    }
}

/// Python environment with PyTorch, which uses NVIDIA's libraries for dense algebra on its GPUs.
pub struct Torch {
    python: PathBuf,
}

/// PyTorch's time for the operation of one of this benchmark's figures.
#[derive(Debug, Deserialize)]
pub struct TorchFigure {
    /// Name of the figure.
    pub figure: String,
    /// Library and device.
    pub peer: String,
    pub seconds: f64,
}

impl Torch {
    /// Returns the PyTorch of `python3`, or else installs it into a virtual environment unless it exists.
    pub fn find() -> Result<Torch, Failure> {
        let is_there = Command::new("python3").args(["-c", "import torch"]).stderr(Stdio::null()).status();
        let python = match is_there.is_ok_and(|status| status.success()) {
            true => PathBuf::from("python3"),
            false => python_with("torch", &["numpy", "torch"])?,
        };
        Ok(Torch { python })
    }

    /// Measures products of `side` x `side` matrices, memory-bound operations on `values` values, and least squares of
    /// `fits` groups of `[rows, features]`, each repeated for `time`.
    pub fn measure(
        &self,
        side: u32,
        values: u32,
        fits: u32,
        [rows, width]: [u32; 2],
        time: Duration,
    ) -> Result<Vec<TorchFigure>, Failure> {
        let sizes = [side, values, fits, rows, width].map(|size| size.to_string());
        let time = time.as_secs_f64().to_string();
        figures_of(Command::new(&self.python).args(["-c", GPU]).args(sizes).arg(time), "PyTorch")
    }
}

/// Returns the Python of a virtual environment with these packages, which it creates if necessary.
fn python_with(name: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
    let folder = paths::data()?.join(name);
    let python = folder.join("bin/python");
    if !folder.join("complete").is_file() {
        progress(&format!("installing {} into {}", packages.join(", "), folder.display()));
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
        std::fs::write(folder.join("complete"), "")?;
    }
    Ok(python)
}

/// Runs a script and returns the figures that it prints.
fn figures_of<T: DeserializeOwned>(python: &mut Command, name: &str) -> Result<Vec<T>, Failure> {
    let output = python.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{name}: the peers' script failed: {}", output.status).into());
    }
    let lines = String::from_utf8(output.stdout)?;
    let peers = lines.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str);
    Ok(peers.collect::<Result<_, _>>()?)
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdout(Stdio::inherit()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}
