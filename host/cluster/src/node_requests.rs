//! Requests between nodes: operations of the cluster's store, objects, cached results, components, and draining.

use std::time::Duration;

use sandbar_core::{ComponentId, NodeId};
use sandbar_jobs::JobName;
use sandbar_meta::{Key, KeyRange, LeaseId, Revision, Transaction};
use sandbar_wire::{Connection, Name};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::encoding;
use crate::error::ClusterError;
use crate::files::StoredFile;

/// A request to another node. The encoding depends on the order of the variants and of their fields.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeRequest {
    Get(Key),
    Range(KeyRange, u64),
    Transact(Transaction),
    Grant(u32),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
    /// The next changes of a range from a revision on. The response includes the revision for the next request.
    Watch(KeyRange, Revision),
    /// The hash and length of an object of the node. The response is a [`Result`] of an [`ObjectDescription`].
    DescribeObject(u64),
    /// Nodes from which to fetch a described object, other than these, which failed.
    FindHolders(u64, Vec<NodeId>),
    /// The fetch of a described object has ended: whether it is complete.
    FetchEnded(u64, bool),
    /// A page of the cached results of a job's tasks, from this number on.
    CachedResults(JobName, u64),
    /// The node must drain.
    Drain,
    /// The node must store a tenant's component that the requesting node has, which may fail.
    CopyComponent(Name, ComponentId),
    /// Lists the actors of a tenant that outlive the jobs that created them. The response is a vector of rows.
    DetachedActors(Name),
    /// Ends such an actor, by its name or id. The response tells whether the node has it.
    EndDetachedActor(Name, String),
    /// Query the usage of one tenant or all on the node since an hour. The response is a page.
    Usage(Option<Name>, u64),
    /// The node must store a tenant's file that the requesting node has, which may fail.
    CopyFile(Name, StoredFile),
}

/// Hash and length of an object.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ObjectDescription {
    /// Root of the object's BLAKE3 hash tree.
    pub(crate) root: [u8; 32],
    pub(crate) bytes: u64,
}

/// Sends a request to a node. Returns the response.
pub(crate) async fn request<T: DeserializeOwned>(
    connection: &Connection,
    request: &NodeRequest,
    time: Duration,
) -> Result<T, ClusterError> {
    let request = encoding::postcard("a request to a node", request)?;
    let response = connection.request(&request, time).await?;
    postcard::from_bytes(&response).map_err(|e| ClusterError::Malformed(e.to_string()))
}
