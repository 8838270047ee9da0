//! The in-memory store: the reference for the other stores.

mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::state::StoreState;
use crate::change_log::{ChangeLog, History};
use crate::{
    Clock, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, MetaError, MetaLimits,
    MetaStore, Revision, RevokeResponse, TransactResponse, Transaction, Watcher,
};

/// A store in the memory of its process.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    /// Ends expired leases without waiting for a request.
    ending: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<StoreState>,
    log: Arc<ChangeLog>,
    clock: Arc<dyn Clock>,
    limits: MetaLimits,
    /// Signals that the next expiry time may have changed.
    leases_changed: Notify,
}

impl MemoryStore {
    /// Creates an empty store.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn new(limits: MetaLimits, clock: Arc<dyn Clock>) -> MemoryStore {
        let log = ChangeLog::new(History::new(Revision(0), Revision::FIRST), limits);
        let state = Mutex::new(StoreState::new(limits));
        let shared = Arc::new(Shared { state, log, clock, limits, leases_changed: Notify::new() });
        let ending = tokio::spawn(end_leases(shared.clone()));
        MemoryStore { shared, ending }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.ending.abort();
        self.shared.log.close();
    }
}

/// Ends leases when they expire. Runs until the store is dropped.
async fn end_leases(shared: Arc<Shared>) {
    loop {
        let next = shared.current_state().leases.next_end();
        let end = async {
            match next {
                Some(end) => shared.clock.sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = end => {}
            () = shared.leases_changed.notified() => {}
        }
    }
}

impl Shared {
    /// Locks the state after ending expired leases.
    fn current_state(&self) -> MutexGuard<'_, StoreState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for lease in state.leases.overdue(self.clock.now()) {
            // Publishes under the lock, so that changes are published in order.
            self.log.publish(state.end_lease(lease).into_iter().collect());
        }
        state
    }
}

#[async_trait]
impl MetaStore for MemoryStore {
    fn limits(&self) -> &MetaLimits {
        &self.shared.limits
    }

    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError> {
        let state = self.shared.current_state();
        Ok(GetResponse { revision: state.revision, entry: state.entries.get(key).cloned() })
    }

    async fn range(&self, span: &KeyRange, limit: usize) -> Result<EntryPage, MetaError> {
        Ok(self.shared.current_state().range(span, limit))
    }

    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError> {
        transaction.check(&self.shared.limits)?;
        let mut state = self.shared.current_state();
        let (response, commit) = state.transact(&transaction)?;
        self.shared.log.publish(commit.into_iter().collect());
        Ok(response)
    }

    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError> {
        let mut state = self.shared.current_state();
        self.shared.limits.check_lease(ttl_s, state.leases.len())?;
        let lease = state.begin_lease(ttl_s, self.shared.clock.now());
        self.shared.leases_changed.notify_one();
        Ok(GrantResponse { revision: state.revision, lease, ttl_s })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError> {
        let mut state = self.shared.current_state();
        let kept = state.leases.keep_alive(lease, self.shared.clock.now());
        let ttl_s = kept.ok_or(MetaError::LeaseNotFound(lease))?;
        Ok(KeepAliveResponse { revision: state.revision, ttl_s })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError> {
        let mut state = self.shared.current_state();
        if !state.leases.contains(lease) {
            return Err(MetaError::LeaseNotFound(lease));
        }
        self.shared.log.publish(state.end_lease(lease).into_iter().collect());
        Ok(RevokeResponse { revision: state.revision })
    }

    async fn watch(&self, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        // Ends expired leases first: their deletions belong to the history.
        drop(self.shared.current_state());
        self.shared.log.watch(span, from)
    }
}
