//! The command line of clusters.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandbar_node::{ClientTimes, ListenOn, NodeAddress};

use crate::args::Shares;
use crate::logging::LogLevel;

/// The port of a node that is told nothing else.
const PORT: u16 = 7410;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host cluster init && host serve                       (the first node of a cluster)
  host cluster token                                    (on the first node: prints a token)
  host serve --join 10.0.0.1:7410 --token sbt1-...      (another node)
  host serve --data /var/lib/sandbar --listen 10.0.0.2:7410 --resource gpu-a100=2
  host serve --meta etcd://10.0.0.8:2379,10.0.0.9:2379

Ctrl-C ends it at once. SIGTERM, as of a service that is stopped, has it go first: see `host nodes drain --help`.
Exit codes: 0 ended, 1 the node could not begin, or others needed it still when the time was up, 2 wrong usage.")]
pub(crate) struct Serve {
    /// Where it listens (UDP): HOST:PORT, with an IPv6 address in brackets; by default at port 7410 of all of the machine's
    /// addresses, of IPv6 ([::]) and of IPv4.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<NodeAddress>,
    #[command(flatten)]
    pub place: Place,
    /// Which events the log on standard error has: this one and graver ones.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub log_level: LogLevel,
    #[command(flatten)]
    pub shares: Shares,
    /// How long a node that is asked to end (SIGTERM, `host nodes drain`) may take until others have what only it has.
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = time)]
    pub grace: Duration,
}

impl Serve {
    pub(crate) fn listens(&self) -> ListenOn {
        self.listen.clone().map_or(ListenOn::Any(PORT), ListenOn::At)
    }
}

/// A node's place in a cluster.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The folder of the node's key, its certificate, and what else it keeps of its cluster; by default in the user's own.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// A node of the cluster to be in: HOST:PORT, with an IPv6 address in brackets. All addresses of a name are tried.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub join: Option<NodeAddress>,
    /// How long that node, or etcd, is tried before the command gives up.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub join_timeout: Duration,
    /// What lets it in for the first time: see `host cluster token`. It can be in the variable SANDBAR_TOKEN instead, where
    /// nobody else sees it.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// What the node is called: letters, digits and dashes; by default the machine's name and the first digits of the hash of
    /// the node's key. A name that a living node has is refused.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// An etcd that has what must survive, so that the cluster outlives any of its nodes; each of its nodes is given the same.
    /// By default the first node has it in a file.
    #[arg(long, value_name = "etcd://HOST:PORT,...")]
    pub meta: Option<String>,
}

/// A cluster that is asked from outside, by one of its nodes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Remote {
    /// A node of a cluster, which is asked as a tenant: HOST:PORT, with an IPv6 address in brackets. All addresses of a name
    /// are tried.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub node: Option<NodeAddress>,
    #[command(flatten)]
    pub times: Times,
    /// What lets this user in for the first time: see `host cluster token --help`. It can be in the variable SANDBAR_TOKEN
    /// instead.
    #[arg(long, value_name = "TOKEN", requires = "node")]
    pub token: Option<String>,
    /// The folder of this user's certificate; by default in the user's own.
    #[arg(long, value_name = "FOLDER", requires = "node")]
    pub data: Option<PathBuf>,
}

/// How long a cluster is waited for that is asked from outside.
#[derive(Debug, Clone, Args)]
pub(crate) struct Times {
    /// How long the node that --node names is tried before the command gives up.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub connect_timeout: Duration,
    /// How long the cluster's nodes are tried when they answered and do not any more.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub reconnect_timeout: Duration,
}

impl From<Times> for ClientTimes {
    fn from(times: Times) -> ClientTimes {
        ClientTimes { connect_max: times.connect_timeout, reconnect_max: times.reconnect_timeout }
    }
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
    /// Prints a token that lets nodes in for a while, or a tenant, who submits jobs from outside.
    #[command(
        after_help = "Examples:\n  host cluster token\n  host cluster token --for 10m\n  host cluster token --tenant ada"
    )]
    Token {
        /// Lets in who has jobs run, by this name, and no nodes.
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
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
    List(OfNode),
    /// Has a node go: it gets no more tasks, what it runs goes on, others fetch what only it has, and it ends.
    #[command(after_help = "Examples:\n  host nodes drain node-2")]
    Drain {
        /// What it is called.
        name: String,
        /// The folder of a node of this machine, which is asked.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Takes a node out of the cluster for good: its certificate is not good any more.
    #[command(after_help = "Examples:\n  host nodes drain node-2 && host nodes remove node-2")]
    Remove {
        /// What it is called.
        name: String,
        /// The folder of a node of this machine, which is asked.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
}

/// A node of this machine.
#[derive(Debug, Args)]
pub(crate) struct OfNode {
    /// The node's folder.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A number and its unit.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let seconds = found.and_then(|(number, unit)| number.parse::<u64>().ok()?.checked_mul(unit));
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "not a time: a number and s, m or h, a day at most".to_owned())
}

/// Where a node is. What a name stands for may change.
pub(crate) fn address(text: &str) -> Result<NodeAddress, String> {
    let address: NodeAddress = text.parse()?;
    if address.port() == 0 { Err("port 0 is none where a node listens".to_owned()) } else { Ok(address) }
}
