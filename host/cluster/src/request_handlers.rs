//! Responses to the requests of other nodes.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{NodeId, ObjectId};
use sandbar_meta::{Change, KeyRange, MetaError, MetaStore, Revision};
use sandbar_wire::IncomingRequest;

use crate::error::host_fault;
use crate::node_requests::NodeRequest;
use crate::state::ClusterState;
use crate::{actors, components, files, objects, usage};

/// Maximum time until a watcher gets a response, possibly without changes.
const WATCH_TIME_MAX: Duration = Duration::from_secs(5);

/// Handles a request. `node` is `None` until the runtimes of both nodes are connected.
pub(crate) async fn handle(cluster: Arc<ClusterState>, node: Option<NodeId>, mut incoming: IncomingRequest) {
    let Ok(bytes) = incoming.read().await else { return };
    let Ok(request) = postcard::from_bytes::<NodeRequest>(&bytes) else { return };
    let store = &*cluster.store;
    let response = match request {
        NodeRequest::Get(key) => postcard::to_stdvec(&store.get(&key).await),
        NodeRequest::Range(range, limit) => postcard::to_stdvec(&store.range(&range, limit as usize).await),
        NodeRequest::Transact(transaction) => postcard::to_stdvec(&store.transact(transaction).await),
        NodeRequest::Grant(ttl_s) => postcard::to_stdvec(&store.grant(ttl_s).await),
        NodeRequest::KeepAlive(lease) => postcard::to_stdvec(&store.keep_alive(lease).await),
        NodeRequest::Revoke(lease) => postcard::to_stdvec(&store.revoke(lease).await),
        NodeRequest::Watch(range, from) => postcard::to_stdvec(&next_changes(store, &range, from).await),
        NodeRequest::CopyComponent(tenant, component) => {
            let stored = match node {
                Some(node) => components::copy_from(&cluster, node, &tenant, component).await,
                None => Err(host_fault("the runtimes of the nodes are not connected")),
            };
            postcard::to_stdvec(&stored.map_err(|fault| fault.to_string()))
        }
        NodeRequest::CopyFile(tenant, file) => {
            let stored = match node {
                Some(node) => files::copy_from(&cluster, node, &tenant, file).await.map(drop),
                None => Err(host_fault("the runtimes of the nodes are not connected")),
            };
            postcard::to_stdvec(&stored.map_err(|fault| fault.to_string()))
        }
        NodeRequest::CachedResults(job, from) => {
            let page = match cluster.runtime.get() {
                Some(runtime) => runtime.handle.cached_results(job.as_str(), from).await,
                None => Vec::new(),
            };
            postcard::to_stdvec(&page)
        }
        NodeRequest::DetachedActors(tenant) => postcard::to_stdvec(&actors::list_own(&cluster, &tenant).await),
        NodeRequest::EndDetachedActor(tenant, actor) => {
            postcard::to_stdvec(&actors::end_own(&cluster, &tenant, actor).await)
        }
        NodeRequest::Usage(tenant, since) => postcard::to_stdvec(&usage::own_page(&cluster, tenant, since).await),
        NodeRequest::Drain => {
            cluster.membership.drain_requested.notify_one();
            postcard::to_stdvec(&())
        }
        NodeRequest::DescribeObject(object) => {
            let description = objects::describe(&cluster, ObjectId(object)).await;
            postcard::to_stdvec(&description.map_err(|fault| fault.message))
        }
        NodeRequest::FindHolders(object, failed) => {
            let holders = match node {
                Some(node) => objects::find_holders(&cluster, node, ObjectId(object), &failed),
                // Until the runtimes are connected, the other node fetches no object of this node.
                None => Vec::new(),
            };
            postcard::to_stdvec(&holders)
        }
        NodeRequest::FetchEnded(object, is_complete) => {
            if let Some(node) = node {
                objects::record_fetch(&cluster, node, ObjectId(object), is_complete);
            }
            postcard::to_stdvec(&())
        }
    };
    if let Ok(response) = response {
        // The requesting node may have disconnected.
        let _ = incoming.respond(&response).await;
    }
}

async fn next_changes(
    store: &dyn MetaStore,
    range: &KeyRange,
    from: Revision,
) -> Result<(Vec<Change>, Revision), MetaError> {
    let mut watcher = store.watch(range, from).await?;
    match tokio::time::timeout(WATCH_TIME_MAX, watcher.next()).await {
        Ok(changes) => Ok((changes?, watcher.position())),
        Err(_) => Ok((Vec::new(), watcher.position().max(from))),
    }
}
