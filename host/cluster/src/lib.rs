//! Clusters: nodes that know each other and run tasks for each other.
//!
//! A cluster starts with its authority, whose key the founding node has ([`create_cluster`]). The founder admits other nodes
//! and, unless the cluster uses etcd, stores its state. A node that has [entered](Cluster::enter) a cluster has a number,
//! publishes its address and resources under its name while it lives, and connects to all earlier nodes. Each connection
//! carries the messages of both runtimes, objects, and components.
//!
//! Non-goals: what runs the tasks (`sandbar_runtime`), what trains (`sandbar_train`).

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod asks;
mod error;
mod fits;
mod jobs;
mod links;
mod members;
mod objects;
mod outside;
mod parts;
mod programs;
mod reach;
mod runtime_peers;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{ComponentId, NodeId, Seed};
use sandbar_machine::write_atomically;
use sandbar_meta::{EtcdAddress, EtcdStore, EtcdTimeouts, LeaseId, MetaLimits, MetaStore, RedbStore};
use sandbar_wire::{
    Admission, Applicant, Authority, CertificateIssuer, Clock, Connection, Endpoint, EndpointEnvironment, Identity,
    JoinGrant, JoinToken, Key, Name, NodeFolder, Offload, Role, SystemClock, TransferLimits, Transfers, WireLimits,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};

pub use error::ClusterError;
pub use jobs::{ClientTimes, ClusterClient, ClusterJob, Followed, NewClusterJob};
pub use members::{Member, MemberState};
pub use reach::{ListenOn, NodeAddress};
pub use runtime_peers::NodeServices;

use asks::Ask;
use links::Dialer;
use objects::Shared;
use outside::Others;
use sandbar_jobs::{JobName, JobStore};
use sandbar_runtime::{Amounts, Asker, Outside, RunProgram, RuntimeStarted};

/// Where in its folder a node keeps what of a cluster.
const AUTHORITY: &str = "authority";
const IDENTITY: &str = "identity";
const META: &str = "meta";
const JOINED: &str = "joined";
const JOBS: &str = "jobs";

/// How a node is to enter a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The folder of what the node keeps of it: its key and certificate, and its founder's authority and store.
    pub data: PathBuf,
    /// Where it is to be reached.
    pub listen: ListenOn,
    /// A node of the cluster, of one that has not been in it or is not its founder, and a token for the first time.
    pub join: Option<(NodeAddress, Option<String>)>,
    /// How long that node, or etcd, is tried.
    pub join_time_max: Duration,
    /// What it is called; of the machine's name and its process otherwise.
    pub name: Option<String>,
    /// An etcd that has what must survive, `etcd://HOST:PORT,...`; the founder otherwise.
    pub meta: Option<String>,
}

/// A cluster, as one of its nodes has it. When the last clone is dropped the node leaves it.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
    tasks: Arc<Tasks>,
}

struct Inner {
    name: String,
    endpoint: Endpoint,
    dialer: Arc<Dialer>,
    store: Arc<dyn MetaStore>,
    own: Member,
    handle: Handle,
    links: Mutex<BTreeMap<NodeId, Connection>>,
    transfers: Transfers,
    admission: Arc<Admission>,
    shared: Shared,
    components: Mutex<HashMap<ComponentId, Arc<std::fs::File>>>,
    ready: Mutex<programs::Ready>,
    hub: OnceLock<OfHub>,
    /// That of the node's key among the members.
    lease: Mutex<Option<LeaseId>>,
    /// What others are to know that it is about.
    state: watch::Sender<MemberState>,
    /// Somebody wants it to go.
    asked_to_drain: Notify,
    /// Why it is not in the cluster any more.
    fenced: watch::Sender<Option<String>>,
    founder: Option<Arc<store::Founder>>,
    living: Arc<members::Living>,
    /// Jobs of the cluster that it runs, or ran.
    shelf: JobStore,
    running: Mutex<HashMap<JobName, AbortHandle>>,
}

/// What there is once the node runs programs.
struct OfHub {
    asker: Asker,
    services: NodeServices,
    run: RunProgram,
    /// What others know of the node.
    member: Member,
}

