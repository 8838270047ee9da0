//! The interface of metadata stores.

use std::fmt;

use async_trait::async_trait;

use crate::{
    EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, MetaError, MetaLimits, Revision,
    RevokeResponse, TransactResponse, Transaction,
};

/// Durable keys and values in etcd's model. All calls are linearizable: a response reflects the state at some moment
/// during the call, and every later call, from any client, sees its effect.
///
/// Every call ends in bounded time, unless a file's disk blocks. A call that changes something may fail with
/// [`MetaError::Unknown`]; the caller then reads the state to find out whether it was applied.
#[async_trait]
pub trait MetaStore: fmt::Debug + Send + Sync {
    /// Returns the limits of requests and responses.
    fn limits(&self) -> &MetaLimits;

    /// Reads one key.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`], or an error of the store's file or cluster.
    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError>;

    /// Reads the first entries of a range: at most `limit`, and at most a page ([`MetaLimits::page_entries_max`]). A
    /// `limit` of zero reads a page.
    ///
    /// # Errors
    /// Errors of [`MetaStore::get`].
    async fn range(&self, span: &KeyRange, limit: usize) -> Result<EntryPage, MetaError>;

    /// Executes a transaction.
    ///
    /// # Errors
    /// Errors of [`Transaction::check`]; [`MetaError::LeaseNotFound`] if a put names a lease that has ended;
    /// [`MetaError::Full`]; [`MetaError::Unknown`]. Nothing was applied, except possibly for the last.
    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError>;

    /// Grants a lease of `ttl_s` seconds. The owner should keep it alive three times within that period.
    ///
    /// # Errors
    /// [`MetaError::Limit`] if the period is zero or too long, or the store has too many leases.
    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError>;

    /// Renews a lease for its granted period.
    ///
    /// # Errors
    /// [`MetaError::LeaseNotFound`] if the lease has ended: its keys are deleted, or are about to be.
    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError>;

    /// Ends a lease and deletes its keys in one transaction.
    ///
    /// # Errors
    /// [`MetaError::LeaseNotFound`] if the lease has ended already; [`MetaError::Unknown`]: retry.
    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError>;

    /// Watches the keys of a range. Delivers all changes by transactions from revision `from` on, which may be in the
    /// past or in the future.
    ///
    /// # Errors
    /// [`MetaError::Limit`] if the store has too many watchers, [`MetaError::Compacted`] as for [`Watcher::next`].
    async fn watch(&self, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError>;
}

/// Delivers the changes of a range, each once, in the order of their transactions.
#[async_trait]
pub trait Watcher: fmt::Debug + Send {
    /// Waits for the next changes: at least one, and always all changes of a transaction. Cancel-safe.
    ///
    /// # Errors
    /// [`MetaError::Compacted`] if the next part of the history was discarded because the watcher was too slow or
    /// disconnected for too long. The error is permanent: read the range again and watch from the revision after that
    /// read. [`MetaError::Unavailable`] if no member delivers changes: calling again continues from the same position.
    async fn next(&mut self) -> Result<Vec<crate::Change>, MetaError>;

    /// Returns the revision to continue from: all changes by transactions before it were delivered.
    fn position(&self) -> Revision;
}
