//! The scheduler's input ([`Event`]) and output ([`Action`]), and the types that describe a task submission.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId,
    TenantId, WorkerId,
};

use crate::records::resources::ResourceSet;

/// Input of one scheduler step. `C` is the call of a task (function and arguments), `V` the value of an object; both
/// are opaque to the scheduler.
#[allow(missing_docs, reason = "a field is named for its type, or the line above it says what it is")]
#[derive(Debug, Clone)]
pub enum Event<C, V> {
    /// A node joined, with these resources. `remote` marks a node that takes long to reach: tasks go there only if no
    /// local node has room, and in larger batches. On a local node, each tenant gets up to `workers` task workers.
    NodeJoined { node: NodeId, resources: ResourceSet, remote: bool, workers: u32 },
    /// A node drains: it gets no more tasks, and the tasks that it has not started are recalled.
    NodeDraining { node: NodeId },
    /// Resources of a remote node that other schedulers use, in place of the node's previous report. They are not
    /// available to this scheduler.
    NodeLoad { node: NodeId, external_usage: ResourceSet },
    /// A node and all of its workers are lost.
    NodeLost { node: NodeId },
    /// A worker is ready for tasks.
    WorkerReady { worker: WorkerId, node: NodeId, kind: WorkerKind },
    /// A worker is lost. `started` are its tasks that are known to have started; the others keep their attempt. If the
    /// worker was killed because of one of its tasks, only that `culprit` loses one of its retries.
    WorkerLost { worker: WorkerId, started: Vec<TaskId>, culprit: Option<TaskId> },
    /// The share and the limits of a tenant are these from now on. What exceeds a new limit stays.
    TenantChanged { tenant: TenantId, share: TenantShare, limits: TenantLimits },
    /// A tenant has used this much more of its budgets of a day.
    TenantCharged { tenant: TenantId, used: DailyAmounts },
    /// A day begins: nobody has used anything of its budgets.
    DayStarted,
    /// Time passed, as told by [`Scheduler::set_time`](crate::Scheduler::set_time): tenants may have waited too long.
    Tick,
    /// A job started.
    JobStarted { job: JobId, tenant: TenantId, limits: JobLimits },
    /// A job ended: its tasks are cancelled and its state is removed.
    JobEnded { job: JobId },
    /// A task was submitted.
    Submitted { task: Submission<C> },
    /// A job requested a lease, which is a submission of kind [`SubmissionKind::Lease`].
    LeaseRequested { lease: Submission<()> },
    /// The worker that waits for a child of its own task ran that child to its end, without submitting it first.
    FinishedInline { task: Submission<C>, worker: WorkerId, outcome: Outcome<V>, nanos: u64 },
    /// The worker of a waiting task started a child of that task, without an assignment.
    StartedInline { task: Submission<C>, worker: WorkerId },
    /// A worker stored a value, and holds one reference to it.
    Put { object: ObjectId, task: TaskId, worker: WorkerId, value: V, refs: Vec<ObjectId> },
    /// A worker could not store a value, for lack of room.
    PutFailed { object: ObjectId, task: TaskId, worker: WorkerId, fault: Fault },
    /// A generator yielded the item at `index` of its stream, or failed to store it. The worker of the task that
    /// submitted the generator holds one reference to the item.
    Yielded {
        task: TaskId,
        attempt: Attempt,
        worker: WorkerId,
        index: u64,
        object: ObjectId,
        value: Result<V, Fault>,
        refs: Vec<ObjectId>,
    },
    /// The consumer of a stream, in this worker, has consumed this many items in total.
    ItemsConsumed { stream: ObjectId, worker: WorkerId, consumed: u64 },
    /// A task requested a value that the embedder produces and delivers later ([`Event::Fulfilled`]). The worker holds
    /// one reference; the object may outlive the task.
    Promised { object: ObjectId, task: TaskId, worker: WorkerId },
    /// The value of a promised object, or the error in its place.
    Fulfilled { object: ObjectId, value: Result<V, Fault> },
    /// A worker added a reference to an object that another scheduler owns and that may be unknown here.
    Borrowed { object: ObjectId, task: TaskId, worker: WorkerId },
    /// The value of a borrowed object and the objects that it contains, or the error in its place.
    BorrowResolved { object: ObjectId, value: Result<V, Arc<TaskError>>, refs: Vec<ObjectId> },
    /// An attempt of a task finished.
    AttemptFinished { task: TaskId, attempt: Attempt, worker: WorkerId, outcome: Outcome<V>, nanos: u64 },
    /// A task started to wait for objects and gave up its processors (`true`), or continues (`false`).
    Blocked { task: TaskId, worker: WorkerId, blocked: bool },
    /// A worker requests the value of an object, or its error, as soon as one exists.
    ObjectRequested { object: ObjectId, worker: WorkerId, task: TaskId },
    /// A worker added a reference to an object that is among the arguments of this task.
    ReferenceAdded { object: ObjectId, worker: WorkerId, task: TaskId },
    /// A worker released this many references to an object.
    ReferencesReleased { object: ObjectId, worker: WorkerId, count: u32 },
    /// A task is cancelled, with its retries, and with all of its descendants if `recursive`.
    Cancelled { task: TaskId, recursive: bool },
    /// A call of an actor can never start. It fails, unless it was assigned to the actor's worker in the meantime.
    DeadlockDetected { call: TaskId, fault: Fault },
    /// Another scheduler starts to submit tasks of a job here. This proxy task, a root task in the worker that stands
    /// for that scheduler, is the parent of those tasks; they are cancelled with it.
    ProxyTaskStarted { task: Submission<C>, worker: WorkerId },
    /// A borrowed object is the handle of an actor of the scheduler that this worker stands for. Calls of the actor go
    /// there.
    ActorBorrowed { actor: ActorId, worker: WorkerId },
    /// A worker returned tasks that it had not started.
    Recalled { worker: WorkerId, tasks: Vec<TaskId> },
    /// The value of an object is lost: the scheduler reconstructs it if it can. `waiters` are the workers that should
    /// have received the value and did not, one entry for each missed delivery.
    ObjectLost { object: ObjectId, waiters: Vec<WorkerId> },
    /// An actor is killed, and its unfinished calls fail. With `restart`, the actor starts again if its restart limit
    /// permits.
    Killed { actor: ActorId, restart: bool },
    /// An actor saved a checkpoint to an object that its worker holds. The next restart begins with it.
    Checkpointed { actor: ActorId, attempt: Attempt, worker: WorkerId, object: ObjectId },
    /// A task created a placement group. The object of the group gets `value` when all bundles are placed; the worker
    /// holds one reference to it.
    GroupCreated { group: GroupId, task: TaskId, worker: WorkerId, spec: GroupSpec, value: V },
    /// A task of the same job removed a placement group. Tasks and actors in it are cancelled.
    GroupRemoved { group: GroupId, task: TaskId, worker: WorkerId },
    /// The reply of a node to [`Action::ReserveBundles`].
    ReserveReply { group: GroupId, node: NodeId, attempt: Attempt, granted: bool },
}

