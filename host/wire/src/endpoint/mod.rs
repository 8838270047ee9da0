//! An end of the wire: connects to others, and lets others in.

mod congestion;
mod connect;
mod door;
mod gate;
mod ground;
mod join;
mod joins;
mod peers;
mod renewal;
mod transport;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

pub use connect::{ConnectError, Expect};
pub(crate) use ground::canonical;
pub use ground::{Ground, SOCKET_BUFFER_BYTES};
pub use join::{JoinError, join};
pub use joins::{Admit, Applicant, Registry};
pub use peers::Revoked;
pub(crate) use peers::{Entry, close};
pub(crate) use renewal::Renewals;
pub use transport::transport_config;

use crate::connection::Connection;
use crate::identity::{Identity, IdentityError};
use crate::limits::WireLimits;
use crate::name::Role;
use crate::protocol::{CloseCode, REASON_BYTES_MAX};
use crate::tls::Shown;
use gate::Gate;
use peers::{Direction, Peers};

/// An end of the wire. Clones are the same one; when the last is dropped, its connections are closed.
#[derive(Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

/// What its tasks have in common.
pub(crate) struct Shared {
    quinn: quinn::Endpoint,
    /// A socket to connect from to addresses of the other family, where the first can't, once there was one.
    other: Mutex<Option<quinn::Endpoint>>,
    ground: Ground,
    limits: WireLimits,
    identity: Mutex<Identity>,
    shown: Arc<Shown>,
    client: quinn::ClientConfig,
    gate: Arc<Gate>,
    peers: Arc<Peers>,
    registry: Mutex<Option<Registry>>,
    nodes: mpsc::Sender<Connection>,
    tenants: mpsc::Sender<Connection>,
    accepted: Accepted,
    counts: Counts,
    /// Whether it is closed.
    stopped: watch::Sender<bool>,
}

struct Accepted {
    nodes: tokio::sync::Mutex<mpsc::Receiver<Connection>>,
    tenants: tokio::sync::Mutex<mpsc::Receiver<Connection>>,
}

#[derive(Default)]
struct Counts {
    let_in: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    asked_to_prove: AtomicU64,
    ignored: AtomicU64,
    joined: AtomicU64,
}

/// What happened at an endpoint since it was bound, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Peers that were let in.
    pub let_in: u64,
    /// Peers that proved who they are and were not let in: of another version, revoked, too many.
    pub refused: u64,
    /// Handshakes that failed: of strangers, too slow, malformed.
    pub failed: u64,
    /// Attempts whose sender had to prove its address first.
    pub asked_to_prove: u64,
    /// Attempts that got no answer: too many at once.
    pub ignored: u64,
    /// Strangers that got a certificate.
    pub joined: u64,
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address.
    #[error("{address} can't be listened on: {reason}")]
    Address {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        reason: std::io::Error,
    },
    /// A limit that can't be kept.
    #[error("{0}")]
    Limits(String),
    /// The own identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Certificates that have ended are looked for so often, and revoked ones that raced with it.
const SWEEP: Duration = Duration::from_secs(1);

impl Endpoint {
    /// Listens on an address, and connects from it. Within a tokio runtime. A tenant's endpoint lets nobody in.
    ///
    /// # Errors
    /// When the address can't be bound, a limit can't be kept, or the identity is no good.
    pub fn bind(address: SocketAddr, identity: &Identity, limits: WireLimits) -> Result<Endpoint, BindError> {
        let ground = Ground::udp(address).map_err(|reason| BindError::Address { address, reason })?;
        Endpoint::bind_on(ground, identity, limits)
    }

    /// The same on a ground of one's own: a simulation's socket, runtime and clock.
    ///
    /// # Errors
    /// When a limit can't be kept, or the identity is no good.
    pub fn bind_on(ground: Ground, identity: &Identity, limits: WireLimits) -> Result<Endpoint, BindError> {
        Endpoint::open(ground, identity, limits, None)
    }

    /// The same, of a node that takes in strangers and renews certificates from the first packet on: who comes before
    /// [`serve_joins`](Self::serve_joins) is refused.
    ///
    /// # Errors
    /// As above, or when this end is no node, or the authority is another cluster's.
    pub fn bind_with_joins(
        ground: Ground,
        identity: &Identity,
        limits: WireLimits,
        registry: Registry,
    ) -> Result<Endpoint, BindError> {
        joins::check(identity, &registry)?;
        Endpoint::open(ground, identity, limits, Some(registry))
    }

