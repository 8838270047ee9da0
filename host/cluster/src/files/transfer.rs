//! Copies of tenants' files on other nodes.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Fault, NodeId};
use sandbar_wire::{Channel, Connection, Frames, Name};

use super::{FileId, FileUse, StoredFile};
use crate::encoding;
use crate::error::{ClusterError, host_fault};
use crate::node_requests::{self, NodeRequest};
use crate::state::ClusterState;
use crate::uploads::upload_time;

/// Channel of files. The requesting node sends the tenant's name and the file's id; the other node responds with chunks.
pub(crate) const FILES: Channel = Channel::new(11);
/// Maximum bytes of a chunk.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum time for each chunk.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 1 << 10;

/// Returns files of a tenant, after fetching those that this node lacks from nodes that have them.
///
/// # Errors
/// Fails if no connected node has a file, or there is no room for it.
pub(crate) async fn fetch_all(
    cluster: &ClusterState,
    tenant: &Name,
    files: &[StoredFile],
) -> Result<Vec<FileUse>, Fault> {
    let mut fetched = Vec::new();
    for file in files {
        fetched.push(fetch_from_any(cluster, tenant, *file).await?);
    }
    Ok(fetched)
}

async fn fetch_from_any(cluster: &ClusterState, tenant: &Name, file: StoredFile) -> Result<FileUse, Fault> {
    if let Some(own) = cluster.tenant_files.get(tenant, file.file) {
        return Ok(own);
    }
    let nodes: Vec<NodeId> = cluster.network.connections().keys().copied().collect();
    let mut failed = host_fault(format!("no node has file {}; submit the job again", file.file.short()));
    for node in nodes {
        match copy_from(cluster, node, tenant, file).await {
            Ok(copied) => return Ok(copied),
            Err(fault) => failed = fault,
        }
    }
    Err(failed)
}

/// Stores a file of a tenant that a node has, unless this node has it.
///
/// # Errors
/// Fails if the node does not have it, or there is no room for it.
pub(crate) async fn copy_from(
    cluster: &ClusterState,
    node: NodeId,
    tenant: &Name,
    file: StoredFile,
) -> Result<FileUse, Fault> {
    if let Some(own) = cluster.tenant_files.get(tenant, file.file) {
        return Ok(own);
    }
    let id = file.file.short();
    let failed = |reason: &dyn Display| host_fault(format!("file {id} can't be fetched from node {node}: {reason}"));
    let connection = cluster.connection(node).ok_or_else(|| failed(&"there is no connection"))?;
    let settings = cluster.tenants.settings(tenant).unwrap_or_default();
    let in_use = cluster.jobs.index().files_in_use(tenant);
    let request = encoding::postcard("the request of a file", &(tenant, file.file))?;
    let mut frames = connection.open(FILES).await.map_err(|e| failed(&e))?;
    frames.send(&request).await.map_err(|e| failed(&e))?;
    let received = cluster.tenant_files.receive(tenant, file, &settings, &in_use, &mut frames).await;
    received.map_err(|e| failed(&e))
}

/// Has `count` other nodes store files of a tenant, or fewer if there are fewer.
pub(crate) async fn replicate(cluster: &ClusterState, tenant: &Name, files: &[StoredFile], count: usize) {
    for file in files {
        replicate_file(cluster, tenant, *file, count).await;
    }
}

async fn replicate_file(cluster: &ClusterState, tenant: &Name, file: StoredFile, count: usize) {
    let connections: Vec<Connection> = cluster.network.connections().values().cloned().collect();
    let request = NodeRequest::CopyFile(tenant.clone(), file);
    let mut stored = 0;
    for connection in connections {
        if stored == count {
            return;
        }
        let copied = node_requests::request::<Result<(), String>>(&connection, &request, upload_time(file.bytes)).await;
        match copied.map_err(|error| error.to_string()).flatten() {
            Ok(()) => stored += 1,
            Err(reason) => {
                log::debug!("{} has not copied file {}: {reason}", connection.peer(), file.file.short());
            }
        }
    }
}

/// Sends the file that a node requests.
pub(crate) async fn serve(cluster: Arc<ClusterState>, mut frames: Frames) {
    let Ok(Some(request)) = frames.recv().await else { return };
    if request.len() > REQUEST_BYTES_MAX {
        return;
    }
    let Ok((tenant, file)) = postcard::from_bytes::<(Name, FileId)>(&request) else { return };
    let Some(file) = cluster.tenant_files.get(&tenant, file) else { return };
    if send(&frames, file.path()).await.is_ok() {
        // Keeps the channel open until the node has read everything.
        let _ = frames.recv().await;
    }
}

/// Sends a file, and an empty frame after it.
///
/// # Errors
/// Fails if the file can't be read, or the peer does not accept each chunk in time.
pub(crate) async fn send(frames: &Frames, path: &Path) -> Result<(), ClusterError> {
    let opened = path.to_owned();
    let open = tokio::task::spawn_blocking(move || File::open(opened)).await;
    let mut file = open.map_err(io::Error::other).flatten().map_err(|e| ClusterError::Folder(path.to_owned(), e))?;
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let read = (&file).take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
            read.map(|_| (chunk, file))
        });
        let read = read.await.map_err(io::Error::other).flatten();
        let (chunk, rest) = read.map_err(|e| ClusterError::Folder(path.to_owned(), e))?;
        file = rest;
        tokio::time::timeout(CHUNK_TIME_MAX, frames.send(&chunk)).await.map_err(|_| ClusterError::NoResponse)??;
        if chunk.is_empty() {
            return Ok(());
        }
    }
}