/// Purpose of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerKind {
    /// Runs tasks of one tenant.
    Tasks(TenantId),
    /// Stands for a task worker of a remote node, which runs tasks of any tenant: that node keeps them apart.
    RemoteTasks,
    /// Runs the root task of one job, and children of that task inline.
    Driver(JobId),
    /// Hosts actors of one tenant that request less than one processor each.
    Actors(TenantId),
    /// Hosts one actor.
    Actor(ActorId),
    /// Stands for the workers that run calls of jobs: has any number of leases.
    Leases,
    /// Stands for the scheduler of a remote node: holds the references of that node's workers to local objects, and
    /// hosts actors. The remote scheduler does retries and restarts by itself, so that its results of actors and calls
    /// are final.
    PeerProxy,
}

impl WorkerKind {
    /// Whether tasks of a worker of this kind run at once, so that each has processors of its own.
    pub(crate) fn runs_several(self) -> bool {
        matches!(self, WorkerKind::Actors(_) | WorkerKind::PeerProxy | WorkerKind::Leases)
    }

    /// Whether a worker of this kind runs tasks that the scheduler places freely.
    pub(crate) fn runs_tasks(self) -> bool {
        matches!(self, WorkerKind::Tasks(_) | WorkerKind::RemoteTasks)
    }
}

