//! Transfers of objects between nodes: fetched into memory files of this node, and served from them.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::{Fault, NodeId, ObjectId};
use sandbar_runtime::RemoteObject;
use sandbar_store::{Mapping, ReceiveBuffer, ReceiveBufferView, SealedFile};
use sandbar_wire::{
    Connection, FailedHolder, FetchSpec, FetchTarget, FetchedObject, HashTree, HeldObject, Holder, HolderFinder,
    ObjectSource, RootHash, SourceAssignment, TargetView,
};
use serde::de::DeserializeOwned;

use crate::error::{ClusterError, host_fault};
use crate::node_requests::{self, NodeRequest, ObjectDescription};
use crate::state::ClusterState;

/// Time after which an unused shared object is evicted.
const IDLE_TIME_MAX: Duration = Duration::from_secs(4);
/// Maximum time until a node describes an object, which it may have to read from disk and hash.
const DESCRIBE_TIME_MAX: Duration = Duration::from_secs(60);
/// Minimum bytes of an object that nodes fetch from each other. A smaller one has one holder.
const SPREAD_BYTES_MIN: u64 = 1 << 20;

/// The objects that other nodes may fetch: described ones, and ones that this node is fetching.
pub(crate) struct SharedObjectSource(pub(crate) Arc<ClusterState>);

impl ObjectSource for SharedObjectSource {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        let transfers = &self.0.objects;
        if let Some((value, _)) = transfers.shared.get(object) {
            return HeldObject::Whole(value);
        }
        transfers.engine.partial(object).map_or(HeldObject::NotFound, HeldObject::Partial)
    }
}

/// Describes an object of this node for a node that will fetch it. The object is shared for a while.
pub(crate) async fn describe(cluster: &ClusterState, object: ObjectId) -> Result<ObjectDescription, Fault> {
    let (root, bytes) = share(cluster, object).await?;
    Ok(ObjectDescription { root: root.0, bytes })
}

/// Returns the nodes from which `node` can fetch an object of this node, other than those that failed. Empty if only this
/// node has it.
///
/// `node` becomes a holder itself: it sends this request once it serves its chunks.
pub(crate) fn find_holders(cluster: &ClusterState, node: NodeId, object: ObjectId, failed: &[NodeId]) -> Vec<NodeId> {
    let shared = &cluster.objects.shared;
    let mut locations = shared.locations();
    if !shared.contains(object) || !locations.add_holder(object, cluster.own_id()) {
        return Vec::new();
    }
    match locations.reassign(object, node, failed) {
        SourceAssignment::Holders(nodes) => nodes,
        // The node has dropped it since.
        SourceAssignment::AlreadyWhole => {
            locations.remove_holder(object, node);
            Vec::new()
        }
        SourceAssignment::NoHolder | SourceAssignment::Full => Vec::new(),
    }
}

/// Records that a node has fetched an object of this node, or has failed to.
pub(crate) fn record_fetch(cluster: &ClusterState, node: NodeId, object: ObjectId, is_complete: bool) {
    let shared = &cluster.objects.shared;
    let mut locations = shared.locations();
    if !is_complete {
        locations.remove_holder(object, node);
    } else if shared.contains(object) {
        locations.add_holder(object, node);
    }
}

/// Returns the hash and length of an object, which other nodes can fetch from now on.
async fn share(cluster: &ClusterState, object: ObjectId) -> Result<(RootHash, u64), Fault> {
    let transfers = &cluster.objects;
    if let Some((value, root)) = transfers.shared.get(object) {
        return Ok((root, value.len() as u64));
    }
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("the node runs no programs"))?;
    let (reply, value) = tokio::sync::oneshot::channel();
    runtime.handle.share(object, Box::new(move |value| drop(reply.send(value))));
    let value = value.await.map_err(|_| host_fault("the node is shutting down"))?.map_err(host_fault)?;
    let mapping = Mapping::sealed(value.as_fd(), value.bytes()).map_err(host_fault)?;
    let hashed = tokio::task::spawn_blocking(move || {
        let tree = HashTree::build(&mapping);
        (mapping, tree)
    });
    let (mapping, tree) = hashed.await.map_err(host_fault)?;
    let (root, bytes) = (tree.root(), mapping.len() as u64);
    transfers.engine.keep_tree(object, tree);
    transfers.shared.insert(object, Arc::new(mapping), root);
    Ok((root, bytes))
}

/// Evicts unused shared objects, forever.
pub(crate) async fn evict_idle(cluster: Arc<ClusterState>) {
    loop {
        tokio::time::sleep(IDLE_TIME_MAX / 4).await;
        for object in cluster.objects.shared.evict_idle(IDLE_TIME_MAX) {
            cluster.objects.engine.forget(object);
        }
    }
}

