//! Components of programs and trainers: sent to other nodes, fetched from them, stored in files, and loaded.
//!
//! Components of tenants are known by tenant and hash: see [`TenantComponents`](crate::tenant_components). Nodes know
//! those of programs and trainers of other nodes by hash alone.

use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use sandbar_core::{Blame, ComponentId, Fault, Function, Limits, NodeId, TenantId};
use sandbar_machine::write_atomically;
use sandbar_runtime::{LoadResult, TenantComponent, load_program};
use sandbar_wire::{Channel, Connection, Frames, Name};

use crate::component_id::component_id;
use crate::error::host_fault;
use crate::jobs::tenant_id;
use crate::node_requests::NodeRequest;
use crate::state::ClusterState;
use crate::{chunks, component_registry, node_requests};

/// Channel of components. The requesting node sends an id as text, after a tenant's name and a slash if the component is
/// a tenant's; the other node responds with the chunks.
pub(crate) const COMPONENTS: Channel = Channel::new(8);
/// Maximum bytes of a component.
pub(crate) const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// Maximum time to transfer a component.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(120);
/// Maximum time until this node has read the tenant of another node's tasks, and the time between attempts.
const TENANT_TIME_MAX: Duration = Duration::from_secs(60);
const TENANT_INTERVAL: Duration = Duration::from_millis(100);
/// Why a component can't be had.
pub(crate) const NOWHERE: &str = "no node has the component any more: send it again";

/// Loads a component of a tenant, which this node or any connected node has.
pub(crate) async fn load_of_tenant(cluster: &ClusterState, tenant: &Name, component: ComponentId) -> LoadResult {
    load_with(cluster, tenant, component, Limits::default(), None).await
}

/// Loads a component of a tenant, which this node has, or `node`, or, without one, any connected node.
async fn load_with(
    cluster: &ClusterState,
    tenant: &Name,
    component: ComponentId,
    limits: Limits,
    node: Option<NodeId>,
) -> LoadResult {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no programs"))?;
    let (id, limits) = (tenant_id(tenant), limits.within(&runtime.services.limits));
    if let Some(program) = cluster.components.programs().get(id, component, limits) {
        return Ok(program);
    }
    match node {
        Some(node) => copy_from(cluster, node, tenant, component).await?,
        None => ensure_of_tenant(cluster, tenant, component).await?,
    }
    let file = cluster.tenant_components.get(tenant, component);
    let file = file.ok_or_else(|| host_fault("the component was evicted; submit the job again"))?;
    let functions = runtime.services.functions.for_tenant(id);
    // The tenant must not learn where the node stores the component.
    let name = format!("component {}", component.short());
    let program = load_program(&functions, file, Path::new(&name), limits).await?;
    if program.compiled.id() != component {
        // The file is damaged. The next load fetches it again.
        let path = cluster.tenant_components.path(tenant, component);
        let _ = std::fs::remove_file(&path);
        return Err(host_fault(format!("{} is damaged: it is not {name}", path.display())));
    }
    Ok(cluster.components.programs().insert(id, component, limits, program))
}

/// Compiles a component that a tenant has sent to this node, and returns its functions. One that can't be used is removed.
pub(crate) async fn functions_of_tenant(
    cluster: &ClusterState,
    tenant: &Name,
    component: ComponentId,
) -> Result<Vec<Function>, Fault> {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no programs"))?;
    let file = cluster.tenant_components.get(tenant, component);
    let file = file.ok_or_else(|| host_fault("the component was evicted; push it again"))?;
    let functions = runtime.services.functions.for_tenant(tenant_id(tenant));
    // The tenant must not learn where the node stores the component.
    let name = format!("component {}", component.short());
    let loaded = functions.load(file, Path::new(&name)).await;
    loaded.map(|loaded| loaded.functions).inspect_err(|fault| {
        if fault.code.blame() != Blame::Host {
            cluster.tenant_components.remove(tenant, component);
        }
    })
}