/// A tenant's share of the resources while several tenants compete for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantShare {
    /// Relative weight, at least 1: a tenant of weight 200 gets twice as much as one of weight 100.
    pub weight: u32,
    /// Processors of the local nodes that the tenant can always use, in [`RESOURCE_UNIT`](crate::RESOURCE_UNIT)s.
    pub reserved_cpus: u64,
}

impl Default for TenantShare {
    fn default() -> TenantShare {
        TenantShare { weight: 100, reserved_cpus: 0 }
    }
}

/// The submitter of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentRef {
    /// The submitting task.
    pub task: TaskId,
    /// Its attempt.
    pub attempt: Attempt,
    /// Its worker, which holds one reference to each return.
    pub worker: WorkerId,
}

/// Specification of a task to run.
#[derive(Debug, Clone)]
pub struct Submission<C> {
    /// The task's id.
    pub id: TaskId,
    /// The job of the task.
    pub job: JobId,
    /// The submitting task. `None` for a job's root task and for leases.
    pub parent: Option<ParentRef>,
    /// Number of tasks of other schedulers between this task and its parent, for the depth limit.
    pub remote_depth: u32,
    /// Function name, for people and error messages.
    pub name: Arc<str>,
    /// Number of returned objects, at least one.
    pub returns: u32,
    /// Resources that the task needs while it runs.
    pub demand: ResourceSet,
    /// Placement constraint. Method calls run where their actor is.
    pub strategy: Strategy,
    /// Scheduling priority; a higher number comes first.
    pub priority: i32,
    /// Maximum number of retries.
    pub retries_max: u32,
    /// Errors that permit a retry.
    pub retry_on: RetryOn,
    /// Objects that must have a value before the task starts.
    pub dependencies: Vec<ObjectId>,
    /// Other objects that the arguments contain. They are kept until the task finishes.
    pub refs: Vec<ObjectId>,
    /// Kind of the task.
    pub kind: SubmissionKind,
    /// Function and arguments.
    pub call: C,
}

impl<C> Submission<C> {
    /// Returns a task without resources and dependencies that returns one object.
    pub fn bare(id: TaskId, job: JobId, name: Arc<str>, call: C) -> Submission<C> {
        Submission {
            id,
            job,
            parent: None,
            remote_depth: 0,
            name,
            returns: 1,
            demand: ResourceSet::default(),
            strategy: Strategy::Default,
            priority: 0,
            retries_max: 0,
            retry_on: RetryOn::System,
            dependencies: Vec::new(),
            refs: Vec::new(),
            kind: SubmissionKind::Function,
            call,
        }
    }
}

/// Kind of a submitted task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmissionKind {
    /// A plain function.
    Function,
    /// Creates an actor. The task returns the actor's handle, lives as long as the actor, and holds its resources all
    /// that time.
    ActorCreation(Box<ActorSpec>),
    /// A generator, which returns a stream. The number is its buffer: the maximum number of yielded items that are not
    /// consumed yet.
    Generator(u32),
    /// A method call of this actor. Calls of one caller start in the order of their submission, and need no resources.
    Method(ActorId),
    /// Holds its resources until the embedder finishes it, for work that the scheduler does not know one by one. It has no
    /// parent, is not the root task of its job, and gets the worker of kind [`WorkerKind::Leases`].
    Lease,
}

