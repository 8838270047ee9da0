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
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use redb::Database;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use self::schema::{File, Loaded, Reader};
use self::writer::{Done, Job, Work};
use crate::leases::Leases;
use crate::log::Log;
use crate::{
    Clock, Got, Granted, KeptAlive, Key, LeaseId, MetaError, MetaLimits, MetaStore, Page, Revision, Revoked, Span,
    Transacted, Transaction, Watcher,
};

/// A store in a local file.
#[derive(Debug)]
pub struct Redb {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    /// Tasks that end expired leases and write. Both end with the store.
    tasks: [JoinHandle<()>; 2],
}

#[derive(Debug)]
struct Shared {
    file: File,
    database: Database,
    limits: MetaLimits,
    clock: Arc<dyn Clock>,
    leases: Mutex<Leases>,
    /// Signals that the next expiry time may have changed.
    leases_changed: Notify,
    log: Arc<Log>,
    /// Error after which the store rejects all writes.
    broken: OnceLock<MetaError>,
}

impl Redb {
    /// Opens the file, or creates it with an empty store; its folder must exist. Reads the whole file once to verify
    /// that it is undamaged.
    ///
    /// # Errors
    /// [`MetaError::InUse`], [`MetaError::NotAStore`], [`MetaError::NewerSchema`], [`MetaError::Damaged`] or
    /// [`MetaError::File`], each with the path.
    pub async fn open(path: &Path, limits: MetaLimits, clock: Arc<dyn Clock>) -> Result<Redb, MetaError> {
        let file = File::new(path);
        let opened = spawn_blocking(move || open::open(&file, &limits).map(|opened| (file, opened))).await;
        let (file, (database, loaded)) = opened.map_err(|_| MetaError::Closed)??;
        Ok(Redb::over(file, database, loaded, limits, clock))
    }

    fn over(file: File, database: Database, loaded: Loaded, limits: MetaLimits, clock: Arc<dyn Clock>) -> Redb {
        let mut leases = Leases::default();
        loaded.leases.into_iter().for_each(|(id, ttl_s)| leases.begin(id, ttl_s, clock.now()));
        let shared = Arc::new(Shared {
            file,
            database,
            limits,
            clock,
            leases: Mutex::new(leases),
            leases_changed: Notify::new(),
            log: Log::new(loaded.history, limits),
            broken: OnceLock::new(),
        });
        let (jobs, waiting) = mpsc::channel(limits.requests_waiting_max);
        let writing = tokio::spawn(writer::write(shared.clone(), waiting));
        let ending = tokio::spawn(end_leases(shared.clone(), jobs.downgrade()));
        Redb { shared, jobs, tasks: [ending, writing] }
    }

    /// Closes the file after all pending requests. Afterwards another process may open it.
    pub async fn close(mut self) {
        let shared = self.shared.clone();
        self.jobs = mpsc::channel(1).0;
        let [ending, writing] = &mut self.tasks;
        ending.abort();
        // An aborted task returns a join error.
        let _ = ending.await;
        let _ = writing.await;
        drop(self);
        let _ = spawn_blocking(move || drop(shared)).await;
    }

    async fn ask(&self, work: Work) -> Result<Done, MetaError> {
        ask(&self.jobs, work).await
    }

    /// Ends expired leases before a read.
    async fn settle(&self) -> Result<(), MetaError> {
        let is_overdue = self.shared.leases().next_end().is_some_and(|end| end <= self.shared.clock.now());
        if is_overdue {
            self.ask(Work::EndOverdue).await?;
        }
        Ok(())
    }

    fn reader(&self) -> Result<Reader<'_>, MetaError> {
        Reader::new(&self.shared.file, &self.shared.database)
    }
}

async fn ask(jobs: &mpsc::Sender<Job>, work: Work) -> Result<Done, MetaError> {
    let (reply, answer) = oneshot::channel();
    jobs.send(Job { work, reply }).await.map_err(|_| MetaError::Closed)?;
    answer.await.map_err(|_| MetaError::Closed)?
}

/// Ends leases when they expire. Runs until the store is dropped.
async fn end_leases(shared: Arc<Shared>, jobs: mpsc::WeakSender<Job>) {
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
                let Some(jobs) = jobs.upgrade() else { return };
                // Requests report a file that can't be written.
                if ask(&jobs, Work::EndOverdue).await.is_err() {
                    return;
                }
            }
            () = shared.leases_changed.notified() => {}
        }
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        // The writer ends by itself after its pending requests: its senders are gone.
        self.tasks[0].abort();
        self.shared.log.close();
    }
}

impl Shared {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl MetaStore for Redb {
    fn limits(&self) -> &MetaLimits {
        &self.shared.limits
    }

    async fn get(&self, key: &Key) -> Result<Got, MetaError> {
        self.settle().await?;
        let reader = self.reader()?;
        Ok(Got { revision: reader.revision, entry: reader.entry(key)? })
    }

    async fn range(&self, span: &Span, limit: usize) -> Result<Page, MetaError> {
        self.settle().await?;
        let (shared, span) = (self.shared.clone(), span.clone());
        let read = move || Reader::new(&shared.file, &shared.database)?.page(&span, limit, &shared.limits);
        spawn_blocking(read).await.map_err(|_| MetaError::Closed)?
    }

    async fn transact(&self, transaction: Transaction) -> Result<Transacted, MetaError> {
        transaction.check(&self.shared.limits)?;
        match self.ask(Work::Transact(transaction)).await? {
            Done::Transacted(transacted) => Ok(transacted),
            _ => Err(MetaError::Closed),
        }
    }

    async fn grant(&self, ttl_s: u32) -> Result<Granted, MetaError> {
        match self.ask(Work::Grant(ttl_s)).await? {
            Done::Granted(granted) => Ok(granted),
            _ => Err(MetaError::Closed),
        }
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<KeptAlive, MetaError> {
        self.settle().await?;
        let kept = self.shared.leases().keep_alive(lease, self.shared.clock.now());
        let ttl_s = kept.ok_or(MetaError::LeaseNotFound(lease))?;
        Ok(KeptAlive { revision: self.reader()?.revision, ttl_s })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<Revoked, MetaError> {
        match self.ask(Work::Revoke(lease)).await? {
            Done::Revoked(_, revoked) => Ok(revoked),
            _ => Err(MetaError::Closed),
        }
    }

    async fn watch(&self, span: &Span, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        self.settle().await?;
        self.shared.log.watch(span, from)
    }
}
