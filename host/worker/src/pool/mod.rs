//! The node's pool of workers, which take calls from one queue. The pool executes; the node's scheduler decides by granting
//! [leases](Leases) which job's calls run.

mod answer;
mod binding;
mod calls;
mod drive;
mod leases;
mod options;
mod queue;
mod results;
mod running;
mod worker;

use std::io;
use std::sync::Arc;

use sandbar_core::{Code, Fault, JobRun, TenantId};
use sandbar_store::{SegmentDraft, SegmentPool};
use tokio::sync::oneshot;

#[doc(hidden)]
pub use self::answer::fuzz_unpack;
pub use self::binding::{Binding, PLAN_BYTES_MAX};
pub use self::calls::{CallRequest, CallSubmission, Caller};
pub use self::leases::{CallJob, CallScheduler, CallUsage, Lease, Leases};
pub use self::options::PoolOptions;
pub use self::results::{CallProduct, CallResult, CompletedCall, LogLine, SubmissionResult};
pub use self::running::peak_memory_bytes;

use self::calls::{CallRun, LaneId, OWN_LANE, PendingCall};
use self::queue::Queue;
use self::running::RunningWorkers;

/// Workers and their queue. Dropping it ends the workers.
#[derive(Debug)]
pub struct Pool {
    queue: Arc<Queue>,
    options: PoolOptions,
    running: Arc<RunningWorkers>,
}

fn no_workers() -> Fault {
    Fault::new(Code::Host, "the pool has no workers left")
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Pool {
    /// Starts the workers, unless they start on demand. Returns before they are ready.
    pub fn start(options: PoolOptions) -> Pool {
        let queue = Arc::new(Queue::new());
        let running = Arc::new(RunningWorkers::default());
        for index in 0..options.workers.max(1) {
            tokio::spawn(drive::drive(index, options.clone(), queue.register(), running.clone()));
        }
        Pool { queue, options, running }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.options.workers.max(1)
    }

    /// Returns the sum of the workers' peak memory in bytes: an upper bound of their memory at any time, since shared
    /// pages count for each.
    pub fn peak_memory_bytes(&self) -> u64 {
        self.running.peak_memory_bytes()
    }

    /// Returns the tenant of each worker that serves one now.
    pub fn tenants(&self) -> Vec<TenantId> {
        self.running.tenants()
    }

    /// Runs a call of the node itself, which needs no lease. Dropping the future cancels the call if it has not started.
    pub async fn call(&self, request: CallRequest) -> CallResult {
        self.call_in(request, OWN_LANE, None).await
    }

    async fn call_in(&self, request: CallRequest, lane: LaneId, usage: Option<CallUsage>) -> CallResult {
        let (to, answer) = oneshot::channel();
        let CallRequest { binding, seed, work } = request;
        let caller = Caller::once(binding, to, lane, usage);
        match self.enqueue(caller, vec![PendingCall { token: 0, seed, work, losses: None }]) {
            Ok(()) => answer.await.unwrap_or_else(|_| no_workers().into()),
            Err(fault) => fault.into(),
        }
    }

    /// Submits calls of the node itself. Their results are sent to the caller's receiver as they complete, several at a
    /// time. Dropping the receiver cancels them.
    ///
    /// # Errors
    /// When no workers are left.
    pub fn submit(&self, caller: &Arc<Caller>, calls: impl IntoIterator<Item = CallSubmission>) -> Result<(), Fault> {
        let item = |CallSubmission { token, seed, work }| PendingCall { token, seed, work, losses: None };
        self.enqueue(caller.clone(), calls.into_iter().map(item).collect())
    }

    fn enqueue(&self, caller: Arc<Caller>, calls: Vec<PendingCall>) -> Result<(), Fault> {
        self.queue.push(CallRun::new(caller, calls)).map_err(|fault| fault.unwrap_or_else(no_workers))
    }
}

/// The calls of a job on the workers of a pool. They run by the leases of the job, and are of its tenant.
#[derive(Debug, Clone)]
pub struct JobCalls {
    pool: Arc<Pool>,
    lane: Arc<JobLane>,
    tenant: TenantId,
    run: JobRun,
    usage: CallUsage,
    /// Memory of inputs, which no other job reuses: workers may have kept it.
    segments: Arc<SegmentPool>,
}

/// Removes the lane of a job when the job has ended.
#[derive(Debug)]
struct JobLane {
    queue: Arc<Queue>,
    id: LaneId,
}

impl Drop for JobLane {
    fn drop(&mut self) {
        self.queue.remove_lane(self.id);
    }
}

impl JobCalls {
    /// Starts a job on the workers of `pool`.
    ///
    /// # Errors
    /// Fails if the scheduler can't start, or does not accept the job.
    pub fn start(pool: &Arc<Pool>, scheduler: &dyn CallScheduler, job: CallJob) -> Result<JobCalls, Fault> {
        let (tenant, run, usage) = (job.tenant, job.run.clone(), job.usage.clone());
        let id = pool.queue.add_lane(tenant, scheduler.start(job)?.into());
        let lane = Arc::new(JobLane { queue: pool.queue.clone(), id });
        Ok(JobCalls { pool: pool.clone(), lane, tenant, run, usage, segments: Arc::default() })
    }

    /// Runs a call. Dropping the future cancels the call if it has not started.
    pub async fn call(&self, request: CallRequest) -> CallResult {
        self.pool.call_in(request, self.lane.id, Some(self.usage.clone())).await
    }

    /// Returns memory for the input of a call. The job reuses it once the call's request is dropped.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn draft(&self, bytes: usize) -> io::Result<SegmentDraft> {
        self.segments.draft(bytes)
    }

    /// Returns the identity of the job in accounts.
    pub fn run(&self) -> &JobRun {
        &self.run
    }

    /// Returns the counter of what the job uses.
    pub fn usage(&self) -> &CallUsage {
        &self.usage
    }

    /// Returns the tenant of the job.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}
