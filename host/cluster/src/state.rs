//! State that the tasks of a node in a cluster share.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{ComponentId, NodeId};
use sandbar_meta::{LeaseId, MetaStore};
use sandbar_runtime::{RunProgram, RuntimeHandle};
use sandbar_wire::{Admission, Authority, Connection, Endpoint, Transfers};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::audit::AuditLog;
use crate::dialer::Dialer;
use crate::files::TenantFiles;
use crate::jobs::{Door, LocalJobs};
use crate::member::{Member, MemberState};
use crate::node_services::NodeServices;
use crate::program_cache::ProgramCache;
use crate::registry;
use crate::remote_store::FounderConnection;
use crate::shared_objects::SharedObjects;
use crate::tenant_components::TenantComponents;
use crate::tenants::TenantDirectory;
use crate::usage::NodeUsage;

/// Maximum wait for connections to all members.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Delay between checks of these connections.
const CONNECT_CHECK_DELAY: Duration = Duration::from_millis(20);

/// State of a node in a cluster.
pub(crate) struct ClusterState {
    /// Name of the cluster.
    pub(crate) name: String,
    /// This node, without the resources of its runtime.
    pub(crate) own: Member,
    /// The tokio runtime of all background tasks.
    pub(crate) handle: Handle,
    /// The cluster's store.
    pub(crate) store: Arc<dyn MetaStore>,
    /// The cluster's authority, on the founder.
    pub(crate) authority: Option<Arc<Authority>>,
    pub(crate) tenants: TenantDirectory,
    pub(crate) audit: AuditLog,
    pub(crate) network: Network,
    pub(crate) membership: Membership,
    pub(crate) objects: ObjectTransfers,
    pub(crate) components: Components,
    pub(crate) tenant_components: TenantComponents,
    pub(crate) tenant_files: TenantFiles,
    pub(crate) door: Arc<Door>,
    pub(crate) jobs: LocalJobs,
    pub(crate) usage: NodeUsage,
    /// The node's runtime, once it has started.
    pub(crate) runtime: OnceLock<NodeRuntime>,
}

/// Connections to other nodes.
pub(crate) struct Network {
    pub(crate) endpoint: Endpoint,
    pub(crate) dialer: Arc<Dialer>,
    connections: Mutex<BTreeMap<NodeId, Connection>>,
}

/// Membership of this node.
#[derive(Default)]
pub(crate) struct Membership {
    /// Lease of the node's key and of its jobs' owner keys.
    lease: Mutex<Option<LeaseId>>,
    /// State that the node publishes.
    pub(crate) state: watch::Sender<MemberState>,
    /// Notified when a user requests that the node drains.
    pub(crate) drain_requested: Notify,
    /// Why the node is no longer a member.
    pub(crate) fenced: watch::Sender<Option<String>>,
    /// Connection to the founder, on other nodes.
    pub(crate) founder: Option<Arc<FounderConnection>>,
}

/// Transfers of objects.
pub(crate) struct ObjectTransfers {
    pub(crate) engine: Transfers,
    pub(crate) admission: Arc<Admission>,
    pub(crate) shared: SharedObjects,
}

/// Components that this node has.
#[derive(Default)]
pub(crate) struct Components {
    /// Files of this node's own programs and trainers.
    files: Mutex<HashMap<ComponentId, Arc<File>>>,
    /// Loaded programs of other nodes and of tenants.
    programs: Mutex<ProgramCache>,
}

/// The node's runtime.
pub(crate) struct NodeRuntime {
    pub(crate) handle: RuntimeHandle,
    pub(crate) services: NodeServices,
    /// Runs a program of the cluster.
    pub(crate) run: RunProgram,
    /// This node, as it is published.
    pub(crate) member: Member,
}

impl ClusterState {
    /// Returns this node's number as the runtime uses it.
    pub(crate) fn own_id(&self) -> NodeId {
        NodeId(self.own.number.into())
    }

    /// Returns this node, with its resources once its runtime has started.
    pub(crate) fn member(&self) -> &Member {
        self.runtime.get().map_or(&self.own, |runtime| &runtime.member)
    }

    /// Returns the connection to a node.
    pub(crate) fn connection(&self, node: NodeId) -> Option<Connection> {
        self.network.connections().get(&node).cloned()
    }

    /// Returns the path where a component of another node is stored. `None` until the runtime has started.
    pub(crate) fn component_path(&self, component: ComponentId) -> Option<PathBuf> {
        Some(self.runtime.get()?.services.component_path(component))
    }

    /// Returns the other members that accept tasks. Waits for connections to them, for a limited time; members that are not
    /// connected then are left out.
    pub(crate) async fn ready_peers(&self) -> Vec<(Member, Connection)> {
        let since = Instant::now();
        loop {
            let members = registry::list(&*self.store).await.unwrap_or_else(|error| {
                log::warn!("the cluster's nodes can't be listed: {error}");
                Vec::new()
            });
            let is_ready_peer = |member: &Member| member.name != self.own.name && member.state == MemberState::Ready;
            let connected = |member: Member| Some((self.connection(NodeId(member.number.into()))?, member));
            let peers: Vec<_> = members.into_iter().filter(is_ready_peer).map(connected).collect();
            if peers.iter().all(Option::is_some) || since.elapsed() > CONNECT_WAIT_MAX {
                return peers.into_iter().flatten().map(|(connection, member)| (member, connection)).collect();
            }
            tokio::time::sleep(CONNECT_CHECK_DELAY).await;
        }
    }
}

impl Network {
    pub(crate) fn new(endpoint: Endpoint, dialer: Arc<Dialer>) -> Network {
        Network { endpoint, dialer, connections: Mutex::default() }
    }

    /// Connections to the nodes with whose runtimes this node's is connected.
    pub(crate) fn connections(&self) -> MutexGuard<'_, BTreeMap<NodeId, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Membership {
    pub(crate) fn new(founder: Option<Arc<FounderConnection>>) -> Membership {
        Membership { founder, ..Membership::default() }
    }

    pub(crate) fn lease(&self) -> Option<LeaseId> {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the lease. Returns the previous one.
    pub(crate) fn set_lease(&self, lease: Option<LeaseId>) -> Option<LeaseId> {
        std::mem::replace(&mut *self.lease.lock().unwrap_or_else(PoisonError::into_inner), lease)
    }

    /// Records that this node is no longer a member. The first reason stays.
    pub(crate) fn fence(&self, reason: String) {
        self.fenced.send_if_modified(|fenced| {
            let is_first = fenced.is_none();
            fenced.get_or_insert(reason);
            is_first
        });
    }
}

impl Components {
    /// Returns a component of this node's own programs and trainers.
    pub(crate) fn file(&self, component: ComponentId) -> Option<Arc<File>> {
        self.files().get(&component).cloned()
    }

    /// Offers a component to other nodes.
    pub(crate) fn offer(&self, component: ComponentId, file: File) {
        self.files().insert(component, Arc::new(file));
    }

    fn files(&self) -> MutexGuard<'_, HashMap<ComponentId, Arc<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loaded programs.
    pub(crate) fn programs(&self) -> MutexGuard<'_, ProgramCache> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