/// Stores a component of a tenant that a connected node has, unless this node has it.
pub(crate) async fn ensure_of_tenant(
    cluster: &ClusterState,
    tenant: &Name,
    component: ComponentId,
) -> Result<(), Fault> {
    if cluster.tenant_components.get(tenant, component).is_some() {
        return Ok(());
    }
    let nodes: Vec<NodeId> = cluster.network.connections().keys().copied().collect();
    let mut failed = host_fault(NOWHERE);
    for node in nodes {
        match copy_from(cluster, node, tenant, component).await {
            Ok(()) => return Ok(()),
            Err(fault) => failed = fault,
        }
    }
    Err(failed)
}

/// Stores a component of a tenant that a node has, unless this node has it.
pub(crate) async fn copy_from(
    cluster: &ClusterState,
    node: NodeId,
    tenant: &Name,
    component: ComponentId,
) -> Result<(), Fault> {
    if cluster.tenant_components.get(tenant, component).is_some() {
        return Ok(());
    }
    let settings = cluster.tenants.settings(tenant).unwrap_or_default();
    let bytes = fetch_in_time(cluster, node, &format!("{tenant}/{component}"), component).await?;
    let in_use = component_registry::components_in_use(cluster, tenant).await?;
    cluster.tenant_components.insert(tenant, component, &bytes, &settings, &in_use).map_err(host_fault)
}

/// Has `count` other nodes store a component of a tenant, or fewer if there are fewer.
pub(crate) async fn replicate(cluster: &ClusterState, tenant: &Name, component: ComponentId, count: usize) {
    let connections: Vec<Connection> = cluster.network.connections().values().cloned().collect();
    let request = NodeRequest::CopyComponent(tenant.clone(), component);
    let copies = stream::iter(connections).map(|connection| {
        let request = &request;
        async move {
            let stored = node_requests::request::<Result<(), String>>(&connection, request, TRANSFER_TIME_MAX).await;
            let stored = stored.map_err(|error| error.to_string()).flatten();
            let (component, peer) = (component.short(), connection.peer());
            stored.inspect_err(|reason| log::debug!("{peer} has not copied component {component}: {reason}")).is_ok()
        }
    });
    // One more request than copies: a silent node does not delay the others.
    let stored = copies.buffer_unordered(count.max(1) + 1).filter(|is_stored| std::future::ready(*is_stored));
    stored.take(count).collect::<Vec<bool>>().await;
}

/// Stores a component of another node, unless this node has it.
pub(crate) async fn ensure_stored(
    cluster: &ClusterState,
    node: Option<NodeId>,
    component: ComponentId,
) -> Result<(), Fault> {
    let path = cluster.component_path(component).ok_or_else(|| host_fault("this node runs no programs"))?;
    if path.is_file() {
        return Ok(());
    }
    let node = node.ok_or_else(|| host_fault("the runtimes of the nodes are not connected"))?;
    let bytes = fetch_in_time(cluster, node, &component.to_string(), component).await?;
    let written = tokio::task::spawn_blocking(move || {
        write_atomically(&path, &bytes).map_err(|e| host_fault(format!("{}: {e}", path.display())))
    });
    written.await.map_err(host_fault)?
}

async fn fetch_in_time(
    cluster: &ClusterState,
    node: NodeId,
    request: &str,
    component: ComponentId,
) -> Result<Vec<u8>, Fault> {
    let fetched = tokio::time::timeout(TRANSFER_TIME_MAX, fetch(cluster, node, request, component)).await;
    fetched.map_err(|_| {
        let (component, seconds) = (component.short(), TRANSFER_TIME_MAX.as_secs());
        host_fault(format!("component {component} did not arrive from node {node} within {seconds} s"))
    })?
}

/// Loads a component that a node has, for tasks of that node.
pub(crate) async fn load(cluster: &ClusterState, node: NodeId, component: TenantComponent) -> LoadResult {
    let TenantComponent { tenant, component, limits } = component;
    if tenant == TenantId::DEFAULT {
        return load_by_hash(cluster, node, component, limits).await;
    }
    let tenant = tenant_name(cluster, tenant).await?;
    load_with(cluster, &tenant, component, limits, Some(node)).await
}

