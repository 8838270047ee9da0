//! A store in one local file, by redb: it needs no set-up, and survives its node.
//!
//! A transaction is answered once it is on disk; transactions that wait meanwhile share the next commit. Memory use
//! beside the page cache is bounded: the history for watchers, and the leases. The file holds the leases but not their
//! expiry times: after a restart each lease starts its full period again, as etcd's do after a change of leader,
//! because no owner could renew it meanwhile.

mod batch;
mod open;
mod record;
mod schema;
mod store_state;
#[cfg(test)]
mod tests;
mod write_request;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use redb::Database;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use self::schema::{LoadedState, Snapshot, StoreFile};
use self::store_state::StoreState;
use self::write_request::{WriteRequest, WriteResponse};
use self::writer::QueuedWrite;
use crate::change_log::ChangeLog;
use crate::leases::Leases;
use crate::{
    Clock, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId, MetaError, MetaLimits,
    MetaStore, Revision, RevokeResponse, TransactResponse, Transaction, Watcher,
};

/// A store in a local file.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<StoreState>,
    requests: mpsc::Sender<QueuedWrite>,
    /// Tasks that end expired leases and write. Both end with the store.
    tasks: [JoinHandle<()>; 2],
}

impl RedbStore {
    /// Opens the file, or creates it with an empty store; its folder must exist. Reads the whole file once to verify
    /// that it is undamaged.
    ///
    /// # Errors
    /// [`MetaError::InUse`], [`MetaError::NotAStore`], [`MetaError::NewerSchema`], [`MetaError::Damaged`] or
    /// [`MetaError::File`], each with the path.
    pub async fn open(path: &Path, limits: MetaLimits, clock: Arc<dyn Clock>) -> Result<RedbStore, MetaError> {
        let file = StoreFile::new(path);
        let opened = spawn_blocking(move || open::open(&file, &limits).map(|opened| (file, opened))).await;
        let (file, (database, loaded)) = opened.map_err(|_| MetaError::Closed)??;
        Ok(RedbStore::over(file, database, loaded, limits, clock))
    }

    fn over(
        file: StoreFile,
        database: Database,
        loaded: LoadedState,
        limits: MetaLimits,
        clock: Arc<dyn Clock>,
    ) -> RedbStore {
        let mut leases = Leases::default();
        loaded.leases.into_iter().for_each(|(id, ttl_s)| leases.begin(id, ttl_s, clock.now()));
        let shared = Arc::new(StoreState {
            file,
            database,
            limits,
            clock,
            leases: Mutex::new(leases),
            leases_changed: Notify::new(),
            log: ChangeLog::new(loaded.history, limits),
            fatal_error: OnceLock::new(),
        });
        let (requests, waiting) = mpsc::channel(limits.requests_waiting_max);
        let writing = tokio::spawn(writer::write(shared.clone(), waiting));
        let ending = tokio::spawn(end_leases(shared.clone(), requests.downgrade()));
        RedbStore { shared, requests, tasks: [ending, writing] }
    }

    /// Closes the file after all pending requests. Afterwards another process may open it.
    pub async fn close(mut self) {
        let shared = self.shared.clone();
        self.requests = mpsc::channel(1).0;
        let [ending, writing] = &mut self.tasks;
        ending.abort();
        // An aborted task returns a join error.
        let _ = ending.await;
        let _ = writing.await;
        drop(self);
        let _ = spawn_blocking(move || drop(shared)).await;
    }

    async fn submit(&self, request: WriteRequest) -> Result<WriteResponse, MetaError> {
        submit(&self.requests, request).await
    }

    /// Ends expired leases before a read.
    async fn expire_leases(&self) -> Result<(), MetaError> {
        let is_overdue = self.shared.leases().next_end().is_some_and(|end| end <= self.shared.clock.now());
        if is_overdue {
            self.submit(WriteRequest::ExpireLeases).await?;
        }
        Ok(())
    }

    fn reader(&self) -> Result<Snapshot<'_>, MetaError> {
        Snapshot::new(&self.shared.file, &self.shared.database)
    }
}

async fn submit(requests: &mpsc::Sender<QueuedWrite>, request: WriteRequest) -> Result<WriteResponse, MetaError> {
    let (reply, response) = oneshot::channel();
    requests.send(QueuedWrite { request, reply }).await.map_err(|_| MetaError::Closed)?;
    response.await.map_err(|_| MetaError::Closed)?
}

/// Ends leases when they expire. Runs until the store is dropped.
async fn end_leases(shared: Arc<StoreState>, requests: mpsc::WeakSender<QueuedWrite>) {
    loop {
        let next = shared.leases().next_end();
        let end = async {
            match next {
                Some(end) => shared.clock.sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = end => {
                let Some(requests) = requests.upgrade() else { return };
                // Requests report a file that can't be written.
                if submit(&requests, WriteRequest::ExpireLeases).await.is_err() {
                    return;
                }
            }
            () = shared.leases_changed.notified() => {}
        }
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // All senders are dropped, so the writer ends after its pending requests.
        self.tasks[0].abort();
        self.shared.log.close();
    }
}

#[async_trait]
impl MetaStore for RedbStore {
    fn limits(&self) -> &MetaLimits {
        &self.shared.limits
    }

    async fn get(&self, key: &Key) -> Result<GetResponse, MetaError> {
        self.expire_leases().await?;
        let reader = self.reader()?;
        Ok(GetResponse { revision: reader.revision, entry: reader.entry(key)? })
    }

    async fn range(&self, span: &KeyRange, limit: usize) -> Result<EntryPage, MetaError> {
        self.expire_leases().await?;
        let (shared, span) = (self.shared.clone(), span.clone());
        let read = move || Snapshot::new(&shared.file, &shared.database)?.page(&span, limit, &shared.limits);
        spawn_blocking(read).await.map_err(|_| MetaError::Closed)?
    }

    async fn transact(&self, transaction: Transaction) -> Result<TransactResponse, MetaError> {
        transaction.check(&self.shared.limits)?;
        match self.submit(WriteRequest::Transact(transaction)).await? {
            WriteResponse::Transact(transacted) => Ok(transacted),
            _ => Err(MetaError::Closed),
        }
    }

    async fn grant(&self, ttl_s: u32) -> Result<GrantResponse, MetaError> {
        match self.submit(WriteRequest::Grant(ttl_s)).await? {
            WriteResponse::Grant(granted) => Ok(granted),
            _ => Err(MetaError::Closed),
        }
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeepAliveResponse, MetaError> {
        self.expire_leases().await?;
        let kept = self.shared.leases().keep_alive(lease, self.shared.clock.now());
        let ttl_s = kept.ok_or(MetaError::LeaseNotFound(lease))?;
        Ok(KeepAliveResponse { revision: self.reader()?.revision, ttl_s })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<RevokeResponse, MetaError> {
        match self.submit(WriteRequest::Revoke(lease)).await? {
            WriteResponse::Revoke(_, revoked) => Ok(revoked),
            _ => Err(MetaError::Closed),
        }
    }

    async fn watch(&self, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        self.expire_leases().await?;
        self.shared.log.watch(span, from)
    }
}
