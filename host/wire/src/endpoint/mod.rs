//! The endpoint of a node or tenant: outgoing and incoming connections over one UDP socket.

mod accept;
mod certificate_issuer;
mod connect;
mod environment;
mod handshake;
mod handshake_limiter;
mod join;
mod join_server;
mod peers;
mod reach;
mod renewal;
mod state;
mod transport;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbar_core::LimitError;
use tokio::sync::{mpsc, watch};

use handshake_limiter::HandshakeLimiter;
use peers::{Direction, PeerTable};
use state::{AcceptQueues, AccessReads, Counters, EndpointState};

use crate::connection::Connection;
use crate::identity::{Identity, IdentityError};
use crate::limits::WireLimits;
use crate::name::Role;
use crate::tls::CertificateResolver;

pub use certificate_issuer::{Applicant, CertificateIssuer, JoinPolicy};
pub use connect::{ConnectError, ExpectedPeer};
pub(crate) use environment::canonical;
pub use environment::{EndpointEnvironment, SOCKET_BUFFER_BYTES};
pub use join::{JoinError, join};
pub(crate) use peers::PeerEntry;
pub use peers::{AcceptedTenants, AccessList};
pub use reach::ReachError;
pub use transport::transport_config;

/// An endpoint. Clones share it; dropping the last clone closes its connections.
#[derive(Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<EndpointState>,
}

/// Counters of an endpoint since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Admitted peers.
    pub admitted: u64,
    /// Authenticated peers that were refused: wrong version, revoked, or over a limit.
    pub refused: u64,
    /// Failed handshakes: without a valid certificate, too slow, or malformed.
    pub failed: u64,
    /// Attempts that had to validate their address first (Retry).
    pub retried: u64,
    /// Attempts that got no answer, as too many were active.
    pub ignored: u64,
    /// Clients that got a certificate.
    pub joined: u64,
}

/// Why an endpoint was not created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address can't be bound.
    #[error("can't listen on {address}: {reason}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A limit is out of range.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// This end's identity is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Interval between checks for expired certificates.
const SWEEP: Duration = Duration::from_secs(1);

impl Endpoint {
    /// Binds an address, to listen and to connect. Must be called within a tokio runtime. A tenant's endpoint accepts
    /// no connections.
    ///
    /// # Errors
    /// The address can't be bound, a limit is out of range, or the identity is invalid.
    pub fn bind(address: SocketAddr, identity: &Identity, limits: WireLimits) -> Result<Endpoint, BindError> {
        let environment = EndpointEnvironment::udp(address).map_err(|reason| BindError::Address { address, reason })?;
        Endpoint::bind_on(environment, identity, limits)
    }

    /// Like [`bind`](Self::bind), on a given environment, such as a simulation's socket, runtime and clock.
    ///
    /// # Errors
    /// A limit is out of range, or the identity is invalid.
    pub fn bind_on(
        environment: EndpointEnvironment,
        identity: &Identity,
        limits: WireLimits,
    ) -> Result<Endpoint, BindError> {
        Endpoint::open(environment, identity, limits, None)
    }

    /// Like [`bind_on`](Self::bind_on), for a node that issues certificates from the first packet on. Clients that try
    /// to join before [`serve_joins`](Self::serve_joins) are refused otherwise.
    ///
    /// # Errors
    /// A limit is out of range, the identity is invalid or not a node's, or the authority is another cluster's.
    pub fn bind_with_joins(
        environment: EndpointEnvironment,
        identity: &Identity,
        limits: WireLimits,
        issuer: CertificateIssuer,
    ) -> Result<Endpoint, BindError> {
        issuer.check(identity)?;
        Endpoint::open(environment, identity, limits, Some(issuer))
    }