/// Returns the name of the tenant of another node's tasks. The tenant may be new, and this node or its connection to the
/// store as well.
async fn tenant_name(cluster: &ClusterState, id: TenantId) -> Result<Name, Fault> {
    let started = Instant::now();
    loop {
        if let Some(name) = cluster.tenants.all().keys().find(|name| tenant_id(name) == id) {
            return Ok(name.clone());
        }
        if started.elapsed() > TENANT_TIME_MAX {
            return Err(host_fault(
                "the tenant of the task is unknown: it was removed, or the cluster's store can't be read",
            ));
        }
        cluster.network.endpoint.read_access().await;
        tokio::time::sleep(TENANT_INTERVAL).await;
    }
}

/// Loads a component of a node itself.
async fn load_by_hash(cluster: &ClusterState, node: NodeId, component: ComponentId, limits: Limits) -> LoadResult {
    let runtime = cluster.runtime.get().ok_or_else(|| host_fault("this node runs no programs"))?;
    let limits = limits.within(&runtime.services.limits);
    if let Some(program) = cluster.components.programs().get(TenantId::DEFAULT, component, limits) {
        return Ok(program);
    }
    let path = runtime.services.component_path(component);
    ensure_stored(cluster, Some(node), component).await?;
    let file = File::open(&path).map_err(|e| host_fault(format!("{}: {e}", path.display())))?;
    let name = format!("component {}", component.short());
    let program = load_program(&runtime.services.functions, file, Path::new(&name), limits).await?;
    if program.compiled.id() != component {
        // The file is damaged. The next load fetches it again.
        let _ = std::fs::remove_file(&path);
        return Err(host_fault(format!("{} is damaged: it is not {name}", path.display())));
    }
    Ok(cluster.components.programs().insert(TenantId::DEFAULT, component, limits, program))
}

async fn fetch(cluster: &ClusterState, node: NodeId, request: &str, component: ComponentId) -> Result<Vec<u8>, Fault> {
    let failed = |reason: &dyn Display| {
        let component = component.short();
        host_fault(format!("component {component} can't be fetched from node {node}: {reason}"))
    };
    let connection = cluster.connection(node).ok_or_else(|| failed(&"there is no connection"))?;
    let mut frames = connection.open(COMPONENTS).await.map_err(|e| failed(&e))?;
    frames.send(request.as_bytes()).await.map_err(|e| failed(&e))?;
    let bytes = chunks::receive(&mut frames, COMPONENT_BYTES_MAX, TRANSFER_TIME_MAX).await;
    let bytes = bytes.map_err(|e| failed(&e))?;
    let is_it = component_id(&bytes) == component;
    is_it.then_some(bytes).ok_or_else(|| failed(&"the node sent other bytes, or none"))
}

/// Sends the component that a node requests.
pub(crate) async fn serve(cluster: Arc<ClusterState>, mut frames: Frames) {
    let Ok(Some(request)) = frames.recv().await else { return };
    let Ok(text) = String::from_utf8(request.to_vec()) else { return };
    let state = cluster.clone();
    let read = tokio::task::spawn_blocking(move || read_all(&*find(&state, &text)?).ok());
    let Ok(Some(bytes)) = read.await else { return };
    let _ = chunks::send(&frames, &bytes, TRANSFER_TIME_MAX).await;
    // Keeps the channel open until the node has read everything.
    let _ = frames.recv().await;
}

/// Finds the component that a node requests.
fn find(cluster: &ClusterState, request: &str) -> Option<Arc<File>> {
    if let Some((tenant, component)) = request.split_once('/') {
        return cluster.tenant_components.get(&tenant.parse().ok()?, component.parse().ok()?).map(Arc::new);
    }
    let component = request.parse().ok()?;
    let stored = || File::open(cluster.component_path(component)?).ok().map(Arc::new);
    cluster.components.file(component).or_else(stored)
}

/// Reads a whole file, whatever its shared position.
pub(crate) fn read_all(file: &File) -> std::io::Result<Vec<u8>> {
    let bytes = file.metadata()?.len().min(COMPONENT_BYTES_MAX);
    let mut all = vec![0; usize::try_from(bytes).map_err(std::io::Error::other)?];
    file.read_exact_at(&mut all, 0)?;
    Ok(all)
}
