//! Detached actors of tenants on all nodes.

use std::time::Duration;

use futures::future::join_all;
use sandbar_jobs::ActorRow;
use sandbar_wire::{Connection, Name};
use serde::de::DeserializeOwned;

use crate::jobs::tenant_id;
use crate::node_requests::{NodeRequest, request};
use crate::state::ClusterState;

/// Maximum time until another node responds.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum bytes of an actor's name or id.
const ACTOR_BYTES_MAX: usize = 64 << 10;

/// Lists the actors of a tenant on this node.
pub(crate) async fn list_own(cluster: &ClusterState, tenant: &Name) -> Vec<ActorRow> {
    let Some(runtime) = cluster.runtime.get() else { return Vec::new() };
    let actors = runtime.handle.detached_actors(tenant_id(tenant)).await;
    // Workers are of the node.
    actors.into_iter().map(|actor| ActorRow { worker: None, ..actor }).collect()
}

/// Ends an actor of a tenant on this node, by its name or id. Returns whether there is one.
pub(crate) async fn end_own(cluster: &ClusterState, tenant: &Name, actor: String) -> bool {
    let Some(runtime) = cluster.runtime.get() else { return false };
    runtime.handle.end_detached_actor(tenant_id(tenant), actor).await
}

/// Lists the actors of a tenant on all nodes, in the order of their names.
pub(crate) async fn list(cluster: &ClusterState, tenant: &Name) -> Vec<ActorRow> {
    let mut all = list_own(cluster, tenant).await;
    let others = ask_others::<Vec<ActorRow>>(cluster, &NodeRequest::DetachedActors(tenant.clone())).await;
    all.extend(others.into_iter().flatten());
    all.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    all
}

/// Ends an actor of a tenant, by its name or id. Returns whether a node has it.
pub(crate) async fn end(cluster: &ClusterState, tenant: &Name, actor: &str) -> bool {
    if actor.len() > ACTOR_BYTES_MAX {
        return false;
    }
    if end_own(cluster, tenant, actor.to_owned()).await {
        return true;
    }
    let request = NodeRequest::EndDetachedActor(tenant.clone(), actor.to_owned());
    ask_others(cluster, &request).await.contains(&true)
}

/// Returns the responses of the other nodes that respond.
async fn ask_others<T: DeserializeOwned>(cluster: &ClusterState, to_all: &NodeRequest) -> Vec<T> {
    let connections: Vec<Connection> = cluster.network.connections().values().cloned().collect();
    let responses = join_all(connections.iter().map(|connection| request(connection, to_all, RESPONSE_TIME_MAX))).await;
    let failed = |error: &crate::error::ClusterError| log::debug!("a node has not responded: {error}");
    responses.into_iter().filter_map(|response| response.inspect_err(failed).ok()).collect()
}