    fn open(
        environment: EndpointEnvironment,
        identity: &Identity,
        limits: WireLimits,
        issuer: Option<CertificateIssuer>,
    ) -> Result<Endpoint, BindError> {
        limits.check()?;
        let resolver = Arc::new(CertificateResolver::new(identity)?);
        let server = match identity.own().role {
            Role::Node => {
                let (trust, version) = (identity.trust(), environment.version);
                let joins = issuer.is_some();
                Some(transport::server(&limits, &environment.clock, resolver.clone(), trust, version, joins)?)
            }
            Role::Tenant => None,
        };
        let (socket, runtime, version) = (environment.socket.clone(), environment.runtime.clone(), environment.version);
        let config = transport::endpoint(&environment, &limits, identity);
        let quinn = quinn::Endpoint::new_with_abstract_socket(config, server, socket, runtime);
        let quinn = quinn.map_err(|reason| BindError::Address { address: ([0; 4], 0).into(), reason })?;
        let (nodes, accepted_nodes) = mpsc::channel(limits.accept_queue_max);
        let (tenants, accepted_tenants) = mpsc::channel(limits.accept_queue_max);
        let shared = Arc::new(EndpointState {
            quinn,
            other: Mutex::default(),
            environment,
            limits,
            identity: Mutex::new(identity.clone()),
            client: transport::client(&limits, resolver.clone(), identity.trust(), version)?,
            resolver,
            limiter: HandshakeLimiter::new(&limits),
            peers: PeerTable::new(&limits),
            issuer: Mutex::new(issuer),
            nodes,
            tenants,
            accept_queues: AcceptQueues { nodes: accepted_nodes.into(), tenants: accepted_tenants.into() },
            counts: Counters::default(),
            access_reads: AccessReads::default(),
            stopped: watch::Sender::new(false),
        });
        tokio::spawn(accept::accept_loop(shared.clone()));
        tokio::spawn(sweep(Arc::downgrade(&shared)));
        Ok(Endpoint { handle: Arc::new(Handle { shared }) })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The socket does not return its address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.shared().quinn.local_addr()
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// The node does not answer, is not the expected one, or refuses this end.
    pub async fn connect(&self, address: SocketAddr, expect: &ExpectedPeer) -> Result<Connection, ConnectError> {
        connect::connect(self.shared(), address, expect).await
    }

    /// Returns the next admitted peer of a role; `None` after the endpoint is closed. Nodes and tenants have separate
    /// queues, so that neither delays the other.
    pub async fn accept(&self, role: Role) -> Option<Connection> {
        let shared = self.shared();
        let queue = match role {
            Role::Node => &shared.accept_queues.nodes,
            Role::Tenant => &shared.accept_queues.tenants,
        };
        let mut queue = queue.lock().await;
        tokio::select! {
            biased;
            next = queue.recv() => next,
            () = shared.stopped() => None,
        }
    }

    /// Replaces the list of accepted certificates, and closes the connections of peers with others.
    pub fn set_accepted(&self, accepted: AccessList) {
        self.shared().peers.set_accepted(accepted);
    }

    /// Waits until this end wants the owner of the cluster's state to read the accepted certificates: a tenant presents
    /// one that is not in the list, and may have got it a moment ago. The owner calls
    /// [`confirm_accepted`](Self::confirm_accepted) after each read.
    pub async fn access_wanted(&self) {
        let reads = &self.shared().access_reads;
        reads.is_served.store(true, Ordering::Relaxed);
        reads.wanted.notified().await;
    }

    /// Has the owner of the cluster's state read the accepted certificates, and waits for a read that began after this
    /// call, for a limited time.
    pub async fn read_access(&self) {
        self.shared().read_access().await;
    }

    /// Confirms that the list of accepted certificates is as in the cluster's state.
    pub fn confirm_accepted(&self) {
        self.shared().access_reads.done.send_modify(|count| *count = count.saturating_add(1));
    }

    /// Starts to issue certificates to clients with join tokens, and to renew those of peers.
    ///
    /// # Errors
    /// This end is not a node, or the authority is another cluster's.
    pub fn serve_joins(&self, issuer: CertificateIssuer) -> Result<(), IdentityError> {
        join_server::enable(self.shared(), issuer)
    }

    /// Requests the next certificate for this end's key from a connected node.
    ///
    /// # Errors
    /// The node issues none.
    pub async fn renew(&self, connection: &Connection) -> Result<Identity, JoinError> {
        renewal::request_renewal(self.shared(), connection).await
    }

    /// Presents another certificate, for the same key, from now on. Connections stay open: peers receive the new
    /// certificate, so that they do not close when the old one expires.
    ///
    /// # Errors
    /// The certificate is for another subject or key.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), IdentityError> {
        renewal::set_identity(self.shared(), identity)
    }

    /// Returns the counters.
    pub fn counts(&self) -> EndpointCounts {
        let (counts, get) = (&self.shared().counts, |count: &AtomicU64| count.load(Ordering::Relaxed));
        EndpointCounts {
            admitted: get(&counts.admitted),
            refused: get(&counts.refused),
            failed: get(&counts.failed),
            retried: get(&counts.retried),
            ignored: get(&counts.ignored),
            joined: get(&counts.joined),
        }
    }

    /// Returns the numbers of open incoming and outgoing connections.
    pub fn connections(&self) -> (usize, usize) {
        let peers = &self.shared().peers;
        (peers.count(Direction::Incoming), peers.count(Direction::Outgoing))
    }

    /// Closes all connections, and waits up to a second for their close packets.
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

    fn shared(&self) -> &Arc<EndpointState> {
        &self.handle.shared
    }
}

async fn sweep(shared: std::sync::Weak<EndpointState>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.peers.sweep(shared.environment.clock.now());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop("the endpoint was dropped");
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?}, {:?})", self.address(), self.connections())
    }
}