    fn open(
        ground: Ground,
        identity: &Identity,
        limits: WireLimits,
        registry: Option<Registry>,
    ) -> Result<Endpoint, BindError> {
        limits.check().map_err(BindError::Limits)?;
        let shown = Arc::new(Shown::new(identity)?);
        let server = match identity.own().role {
            Role::Node => {
                let (trust, version) = (identity.trust(), ground.version);
                let joins = registry.is_some();
                Some(transport::server(&limits, &ground.clock, shown.clone(), trust, version, joins)?)
            }
            Role::Tenant => None,
        };
        let (socket, runtime, version) = (ground.socket.clone(), ground.runtime.clone(), ground.version);
        let config = transport::endpoint(&ground, &limits, identity);
        let quinn = quinn::Endpoint::new_with_abstract_socket(config, server, socket, runtime);
        let quinn = quinn.map_err(|reason| BindError::Address { address: ([0; 4], 0).into(), reason })?;
        let (nodes, accepted_nodes) = mpsc::channel(limits.accept_queue_max);
        let (tenants, accepted_tenants) = mpsc::channel(limits.accept_queue_max);
        let shared = Arc::new(Shared {
            quinn,
            other: Mutex::default(),
            ground,
            limits,
            identity: Mutex::new(identity.clone()),
            client: transport::client(&limits, shown.clone(), identity.trust(), version)?,
            shown,
            gate: Gate::new(&limits),
            peers: Peers::new(&limits),
            registry: Mutex::new(registry),
            nodes,
            tenants,
            accepted: Accepted { nodes: accepted_nodes.into(), tenants: accepted_tenants.into() },
            counts: Counts::default(),
            stopped: watch::Sender::new(false),
        });
        tokio::spawn(door::keep(shared.clone()));
        tokio::spawn(sweep(Arc::downgrade(&shared)));
        Ok(Endpoint { handle: Arc::new(Handle { shared }) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.shared().quinn.local_addr()
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// When nobody answers, it is not who was expected, or it does not let this end in.
    pub async fn connect(&self, address: SocketAddr, expect: &Expect) -> Result<Connection, ConnectError> {
        connect::connect(self.shared(), address, expect).await
    }

    /// The next peer of a role that connected and was let in; none when the endpoint is closed. Nodes and tenants wait
    /// in queues of their own: no tenant is ever met where nodes are, and neither holds up the other.
    pub async fn accept(&self, role: Role) -> Option<Connection> {
        let shared = self.shared();
        let queue = match role {
            Role::Node => &shared.accepted.nodes,
            Role::Tenant => &shared.accepted.tenants,
        };
        let mut queue = queue.lock().await;
        tokio::select! {
            biased;
            next = queue.recv() => next,
            () = shared.stopped() => None,
        }
    }

    /// From now on these are revoked, and nobody else. Connections of those who are end.
    pub fn revoke(&self, revoked: Revoked) {
        self.shared().peers.revoke(revoked);
    }

    /// Takes in strangers with tokens, and renews certificates, with the authority's key. From now on.
    ///
    /// # Errors
    /// When this end is no node, or the authority is another cluster's.
    pub fn serve_joins(&self, registry: Registry) -> Result<(), IdentityError> {
        joins::serve(self.shared(), registry)
    }

    /// Asks the node at the other end of a connection for the next certificate, for the same key.
    ///
    /// # Errors
    /// When it does not give one.
    pub async fn renew(&self, connection: &Connection) -> Result<Identity, JoinError> {
        renewal::ask(self.shared(), connection).await
    }

    /// Shows another certificate from now on, of the same key. Connections stay: their peers are told of it, so that they
    /// do not end with the certificate before.
    ///
    /// # Errors
    /// When it is somebody else's, or for another key.
    pub fn show(&self, identity: &Identity) -> Result<(), IdentityError> {
        renewal::show(self.shared(), identity)
    }

    /// What happened here, in numbers.
    pub fn counts(&self) -> EndpointCounts {
        let (counts, get) = (&self.shared().counts, |count: &AtomicU64| count.load(Ordering::Relaxed));
        EndpointCounts {
            let_in: get(&counts.let_in),
            refused: get(&counts.refused),
            failed: get(&counts.failed),
            asked_to_prove: get(&counts.asked_to_prove),
            ignored: get(&counts.ignored),
            joined: get(&counts.joined),
        }
    }

    /// Connections that others made to this end and that are there, and those that this end made.
    pub fn connections(&self) -> (usize, usize) {
        let peers = &self.shared().peers;
        (peers.count(Direction::Incoming), peers.count(Direction::Outgoing))
    }

    /// Closes all connections, and waits until their peers have been told; not for long, whatever they do.
    pub async fn close(&self, reason: &str) {
        let shared = self.shared();
        shared.stop(reason);
        let other = shared.other().clone();
        let idle = async {
            shared.quinn.wait_idle().await;
            if let Some(other) = other {
                other.wait_idle().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), idle).await;
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Shared {
    fn stop(&self, reason: &str) {
        let number = quinn::VarInt::from_u64(CloseCode::Stopping.number()).unwrap_or(quinn::VarInt::MAX);
        let reason = &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)];
        self.peers.all().iter().for_each(congestion::let_through);
        self.quinn.close(number, reason);
        self.other().iter().for_each(|other| other.close(number, reason));
        self.stopped.send_replace(true);
    }

    fn other(&self) -> MutexGuard<'_, Option<quinn::Endpoint>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where an address is connected to: the socket that is listened on, if it can send there, so that a peer sees one
    /// address; otherwise one of the address's family.
    fn towards(&self, address: SocketAddr) -> std::io::Result<quinn::Endpoint> {
        if ground::reaches(self.quinn.local_addr()?, address) {
            return Ok(self.quinn.clone());
        }
        let mut other = self.other();
        if let Some(other) = &*other {
            return Ok(other.clone());
        }
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let ground = Ground { seed: self.ground.seed, ..Ground::udp(SocketAddr::new(any, 0))? };
        let config = transport::endpoint(&ground, &self.limits, &self.identity());
        let bound = quinn::Endpoint::new_with_abstract_socket(config, None, ground.socket.clone(), ground.runtime)?;
        Ok(other.insert(bound).clone())
    }

    /// Waits until the endpoint is closed.
    async fn stopped(&self) {
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry(&self) -> MutexGuard<'_, Option<Registry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sweep(shared: std::sync::Weak<Shared>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.peers.sweep(shared.ground.clock.now());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop("the endpoint is gone");
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?}, {:?})", self.address(), self.connections())
    }
}