/// Specification of an actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorSpec {
    /// Name by which tasks of its job find it, or tasks of all jobs of the tenant if it is detached.
    pub name: Option<Arc<str>>,
    /// The job that owns a detached actor, in place of the job of its creator. A detached actor lives until it is
    /// killed, also without handles and after its creator's job. The owning job must end after all jobs that may hold a
    /// handle.
    pub detached: Option<JobId>,
    /// Maximum number of restarts after its sandbox or its worker ended.
    pub restarts_max: u32,
    /// Maximum number of unfinished calls.
    pub calls_max: u64,
}

/// Specification of a placement group. All bundles are reserved together, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name, for people.
    pub name: Option<Arc<str>>,
    /// Placement strategy of the bundles.
    pub strategy: GroupStrategy,
    /// Resources of each bundle. A bundle is on one node.
    pub bundles: Vec<ResourceSet>,
    /// Restricts the group to local nodes: another scheduler requested it by [`Action::ReserveBundles`]. Such a group
    /// is removed with the task that created it.
    pub local_only: bool,
}

/// Result of an attempt.
#[derive(Debug, Clone)]
pub enum Outcome<V> {
    /// One value for each return, with the objects that the value contains.
    Succeeded(Vec<(V, Vec<ObjectId>)>),
    /// The attempt failed.
    Failed(Failure),
}

/// Why an attempt failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Error of the attempt.
    pub error: Arc<TaskError>,
    /// Whether the worker or the system caused the failure, rather than the task.
    pub system: bool,
}

/// Limits of what a tenant uses at once. Beyond them, its submissions and values fail. Before that, while unfinished tasks
/// take half of the memory, the embedder has the tenant's submissions wait ([`crate::Scheduler::held_submissions`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// Maximum number of unfinished tasks.
    pub tasks_max: u64,
    /// Maximum number of actors, with those that outlive their jobs.
    pub actors_max: u64,
    /// Maximum bytes of this process's memory for tasks, calls, objects and small values.
    pub memory_bytes_max: u64,
    /// Maximum bytes of values in the object store.
    pub object_bytes_max: u64,
    /// Budgets of a day: beyond one of them, further tasks fail, and running ones go on.
    pub daily_max: DailyAmounts,
}

impl Default for TenantLimits {
    /// No limits.
    fn default() -> TenantLimits {
        TenantLimits {
            tasks_max: u64::MAX,
            actors_max: u64::MAX,
            memory_bytes_max: u64::MAX,
            object_bytes_max: u64::MAX,
            daily_max: DailyAmounts::MAX,
        }
    }
}

/// What a tenant uses in a day, as far as budgets limit it. The embedder says what was used, and when a day ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DailyAmounts {
    /// Computing time in nanoseconds.
    pub cpu_nanos: u64,
    /// GPU time in nanoseconds.
    pub gpu_nanos: u64,
    /// Bytes from other nodes.
    pub network_bytes: u64,
    /// Bytes of log lines.
    pub log_bytes: u64,
}

impl DailyAmounts {
    /// More than anybody can use.
    pub const MAX: DailyAmounts =
        DailyAmounts { cpu_nanos: u64::MAX, gpu_nanos: u64::MAX, network_bytes: u64::MAX, log_bytes: u64::MAX };

    /// Adds what was used.
    pub fn add(&mut self, used: &DailyAmounts) {
        self.cpu_nanos = self.cpu_nanos.saturating_add(used.cpu_nanos);
        self.gpu_nanos = self.gpu_nanos.saturating_add(used.gpu_nanos);
        self.network_bytes = self.network_bytes.saturating_add(used.network_bytes);
        self.log_bytes = self.log_bytes.saturating_add(used.log_bytes);
    }
}

