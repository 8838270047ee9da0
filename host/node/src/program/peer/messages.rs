//! What two nodes say to each other about tasks and objects, in postcard. Each frame is one message.
//!
//! A node *owns* the tasks that were submitted to it, by its jobs or by tasks that it runs, and the objects that these
//! return. It may have another node, a *helper*, run some: the helper owns what these submit in turn. So no node knows of
//! all tasks, and each of two nodes may be the other's helper. Tasks belong to a job, which is known by the node that runs
//! it, its *root*, and what that calls it.
//!
//! An actor is owned by its job's root, whoever makes it, unless it is made in a placement group of another node. Its owner
//! may have a helper keep it. Calls of it go to whoever lent its handle, and on from there.
//!
//! Objects are counted twice: each node counts who refers to one there, whoever's it is, and tells the node that it has it
//! of when nobody does any more. Whenever a message names an object that is the sender's to lend, the sender holds it once
//! more for the receiver, until that [releases](Said::Release) it as often. Who lends an object need not own it: it may
//! have it of a third node, and holds it there meanwhile.
//!
//! Messages come in order. When the connection ends, so does all that either side did for the other.

use std::borrow::Cow;
use std::num::NonZeroU64;

use sandbar_core::{
    ActorId, ActorOptions, Attempt, ComponentId, GroupId, JobId, Limits, NodeId, ObjectId, RetryOn, Strategy,
    TaskError, TaskId, WorkerId,
};
use sandbar_worker::program::AttemptUsage;
use serde::{Deserialize, Serialize};

use super::Amounts;

/// A job of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Root {
    /// The node that runs it.
    pub(crate) node: NodeId,
    /// What that node calls it.
    pub(crate) job: JobId,
}

/// What there is of an object.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Sent<'a> {
    /// A value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// So many bytes, which are fetched of a node by the number of an object there.
    Away { node: NodeId, object: ObjectId, bytes: u64 },
    /// An error: a [`TaskError`].
    Failed(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// A task that is to be run for its owner, or an actor that is to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Errand<'a> {
    /// Its number, and that of its attempt.
    pub(crate) task: TaskId,
    /// As above.
    pub(crate) attempt: Attempt,
    /// Under which it was given, and is said to have ended: what is not begun is asked back by it.
    pub(crate) slot: WorkerId,
    pub(crate) job: Root,
    /// Its program, by the sender's number.
    pub(crate) program: u32,
    /// Its function's place among the program's tasks.
    pub(crate) function: u32,
    pub(crate) seed: u64,
    /// By which it is known if its job is taken over.
    pub(crate) lineage: Option<NonZeroU64>,
    pub(crate) name: Cow<'a, str>,
    /// How many objects it returns.
    pub(crate) returns: u32,
    /// What it takes.
    pub(crate) demand: Amounts,
    pub(crate) priority: i32,
    /// How deep it is nested, in all: 1 of a job's first task.
    pub(crate) depth: u32,
    pub(crate) timeout_ms: Option<u32>,
    /// The bundle that it is in, of what the receiver has set aside for the sender: of which group, and which.
    pub(crate) bundle: Option<(GroupId, u32)>,
    /// Objects that it needs: lent.
    pub(crate) needs: Vec<ObjectId>,
    /// Objects that values among its arguments contain: lent.
    pub(crate) refs: Vec<ObjectId>,
    /// What there is of some of them.
    #[serde(borrow)]
    pub(crate) values: Vec<(ObjectId, Sent<'a>)>,
    /// A list of [`sandbar_core::Argument`].
    #[serde(borrow, with = "serde_bytes")]
    pub(crate) arguments: &'a [u8],
    pub(crate) work: ErrandWork<'a>,
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ErrandWork<'a> {
    /// A task is to be run. Its owner begins it again, if that may help.
    Task,
    /// As above, of a generator, which may be so many items ahead.
    Stream(u32),
    /// A method is to be called, which the receiver begins again as often as this, or as the actor says, after such errors.
    Call { actor: Callee, retries: Option<u32>, retry_on: RetryOn },
    /// An actor is to be kept for its owner until that [cancels](Said::Cancel) it. The receiver begins it anew, if it may. If it
    /// was saved before, it is made of that, an object that it needs beside its arguments.
    Actor(ActorOptions, Option<ObjectId>),
    /// The receiver is to make an actor that it owns, under the number of this task, wherever the strategy says. Its handle is
    /// lent to the sender.
    Make { options: ActorOptions, actor_name: Option<Cow<'a, str>>, strategy: Strategy },
}

/// Whose method is called.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Callee {
    /// That of an actor that the receiver has lent the handle of.
    Lent(ActorId),
    /// That of an actor that the receiver keeps for the sender, by the task that made it and its attempt. If it has ended,
    /// which the sender is told, the call is not answered: it was not begun.
    Kept(TaskId, Attempt),
}

/// What came of a task: of each return what there is of it, and what its value contains, which is lent.
pub(crate) type Returns<'a> = Vec<(Sent<'a>, Vec<ObjectId>)>;

