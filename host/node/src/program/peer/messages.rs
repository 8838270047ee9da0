//! What two nodes say to each other about tasks and objects, in postcard. Each frame is one message.
//!
//! A node *owns* the tasks that were submitted to it, by its jobs or by tasks that it runs, and the objects that these
//! return. It may have another node, a *helper*, run some: the helper owns what these submit in turn. So no node knows of
//! all tasks, and each of two nodes may be the other's helper; what is said says which of them speaks.
//!
//! Objects are counted twice: each node counts who refers to one there, whoever's it is, and tells the node that it has it
//! of when nobody does any more. Whenever a message names an object that is the sender's to lend, the sender holds it once
//! more for the receiver, until that [releases](ToOwner::Release) it as often. Who lends an object need not own it: it may
//! have it of a third node, and holds it there meanwhile.
//!
//! Messages come in order. When the connection ends, so does all that either side did for the other.

use std::borrow::Cow;

use sandbar_core::{ComponentId, Limits, TaskError};
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Said<'a> {
    /// The owner of tasks, to its helper.
    Owner(#[serde(borrow)] ToHelper<'a>),
    /// The helper, to the owner.
    Helper(#[serde(borrow)] ToOwner<'a>),
    /// The sender is to go: it is given nothing more, and what only it has is fetched of it.
    Leaving,
    /// Of a node that is to go the sender needs nothing any more.
    Spared,
}

/// What there is of an object.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Sent<'a> {
    /// A value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// So many bytes, which are fetched of a node by the number of an object there.
    Away { node: u32, object: u64, bytes: u64 },
    /// An error: a [`TaskError`].
    Failed(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// A task that is to be run for its owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Errand<'a> {
    /// Its number, and that of its attempt.
    pub(crate) task: u64,
    /// As above.
    pub(crate) attempt: u32,
    /// Under which it was given: what is not begun is asked back by it.
    pub(crate) slot: u32,
    /// Its job, by the owner's number.
    pub(crate) job: u32,
    /// Its program, by the owner's number.
    pub(crate) program: u32,
    /// Its function's place among the program's tasks.
    pub(crate) function: u32,
    pub(crate) seed: u64,
    pub(crate) name: Cow<'a, str>,
    /// How many objects it returns.
    pub(crate) returns: u32,
    /// What it takes: processors, devices (in [`sandbar_sched::UNIT`]s), bytes of memory, and what else nodes were said to have.
    pub(crate) demand: (u64, u64, u64, Vec<(Cow<'a, str>, u64)>),
    pub(crate) priority: i32,
    /// How deep it is nested, in all: 1 of a job's first task.
    pub(crate) depth: u32,
    pub(crate) timeout_ms: Option<u32>,
    /// Objects that it needs: lent.
    pub(crate) needs: Vec<u64>,
    /// Objects that values among its arguments contain: lent.
    pub(crate) refs: Vec<u64>,
    /// What there is of some of them.
    #[serde(borrow)]
    pub(crate) values: Vec<(u64, Sent<'a>)>,
    /// A list of [`sandbar_core::Argument`].
    #[serde(borrow, with = "serde_bytes")]
    pub(crate) arguments: &'a [u8],
}

/// What an owner says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ToHelper<'a> {
    /// Tasks to come are of this component, by this number.
    Program { program: u32, component: ComponentId, limits: Limits },
    /// A task is to be run.
    Begin(#[serde(borrow)] Errand<'a>),
    /// What there is of an object that was lent: it was wanted, or a task needs it that comes next. What its value contains
    /// is lent.
    Value {
        object: u64,
        #[serde(borrow)]
        value: Sent<'a>,
        contains: Vec<u64>,
    },
    /// What was given under this slot and is not begun is asked back.
    Recall(u32),
    /// An attempt of a task is to end, with all that it submitted.
    Cancel(u64, u32),
    /// An object of a job that the helper has lent is wanted, and whether its value was not to be had from where it was said
    /// to be: then the receiver fetches it first, and lends its own.
    Want(u32, u64, bool),
    /// As above: it is not in use any more, so many times.
    Release(u32, u64, u32),
    /// A job has ended: all that was done for it is to end, and what was lent for it is forgotten.
    JobEnded(u32),
}

/// What came of a task: of each return what there is of it, and what its value contains, which is lent.
pub(crate) type Returns<'a> = Vec<(Sent<'a>, Vec<u64>)>;

/// What a helper says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ToOwner<'a> {
    /// A task has ended.
    Ended {
        task: u64,
        attempt: u32,
        /// Values; those that are away are lent by their numbers.
        #[serde(borrow)]
        returned: Result<Returns<'a>, Box<TaskError>>,
        /// Whether the system failed it, rather than its code.
        system: bool,
        /// How long it computed.
        nanos: u64,
        memory_bytes: u64,
        /// How long ago it had begun.
        begun_nanos_ago: u64,
        /// How long it waited for others since.
        waited: u64,
    },
    /// These were not begun, and are given back.
    Recalled(u32, Vec<u64>),
    /// A task waits for objects (true), or goes on.
    Blocked(u64, bool),
    /// An object that was lent is wanted, and whether its value was not to be had where it was said to be.
    Want(u64, bool),
    /// As above: it is not in use any more, so many times.
    Release(u64, u32),
    /// What there is of an object of a job (by the owner's number) that the helper has lent, and that was wanted. What its
    /// value contains is lent.
    Value {
        job: u32,
        object: u64,
        #[serde(borrow)]
        value: Sent<'a>,
        contains: Vec<u64>,
    },
    /// A line of the log of a task of this job: the task, what it is called, its worker, the line's level.
    Log { job: u32, task: u64, name: Cow<'a, str>, worker: u32, level: u8, line: &'a str },
    /// How far a task of this job is.
    Progress { job: u32, task: u64, name: &'a str, done: u64, total: Option<u64> },
}
