//! The command line of clusters.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{amount, bytes, resource, workers};

/// Where a node listens that is told nothing else.
const LISTEN: &str = "0.0.0.0:7410";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host cluster init && host serve                       (the first node of a cluster)
  host cluster token                                    (on the first node: prints a token)
  host serve --join 10.0.0.1:7410 --token sbt1-...      (another node)
  host serve --data /var/lib/sandbar --listen 10.0.0.2:7410 --resource gpu-a100=2

Exit codes: 0 ended by a signal, 1 the node could not begin, 2 wrong usage.")]
pub(crate) struct Serve {
    /// Where other nodes reach it.
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub place: Place,
    /// Worker processes; by default one for each core.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// Memory that tasks can ask for; by default two fifths of what this process may use.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Processors that tasks share, fractions too; by default as many as there are workers.
    #[arg(long, value_name = "N", value_parser = amount)]
    pub cpus: Option<f64>,
    /// Devices that tasks share; by default none.
    #[arg(long, value_name = "N", value_parser = amount)]
    pub gpus: Option<f64>,
    /// Something else that tasks can ask for, and how much there is of it. May be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = resource)]
    pub resources: Vec<(String, f64)>,
    /// Memory for objects before they go to disk; by default three tenths of what this process may use.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub object_memory: Option<u64>,
    /// How much of the disk objects leave free; by default a twentieth of it, 8GiB at most.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub disk_reserve: Option<u64>,
}

/// A node's place in a cluster.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The folder of the node's key, its certificate, and what else it keeps of its cluster; by default in the user's own.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// A node of the cluster to be in: an address and a port.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub join: Option<SocketAddr>,
    /// What lets it in for the first time: see `host cluster token`. It can be in the variable SANDBAR_TOKEN instead, where
    /// nobody else sees it.
    #[arg(long, value_name = "TOKEN", requires = "join")]
    pub token: Option<String>,
    /// What the node is called: letters, digits and dashes; by default the machine's name and the process's number.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Begins a cluster: makes the authority by which its nodes know each other.
    #[command(after_help = "Examples:\n  host cluster init\n  host cluster init --data /var/lib/sandbar")]
    Init {
        /// The folder of the node that is to be the first.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Prints a token that lets nodes in for a while.
    #[command(after_help = "Examples:\n  host cluster token\n  host cluster token --for 10m")]
    Token {
        /// The folder of the first node.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
        /// For how long: a number and s, m or h, a day at most.
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lifetime: Duration,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Nodes {
    /// Lists the nodes of the cluster that a node of this machine is in.
    #[command(after_help = "Examples:\n  host nodes list\n  host nodes list --json")]
    List {
        /// The node's folder.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// A number and its unit.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let seconds = found.and_then(|(number, unit)| number.parse::<u64>().ok()?.checked_mul(unit));
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "not a time: a number and s, m or h, a day at most".to_owned())
}

/// An address, or a name that stands for one.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|e| format!("no address and port: {e}"))?;
    found.next().ok_or_else(|| "a name that stands for no address".to_owned())
}
