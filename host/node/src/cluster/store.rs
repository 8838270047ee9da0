//! The cluster's store, for nodes that do not have it: they ask its founder.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_meta::{
    Change, Got, Granted, KeptAlive, Key, LeaseId, MetaError, MetaLimits, MetaStore, Page, Revision, Revoked, Span,
    Transacted, Transaction, Watcher,
};
use sandbar_wire::{Connection, Expect};
use serde::Deserialize;

use super::ClusterError;
use super::asks::Ask;
use super::links::Dialer;

/// An answer is waited for so long.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The node that has the store, and the connection to it.
pub(super) struct Founder {
    dialer: Arc<Dialer>,
    address: String,
}

/// An address of text: a name may stand for another one later.
pub(super) async fn resolve(text: &str) -> Result<SocketAddr, ClusterError> {
    let nowhere = |reason: String| ClusterError::Nowhere(text.to_owned(), reason);
    let mut found = tokio::net::lookup_host(text).await.map_err(|e| nowhere(e.to_string()))?;
    found.next().ok_or_else(|| nowhere("the name stands for no address".to_owned()))
}

impl Founder {
    pub(super) fn new(dialer: Arc<Dialer>, address: String) -> Founder {
        Founder { dialer, address }
    }

    /// The connection that there is, or a new one.
    pub(super) async fn connection(&self) -> Result<Connection, ClusterError> {
        Ok(self.dialer.connect(resolve(&self.address).await?, &Expect::AnyNode).await?)
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
    let endpoints = || vec![founder.address.clone()];
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
        write!(f, "RemoteStore({})", self.founder.address)
    }
}

#[async_trait]
impl MetaStore for RemoteStore {
    fn limits(&self) -> &MetaLimits {
        &self.limits
    }

    async fn get(&self, key: &Key) -> Result<Got, MetaError> {
        self.ask(&Ask::Get(key.clone())).await
    }

    async fn range(&self, span: &Span, limit: usize) -> Result<Page, MetaError> {
        self.ask(&Ask::Range(span.clone(), limit as u64)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Transacted, MetaError> {
        self.ask(&Ask::Transact(transaction)).await
    }

    async fn grant(&self, ttl_s: u32) -> Result<Granted, MetaError> {
        self.ask(&Ask::Grant(ttl_s)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeptAlive, MetaError> {
        self.ask(&Ask::KeepAlive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<Revoked, MetaError> {
        self.ask(&Ask::Revoke(lease)).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        Ok(Box::new(RemoteWatcher { founder: self.founder.clone(), span: span.clone(), from }))
    }
}

/// Asks again and again.
struct RemoteWatcher {
    founder: Arc<Founder>,
    span: Span,
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
