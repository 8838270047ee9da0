//! Executes write requests in order. Requests that wait together share one durable commit, because the sync to disk
//! dominates the time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::batch::Batch;
use super::store_state::StoreState;
use super::write_request::{WriteRequest, WriteResponse};
use crate::change_log::Commit;
use crate::{LeaseId, MetaError};

#[derive(Debug)]
pub(super) struct QueuedWrite {
    pub(super) request: WriteRequest,
    pub(super) reply: oneshot::Sender<Result<WriteResponse, MetaError>>,
}

/// Runs the writer until all senders are dropped.
pub(super) async fn write(shared: Arc<StoreState>, mut requests: mpsc::Receiver<QueuedWrite>) {
    let batch_max = shared.limits.requests_together_max;
    loop {
        let mut batch = Vec::new();
        if requests.recv_many(&mut batch, batch_max).await == 0 {
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
type BatchResult = (Vec<Result<WriteResponse, MetaError>>, Vec<Commit>);

/// Failure of a batch.
enum BatchFailure {
    /// Nothing was written.
    Before(MetaError),
    /// The batch may be on disk.
    During(MetaError),
}

impl StoreState {
    fn write(&self, requests: Vec<QueuedWrite>) {
        let responses = match self.fatal_error.get() {
            Some(error) => Err(BatchFailure::Before(error.clone())),
            // The library may panic over a file that another process modifies.
            None => catch_unwind(AssertUnwindSafe(|| self.write_batch(&requests)))
                .unwrap_or_else(|_| Err(BatchFailure::During(self.file.damaged("its pages contradict each other")))),
        };
        match responses {
            // Fails if the requester has stopped waiting, which needs no response.
            Ok(responses) => {
                requests.into_iter().zip(responses).for_each(|(request, response)| drop(request.reply.send(response)))
            }
            Err(failed) => {
                let error = match failed {
                    BatchFailure::Before(error) => error,
                    BatchFailure::During(error) => {
                        let unknown = MetaError::Unknown {
                            endpoints: vec![self.file.path.display().to_string()],
                            reason: error.to_string(),
                        };
                        // The state in memory may be wrong from here on.
                        let _ = self.fatal_error.set(error);
                        unknown
                    }
                };
                requests.into_iter().for_each(|request| drop(request.reply.send(Err(error.clone()))));
            }
        }
    }

    fn write_batch(&self, requests: &[QueuedWrite]) -> Result<Vec<Result<WriteResponse, MetaError>>, BatchFailure> {
        let overdue = self.leases().overdue(self.clock.now());
        let (responses, commits) = self.commit(requests, &overdue)?;
        let now = self.clock.now();
        let mut leases = self.leases();
        overdue.iter().for_each(|lease| _ = leases.end(*lease));
        for response in responses.iter().flatten() {
            match response {
                WriteResponse::Grant(granted) => leases.begin(granted.lease, granted.ttl_s, now),
                WriteResponse::Revoke(lease, _) => _ = leases.end(*lease),
                WriteResponse::Transact(_) | WriteResponse::Expired => {}
            }
        }
        drop(leases);
        self.leases_changed.notify_one();
        self.log.publish(commits);
        Ok(responses)
    }

    /// Executes a batch in one transaction of the file. On success it is on disk.
    fn commit(&self, requests: &[QueuedWrite], overdue: &[LeaseId]) -> Result<BatchResult, BatchFailure> {
        let before = |e: redb::TransactionError| BatchFailure::Before(self.file.fault("write", e));
        let write = self.database.begin_write().map_err(before)?;
        let run = || {
            let mut batch = Batch::new(&self.file, &self.limits, &write)?;
            for lease in overdue {
                batch.end_lease(*lease)?;
            }
            let responses =
                requests.iter().map(|request| batch.execute(&request.request)).collect::<Result<Vec<_>, _>>()?;
            Ok((responses, batch.finish(&self.log)?))
        };
        match run() {
            Ok((responses, Some(commits))) => {
                write.commit().map_err(|e| BatchFailure::During(self.file.fault("write", e)))?;
                Ok((responses, commits))
            }
            // Nothing to write; a failing abort leaves nothing behind.
            Ok((responses, None)) => {
                let _ = write.abort();
                Ok((responses, Vec::new()))
            }
            Err(error) => {
                let _ = write.abort();
                Err(BatchFailure::Before(error))
            }
        }
    }
}
