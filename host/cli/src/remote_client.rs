//! Connections to a cluster from outside.

use std::path::PathBuf;

use sandbar_node::{ClusterClient, NodeAddress, machine};

use crate::cluster_args::{Remote, TimeoutArgs};
use crate::error::CliError;

/// Connects to the cluster of `--node`, if the option is set.
pub(crate) async fn connect(remote: Remote) -> Result<Option<ClusterClient>, CliError> {
    let Some(node) = remote.node else { return Ok(None) };
    client(&node, remote.token, remote.data, remote.timeouts).await.map(Some)
}

pub(crate) async fn client(
    node: &NodeAddress,
    token: Option<String>,
    data: Option<PathBuf>,
    timeouts: TimeoutArgs,
) -> Result<ClusterClient, CliError> {
    let data = match data {
        Some(data) => data,
        None => machine::state_folder()?.join("client"),
    };
    let token = token.or_else(|| std::env::var("SANDBAR_TOKEN").ok());
    ClusterClient::connect(&data, node, token.as_deref(), timeouts.into()).await.map_err(CliError::failed)
}
