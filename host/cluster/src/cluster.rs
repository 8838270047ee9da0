//! A node's handle of its cluster.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::{ComponentId, NodeId, Seed};
use sandbar_meta::{EtcdAddress, EtcdStore, EtcdTimeouts, MetaLimits, MetaStore, RedbStore};
use sandbar_runtime::{Amounts, ClusterServices, RuntimeStarted};
use sandbar_train::{RemoteTrainers, UnitTrainer};
use sandbar_wire::{
    Admission, CertificateIssuer, Clock as _, Endpoint, NodeFolder, Offload, SystemClock, TransferLimits, Transfers,
    WireLimits,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::addresses::advertised;
use crate::admission::StoreAdmission;
use crate::attempts::{announce_if_slow, retry};
use crate::audit::{AuditLog, audit_folder};
use crate::cluster_services::RemoteServices;
use crate::dialer::Dialer;
use crate::error::ClusterError;
use crate::files::TenantFiles;
use crate::identity::{self, ATTEMPT_TIME_MAX, IDENTITY};
use crate::jobs::{LocalJobs, accept_tenants, hand_over};
use crate::member::{Member, MemberState};
use crate::node_requests::{NodeRequest, request};
use crate::node_services::NodeServices;
use crate::options::ClusterOptions;
use crate::remote_store::{FounderConnection, RemoteStore};
use crate::shared_objects::SharedObjects;
use crate::state::{ClusterState, Components, Membership, Network, NodeRuntime, ObjectTransfers};
use crate::tenant_components::TenantComponents;
use crate::tenants::TenantDirectory;
use crate::usage::NodeUsage;
use crate::{authority, connections, membership, objects, registry, tenants, training, usage};

/// File of the founder's store, in the data folder.
const META: &str = "meta";
/// Folder of the store of jobs that this node runs, in the data folder.
const JOBS: &str = "jobs";
/// Folder of the components of tenants, in the data folder.
const COMPONENTS: &str = "components";
/// Folder of the files of tenants, in the data folder.
const FILES: &str = "files";
/// Maximum time until a node responds to a request.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of concurrent fetches of objects, until the runtime sets its own limit.
const TRANSFER_BYTES_MAX: u64 = 4 << 30;
/// Maximum fetches that wait for these bytes.
const TRANSFERS_WAITING_MAX: usize = 100_000;

/// A cluster, on one of its nodes. The node leaves the cluster when the last clone is dropped.
#[derive(Clone)]
pub struct Cluster {
    state: Arc<ClusterState>,
    tasks: Arc<BackgroundTasks>,
}

/// Tasks that end with the cluster.
struct BackgroundTasks(Mutex<Vec<JoinHandle<()>>>);

impl BackgroundTasks {
    fn handles(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort_all(&self) {
        self.handles().drain(..).for_each(|task| task.abort());
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl Cluster {
    /// Enters a cluster: obtains a certificate if the data folder has none, connects to the cluster's store, and allocates a
    /// number. Must be called in a tokio runtime, on which the cluster's tasks run until it is dropped.
    ///
    /// # Errors
    /// Fails if the node can't join the cluster, reach its store, or listen.
    pub async fn enter(options: &ClusterOptions) -> Result<Cluster, ClusterError> {
        let folder = NodeFolder::lock(&options.data.join(IDENTITY))?;
        let authority = authority::open(&options.data)?;
        let started = Instant::now();
        let identity = identity::load_or_join(&folder, authority.as_deref(), options).await?;
        let environment = options.listen.bind().await?;
        let audit = audit_folder(&options.data);
        let audit = AuditLog::open(&audit, identity.own().name.as_str()).map_err(|e| ClusterError::Folder(audit, e))?;
        let admission = StoreAdmission::new(audit.clone());
        let endpoint = match &authority {
            Some(authority) => {
                let issuer = CertificateIssuer::new(authority.clone(), admission.clone());
                Endpoint::bind_with_joins(environment, &identity, WireLimits::default(), issuer)?
            }
            None => Endpoint::bind_on(environment, &identity, WireLimits::default())?,
        };
        endpoint.set_accepted(tenants::before_first_read());
        let dialer = Arc::new(Dialer::new(endpoint.clone()));
        let joined = identity::joined_node(options)?;
        let founder = joined.clone().filter(|_| authority.is_none());
        let founder = founder.map(|address| Arc::new(FounderConnection::new(dialer.clone(), address)));
        let left = options.join_time_max.saturating_sub(started.elapsed());
        let store = open_store(options, founder.as_ref(), authority.is_some(), left).await?;
        let (own_name, own_key) = (identity.own().name.clone(), identity.own().key);
        if authority.is_some() {
            // Nobody else certifies this node.
            tenants::bind_name(&*store, &own_name, own_key, identity.own().expires, SystemClock.now()).await?;
        }
        admission.set_store(store.clone());
        let (name, key) = (own_name.as_str().to_owned(), own_key.to_string());
        registry::wait_for_name(&*store, &name, &key, registry::NAME_TIME_MAX).await?;
        let own = Member {
            name,
            number: registry::allocate_number(&*store).await?,
            address: advertised(endpoint.address()?, joined.as_ref(), ATTEMPT_TIME_MAX).await?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            resources: Amounts::default(),
            slots: 0,
            state: MemberState::Ready,
            key,
            has_authority: authority.is_some(),
        };
        let admission = Admission::new(TRANSFER_BYTES_MAX, TRANSFERS_WAITING_MAX);
        let engine = Transfers::new(TransferLimits::default(), admission.clone(), None, Offload::Threads)?;
        let state = Arc::new(ClusterState {
            name: identity.own().cluster.to_string(),
            own,
            handle: Handle::current(),
            store,
            network: Network::new(endpoint, dialer),
            membership: Membership::new(founder),
            authority,
            tenants: TenantDirectory::default(),
            audit,
            objects: ObjectTransfers { engine, admission, shared: SharedObjects::default() },
            components: Components::default(),
            tenant_components: TenantComponents::open(options.data.join(COMPONENTS)),
            tenant_files: TenantFiles::open(options.data.join(FILES)),
            door: Arc::default(),
            jobs: LocalJobs::new(options.data.join(JOBS)),
            usage: NodeUsage::open(&options.data),
            runtime: OnceLock::new(),
        });
        let tasks = vec![
            tokio::spawn(connections::accept_nodes(state.clone())),
            tokio::spawn(accept_tenants(state.clone())),
            tokio::spawn(objects::evict_idle(state.clone())),
            tokio::spawn(usage::maintain(state.clone())),
            tokio::spawn(membership::observe_identities(state.clone(), own_key)),
            tokio::spawn(membership::renew_certificate(state.clone(), folder, identity)),
        ];
        Ok(Cluster { state, tasks: Arc::new(BackgroundTasks(Mutex::new(tasks))) })
    }

    pub(crate) fn state(&self) -> &Arc<ClusterState> {
        &self.state
    }

    /// Returns the node's number.
    pub fn number(&self) -> u16 {
        self.state.own.number
    }

    /// Returns the name of the cluster.
    pub fn name(&self) -> String {
        self.state.name.clone()
    }

    /// Returns this node, as other nodes see it.
    pub fn own_member(&self) -> Member {
        let state = *self.state.membership.state.borrow();
        Member { state, ..self.state.member().clone() }
    }

    /// Returns when a user has requested that this node drains.
    pub async fn drain_requested(&self) {
        self.state.membership.drain_requested.notified().await;
    }

    /// Waits until this node is no longer a member of its cluster, and returns the reason: it was removed, or another
    /// node has its name. Other nodes own its jobs from then on, and this node must shut down.
    pub async fn fenced(&self) -> String {
        let mut fenced = self.state.membership.fenced.subscribe();
        match fenced.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns the address where this node listens.
    ///
    /// # Errors
    /// Fails if the socket does not report its address.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.state.network.endpoint.address()
    }

    /// Prepares the node to leave: other nodes assign it no more tasks, its tasks finish, and other nodes fetch the values
    /// that only it has. Returns whether no other node needs it any more; otherwise the time is up.
    pub async fn drain(&self, time: Duration) -> bool {
        self.state.membership.state.send_replace(MemberState::Draining);
        let Some(runtime) = self.state.runtime.get() else { return true };
        tokio::time::timeout(time, runtime.handle.drain()).await.is_ok()
    }

    /// Requests that a node drains and leaves.
    ///
    /// # Errors
    /// Fails if no node has that name, or it can't be reached.
    pub async fn request_drain(&self, name: &str) -> Result<(), ClusterError> {
        self.audited("drain-node", format!("node {name}"), self.send_drain(name)).await
    }

    async fn send_drain(&self, name: &str) -> Result<(), ClusterError> {
        if name == self.state.own.name {
            self.state.membership.drain_requested.notify_one();
            return Ok(());
        }
        let member = self.member(name).await?;
        let connection = self.state.connection(NodeId(member.number.into()));
        let connection = connection.ok_or_else(|| ClusterError::NotConnected(name.to_owned()))?;
        request(&connection, &NodeRequest::Drain, RESPONSE_TIME_MAX).await
    }

    /// Waits until this node is connected to all other nodes that accept tasks, for 2 s at most. Their resources count from
    /// then on.
    pub async fn wait_for_peers(&self) {
        self.state.ready_peers().await;
    }

    async fn member(&self, name: &str) -> Result<Member, ClusterError> {
        let members = self.members().await?;
        let names = || members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = members.iter().find(|member| member.name == name);
        found.cloned().ok_or_else(|| ClusterError::UnknownNode(name.to_owned(), names()))
    }

    /// Leaves the cluster. Other nodes learn of it at once, and not when the lease expires.
    pub async fn leave(&self) {
        self.tasks.abort_all();
        usage::collect(&self.state).await;
        hand_over(&self.state).await;
        membership::revoke_lease(&self.state).await;
        self.state.network.endpoint.close("the node leaves").await;
    }

    /// Returns all members.
    ///
    /// # Errors
    /// Fails if the cluster's store does not respond.
    pub async fn members(&self) -> Result<Vec<Member>, ClusterError> {
        registry::list(&*self.state.store).await
    }

    /// Returns the services of the cluster for the node's runtime.
    pub(crate) fn services(&self) -> Arc<dyn ClusterServices> {
        Arc::new(RemoteServices(self.state.clone()))
    }

    /// Publishes the node and its resources. From now on it runs programs, and tasks of other nodes.
    pub(crate) fn runtime_started(&self, runtime: RuntimeStarted, services: NodeServices) {
        let RuntimeStarted { handle, resources, slots, run, .. } = runtime;
        self.state.objects.admission.set_limit(services.object_bytes_max);
        let member = Member { resources: Amounts::from_resources(&resources), slots, ..self.state.own.clone() };
        usage::charge_today(&self.state, &handle);
        // A node has one runtime.
        let _ = self.state.runtime.set(NodeRuntime { handle, services, run, member: member.clone() });
        membership::apply_settings(&self.state);
        let task = self.state.handle.spawn(membership::maintain(self.state.clone(), member));
        self.tasks.handles().push(task);
    }

    /// Offers a component of this node to other nodes.
    pub(crate) fn offer_component(&self, component: ComponentId, file: std::fs::File) {
        self.state.components.offer(component, file);
    }
}

impl RemoteTrainers for Cluster {
    fn trainers(&self, components: Vec<(ComponentId, std::fs::File)>) -> BoxFuture<'_, Vec<Arc<dyn UnitTrainer>>> {
        components.into_iter().for_each(|(component, file)| self.offer_component(component, file));
        training::trainers(&self.state).boxed()
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.state.own).finish()
    }
}

/// Opens the cluster's store: etcd, the founder's file, or, on another node, the founder's store over the network. Retries
/// for `time`.
async fn open_store(
    options: &ClusterOptions,
    founder: Option<&Arc<FounderConnection>>,
    is_founder: bool,
    time: Duration,
) -> Result<Arc<dyn MetaStore>, ClusterError> {
    if let Some(address) = &options.meta {
        let address = address.parse::<EtcdAddress>()?;
        let connect = async || {
            let seed = Seed::new(u64::from(std::process::id()));
            Ok(EtcdStore::connect(&address, MetaLimits::default(), EtcdTimeouts::default(), seed).await?)
        };
        let etcd = announce_if_slow(options.meta.as_deref().unwrap_or("etcd"), time, retry(time, connect));
        return Ok(Arc::new(etcd.await?));
    }
    match founder {
        Some(founder) => {
            let connected = retry(time, async || founder.get().await);
            announce_if_slow(founder.address(), time, connected).await?;
            Ok(Arc::new(RemoteStore::new(founder.clone())))
        }
        None if is_founder => {
            let clock = Arc::new(sandbar_meta::SystemClock::default());
            Ok(Arc::new(RedbStore::open(&options.data.join(META), MetaLimits::default(), clock).await?))
        }
        None => Err(ClusterError::NoIdentity(options.data.clone())),
    }
}
