//! Read-only views of the scheduler's state: for the embedder, for listings, and for tests.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, WorkerId,
};

use crate::event::WorkerKind;
use crate::records::resources::ResourceSet;

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for dependencies.
    Pending,
    /// Waits for a worker.
    Queued,
    /// Assigned to a worker.
    Running,
    /// Waits for objects, in its worker.
    Blocked,
    /// Finished with values.
    Succeeded,
    /// Finished with an error.
    Failed,
    /// Finished: it was cancelled.
    Cancelled,
}

/// A task. The record of a finished task is usually removed one step later.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskView<'a> {
    /// The task's id.
    pub id: TaskId,
    /// The task's job.
    pub job: JobId,
    /// Function name, for people.
    pub name: &'a Arc<str>,
    /// State of the task.
    pub state: TaskState,
    /// The task that submitted it, while that task has a record.
    pub parent: Option<TaskId>,
    /// The current attempt, or the next one.
    pub attempt: Attempt,
    /// Nesting depth; 1 for a job's root task.
    pub depth: u32,
    /// The worker that it is assigned to.
    pub worker: Option<WorkerId>,
    /// Scheduling priority; a higher number comes first.
    pub priority: i32,
    /// Maximum number of retries.
    pub retries_max: u32,
    /// Errors that permit a retry.
    pub retry_on: RetryOn,
    /// Requested resources.
    pub demand: &'a ResourceSet,
    /// Placement constraint.
    pub strategy: Strategy,
    /// Number of returned objects.
    pub returns: u32,
}

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// Its task has not finished, or its value is promised or not fetched yet.
    Pending,
    /// It has a value.
    Ready,
    /// It has an error.
    Failed,
}

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectView {
    /// The object's id.
    pub id: ObjectId,
    /// The object's job.
    pub job: JobId,
    /// The task that returns it; `None` for objects that were put or promised.
    pub task: Option<TaskId>,
    /// State of the object.
    pub state: ObjectState,
    /// Number of references from tasks and values.
    pub pins: u32,
    /// Number of references by worker.
    pub holders: Vec<(WorkerId, u32)>,
    /// Objects that its value contains.
    pub contents: Vec<ObjectId>,
}

/// The stream of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// The worker that consumes the items.
    pub consumer: WorkerId,
    /// Maximum number of yielded items that are not consumed yet.
    pub buffer: u32,
    /// Number of yielded items.
    pub yielded: u64,
    /// Number of consumed items.
    pub consumed: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// The worker's id.
    pub id: WorkerId,
    /// The worker's node.
    pub node: NodeId,
    /// Purpose of the worker.
    pub kind: WorkerKind,
    /// Assigned tasks that are not blocked, in execution order.
    pub assigned: Vec<TaskId>,
    /// Assigned tasks that are blocked.
    pub blocked: Vec<TaskId>,
    /// Hosted actors.
    pub actors: Vec<ActorId>,
    /// Whether a recall was sent and not answered yet.
    pub recall_pending: bool,
}

/// State of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorState {
    /// Its creation task waits for dependencies.
    Pending,
    /// Its creation task waits for a worker or runs.
    Creating,
    /// It accepts calls.
    Alive,
    /// Like `Creating`, after a failure.
    Restarting,
    /// It is dead, and a handle to it exists.
    Dead,
}

/// An actor.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorView<'a> {
    /// The actor's id.
    pub id: ActorId,
    /// The actor's job.
    pub job: JobId,
    /// Name for lookups.
    pub name: Option<&'a Arc<str>>,
    /// Name of the function that created it.
    pub creator: Option<&'a Arc<str>>,
    /// State of the actor.
    pub state: ActorState,
    /// The worker that hosts it.
    pub worker: Option<WorkerId>,
    /// Number of restarts.
    pub restarts: u32,
    /// Calls that are assigned to its worker.
    pub assigned: Vec<TaskId>,
    /// Number of unfinished calls.
    pub calls: u64,
    /// Checkpoint for the next restart.
    pub checkpoint: Option<ObjectId>,
    /// Why it is dead.
    pub death_cause: Option<&'a Arc<TaskError>>,
}

/// Tasks of one function with the same request and options.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassView<'a> {
    /// The job of the tasks.
    pub job: JobId,
    /// Function name, for people.
    pub name: &'a Arc<str>,
    /// Number of unfinished tasks.
    pub live: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView<'a> {
    /// The node's id.
    pub id: NodeId,
    /// Resources of the node.
    pub total: &'a ResourceSet,
    /// Processors that this scheduler has not assigned; negative while unblocked tasks use more than there are.
    pub free_cpus: i128,
    /// Other resources that this scheduler has not assigned.
    pub free_rest: &'a ResourceSet,
    /// External usage of a remote node, as last reported. It may exceed what is free.
    pub external_usage: &'a ResourceSet,
}

/// State of a placement group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// Waits for room.
    Pending,
    /// All bundles are placed.
    Created,
    /// Was created, and waits for room for bundles whose node was lost.
    Rescheduling,
    /// Can never be placed.
    Infeasible,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupView<'a> {
    /// The group's id.
    pub id: GroupId,
    /// The group's job.
    pub job: JobId,
    /// Name, for people.
    pub name: Option<&'a Arc<str>>,
    /// Placement strategy of the bundles.
    pub strategy: GroupStrategy,
    /// State of the group.
    pub state: GroupState,
    /// Bundles, in index order.
    pub bundles: Vec<BundleView<'a>>,
}

/// A bundle of a placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct BundleView<'a> {
    /// Reserved resources.
    pub total: &'a ResourceSet,
    /// The node that has it, its free processors (negative while unblocked tasks use more than there are), and its
    /// other free resources.
    pub placed: Option<(NodeId, i128, &'a ResourceSet)>,
    /// The node on which it is placed once all nodes have granted their reservations.
    pub reserving_on: Option<NodeId>,
    /// Tasks and actors in the bundle.
    pub occupants: Vec<TaskId>,
}