/// A message.
#[expect(clippy::large_enum_variant, reason = "it is written or read, and done with")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Said<'a> {
    /// Tasks to come are of this component, by this number.
    Program { program: u32, component: ComponentId, limits: Limits },
    /// Things to come are of this job, whose first task is called so; and what the cluster calls it, if another node may take
    /// it over.
    Job { root: Root, name: Cow<'a, str>, lasting: Option<Cow<'a, str>> },
    /// Something is to be done.
    Begin(#[serde(borrow)] Errand<'a>),
    /// What was given under this slot and is not begun is asked back.
    Recall(WorkerId),
    /// These were not begun, and are given back.
    Recalled(WorkerId, Vec<TaskId>),
    /// An attempt of a task, or an actor, is to end, with all that it submitted. A call of an actor that runs ends only if this
    /// is so, with the actor: there is no other way out of its code.
    Cancel(TaskId, Attempt, bool),
    /// The sender needs nothing more of a job. If it is the job's root, nobody does.
    JobEnded(Root),
    /// A task has ended, or an actor could be made, or has ended.
    Ended {
        task: TaskId,
        attempt: Attempt,
        slot: WorkerId,
        /// Values; those that are away are lent by their numbers.
        #[serde(borrow)]
        returned: Result<Returns<'a>, Box<TaskError>>,
        /// Whether the system failed it, rather than its code.
        system: bool,
        /// What it took; of when it began, how long ago that was.
        took: AttemptUsage,
    },
    /// A task waits for objects (true), or goes on.
    Blocked(TaskId, bool),
    /// A generator has yielded an item. What is away is lent by its number, as is what it contains.
    Yielded {
        task: TaskId,
        attempt: Attempt,
        slot: WorkerId,
        index: u64,
        object: ObjectId,
        #[serde(borrow)]
        value: Sent<'a>,
        contains: Vec<ObjectId>,
    },
    /// An actor that is kept for the receiver was saved as this value. What is away is lent by its number, as is what it
    /// contains.
    Saved {
        task: TaskId,
        attempt: Attempt,
        object: ObjectId,
        #[serde(borrow)]
        value: Sent<'a>,
        contains: Vec<ObjectId>,
    },
    /// So many items of a generator were taken.
    Taken(TaskId, u64),
    /// The handle of the actor of a name is wanted, as an object of this number, which is lent.
    Find { object: ObjectId, job: Root, name: Cow<'a, str> },
    /// An actor is to end, or to begin anew.
    Kill(Callee, bool),
    /// An object that was lent is wanted, and whether its value was not to be had from where it was said to be: then the
    /// receiver fetches it first, and lends its own.
    Want(ObjectId, bool),
    /// What there is of an object that was lent: it was wanted, or a task needs it that comes next. What its value contains is
    /// lent.
    Value {
        object: ObjectId,
        #[serde(borrow)]
        value: Sent<'a>,
        contains: Vec<ObjectId>,
    },
    /// An object that was lent is not in use any more, so many times.
    Release(ObjectId, u32),
    /// A line of the log of a task of the receiver's job: what the task is called, its worker, the line's level.
    Log { job: JobId, task: TaskId, name: Cow<'a, str>, worker: WorkerId, level: u8, line: &'a str },
    /// How far a task of the receiver's job is.
    Progress { job: JobId, task: TaskId, name: &'a str, done: u64, total: Option<u64> },
    /// The receiver is to set room aside for these bundles of a group, by their places in it, for tasks of this program: all, or
    /// none. It says whether it has, and not later. The attempts of one group have numbers of their own.
    SetAside { group: GroupId, attempt: Attempt, job: Root, program: u32, bundles: Vec<(u32, Amounts)> },
    /// Whether room was set aside.
    Aside(GroupId, Attempt, bool),
    /// What was set aside, or is to be, is not wanted any more. Who is in it ends.
    GiveBack(GroupId, Attempt),
    /// So much of the sender is in use by itself and by other nodes than the receiver. It says so when it changes, and every
    /// second or so: what it has refused may be asked for again then.
    Load(Amounts),
    /// The sender is to go: it is given nothing more, and what only it has is fetched of it.
    Leaving,
    /// Of a node that is to go the sender needs nothing any more.
    Spared,
}
