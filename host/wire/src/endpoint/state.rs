//! State that an endpoint's tasks share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use super::certificate_issuer::CertificateIssuer;
use super::environment::{EndpointEnvironment, can_reach};
use super::handshake_limiter::HandshakeLimiter;
use super::peers::PeerTable;
use super::transport;
use crate::congestion;
use crate::connection::Connection;
use crate::identity::Identity;
use crate::limits::WireLimits;
use crate::protocol::{CloseCode, REASON_BYTES_MAX};
use crate::tls::CertificateResolver;

/// Maximum wait for a read of the accepted certificates.
const ACCESS_READ_TIME_MAX: Duration = Duration::from_secs(2);

/// State that an endpoint's tasks share.
pub(crate) struct EndpointState {
    pub(super) quinn: quinn::Endpoint,
    /// Socket for addresses of the other family, created when the first socket can't reach one.
    pub(super) other: Mutex<Option<quinn::Endpoint>>,
    pub(super) environment: EndpointEnvironment,
    pub(super) limits: WireLimits,
    pub(super) identity: Mutex<Identity>,
    pub(super) resolver: Arc<CertificateResolver>,
    pub(super) client: quinn::ClientConfig,
    pub(super) limiter: Arc<HandshakeLimiter>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) issuer: Mutex<Option<CertificateIssuer>>,
    pub(super) nodes: mpsc::Sender<Connection>,
    pub(super) tenants: mpsc::Sender<Connection>,
    pub(super) accept_queues: AcceptQueues,
    pub(super) counts: Counters,
    pub(super) access_reads: AccessReads,
    /// Whether the endpoint is closed.
    pub(super) stopped: watch::Sender<bool>,
}

pub(super) struct AcceptQueues {
    pub(super) nodes: tokio::sync::Mutex<mpsc::Receiver<Connection>>,
    pub(super) tenants: tokio::sync::Mutex<mpsc::Receiver<Connection>>,
}

/// Reads of the accepted certificates by the owner of the cluster's state.
#[derive(Default)]
pub(super) struct AccessReads {
    /// Whether the owner waits for requests to read them.
    pub(super) is_served: AtomicBool,
    pub(super) wanted: Notify,
    /// Number of reads so far.
    pub(super) done: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) admitted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) ignored: AtomicU64,
    pub(super) joined: AtomicU64,
}

impl EndpointState {
    pub(super) fn stop(&self, reason: &str) {
        let number = quinn::VarInt::from_u64(CloseCode::Stopping.number()).unwrap_or(quinn::VarInt::MAX);
        let reason = &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)];
        self.peers.all().iter().for_each(congestion::bypass_for_close);
        self.quinn.close(number, reason);
        self.other().iter().for_each(|other| other.close(number, reason));
        self.stopped.send_replace(true);
    }

    /// Has the owner of the cluster's state read the accepted certificates, and waits for it, for a limited time.
    pub(super) async fn read_access(&self) {
        let reads = &self.access_reads;
        if !reads.is_served.load(Relaxed) {
            return;
        }
        let mut done = reads.done.subscribe();
        // The read that is in progress may have begun before the change; the next one has not.
        let enough = done.borrow_and_update().saturating_add(2);
        reads.wanted.notify_one();
        let _ = timeout(ACCESS_READ_TIME_MAX, async {
            while *done.borrow_and_update() < enough && done.changed().await.is_ok() {
                reads.wanted.notify_one();
            }
        })
        .await;
    }

    pub(super) fn other(&self) -> MutexGuard<'_, Option<quinn::Endpoint>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the endpoint to connect to an address from: the listening one if it can reach the address, so that peers
    /// see one source address; otherwise one of the address's family.
    pub(super) fn endpoint_for(&self, address: SocketAddr) -> std::io::Result<quinn::Endpoint> {
        if can_reach(self.quinn.local_addr()?, address) {
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
        let environment =
            EndpointEnvironment { seed: self.environment.seed, ..EndpointEnvironment::udp(SocketAddr::new(any, 0))? };
        let config = transport::endpoint(&environment, &self.limits, &self.identity());
        let bound =
            quinn::Endpoint::new_with_abstract_socket(config, None, environment.socket.clone(), environment.runtime)?;
        Ok(other.insert(bound).clone())
    }

    /// Waits until the endpoint is closed.
    pub(super) async fn stopped(&self) {
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    pub(super) fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn issuer(&self) -> MutexGuard<'_, Option<CertificateIssuer>> {
        self.issuer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointState")
    }
}