/// Limits of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Maximum number of unfinished tasks.
    pub tasks_max: u64,
    /// Maximum nesting depth: the length of a chain of tasks each of which submitted the next.
    pub depth_max: u32,
    /// Maximum number of objects.
    pub objects_max: u64,
    /// Maximum bytes of lineage of finished tasks. Beyond it, the lineage of the tasks that were submitted first is
    /// dropped.
    pub lineage_bytes_max: u64,
    /// Maximum number of placement groups.
    pub groups_max: u64,
    /// Maximum bytes of calls of unfinished tasks, beyond which the embedder has submissions wait
    /// ([`crate::Scheduler::held_submissions`]).
    pub call_bytes_max: u64,
}

/// Output of one scheduler step.
#[allow(missing_docs, reason = "a field is named for its type, or the line above it says what it is")]
#[derive(Debug, Clone)]
pub enum Action<V> {
    /// Assign a task to a worker, behind its other tasks. [`crate::Scheduler::call`] returns the call.
    Run { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Take back all tasks that the worker has not started, and report them by [`Event::Recalled`], even if there are
    /// none.
    Recall { worker: WorkerId },
    /// End an attempt in a worker, whether it has started or not. The worker reports its failure, unless the attempt
    /// has finished already.
    Interrupt { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Take back a method call, unless it has started. The worker reports its failure, unless the call continues.
    Withdraw { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Start a worker of this kind on a node.
    StartWorker { node: NodeId, kind: WorkerKind },
    /// Deliver the value or the error of an object to a worker that requested it for a task of this job. The worker
    /// then holds one more reference to each object that the value contains. The job is the object's own, except for
    /// the handle of a detached actor and other objects of such an actor.
    Deliver { worker: WorkerId, object: ObjectId, job: JobId },
    /// Reject a worker's request, for a task of this job, for an object that does not exist or is of another job. (Each
    /// [`Event::ObjectRequested`] gets one `Deliver` or `Refuse`, unless the worker or the job ends first.)
    Refuse { worker: WorkerId, object: ObjectId, job: Option<JobId>, error: Arc<TaskError> },
    /// Deliver the next item of a stream, or its error, to a worker. The worker then holds one more reference to the
    /// item and to each object that its value contains.
    DeliverItem { worker: WorkerId, stream: ObjectId, object: ObjectId },
    /// Report the total number of consumed items of a stream to the worker of its generator.
    Credit { worker: WorkerId, task: TaskId, consumed: u64 },
    /// Request the value of a borrowed object from its owner. The answer is [`Event::BorrowResolved`]. Requested once,
    /// and again after the value was lost.
    FetchBorrowed { object: ObjectId },
    /// Return a borrowed object to its owner: no local reference is left.
    ReleaseBorrow { object: ObjectId },
    /// Drop a value. Each value that comes in by an event goes out by exactly one `Drop`. A rejected value goes out at
    /// once, with the object id that it came with, which may be in use for another value.
    Drop { object: ObjectId, value: V },
    /// Ask a remote node to reserve these bundles of a group (index in the group and resources), all or none, without
    /// waiting for room. The node answers by [`Event::ReserveReply`] once, unless it is lost first. Reservations of
    /// later attempts add to this one.
    ReserveBundles { group: GroupId, node: NodeId, attempt: Attempt, bundles: Vec<(u32, ResourceSet)> },
    /// Ask a node to release the bundles that it reserved in an attempt, and to end the tasks in them. The node may not
    /// have answered that attempt yet; this request must arrive after [`Action::ReserveBundles`].
    ReleaseBundles { group: GroupId, node: NodeId, attempt: Attempt },
    /// A task finished, for the job recorder. `rerun` marks a task that had succeeded before and ran again to
    /// reconstruct a lost return.
    TaskFinished { task: TaskId, job: JobId, error: Option<Arc<TaskError>>, rerun: bool },
    /// The root task of a job finished.
    JobDone { job: JobId, result: Result<(), Arc<TaskError>> },
}
