//! A store in an etcd cluster, version 3.4 or newer.
//!
//! Calls go to the member that responded last, and to others if it fails. A write is sent once: without a response it
//! fails with [`MetaError::Unknown`]. All other calls are retried until [`EtcdTimeouts::call_ms_max`]. Watches continue
//! at another member from their position.
//!
//! History and size are the cluster's settings: without `--auto-compaction-retention` it grows until its quota is used
//! up, and then rejects writes.

mod address;
mod connection;
mod convert;
mod members;
mod messages;
mod rpc;
mod status;
mod timeouts;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use sandbar_core::Seed;

use self::connection::EtcdConnection;
use self::convert::{Prefix, outcome, revision, signed, unsigned};
use self::members::{Effect, Members};
use self::messages::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest, RangeResponse};
use self::watch::{EtcdWatcher, WatcherSlot};
use crate::{
    EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, LimitKind, MetaError, MetaLimits,
    MetaStore, Revision, RevokeResponse, TransactResponse, Transaction, Watcher,
};

pub use self::address::{EtcdAddress, EtcdTls};
pub use self::timeouts::EtcdTimeouts;

/// Factor by which a read reduces its number of entries after a response was too large.
const FEWER: usize = 8;

/// A store in an etcd cluster.
#[derive(Debug)]
pub struct EtcdStore {
    shared: Arc<EtcdConnection>,
    watchers: Arc<AtomicUsize>,
}

impl EtcdStore {
    /// Connects to a cluster. Reads certificates and keys now and never again. `seed` determines the first member and
    /// the back-off; clients should have different seeds.
    ///
    /// # Errors
    /// [`MetaError::Address`] if a file can't be read or is invalid, [`MetaError::Unavailable`] if no member responds.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub async fn connect(
        address: &EtcdAddress,
        limits: MetaLimits,
        times: EtcdTimeouts,
        seed: Seed,
    ) -> Result<EtcdStore, MetaError> {
        let members = Members::new(address, limits.watchers_max, times, seed)?;
        members.call(Effect::Repeatable, None, rpc::probe).await?;
        let shared = Arc::new(EtcdConnection { members, prefix: Prefix(address.prefix.clone()), limits });
        Ok(EtcdStore { shared, watchers: Arc::default() })
    }

    async fn read(&self, key: bytes::Bytes, range_end: bytes::Bytes, limit: usize) -> Result<RangeResponse, MetaError> {
        let request = RangeRequest { key, range_end, limit: limit as i64, ..Default::default() };
        self.shared.members.call(Effect::Repeatable, None, |channel| rpc::range(channel, request.clone())).await
    }
}

#[async_trait]
impl MetaStore for EtcdStore {
    fn limits(&self) -> &MetaLimits {
        &self.shared.limits
    }

    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError> {
        let response = self.read(self.shared.prefix.key(key), bytes::Bytes::new(), 1).await?;
        let entry = response.kvs.into_iter().next().and_then(|kv| self.shared.prefix.entry(kv));
        Ok(GetResponse { revision: revision(response.header), entry })
    }

    async fn range(&self, span: &KeyRange, limit: usize) -> Result<EntryPage, MetaError> {
        let (from, to) = self.shared.prefix.span(span);
        let mut entries_max = self.shared.limits.page_entries(limit);
        // etcd limits the entries of a response, not its bytes.
        let response = loop {
            // Reads one more entry to find the start of the next page.
            match self.read(from.clone(), to.clone(), entries_max + 1).await {
                Err(MetaError::Limit { bound: LimitKind::ResponseBytes, .. }) if entries_max > 1 => {
                    entries_max = (entries_max / FEWER).max(1);
                }
                other => break other?,
            }
        };
        let (mut bytes, mut next) = (0, None);
        let mut entries = Vec::new();
        for entry in response.kvs.into_iter().filter_map(|kv| self.shared.prefix.entry(kv)) {
            bytes += entry.bytes();
            let is_full = entries.len() == entries_max || bytes > self.shared.limits.page_bytes_max;
            if is_full && !entries.is_empty() {
                next = Some(entry.key);
                break;
            }
            entries.push(entry);
        }
        Ok(EntryPage { revision: revision(response.header), entries, next })
    }

    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError> {
        transaction.check(&self.shared.limits)?;
        let effect = if transaction.is_read() { Effect::Repeatable } else { Effect::Once };
        let request = self.shared.prefix.transaction(&transaction);
        // etcd's error does not name the lease that it does not know.
        let lease = transaction.lease();
        let response =
            self.shared.members.call(effect, lease, |channel| rpc::transact(channel, request.clone())).await?;
        Ok(TransactResponse {
            revision: revision(response.header),
            succeeded: response.succeeded,
            outcomes: response.responses.into_iter().map(outcome).collect(),
        })
    }

    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError> {
        self.shared.limits.check_lease(ttl_s, 0)?;
        let request = LeaseGrantRequest { ttl: ttl_s.into() };
        // Repeatable: a lease that no client knows ends by itself.
        let call = self.shared.members.call(Effect::Repeatable, None, |channel| rpc::grant(channel, request.clone()));
        let granted = call.await?;
        let ttl_s = granted.ttl.try_into().unwrap_or(ttl_s);
        Ok(GrantResponse { revision: revision(granted.header), lease: LeaseId(unsigned(granted.id)), ttl_s })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError> {
        let request = LeaseKeepAliveRequest { id: signed(lease.0) };
        let call = self
            .shared
            .members
            .call(Effect::Repeatable, Some(lease), |channel| rpc::keep_alive(channel, request.clone()));
        let kept = call.await?;
        // This call reports a missing lease by a time of zero, where other calls return an error.
        match u32::try_from(kept.ttl) {
            Ok(ttl_s) if ttl_s > 0 => Ok(KeepAliveResponse { revision: revision(kept.header), ttl_s }),
            _ => Err(MetaError::LeaseNotFound(lease)),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError> {
        let request = LeaseRevokeRequest { id: signed(lease.0) };
        let call = self.shared.members.call(Effect::Once, Some(lease), |channel| rpc::revoke(channel, request.clone()));
        Ok(RevokeResponse { revision: revision(call.await?.header) })
    }

    async fn watch(&self, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        let slot = WatcherSlot::take(&self.watchers, self.shared.limits.watchers_max)?;
        let mut watcher = EtcdWatcher::new(self.shared.clone(), slot, span, from);
        watcher.open().await?;
        Ok(Box::new(watcher))
    }
}
