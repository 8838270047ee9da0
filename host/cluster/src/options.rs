//! Options of a node that enters a cluster.

use std::path::PathBuf;
use std::time::Duration;

use crate::addresses::{ListenOn, NodeAddress};

/// How a node enters a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Folder of the node's key and certificate, of the jobs that it runs, and of a founder's authority and store.
    pub data: PathBuf,
    /// Where the node listens.
    pub listen: ListenOn,
    /// A node of the cluster, and a token. A node without a certificate needs both; the founder needs neither.
    pub join: Option<(NodeAddress, Option<String>)>,
    /// Maximum time to reach that node, or etcd.
    pub join_time_max: Duration,
    /// Name of the node. By default the machine's name and the first digits of the hash of the node's key.
    pub name: Option<String>,
    /// An etcd that stores the cluster's state: `etcd://HOST:PORT,...`. By default the founder stores it.
    pub meta: Option<String>,
}
