//! Executes write requests in order. Requests that wait together share one durable commit, because the sync to disk
//! dominates the time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::Shared;
use super::batch::Batch;
use crate::log::Commit;
use crate::{Granted, LeaseId, MetaError, Revoked, Transacted, Transaction};

/// A request to the writer.
#[derive(Debug)]
pub(super) enum Work {
    Transact(Transaction),
    /// Period in seconds.
    Grant(u32),
    Revoke(LeaseId),
    /// Ends expired leases, which precedes every request anyway.
    EndOverdue,
}

/// Response to a write request.
#[derive(Debug)]
pub(super) enum Done {
    Transacted(Transacted),
    Granted(Granted),
    Revoked(LeaseId, Revoked),
    Ended,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Result<Done, MetaError>>,
}

/// Runs the writer until all senders are gone.
pub(super) async fn write(shared: Arc<Shared>, mut jobs: mpsc::Receiver<Job>) {
    let together_max = shared.limits.requests_together_max;
    loop {
        let mut batch = Vec::new();
        if jobs.recv_many(&mut batch, together_max).await == 0 {
            return;
        }
        let shared = shared.clone();
        // A blocking task outlives a runtime's shutdown: requests in progress are written, though not answered.
        if spawn_blocking(move || shared.write(batch)).await.is_err() {
            return;
        }
    }
}

/// Result of a batch: a response for each request, and the changes.
type Written = (Vec<Result<Done, MetaError>>, Vec<Commit>);

/// Failure of a batch.
enum Failed {
    /// Nothing was written.
    Before(MetaError),
    /// The batch may be on disk.
    During(MetaError),
}

impl Shared {
    fn write(&self, jobs: Vec<Job>) {
        let answers = match self.broken.get() {
            Some(error) => Err(Failed::Before(error.clone())),
            // The library may panic over a file that another process modifies.
            None => catch_unwind(AssertUnwindSafe(|| self.write_together(&jobs)))
                .unwrap_or_else(|_| Err(Failed::During(self.file.damaged("its pages contradict each other")))),
        };
        match answers {
            // A requester that is gone needs no response.
            Ok(answers) => jobs.into_iter().zip(answers).for_each(|(job, answer)| drop(job.reply.send(answer))),
            Err(failed) => {
                let error = match failed {
                    Failed::Before(error) => error,
                    Failed::During(error) => {
                        let unknown = MetaError::Unknown {
                            endpoints: vec![self.file.path.display().to_string()],
                            reason: error.to_string(),
                        };
                        // The state in memory may be wrong from here on.
                        let _ = self.broken.set(error);
                        unknown
                    }
                };
                jobs.into_iter().for_each(|job| drop(job.reply.send(Err(error.clone()))));
            }
        }
    }

    fn write_together(&self, jobs: &[Job]) -> Result<Vec<Result<Done, MetaError>>, Failed> {
        let overdue = self.leases().overdue(self.clock.now());
        let (answers, commits) = self.commit(jobs, &overdue)?;
        let now = self.clock.now();
        let mut leases = self.leases();
        overdue.iter().for_each(|lease| _ = leases.end(*lease));
        for done in answers.iter().flatten() {
            match done {
                Done::Granted(granted) => leases.begin(granted.lease, granted.ttl_s, now),
                Done::Revoked(lease, _) => _ = leases.end(*lease),
                Done::Transacted(_) | Done::Ended => {}
            }
        }
        drop(leases);
        self.leases_changed.notify_one();
        self.log.publish(commits);
        Ok(answers)
    }

    /// Executes a batch in one transaction of the file. On success it is on disk.
    fn commit(&self, jobs: &[Job], overdue: &[LeaseId]) -> Result<Written, Failed> {
        let before = |e: redb::TransactionError| Failed::Before(self.file.fault("write", e));
        let write = self.database.begin_write().map_err(before)?;
        let work = || {
            let mut batch = Batch::new(&self.file, &self.limits, &write)?;
            for lease in overdue {
                batch.end_lease(*lease)?;
            }
            let answers = jobs.iter().map(|job| batch.work(&job.work)).collect::<Result<Vec<_>, _>>()?;
            Ok((answers, batch.finish(&self.log)?))
        };
        match work() {
            Ok((answers, Some(commits))) => {
                write.commit().map_err(|e| Failed::During(self.file.fault("write", e)))?;
                Ok((answers, commits))
            }
            // Nothing to write; a failing abort leaves nothing behind.
            Ok((answers, None)) => {
                let _ = write.abort();
                Ok((answers, Vec::new()))
            }
            Err(error) => {
                let _ = write.abort();
                Err(Failed::Before(error))
            }
        }
    }
}