/// Fetches the value of an object from a connected node that has it, and from other nodes that are fetching it.
pub(crate) async fn fetch(cluster: &Arc<ClusterState>, remote_object: RemoteObject) -> Result<SealedFile, Fault> {
    let RemoteObject { node, object, bytes, priority } = remote_object;
    let connection =
        cluster.connection(node).ok_or_else(|| host_fault(format!("there is no connection to node {node}")))?;
    let description: Result<ObjectDescription, String> =
        request(&connection, &NodeRequest::DescribeObject(object.0)).await?;
    let description = description.map_err(host_fault)?;
    if description.bytes != bytes {
        let actual = description.bytes;
        let message = format!("object {object} has {actual} bytes on node {node}, and {bytes} bytes were expected");
        return Err(host_fault(message));
    }
    let is_spread = bytes >= SPREAD_BYTES_MIN;
    let finder = SourceHolderFinder { cluster: cluster.clone(), node, connection: connection.clone() };
    let spec = FetchSpec {
        object,
        bytes,
        root: RootHash(description.root),
        // Requests other holders once this node serves the received chunks: then it can be named as a holder.
        holders: if is_spread { Vec::new() } else { vec![connection.holder(node)] },
        priority,
        finder: is_spread.then(|| Arc::new(finder) as Arc<dyn HolderFinder>),
    };
    let fetched = fetch_to_memory(cluster, spec, is_spread).await;
    if is_spread {
        let is_complete = fetched.is_ok();
        // A disconnected node need not know.
        cluster
            .handle
            .spawn(async move { request::<()>(&connection, &NodeRequest::FetchEnded(object.0, is_complete)).await });
    }
    fetched
}

/// Fetches an object into a memory file. If it is `spread`, other nodes can fetch it from this node as well.
///
/// Creating and sealing the file can wait for every processor of a busy machine, so neither runs on the threads that keep
/// connections alive.
async fn fetch_to_memory(cluster: &Arc<ClusterState>, spec: FetchSpec, spread: bool) -> Result<SealedFile, Fault> {
    let (object, bytes, root) = (spec.object, spec.bytes, spec.root);
    let reserve = async |bytes: u64| {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(ReceiveTarget(tokio::task::spawn_blocking(move || ReceiveBuffer::new(bytes)).await??))
    };
    let fetched = cluster.objects.engine.fetch(spec, reserve).await.map_err(host_fault)?;
    let FetchedObject { target: ReceiveTarget(buffer), serving, .. } = fetched;
    let sealed = tokio::task::spawn_blocking(move || buffer.seal()).await.map_err(host_fault)?;
    let sealed = sealed.map_err(host_fault)?;
    if spread {
        let value = Arc::new(Mapping::sealed(sealed.as_fd(), bytes).map_err(host_fault)?);
        cluster.objects.shared.insert(object, value, root);
    }
    // Peers find the object without a gap: first in the transfer, then among the shared objects.
    drop(serving);
    Ok(sealed)
}

async fn request<T: DeserializeOwned>(connection: &Connection, request: &NodeRequest) -> Result<T, ClusterError> {
    node_requests::request(connection, request, DESCRIBE_TIME_MAX).await
}

/// Returns those of the nodes to which this node is connected.
fn connected_holders(cluster: &ClusterState, nodes: impl IntoIterator<Item = NodeId>) -> Vec<Holder> {
    nodes.into_iter().filter_map(|node| Some(cluster.connection(node)?.holder(node))).collect()
}

/// Finds holders of an object through the node that created it.
struct SourceHolderFinder {
    cluster: Arc<ClusterState>,
    node: NodeId,
    connection: Connection,
}

impl HolderFinder for SourceHolderFinder {
    fn find_more(&self, object: ObjectId, failed: &[FailedHolder]) -> BoxFuture<'static, Vec<Holder>> {
        let (cluster, node, connection) = (self.cluster.clone(), self.node, self.connection.clone());
        let failed: Vec<NodeId> = failed.iter().map(|failed| failed.holder).collect();
        async move {
            let has_source_failed = failed.contains(&node);
            let find = NodeRequest::FindHolders(object.0, failed);
            let nodes: Vec<NodeId> = request(&connection, &find).await.unwrap_or_default();
            let mut holders = connected_holders(&cluster, nodes);
            if holders.is_empty() && !has_source_failed {
                holders.push(connection.holder(node));
            }
            holders
        }
        .boxed()
    }
}

struct ReceiveTarget(ReceiveBuffer);

struct ReceiveTargetView(Arc<ReceiveBufferView>);

// SAFETY: a receive buffer has this many initialised bytes, mapped while it lives, of a file that no other process has.
unsafe impl FetchTarget for ReceiveTarget {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn view(&self) -> Arc<dyn TargetView> {
        Arc::new(ReceiveTargetView(self.0.view()))
    }
}

// SAFETY: the view is of the same bytes, mapped while it lives.
unsafe impl TargetView for ReceiveTargetView {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
