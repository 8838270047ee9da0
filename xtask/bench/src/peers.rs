//! What users run today, on the same data: scikit-learn in one process, and Ray.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::job::Bench;
use crate::places;
use crate::report::say;

const SCRIPT: &str = include_str!("../peers.py");
const TASKS: &str = include_str!("../tasks.py");
const ACTORS: &str = include_str!("../actors.py");
const OBJECTS: &str = include_str!("../objects.py");
const QUEUE: &str = include_str!("../queue.py");
const TRANSFER: &str = include_str!("../transfer.py");
const GPU: &str = include_str!("../gpu.py");
const PACKAGES: [&str; 5] = ["numpy", "pandas", "pyarrow", "ray", "scikit-learn"];

/// Python with the peers.
pub struct Peers {
    python: PathBuf,
}

/// A peer's figure.
#[derive(Debug, Deserialize)]
pub struct Peer {
    /// What it is.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Models it made, where it was given fewer than we were: it is too slow for all.
    pub models: Option<f64>,
    /// Tasks that it ran.
    pub tasks: Option<f64>,
}

impl Peers {
    /// Installs the peers into a virtual environment, once.
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
        said(&mut python, &bench.name)
    }

    /// Runs tasks that do nothing.
    pub fn tasks(&self) -> Result<Vec<Peer>, Failure> {
        said(Command::new(&self.python).args(["-c", TASKS]), "tasks")
    }

    /// Calls of an actor that does nothing.
    pub fn actors(&self) -> Result<Vec<Peer>, Failure> {
        said(Command::new(&self.python).args(["-c", ACTORS]), "actors")
    }

    /// Objects, of which the large one has so many bytes.
    pub fn objects(&self, bytes: u64) -> Result<Vec<Peer>, Failure> {
        said(Command::new(&self.python).args(["-c", OBJECTS, &bytes.to_string()]), "objects")
    }

    /// Objects from one node to another, of which the large one has so many bytes.
    pub fn transfer(&self, bytes: u64) -> Result<Vec<Peer>, Failure> {
        said(Command::new(&self.python).args(["-c", TRANSFER, &bytes.to_string()]), "transfer")
    }

    /// Many tasks that wait.
    pub fn queue(&self) -> Result<Vec<Peer>, Failure> {
        said(Command::new(&self.python).args(["-c", QUEUE]), "queue")
    }
}

/// PyTorch, which has NVIDIA's libraries do dense algebra on its GPUs.
pub struct Torch {
    python: PathBuf,
}

/// What it takes for what a figure of ours is of.
#[derive(Debug, Deserialize)]
pub struct Timed {
    /// Ours.
    pub figure: String,
    /// What it did it with, and where.
    pub peer: String,
    pub seconds: f64,
}

impl Torch {
    /// The one that `python3` has, or else one that is installed into a virtual environment, once.
    pub fn find() -> Result<Torch, Failure> {
        let is_there = Command::new("python3").args(["-c", "import torch"]).stderr(Stdio::null()).status();
        let python = match is_there.is_ok_and(|status| status.success()) {
            true => PathBuf::from("python3"),
            false => python_with("torch", &["numpy", "torch"])?,
        };
        Ok(Torch { python })
    }

    /// Products of matrices of a side, what memory bounds with so many values, and fits of so many groups of `[rows,
    /// features]`, each again and again for so long.
    pub fn measure(
        &self,
        side: u32,
        values: u32,
        fits: u32,
        [rows, width]: [u32; 2],
        time: Duration,
    ) -> Result<Vec<Timed>, Failure> {
        let sizes = [side, values, fits, rows, width].map(|size| size.to_string());
        let time = time.as_secs_f64().to_string();
        said(Command::new(&self.python).args(["-c", GPU]).args(sizes).arg(time), "PyTorch")
    }
}

/// A Python in a virtual environment with these packages, which are installed once.
fn python_with(name: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
    let folder = places::data()?.join(name);
    let python = folder.join("bin/python");
    if !folder.join("complete").is_file() {
        say(&format!("installing {} into {}", packages.join(", "), folder.display()));
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
        std::fs::write(folder.join("complete"), "")?;
    }
    Ok(python)
}

/// The figures that a script prints.
fn said<T: DeserializeOwned>(python: &mut Command, name: &str) -> Result<Vec<T>, Failure> {
    let output = python.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{name}: the peers ended with {}", output.status).into());
    }
    let lines = String::from_utf8(output.stdout)?;
    let peers = lines.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str);
    Ok(peers.collect::<Result<_, _>>()?)
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdout(Stdio::inherit()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
