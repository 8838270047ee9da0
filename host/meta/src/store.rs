//! What every store does.

use std::fmt;

use async_trait::async_trait;

use crate::{
    Got, Granted, KeptAlive, Key, LeaseId, MetaError, MetaLimits, Page, Revision, Revoked, Span, Transacted,
    Transaction,
};

/// Keys and values that survive, in etcd's model. Every answer is of what was there when the call was under way, and what
/// was answered is there for every later call, by whomever (linearizability).
///
/// A call ends in bounded time, a file's if its disk does. Those that change something may end with [`MetaError::Unknown`]: then whether they did is
/// to be read back.
#[async_trait]
pub trait MetaStore: fmt::Debug + Send + Sync {
    /// What it takes and hands out.
    fn limits(&self) -> &MetaLimits;

    /// Looks at one key.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`], or what ails the store.
    async fn get(&self, key: &Key) -> Result<Got, MetaError>;

    /// The first entries of a span, at most `limit`, and no more than a page has ([`MetaLimits::page_entries_max`]); a
    /// `limit` of zero is a page.
    ///
    /// # Errors
    /// As of [`MetaStore::get`].
    async fn range(&self, span: &Span, limit: usize) -> Result<Page, MetaError>;

    /// Does what a transaction says.
    ///
    /// # Errors
    /// As of [`Transaction::check`]; [`MetaError::LeaseNotFound`] when what is put is to have a lease that has ended;
    /// [`MetaError::Full`]; [`MetaError::Unknown`]. Nothing has happened unless it is the last.
    async fn transact(&self, transaction: Transaction) -> Result<Transacted, MetaError>;

    /// Begins a lease of so many seconds. Its owner is to keep it alive three times in that while.
    ///
    /// # Errors
    /// [`MetaError::Limit`] when it is to last no time or too long, or there are too many.
    async fn grant(&self, ttl_s: u32) -> Result<Granted, MetaError>;

    /// Lets a lease begin anew, with the seconds that it was granted.
    ///
    /// # Errors
    /// [`MetaError::LeaseNotFound`] when it has ended: its keys are gone, or go.
    async fn keep_alive(&self, lease: LeaseId) -> Result<KeptAlive, MetaError>;

    /// Ends a lease. Its keys go, in one transaction.
    ///
    /// # Errors
    /// [`MetaError::LeaseNotFound`] when it has ended before; [`MetaError::Unknown`]: ask again.
    async fn revoke(&self, lease: LeaseId) -> Result<Revoked, MetaError>;

    /// Watches the keys of a span. What is given are all changes by transactions from `from` on, which may be in the past
    /// or in the future.
    ///
    /// # Errors
    /// [`MetaError::Limit`] when there are too many watchers, [`MetaError::Compacted`] as of [`Watcher::next`].
    async fn watch(&self, span: &Span, from: Revision) -> Result<Box<dyn Watcher>, MetaError>;
}

/// Gives the changes of a span, each once, in the order in which they happened.
#[async_trait]
pub trait Watcher: fmt::Debug + Send {
    /// Waits for the next changes: at least one, and always all that a transaction made. It may be dropped before it has
    /// ended; nothing is lost by that.
    ///
    /// # Errors
    /// [`MetaError::Compacted`] when the history that comes next is gone: who watches was too slow, or away for too long. It
    /// stays so: range the span again and watch from behind what that gave. [`MetaError::Unavailable`] when no change can
    /// be heard of: calling again tries again, from where it was.
    async fn next(&mut self) -> Result<Vec<crate::Change>, MetaError>;

    /// All changes by transactions before this one were given. Where who watches through somebody else would go on.
    fn position(&self) -> Revision;
}
