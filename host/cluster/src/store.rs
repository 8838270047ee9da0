//! The cluster's store, for nodes that do not have it: they ask its founder.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbar_meta::{
    Change, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, MetaError, MetaLimits,
    MetaStore, Revision, RevokeResponse, TransactResponse, Transaction, Watcher,
};
use sandbar_wire::{CloseCode, ConnectError, Connection, DisconnectReason, ExpectedPeer};
use serde::Deserialize;

use super::ClusterError;
use super::asks::Ask;
use super::links::Dialer;
use super::reach::{NodeAddress, first};

/// An answer is waited for so long.
const TIME_MAX: Duration = Duration::from_secs(10);
/// A connection to the founder is made within this, whatever addresses its name stands for.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(6);
/// A node that is told for so long that another has its name believes it.
const REPLACED_TIME_MIN: Duration = Duration::from_secs(5);

/// The node that has the store, and the connection to it.
pub(super) struct Founder {
    dialer: Arc<Dialer>,
    name: NodeAddress,
    last: Mutex<Last>,
}

/// What came of the last attempt to connect.
#[derive(Default)]
struct Last {
    connection: Option<Connection>,
    /// That node does not let this one in, and why, since when.
    shut_out: Option<(CloseCode, String, Instant)>,
}

impl Founder {
    pub(super) fn new(dialer: Arc<Dialer>, name: NodeAddress) -> Founder {
        Founder { dialer, name, last: Mutex::default() }
    }

    pub(super) fn name(&self) -> &NodeAddress {
        &self.name
    }

    /// The connection that there is, or a new one. A name may stand for another address than before.
    pub(super) async fn connection(&self) -> Result<Connection, ClusterError> {
        let made = self.last().connection.clone().filter(|connection| !connection.is_closed());
        if let Some(connection) = made {
            return Ok(connection);
        }
        let attempt = async |address| Ok(self.dialer.connect(address, &ExpectedPeer::AnyNode).await?);
        let done = first(&self.name, CONNECT_TIME_MAX, attempt).await;
        let last = &mut *self.last();
        match &done {
            Ok((_, connection)) => *last = Last { connection: Some(connection.clone()), shut_out: None },
            Err(ClusterError::Connect(ConnectError::Refused {
                reason: DisconnectReason::Closed { code, reason },
                ..
            })) => {
                let since = last.shut_out.as_ref().filter(|(before, ..)| before == code).map(|(.., since)| *since);
                last.shut_out = Some((*code, reason.clone(), since.unwrap_or_else(Instant::now)));
            }
            Err(_) => last.shut_out = None,
        }
        done.map(|(_, connection)| connection)
    }

    /// Why this node is not of the cluster any more, if that node says so.
    pub(super) fn shut_out(&self) -> Option<String> {
        let last = self.last();
        let (code, reason, since) = last.shut_out.as_ref()?;
        match code {
            CloseCode::Revoked => Some(format!("it was removed from its cluster: {reason}")),
            // Of two connections of one node, too, one is told so, for a moment.
            CloseCode::Replaced if since.elapsed() > REPLACED_TIME_MIN => {
                Some(format!("another node has its name now: {reason}"))
            }
            _ => None,
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store of the cluster's founder.
pub(super) struct RemoteStore {
    founder: Arc<Founder>,
    limits: MetaLimits,
}

impl RemoteStore {
    pub(super) fn new(founder: Arc<Founder>) -> RemoteStore {
        RemoteStore { founder, limits: MetaLimits::default() }
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, request: &Ask) -> Result<T, MetaError> {
        ask(&self.founder, request).await
    }
}

async fn ask<T: for<'de> Deserialize<'de>>(founder: &Founder, request: &Ask) -> Result<T, MetaError> {
    let endpoints = || vec![founder.name.to_string()];
    let unavailable = |reason: String| MetaError::Unavailable { endpoints: endpoints(), reason };
    // It may have been done, or not.
    let unknown = |reason: String| match request {
        Ask::Transact(_) | Ask::Revoke(_) => MetaError::Unknown { endpoints: endpoints(), reason },
        _ => MetaError::Unavailable { endpoints: endpoints(), reason },
    };
    let bytes = postcard::to_stdvec(request).map_err(|e| unavailable(e.to_string()))?;
    let connection = founder.connection().await.map_err(|e| unavailable(e.to_string()))?;
    let answer = connection.request(&bytes, TIME_MAX).await.map_err(|e| unknown(e.to_string()))?;
    postcard::from_bytes::<Result<T, MetaError>>(&answer).map_err(|e| unknown(e.to_string()))?
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({})", self.founder.name)
    }
}

#[async_trait]
impl MetaStore for RemoteStore {
    fn limits(&self) -> &MetaLimits {
        &self.limits
    }

    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError> {
        self.ask(&Ask::Get(key.clone())).await
    }

    async fn range(&self, span: &KeyRange, limit: usize) -> Result<EntryPage, MetaError> {
        self.ask(&Ask::Range(span.clone(), limit as u64)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError> {
        self.ask(&Ask::Transact(transaction)).await
    }

    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError> {
        self.ask(&Ask::Grant(ttl_s)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError> {
        self.ask(&Ask::KeepAlive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError> {
        self.ask(&Ask::Revoke(lease)).await
    }

    async fn watch(&self, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        Ok(Box::new(RemoteWatcher { founder: self.founder.clone(), span: span.clone(), from }))
    }
}

/// Asks again and again.
struct RemoteWatcher {
    founder: Arc<Founder>,
    span: KeyRange,
    from: Revision,
}

impl fmt::Debug for RemoteWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteWatcher({}, {})", self.founder.name, self.from)
    }
}

#[async_trait]
impl Watcher for RemoteWatcher {
    async fn next(&mut self) -> Result<Vec<Change>, MetaError> {
        loop {
            let request = Ask::Watch(self.span.clone(), self.from);
            let (changes, next): (Vec<Change>, Revision) = ask(&self.founder, &request).await?;
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
