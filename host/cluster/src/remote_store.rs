//! The cluster's store on a node that does not have it: requests to the founder.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbar_meta::{
    Change, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, MetaError, MetaLimits,
    MetaStore, Revision, RevokeResponse, TransactResponse, Transaction, Watcher,
};
use sandbar_wire::{CloseCode, ConnectError, Connection, DisconnectReason, ExpectedPeer};
use serde::de::DeserializeOwned;

use crate::addresses::NodeAddress;
use crate::attempts::connect_first;
use crate::dialer::Dialer;
use crate::error::ClusterError;
use crate::node_requests::NodeRequest;

/// Maximum time until the founder responds.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time to connect to an address of the founder.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(6);
/// Minimum time for which the founder must report that another node has this one's name.
const REPLACED_TIME_MIN: Duration = Duration::from_secs(5);

/// The connection to the founder.
pub(crate) struct FounderConnection {
    dialer: Arc<Dialer>,
    address: NodeAddress,
    last: Mutex<LastAttempt>,
}

/// Outcome of the last attempt to connect.
#[derive(Default)]
struct LastAttempt {
    connection: Option<Connection>,
    rejection: Option<Rejection>,
}

/// Why the founder rejects this node.
struct Rejection {
    code: CloseCode,
    reason: String,
    /// Time of the first rejection with this code.
    since: Instant,
}

impl FounderConnection {
    pub(crate) fn new(dialer: Arc<Dialer>, address: NodeAddress) -> FounderConnection {
        FounderConnection { dialer, address, last: Mutex::default() }
    }

    pub(crate) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Returns the open connection, or a new one to the name's current addresses.
    pub(crate) async fn get(&self) -> Result<Connection, ClusterError> {
        let open = self.last().connection.clone().filter(|connection| !connection.is_closed());
        if let Some(connection) = open {
            return Ok(connection);
        }
        let attempt = async |address| Ok(self.dialer.connect(address, &ExpectedPeer::AnyNode).await?);
        let done = connect_first(&self.address, CONNECT_TIME_MAX, attempt).await;
        let last = &mut *self.last();
        match &done {
            Ok((_, connection)) => *last = LastAttempt { connection: Some(connection.clone()), rejection: None },
            Err(ClusterError::Connect(ConnectError::Refused {
                reason: DisconnectReason::Closed { code, reason },
                ..
            })) => {
                let since = last.rejection.as_ref().filter(|last| last.code == *code).map(|last| last.since);
                let since = since.unwrap_or_else(Instant::now);
                last.rejection = Some(Rejection { code: *code, reason: reason.clone(), since });
            }
            Err(_) => last.rejection = None,
        }
        done.map(|(_, connection)| connection)
    }

    /// Returns why this node is no longer a member, if the founder rejects it for that.
    pub(crate) fn exclusion(&self) -> Option<String> {
        let last = self.last();
        let Rejection { code, reason, since } = last.rejection.as_ref()?;
        match code {
            CloseCode::Revoked => Some(format!("it was removed from its cluster: {reason}")),
            // Two concurrent connections of one node get this code for a moment, too.
            CloseCode::Replaced if since.elapsed() > REPLACED_TIME_MIN => {
                Some(format!("another node has its name now: {reason}"))
            }
            _ => None,
        }
    }

    fn last(&self) -> MutexGuard<'_, LastAttempt> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store of the founder.
pub(crate) struct RemoteStore {
    founder: Arc<FounderConnection>,
    limits: MetaLimits,
}

impl RemoteStore {
    pub(crate) fn new(founder: Arc<FounderConnection>) -> RemoteStore {
        RemoteStore { founder, limits: MetaLimits::default() }
    }

    async fn request<T: DeserializeOwned>(&self, operation: &NodeRequest) -> Result<T, MetaError> {
        request(&self.founder, operation).await
    }
}

async fn request<T: DeserializeOwned>(founder: &FounderConnection, operation: &NodeRequest) -> Result<T, MetaError> {
    let endpoints = || vec![founder.address.to_string()];
    let unavailable = |reason: String| MetaError::Unavailable { endpoints: endpoints(), reason };
    // Whether the founder executed the operation is unknown.
    let unknown = |reason: String| match operation {
        NodeRequest::Transact(_) | NodeRequest::Revoke(_) => MetaError::Unknown { endpoints: endpoints(), reason },
        _ => MetaError::Unavailable { endpoints: endpoints(), reason },
    };
    let bytes = postcard::to_stdvec(operation).map_err(|e| unavailable(e.to_string()))?;
    let connection = founder.get().await.map_err(|e| unavailable(e.to_string()))?;
    let response = connection.request(&bytes, RESPONSE_TIME_MAX).await.map_err(|e| unknown(e.to_string()))?;
    postcard::from_bytes::<Result<T, MetaError>>(&response).map_err(|e| unknown(e.to_string()))?
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({})", self.founder.address)
    }
}

#[async_trait]
impl MetaStore for RemoteStore {
    fn limits(&self) -> &MetaLimits {
        &self.limits
    }

    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError> {
        self.request(&NodeRequest::Get(key.clone())).await
    }

    async fn range(&self, range: &KeyRange, limit: usize) -> Result<EntryPage, MetaError> {
        self.request(&NodeRequest::Range(range.clone(), limit as u64)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError> {
        self.request(&NodeRequest::Transact(transaction)).await
    }

    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError> {
        self.request(&NodeRequest::Grant(ttl_s)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError> {
        self.request(&NodeRequest::KeepAlive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError> {
        self.request(&NodeRequest::Revoke(lease)).await
    }

    async fn watch(&self, range: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        Ok(Box::new(RemoteWatcher { founder: self.founder.clone(), range: range.clone(), from }))
    }
}

/// Watches by repeated requests, which the founder answers at the next change or after some seconds.
struct RemoteWatcher {
    founder: Arc<FounderConnection>,
    range: KeyRange,
    from: Revision,
}

impl fmt::Debug for RemoteWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteWatcher({}, {})", self.founder.address, self.from)
    }
}

#[async_trait]
impl Watcher for RemoteWatcher {
    async fn next(&mut self) -> Result<Vec<Change>, MetaError> {
        loop {
            let watch = NodeRequest::Watch(self.range.clone(), self.from);
            let (changes, next): (Vec<Change>, Revision) = request(&self.founder, &watch).await?;
            self.from = next;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn position(&self) -> Revision {
        self.from
    }
}
