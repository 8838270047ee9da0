//! Command-line arguments for the resources of a node.

use std::time::Duration;

use clap::Args;
use sandbar_node::machine::GpuOptions;
use sandbar_node::{Fault, NodeResources, machine};

/// Resources of the machine that a node may use.
#[derive(Debug, Default, Args)]
pub(crate) struct Shares {
    /// Number of worker processes [default: one per core]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// Memory for grouped rows before they spill to disk, such as `2GiB`; program tasks can request it [default: two
    /// fifths of the memory that this process may use]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Programs only: CPUs that tasks share, may be fractional [default: number of workers]
    #[arg(long, value_name = "N", value_parser = amount)]
    pub cpus: Option<f64>,
    /// Programs only: GPUs that tasks share [default: the usable GPUs of this machine]
    #[arg(long, value_name = "N", value_parser = amount)]
    pub gpus: Option<f64>,
    /// Use only software GPU drivers, which compute on the CPU, for tests.
    #[arg(long)]
    pub software_gpu: bool,
    /// Maximum memory of each GPU for one job's tensors [default: nine tenths of it]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub gpu_memory: Option<u64>,
    /// Maximum time of one piece of GPU work, in seconds; when it is exceeded, the job loses its data on the GPU
    /// [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub gpu_time: Option<Duration>,
    /// Programs only: a custom resource that tasks can request, and its amount. Can be repeated.
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = resource)]
    pub resources: Vec<(String, f64)>,
    /// Programs only: memory for objects before they spill to disk [default: three tenths of the memory that this
    /// process may use]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub object_memory: Option<u64>,
    /// Programs only: disk space to keep free when objects spill [default: a twentieth of the disk, at most 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub disk_reserve: Option<u64>,
}

impl Shares {
    /// Whether an option that only programs have is set.
    pub fn is_of_programs(&self) -> bool {
        self.cpus.is_some()
            || self.gpus.is_some()
            || !self.resources.is_empty()
            || self.object_memory.is_some()
            || self.disk_reserve.is_some()
    }

    /// Counts the usable GPUs as the default of `--gpus`.
    pub async fn count_gpus(&mut self) -> Result<(), Fault> {
        if let (None, Some(machine)) = (self.gpus, machine::gpus(self.gpu_options())?) {
            self.gpus = Some(machine.usable().await.len() as f64);
        }
        Ok(())
    }

    /// GPU limits of each job.
    pub fn gpu_options(&self) -> GpuOptions {
        let usual = GpuOptions::default();
        GpuOptions {
            is_software: self.software_gpu,
            memory_bytes_max: self.gpu_memory.unwrap_or(usual.memory_bytes_max),
            time_max: self.gpu_time.unwrap_or(usual.time_max),
        }
    }

    pub fn resources(&self) -> NodeResources {
        NodeResources { cpus: self.cpus, gpus: self.gpus, custom: self.resources.clone() }
    }
}

/// Maximum amount of a resource; a larger one is a mistake.
const AMOUNT_MAX: f64 = 1e9;

/// Parses the amount of a resource, which counts in steps of 1/10,000.
fn amount(text: &str) -> Result<f64, String> {
    let amount = text.parse::<f64>().ok().filter(|amount| (0.0..=AMOUNT_MAX).contains(amount));
    amount.ok_or_else(|| format!("not a number from 0 to {AMOUNT_MAX}"))
}

/// Parses a time limit in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds from 0.1 to 86400".to_owned())
}

/// Parses the name and the amount of a custom resource.
fn resource(text: &str) -> Result<(String, f64), String> {
    let (name, amount_text) = text.split_once('=').ok_or("not NAME=AMOUNT")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':');
    match name {
        "" => Err("the resource has no name".to_owned()),
        "cpus" | "gpus" => Err(format!("`{name}` is set by --{name}")),
        "memory" => Err("`memory` is set by --memory".to_owned()),
        _ if !name.chars().all(is_name) => Err(format!("invalid name `{name}`: use letters, digits and - _ . / :")),
        _ => Ok((name.to_owned(), amount(amount_text).map_err(|e| format!("`{amount_text}` is {e}"))?)),
    }
}

/// Maximum number of workers; a larger one is a mistake.
const WORKERS_MAX: usize = 1024;

/// Parses a number of worker processes.
pub(crate) fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=WORKERS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("not a number from 1 to {WORKERS_MAX}")),
    }
}

/// Parses a size: `512MiB`, `2GiB`, or a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let unit = UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|b| *b > 0);
    bytes.ok_or_else(|| "not a size: a whole number of bytes, or of KiB, MiB, GiB or TiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{bytes, resource};

    #[test]
    fn resources() {
        for (text, expected) in [
            ("tpu=4", Ok(4.0)),
            ("room/a=0.5", Ok(0.5)),
            ("tpu", Err("not NAME=AMOUNT")),
            ("=1", Err("the resource has no name")),
            ("cpus=1", Err("`cpus` is set by --cpus")),
            ("a b=1", Err("invalid name `a b`: use letters, digits and - _ . / :")),
            ("tpu=-1", Err("`-1` is not a number from 0 to 1000000000")),
            ("tpu=NaN", Err("`NaN` is not a number from 0 to 1000000000")),
        ] {
            assert_eq!(resource(text).map(|(_, amount)| amount), expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("2GiB", Some(2 << 30)),
            ("512 MiB", Some(512 << 20)),
            ("0", None),
            ("2GB", None),
            ("-1KiB", None),
            ("99999999999TiB", None),
            ("", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
