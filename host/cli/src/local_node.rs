//! The node in this process.

use sandbar_node::{Cluster, Limits, Node, NodeOptions, machine};

use crate::error::CliError;
use crate::shares::Shares;

/// Starts a node that lives as long as this process.
pub(crate) fn start_node(shares: &Shares, limits: Limits, cluster: Option<Cluster>) -> Result<&'static Node, CliError> {
    Ok(Box::leak(Box::new(Node::start(node_options(shares, limits, cluster)?))))
}

/// Returns the node's options, with defaults for unset shares.
pub(crate) fn node_options(shares: &Shares, limits: Limits, cluster: Option<Cluster>) -> Result<NodeOptions, CliError> {
    let gpus = machine::gpus(shares.gpu_options())?;
    Ok(NodeOptions {
        number: cluster.as_ref().map_or(0, Cluster::number),
        in_process_peers: None,
        cluster,
        workers: shares.workers.unwrap_or_else(machine::cores),
        resources: shares.resources(),
        limits,
        cache: machine::cache_folder()?,
        shipped: machine::shipped(),
        spill: std::env::temp_dir(),
        memory_bytes_max: shares.memory.unwrap_or_else(machine::memory_for_rows),
        object_bytes_max: shares.object_memory.unwrap_or_else(machine::memory_for_objects),
        disk_reserve_bytes: shares.disk_reserve,
        worker: machine::worker()?,
        gpus,
        on_demand: false,
    })
}
