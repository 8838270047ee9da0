//! Messages between the runtimes of two nodes, in postcard. Each frame is one message.
//!
//! A node *owns* the tasks that its jobs, or tasks that it runs, submit, and the objects that these tasks return. It may send
//! a task to another node, the *executor*, which owns the tasks that this task submits in turn. No node knows all tasks, and
//! each of two nodes may be the other's executor. A task belongs to a job, which is identified by the node that runs it, its
//! *root*, and that node's job id.
//!
//! The job's root owns an actor, wherever it is created, unless it is created in a placement group of another node. The owner
//! may send the actor to an executor, which hosts it. Calls go to the node that lent the actor's handle, which forwards them.
//!
//! References are counted on two levels. Each node counts its own references to an object, and releases the object at its
//! lender when none is left. When a message names a lent object, the sender holds the object once more for the receiver, until
//! the receiver [releases](PeerMessage::Release) it as often. The lender is not always the owner: it may have borrowed the
//! object from a third node, and holds it there meanwhile.
//!
//! Messages arrive in order. When the connection ends, each side ends its work for the other.

use std::borrow::Cow;
use std::num::NonZeroU64;

use sandbar_core::{
    ActorId, ActorOptions, Attempt, ComponentId, GroupId, JobId, JobRun, Limits, NodeId, ObjectId, RetryOn, Strategy,
    TaskError, TaskId, TenantId, WorkerId,
};
use sandbar_worker::program::AttemptUsage;
use serde::{Deserialize, Serialize};

use super::Amounts;

/// A job of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct JobRoot {
    /// Node that runs the job.
    pub(crate) node: NodeId,
    /// Job id on that node.
    pub(crate) job: JobId,
}

/// An object's value, or its location.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum PeerValue<'a> {
    /// The value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// The value's location: a node, the object's id there, and the size. The receiver fetches it.
    Remote { node: NodeId, object: ObjectId, bytes: u64 },
    /// The task that makes the object failed: a [`TaskError`].
    Failed(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// A task to run for its owner, or an actor to create.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RemoteTaskSpec<'a> {
    /// Task id at the owner.
    pub(crate) task: TaskId,
    /// Attempt at the owner.
    pub(crate) attempt: Attempt,
    /// Slot that the task occupies at the owner. Tasks that have not started are recalled by slot.
    pub(crate) slot: WorkerId,
    pub(crate) job: JobRoot,
    /// Program, by the sender's number.
    pub(crate) program: u32,
    /// Index among the program's tasks.
    pub(crate) function: u32,
    pub(crate) seed: u64,
    /// Identity of the task across takeovers of its job.
    pub(crate) lineage: Option<NonZeroU64>,
    pub(crate) name: Cow<'a, str>,
    /// Number of returned objects.
    pub(crate) returns: u32,
    /// Requested resources.
    pub(crate) demand: Amounts,
    pub(crate) priority: i32,
    /// Nesting depth: 1 for a job's first task.
    pub(crate) depth: u32,
    pub(crate) timeout_ms: Option<u32>,
    /// Placement group and bundle, among those that the receiver has reserved for the sender.
    pub(crate) bundle: Option<(GroupId, u32)>,
    /// Objects that the task needs, lent to the receiver.
    pub(crate) needs: Vec<ObjectId>,
    /// Objects contained in values of its arguments, lent to the receiver.
    pub(crate) refs: Vec<ObjectId>,
    /// Values or locations of some of the needed objects.
    #[serde(borrow)]
    pub(crate) values: Vec<(ObjectId, PeerValue<'a>)>,
    /// A list of [`sandbar_core::Argument`].
    #[serde(borrow, with = "serde_bytes")]
    pub(crate) arguments: &'a [u8],
    pub(crate) work: RemoteWork<'a>,
}

/// Work of a [`RemoteTaskSpec`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum RemoteWork<'a> {
    /// Run a task. The owner retries it.
    Task,
    /// Run a generator, with this many unconsumed items at most. The owner retries it.
    Generator(u32),
    /// Call a method. The receiver retries it, `retries` times or as the actor's options specify, after errors of this kind.
    Call { actor: RemoteActor, retries: Option<u32>, retry_on: RetryOn },
    /// Host an actor until its owner [cancels](PeerMessage::Cancel) it. The receiver restarts it within its limits. A
    /// checkpoint, if any, is an object that the task needs besides its arguments.
    HostActor(ActorOptions, Option<ObjectId>),
    /// Create an actor that the receiver owns, under this task's id, placed by the strategy. Its handle is lent to the sender.
    CreateActor { options: ActorOptions, actor_name: Option<Cow<'a, str>>, strategy: Strategy },
}

/// An actor in a message to another node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum RemoteActor {
    /// An actor whose handle the receiver has lent.
    Lent(ActorId),
    /// An actor that the receiver hosts for the sender, by its creation task and attempt. If the actor has ended, the receiver
    /// does not reply to the call: the report of the actor's end implies that the call has not started.
    Hosted(TaskId, Attempt),
}