/// What runs for a cluster, and ends with it.
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Tasks {
    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the authority of a new cluster, in the folder of the node that is to be its founder. Gives the cluster's name.
///
/// # Errors
/// When there is one already, or the folder can't be written.
pub fn create_cluster(data: &Path) -> Result<String, ClusterError> {
    std::fs::create_dir_all(data).map_err(|e| ClusterError::Folder(data.to_owned(), e))?;
    let authority = Authority::create(&data.join(AUTHORITY), SystemClock.now())?;
    Ok(authority.trust().cluster().to_string())
}

/// A token with which others may join for so long, by the authority in the founder's folder: as nodes, or as a tenant.
///
/// # Errors
/// When there is no authority, the time is too long, or the tenant's name is none.
pub fn create_token(data: &Path, tenant: Option<&str>, lifetime: Duration) -> Result<String, ClusterError> {
    let now = SystemClock.now();
    let authority = Authority::open(&data.join(AUTHORITY), now)?;
    let name = |text: &str| text.parse().map_err(|e| ClusterError::Name(text.to_owned(), e));
    let grant = tenant.map(name).transpose()?.map_or(JoinGrant::Node, JoinGrant::Tenant);
    Ok(authority.token(grant, lifetime, now)?.to_text())
}

impl Cluster {
    /// Enters a cluster: gets a certificate, if there is none, a number and a place among its members. Within a tokio runtime,
    /// on which it runs until it is dropped.
    ///
    /// # Errors
    /// When it can't.
    pub async fn enter(options: &ClusterOptions) -> Result<Cluster, ClusterError> {
        let now = SystemClock.now();
        let folder = NodeFolder::lock(&options.data.join(IDENTITY))?;
        let authority = match options.data.join(AUTHORITY).is_dir() {
            true => Some(Arc::new(Authority::open(&options.data.join(AUTHORITY), now)?)),
            false => None,
        };
        let begun = Instant::now();
        let identity = identity(&folder, authority.as_deref(), options).await?;
        let environment = options.listen.bind().await?;
        let living = Arc::<members::Living>::default();
        let endpoint = match &authority {
            Some(authority) => {
                let names = living.clone();
                let issuer = CertificateIssuer::new(authority.clone(), move |one: &Applicant<'_>| names.admit(one));
                Endpoint::bind_with_joins(environment, &identity, WireLimits::default(), issuer)?
            }
            None => Endpoint::bind_on(environment, &identity, WireLimits::default())?,
        };
        let dialer = Arc::new(Dialer::new(endpoint.clone()));
        let join = joined(options)?;
        let founder = join.clone().filter(|_| authority.is_none());
        let founder = founder.map(|name| Arc::new(store::Founder::new(dialer.clone(), name)));
        let left = options.join_time_max.saturating_sub(begun.elapsed());
        let store = open_store(options, founder.as_ref(), authority.is_some(), left).await?;
        let (name, key) = (identity.own().name.as_str().to_owned(), identity.own().key.to_string());
        members::await_name(&*store, &name, &key, members::NAME_TIME_MAX).await?;
        let own = Member {
            name,
            number: members::number(&*store).await?,
            address: reached(join.as_ref(), &endpoint).await?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            resources: Amounts::default(),
            slots: 0,
            state: MemberState::Ready,
            key,
        };
        let admission = Admission::new(TRANSFER_BYTES_MAX, TRANSFERS_WAITING_MAX);
        let transfers = Transfers::new(TransferLimits::default(), admission.clone(), None, Offload::Threads);
        let inner = Arc::new(Inner {
            name: identity.own().cluster.to_string(),
            endpoint,
            dialer,
            store,
            own,
            handle: Handle::current(),
            links: Mutex::default(),
            transfers: transfers.map_err(ClusterError::Limits)?,
            admission,
            shared: Shared::default(),
            components: Mutex::default(),
            ready: Mutex::default(),
            hub: OnceLock::new(),
            lease: Mutex::default(),
            state: watch::Sender::default(),
            asked_to_drain: Notify::new(),
            fenced: watch::Sender::default(),
            founder: founder.clone(),
            living,
            shelf: JobStore::open(options.data.join(JOBS)),
            running: Mutex::default(),
        });
        let tasks = vec![
            tokio::spawn(links::accept(inner.clone())),
            tokio::spawn(jobs::open(inner.clone())),
            tokio::spawn(objects::let_go(inner.clone())),
            tokio::spawn(members::renew(inner.clone(), folder, identity, founder)),
        ];
        Ok(Cluster { inner, tasks: Arc::new(Tasks(Mutex::new(tasks))) })
    }

    /// The node's number.
    pub fn number(&self) -> u16 {
        self.inner.own.number
    }

    /// What the cluster is called.
    pub fn name(&self) -> String {
        self.inner.name.clone()
    }

    /// What others know of this node.
    pub fn own(&self) -> Member {
        let state = *self.inner.state.borrow();
        Member { state, ..self.inner.member().unwrap_or(&self.inner.own).clone() }
    }

    /// Is done once somebody wants this node to go.
    pub async fn asked_to_drain(&self) {
        self.inner.asked_to_drain.notified().await;
    }

    /// Is done once this node is not of the cluster any more, and says why: it was removed, or another has its name. What it
    /// runs is others' then, and it is to end.
    pub async fn fenced(&self) -> String {
        let mut fenced = self.inner.fenced.subscribe();
        match fenced.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Where this node listens.
    ///
    /// # Errors
    /// When the socket does not say.
    pub fn listens(&self) -> std::io::Result<SocketAddr> {
        self.inner.endpoint.address()
    }

    /// Gets the node ready to go: others give it nothing more, what it runs goes on, and what only it has is fetched of it.
    /// Says whether nothing is needed of it any more; otherwise the time is up.
    pub async fn drain(&self, time: Duration) -> bool {
        self.inner.state.send_replace(MemberState::Draining);
        let Some(hub) = self.inner.hub.get() else { return true };
        tokio::time::timeout(time, hub.asker.leave()).await.is_ok()
    }

    /// Has a node go, as [`Cluster::drain`] does.
    ///
    /// # Errors
    /// When there is none of that name, or it can't be reached.
    pub async fn ask_to_drain(&self, name: &str) -> Result<(), ClusterError> {
        if name == self.inner.own.name {
            self.inner.asked_to_drain.notify_one();
            return Ok(());
        }
        let member = self.member(name).await?;
        let link = self.inner.link(NodeId(member.number.into()));
        let link = link.ok_or_else(|| ClusterError::NoLink(name.to_owned()))?;
        let request = postcard::to_stdvec(&Ask::Drain).unwrap_or_default();
        link.request(&request, ASK_TIME_MAX).await?;
        Ok(())
    }

    /// Takes a node out of the cluster for good: nobody has to do with it any more, and its name is not given again.
    ///
    /// # Errors
    /// When it is this one, there can be none of that name, or the store does not answer.
    pub async fn remove(&self, name: &str) -> Result<(), ClusterError> {
        if name == self.inner.own.name {
            return Err(ClusterError::Itself(name.to_owned()));
        }
        let parsed = name.parse().map_err(|e| ClusterError::Name(name.to_owned(), e))?;
        members::remove(&*self.inner.store, &parsed).await
    }

    /// Waits until this node is connected to all others that are there, if that is soon: what they have counts from then on.
    pub async fn meet(&self) {
        self.inner.others().await;
    }

    async fn member(&self, name: &str) -> Result<Member, ClusterError> {
        let all = self.members().await?;
        let there = || all.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|member| member.name == name);
        found.cloned().ok_or_else(|| ClusterError::NoNode(name.to_owned(), there()))
    }

    /// Leaves the cluster: others learn of it now, rather than when they miss this node.
    pub async fn leave(&self) {
        self.tasks.end();
        members::leave(&self.inner).await;
        self.inner.endpoint.close("the node leaves").await;
    }

    /// All nodes that are there.
    ///
    /// # Errors
    /// When the cluster's store does not answer.
    pub async fn members(&self) -> Result<Vec<Member>, ClusterError> {
        members::list(&*self.inner.store).await
    }

    fn outside(&self) -> Arc<dyn Outside> {
        Arc::new(Others(self.inner.clone()))
    }

    /// The node runs programs from now on, and tasks of others.
    fn begin(&self, runtime: RuntimeStarted, services: NodeServices) {
        let RuntimeStarted { handle, resources, slots, run, .. } = runtime;
        self.inner.admission.set_limit(services.object_bytes_max);
        // A node has one hub.
        let member = Member { resources: Amounts::of(&resources), slots, ..self.inner.own.clone() };
        let _ = self.inner.hub.set(OfHub { asker: handle, services, run, member: member.clone() });
        let task = self.inner.handle.spawn(members::keep(self.inner.clone(), member));
        self.tasks.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// A component that the node has: others may want it.
    fn know(&self, component: ComponentId, file: std::fs::File) {
        let mut components = self.inner.components.lock().unwrap_or_else(PoisonError::into_inner);
        components.insert(component, Arc::new(file));
    }
}

impl Inner {
    /// The other nodes that are there and take tasks, once they are connected, or without those that are not soon.
    async fn others(&self) -> Vec<(Member, Connection)> {
        let since = Instant::now();
        loop {
            let all = members::list(&*self.store).await.unwrap_or_else(|error| {
                log::warn!("the other nodes are not known: {error}");
                Vec::new()
            });
            let all = all.into_iter();
            let others = all.filter(|member| member.name != self.own.name && member.state == MemberState::Ready);
            let link = |member: Member| Some((self.link(NodeId(member.number.into()))?, member));
            let links: Vec<_> = others.map(link).collect();
            if links.iter().all(Option::is_some) || since.elapsed() > MEET_TIME_MAX {
                return links.into_iter().flatten().map(|(link, member)| (member, link)).collect();
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// This node is not of the cluster any more.
    fn fence(&self, why: String) {
        self.fenced.send_if_modified(|fenced| {
            let is_news = fenced.is_none();
            fenced.get_or_insert(why);
            is_news
        });
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<NodeId, Connection>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What others know of the node, once it runs programs.
    fn member(&self) -> Option<&Member> {
        self.hub.get().map(|hub| &hub.member)
    }

    /// Jobs of the cluster that run here.
    fn running(&self) -> MutexGuard<'_, HashMap<JobName, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Programs that were loaded.
    fn ready(&self) -> MutexGuard<'_, programs::Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a component is kept that another has given to this node.
    fn component_path(&self, component: ComponentId) -> Option<PathBuf> {
        Some(self.hub.get()?.services.component_path(component))
    }

    fn link(&self, node: NodeId) -> Option<Connection> {
        self.links().get(&node).cloned()
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.inner.own).finish()
    }
}

/// Nodes that are there are connected within this, or not waited for.
const MEET_TIME_MAX: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// An attempt to reach a node takes no longer.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(6);
/// Digits of the hash of a node's key in the name that it gets if nothing else is said.
const KEY_DIGITS: usize = 6;

/// A node answers what it is asked within this.
const ASK_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes of objects that are fetched at once, and fetches that wait for these to become fewer.
const TRANSFER_BYTES_MAX: u64 = 4 << 30;
const TRANSFERS_WAITING_MAX: usize = 100_000;

/// Who the node is: as it was before, by its own authority, or by joining.
async fn identity(
    folder: &NodeFolder,
    authority: Option<&Authority>,
    options: &ClusterOptions,
) -> Result<Identity, ClusterError> {
    let now = SystemClock.now();
    let has_token = options.join.as_ref().is_some_and(|(_, token)| token.is_some());
    match folder.load(now) {
        Ok(Some(identity)) => return of_folder(options, identity),
        // A token gets another one.
        Err(error) if !has_token => return Err(error.into()),
        Ok(None) | Err(_) => {}
    }
    let key = folder.key()?;
    let name = name(options, &key)?;
    let identity = match (authority, &options.join) {
        (Some(authority), _) => {
            let lifetime = Duration::from_secs(sandbar_wire::CERTIFICATE_LIFETIME_S);
            let certificate = authority.certify(&key.request()?, Role::Node, &name, lifetime, now)?;
            Identity::new(key, certificate, authority.trust().certificate().to_vec(), now)?
        }
        (None, Some((address, Some(token)))) => {
            let token: JoinToken = token.parse().map_err(ClusterError::Token)?;
            let attempt = async |address| {
                let (environment, limits) =
                    (EndpointEnvironment::udp(options.listen.towards(address))?, WireLimits::default());
                Ok(sandbar_wire::join(environment, address, &token, key.clone(), (Role::Node, &name), &limits).await?)
            };
            let join = async || reach::first(address, ATTEMPT_TIME_MAX, &attempt).await;
            let joined = reach::patiently(options.join_time_max, join);
            reach::aloud(address, options.join_time_max, joined).await?.1
        }
        _ => return Err(ClusterError::NoWay(options.data.clone())),
    };
    folder.save(&identity)?;
    Ok(identity)
}

/// What a folder has is what is asked for.
fn of_folder(options: &ClusterOptions, identity: Identity) -> Result<Identity, ClusterError> {
    let (own, folder) = (identity.own(), options.data.clone());
    if let Some((_, Some(token))) = &options.join {
        same_cluster(&folder, &identity, &token.parse().map_err(ClusterError::Token)?)?;
    }
    match &options.name {
        Some(name) if name != own.name.as_str() => {
            Err(ClusterError::OtherName { folder, has: own.name.as_str().to_owned(), name: name.clone() })
        }
        _ => Ok(identity),
    }
}

/// Whether a token is for the cluster whose certificate a folder has.
fn same_cluster(folder: &Path, identity: &Identity, token: &JoinToken) -> Result<(), ClusterError> {
    if token.authority() == identity.trust().fingerprint() {
        return Ok(());
    }
    let (has, token) = (identity.own().cluster.to_string(), token.cluster().to_string());
    Err(ClusterError::OtherCluster { folder: folder.to_owned(), has, token })
}

/// Which node is joined: the one that is named, which is kept, or the one that was before.
fn joined(options: &ClusterOptions) -> Result<Option<NodeAddress>, ClusterError> {
    let path = options.data.join(JOINED);
    if let Some((name, _)) = &options.join {
        write_atomically(&path, name.to_string().as_bytes()).map_err(|e| ClusterError::Folder(path, e))?;
        return Ok(Some(name.clone()));
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse() {
            Ok(name) => Ok(Some(name)),
            Err(e) => Err(ClusterError::Folder(path, std::io::Error::other(format!("`{}`: {e}", text.trim())))),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ClusterError::Folder(path, e)),
    }
}

/// What has what must survive: etcd, the founder, or, at the founder, a file. It is tried for so long.
async fn open_store(
    options: &ClusterOptions,
    founder: Option<&Arc<store::Founder>>,
    is_founder: bool,
    time: Duration,
) -> Result<Arc<dyn MetaStore>, ClusterError> {
    if let Some(address) = &options.meta {
        let address = address.parse::<EtcdAddress>()?;
        let connect = async || {
            let seed = Seed::new(u64::from(std::process::id()));
            Ok(EtcdStore::connect(&address, MetaLimits::default(), EtcdTimeouts::default(), seed).await?)
        };
        let etcd = reach::aloud(options.meta.as_deref().unwrap_or("etcd"), time, reach::patiently(time, connect));
        return Ok(Arc::new(etcd.await?));
    }
    match founder {
        Some(founder) => {
            let connected = reach::patiently(time, async || founder.connection().await);
            reach::aloud(founder.name(), time, connected).await?;
            Ok(Arc::new(store::RemoteStore::new(founder.clone())))
        }
        None if is_founder => {
            let clock = Arc::new(sandbar_meta::SystemClock::default());
            Ok(Arc::new(RedbStore::open(&options.data.join(META), MetaLimits::default(), clock).await?))
        }
        None => Err(ClusterError::NoWay(options.data.clone())),
    }
}

fn name(options: &ClusterOptions, key: &Key) -> Result<Name, ClusterError> {
    let wrong = |text: &str, e| ClusterError::Name(text.to_owned(), e);
    if let Some(name) = &options.name {
        return name.parse().map_err(|e| wrong(name, e));
    }
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_ascii_lowercase();
    let fit: String = machine.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    // Containers of one machine may have its name, and processes of the same numbers.
    let digits: String = key.id().to_string().chars().take(KEY_DIGITS).collect();
    let text = format!("{}-{digits}", fit.trim_matches('-'));
    let text = text.trim_start_matches('-').to_owned();
    text.parse().map_err(|e| wrong(&text, e))
}

/// Where others reach it: where it listens, or, where that is anywhere, by the address that leads to who it joined.
async fn reached(join: Option<&NodeAddress>, endpoint: &Endpoint) -> Result<SocketAddr, ClusterError> {
    let listens = endpoint.address()?;
    if !listens.ip().is_unspecified() {
        return Ok(listens);
    }
    let to = match join {
        Some(name) => reach::resolve(name, ATTEMPT_TIME_MAX).await?,
        // Of the blocks that are for documentation: whatever leads anywhere.
        None => vec![([192, 0, 2, 1], 1).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1).into()],
    };
    // Nothing is sent: the kernel says by which of its addresses it would be.
    let from = |to: &SocketAddr| {
        let socket = std::net::UdpSocket::bind(reach::unspecified(*to)).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok()
    };
    let is_heard = |address: &SocketAddr| address.is_ipv4() || listens.is_ipv6();
    let ip = to.iter().filter_map(from).find(is_heard).map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    Ok(SocketAddr::new(ip, listens.port()))
}

#[cfg(test)]
mod golden;
