//! Command-line arguments of the cluster commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandbar_node::{AddressError, ClientTimeouts, ListenOn, NodeAddress, TokenId};

use crate::logging::LogLevel;
use crate::shares::Shares;

/// Default UDP port of a node.
const PORT: u16 = 7410;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host cluster init && host serve                       (the first node of a cluster)
  host cluster token                                    (on the first node: prints a token)
  host serve --join 10.0.0.1:7410 --token sbt2-...      (another node)
  host serve --data /var/lib/sandbar --listen 10.0.0.2:7410 --resource gpu-a100=2
  host serve --meta etcd://10.0.0.8:2379,10.0.0.9:2379
  host serve --require-walls                            (for tenants that do not trust each other)

Ctrl-C stops the node at once. SIGTERM drains it first: see `host nodes drain --help`.
Exit codes: 0 stopped, 1 the node could not start, or --grace ended before the drain did, 2 wrong usage.")]
pub(crate) struct Serve {
    /// UDP address to listen on: HOST:PORT, with an IPv6 address in brackets [default: port 7410 on all IPv6 and IPv4
    /// addresses of the machine]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<NodeAddress>,
    #[command(flatten)]
    pub member: MemberArgs,
    /// Lowest severity of the log on standard error.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub log_level: LogLevel,
    #[command(flatten)]
    pub shares: Shares,
    #[command(flatten)]
    pub walls: crate::walls::WallArgs,
    /// Maximum drain time on SIGTERM or `host nodes drain`, while other nodes fetch the objects that only this node has.
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = time)]
    pub grace: Duration,
}

impl Serve {
    pub(crate) fn listen_on(&self) -> ListenOn {
        self.listen.clone().map_or(ListenOn::Any(PORT), ListenOn::At)
    }
}

/// Identity of a node in its cluster, and how it joins.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// Folder of the node's key, certificate and cluster state [default: a folder of the user's own]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// A node of the cluster to join: HOST:PORT, with an IPv6 address in brackets. All addresses of a name are tried.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub join: Option<NodeAddress>,
    /// Maximum time to try that node, or etcd, before the command fails.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub join_timeout: Duration,
    /// Token for the first join: see `host cluster token`. The environment variable SANDBAR_TOKEN, which other users
    /// can't see, can hold it instead.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The node's name: letters, digits and dashes. A name that a live node has is rejected [default: the machine's
    /// name and the first digits of the hash of the node's key]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// An etcd for the cluster's state, so that the cluster survives the loss of any node; the same on all nodes
    /// [default: a file of the first node]
    #[arg(long, value_name = "etcd://HOST:PORT,...")]
    pub meta: Option<String>,
}

/// Connection to a cluster from outside, through one of its nodes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Remote {
    /// A cluster node to connect to as a tenant: HOST:PORT, with an IPv6 address in brackets. All addresses of a name
    /// are tried.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub node: Option<NodeAddress>,
    #[command(flatten)]
    pub timeouts: TimeoutArgs,
    /// Token for this user's first connection: see `host tenant token --help`. The environment variable SANDBAR_TOKEN
    /// can hold it instead.
    #[arg(long, value_name = "TOKEN", requires = "node")]
    pub token: Option<String>,
    /// Folder of this user's certificate [default: a folder of the user's own]
    #[arg(long, value_name = "FOLDER", requires = "node")]
    pub data: Option<PathBuf>,
}

/// Access to what concerns tenants: as an operator through a node of this machine, or as a tenant from outside.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessArgs {
    /// A cluster node to connect to as a tenant: HOST:PORT [default: a node of this machine, as its operator]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub node: Option<NodeAddress>,
    #[command(flatten)]
    pub timeouts: TimeoutArgs,
    /// Token for this user's first connection to --node. The environment variable SANDBAR_TOKEN can hold it instead.
    #[arg(long, value_name = "TOKEN", requires = "node")]
    pub token: Option<String>,
    /// Folder of the node of this machine; with --node, folder of this user's certificate.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
}

/// Time limits of connections to a cluster from outside.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeoutArgs {
    /// Maximum time to try the node of --node before the command fails.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub connect_timeout: Duration,
    /// Maximum time to reconnect to the cluster's nodes after a connection is lost.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub reconnect_timeout: Duration,
}

impl From<TimeoutArgs> for ClientTimeouts {
    fn from(timeouts: TimeoutArgs) -> ClientTimeouts {
        ClientTimeouts { connect_max: timeouts.connect_timeout, reconnect_max: timeouts.reconnect_timeout }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Creates a cluster: generates the certificate authority of its nodes.
    #[command(after_help = "Examples:\n  host cluster init\n  host cluster init --data /var/lib/sandbar")]
    Init {
        /// Folder of the first node.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Prints a token that admits nodes for a limited time. A node can read and change everything in the cluster: users
    /// get tokens of a tenant instead (`host tenant token`).
    #[command(after_help = "Examples:\n  host cluster token\n  host cluster token --for 10m --once")]
    Token {
        /// Folder of the first node.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
        /// Admit one node only, the first one.
        #[arg(long)]
        once: bool,
        /// Validity: a number and s, m or h, at most a day.
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lifetime: Duration,
    },
    /// Revokes a token of nodes. Nodes that have joined with it stay until they are removed.
    #[command(after_help = "Examples:\n  host cluster revoke 3f0c9a5e8d7b41269f5e8d7b41263f0c")]
    Revoke {
        /// The token's id, which `host cluster token` printed.
        #[arg(value_parser = token_id)]
        token: TokenId,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Nodes {
    /// Lists the nodes of this machine's cluster.
    #[command(after_help = "Examples:\n  host nodes list\n  host nodes list --json")]
    List(NodeSelector),
    /// Drains a node: it gets no new tasks, finishes its running tasks, hands over the objects that only it has, and ends.
    #[command(after_help = "Examples:\n  host nodes drain node-2")]
    Drain {
        /// The node's name.
        name: String,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Removes a node from the cluster for good: revokes its certificates, and frees its name.
    #[command(after_help = "Examples:\n  host nodes drain node-2 && host nodes remove node-2")]
    Remove {
        /// The node's name.
        name: String,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
}

/// A node of this machine.
#[derive(Debug, Args)]
pub(crate) struct NodeSelector {
    /// Folder of the node.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Parses a number and its unit.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let seconds = found.and_then(|(number, unit)| number.parse::<u64>().ok()?.checked_mul(unit));
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "not a time: a number and s, m or h, a day at most".to_owned())
}

/// Parses a node's address. The address that a name resolves to may change.
pub(crate) fn address(text: &str) -> Result<NodeAddress, String> {
    let address: NodeAddress = text.parse().map_err(|e: AddressError| e.to_string())?;
    if address.port() == 0 { Err("port 0 is not valid for a node: use 1 to 65535".to_owned()) } else { Ok(address) }
}

pub(crate) fn token_id(text: &str) -> Result<TokenId, String> {
    text.parse()
}