/// Results of a task: for each returned object its value, and the objects contained in it, which are lent.
pub(crate) type RemoteResults<'a> = Vec<(PeerValue<'a>, Vec<ObjectId>)>;

/// A message to another node.
#[expect(clippy::large_enum_variant, reason = "messages are encoded or decoded, not stored")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum PeerMessage<'a> {
    /// Assigns a number to a component of a tenant. Later tasks name their program by it.
    Program { program: u32, tenant: TenantId, component: ComponentId, limits: Limits },
    /// Introduces a job of a tenant to later messages: its first task has this name. `lasting` is its name in the cluster, if
    /// another node may take it over.
    Job { root: JobRoot, tenant: TenantId, run: JobRun, name: Cow<'a, str>, lasting: Option<Cow<'a, str>> },
    /// Run a task, or create an actor.
    Submit(#[serde(borrow)] RemoteTaskSpec<'a>),
    /// Return the tasks of this slot that have not started.
    Recall(WorkerId),
    /// These tasks have not started, and are returned.
    Recalled(WorkerId, Vec<TaskId>),
    /// Cancel an attempt of a task, or an actor, with all that it submitted. A running call of an actor ends only if the flag
    /// is set, together with the actor: it can't be interrupted alone.
    Cancel(TaskId, Attempt, bool),
    /// The sender needs nothing more of a job. From the job's root: the job has ended.
    JobEnded(JobRoot),
    /// A task has finished, or an actor was created or has ended.
    Finished {
        task: TaskId,
        attempt: Attempt,
        slot: WorkerId,
        /// Values; remote ones are lent by their ids.
        #[serde(borrow)]
        returned: Result<RemoteResults<'a>, Box<TaskError>>,
        /// Whether the system failed the task, not its code.
        system: bool,
        /// Usage, with `started` as the time since then.
        usage: AttemptUsage,
    },
    /// A task has started (true) or stopped waiting for objects.
    Blocked(TaskId, bool),
    /// A generator has yielded an item. A remote value is lent by its id, as are contained objects.
    Yielded {
        task: TaskId,
        attempt: Attempt,
        slot: WorkerId,
        index: u64,
        object: ObjectId,
        #[serde(borrow)]
        value: PeerValue<'a>,
        contains: Vec<ObjectId>,
    },
    /// A checkpoint of an actor that the sender hosts for the receiver. A remote value is lent by its id, as are contained
    /// objects.
    Checkpoint {
        task: TaskId,
        attempt: Attempt,
        object: ObjectId,
        #[serde(borrow)]
        value: PeerValue<'a>,
        contains: Vec<ObjectId>,
    },
    /// Number of items of a generator that were consumed.
    ItemsTaken(TaskId, u64),
    /// Request the handle of a named actor, as an object of this id, which is lent.
    FindActor { object: ObjectId, job: JobRoot, name: Cow<'a, str> },
    /// End an actor, or restart it if the flag is set.
    KillActor(RemoteActor, bool),
    /// Request a lent object. The flag is set if its value was not available at its location; the receiver then fetches it and
    /// lends its own copy.
    RequestObject(ObjectId, bool),
    /// Value of a lent object: requested, or needed by the next task. Contained objects are lent.
    ObjectValue {
        object: ObjectId,
        #[serde(borrow)]
        value: PeerValue<'a>,
        contains: Vec<ObjectId>,
    },
    /// Release a lent object this many times.
    Release(ObjectId, u32),
    /// A log line of a task of the receiver's job.
    Log { job: JobId, task: TaskId, name: Cow<'a, str>, worker: WorkerId, level: u8, line: &'a str },
    /// Progress of a task of the receiver's job.
    Progress { job: JobId, task: TaskId, name: &'a str, done: u64, total: Option<u64> },
    /// Reserve bundles of a placement group, by index, for tasks of this program: all or none. The receiver replies at once.
    /// Each group numbers its attempts.
    ReserveBundles { group: GroupId, attempt: Attempt, job: JobRoot, program: u32, bundles: Vec<(u32, Amounts)> },
    /// Whether bundles were reserved.
    ReserveReply(GroupId, Attempt, bool),
    /// Release reserved bundles, or cancel the reservation. Tasks in them end.
    ReleaseBundles(GroupId, Attempt),
    /// Resources of the sender that the sender and nodes other than the receiver use. Sent when it changes, and about every
    /// second, so that the receiver retries reservations.
    Load(Amounts),
    /// Open a file of a job that the receiver runs, by its number, as an object of this id, which is lent.
    OpenFile { object: ObjectId, job: JobRoot, number: u64 },
    /// The sender drains: it gets no new work, and its values are fetched.
    Leaving,
    /// The sender needs nothing more from a node that drains.
    Released,
}
