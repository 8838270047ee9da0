//! The in-memory store: the reference for the other stores.

mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::state::State;
use crate::log::{History, Log};
use crate::{
    Clock, Got, Granted, KeptAlive, Key, LeaseId, MetaError, MetaLimits, MetaStore, Page, Revision, Revoked, Span,
    Transacted, Transaction, Watcher,
};

/// A store in the memory of its process.
#[derive(Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    /// Ends expired leases without waiting for a request.
    ending: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    limits: MetaLimits,
    /// Signals that the next expiry time may have changed.
    leases_changed: Notify,
}

impl Memory {
    /// Creates an empty store.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn new(limits: MetaLimits, clock: Arc<dyn Clock>) -> Memory {
        let log = Log::new(History::new(Revision(0), Revision::FIRST), limits);
        let state = Mutex::new(State::new(limits));
        let shared = Arc::new(Shared { state, log, clock, limits, leases_changed: Notify::new() });
        let ending = tokio::spawn(end_leases(shared.clone()));
        Memory { shared, ending }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ending.abort();
        self.shared.log.close();
    }
}

/// Ends leases when they expire. Runs until the store is dropped.
async fn end_leases(shared: Arc<Shared>) {
    loop {
        let next = shared.now_state().leases.next_end();
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
    fn now_state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for lease in state.leases.overdue(self.clock.now()) {
            // Publishes under the lock, so that changes are published in order.
            self.log.publish(state.end_lease(lease).into_iter().collect());
        }
        state
    }
}

#[async_trait]
impl MetaStore for Memory {
    fn limits(&self) -> &MetaLimits {
        &self.shared.limits
    }

    async fn get(&self, key: &Key) -> Result<Got, MetaError> {
        let state = self.shared.now_state();
        Ok(Got { revision: state.revision, entry: state.entries.get(key).cloned() })
    }

    async fn range(&self, span: &Span, limit: usize) -> Result<Page, MetaError> {
        Ok(self.shared.now_state().range(span, limit))
    }

    async fn transact(&self, transaction: Transaction) -> Result<Transacted, MetaError> {
        transaction.check(&self.shared.limits)?;
        let mut state = self.shared.now_state();
        let (answer, commit) = state.transact(&transaction)?;
        self.shared.log.publish(commit.into_iter().collect());
        Ok(answer)
    }

    async fn grant(&self, ttl_s: u32) -> Result<Granted, MetaError> {
        let mut state = self.shared.now_state();
        self.shared.limits.check_lease(ttl_s, state.leases.len())?;
        let lease = state.begin_lease(ttl_s, self.shared.clock.now());
        self.shared.leases_changed.notify_one();
        Ok(Granted { revision: state.revision, lease, ttl_s })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeptAlive, MetaError> {
        let mut state = self.shared.now_state();
        let kept = state.leases.keep_alive(lease, self.shared.clock.now());
        let ttl_s = kept.ok_or(MetaError::LeaseNotFound(lease))?;
        Ok(KeptAlive { revision: state.revision, ttl_s })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<Revoked, MetaError> {
        let mut state = self.shared.now_state();
        if !state.leases.contains(lease) {
            return Err(MetaError::LeaseNotFound(lease));
        }
        self.shared.log.publish(state.end_lease(lease).into_iter().collect());
        Ok(Revoked { revision: state.revision })
    }

    async fn watch(&self, span: &Span, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        // Ends expired leases first: their deletions belong to the history.
        drop(self.shared.now_state());
        self.shared.log.watch(span, from)
    }
}
