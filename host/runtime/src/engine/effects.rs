//! Effects: requests of the engine's parts to the scheduler and to each other. The engine alone routes them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sandbar_core::{Attempt, Fault, JobId, NodeId, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Action, Event, Scheduler, Submission};
use sandbar_store::ValueKey;

use super::refs::OpenedFile;
use super::values::{Recipient, RemoteKey, StoredValue};
use crate::calls::TaskPayload;

/// Queued effects and events.
#[derive(Default)]
pub(crate) struct Effects {
    /// Effects in the order in which they were requested.
    pub(super) queue: VecDeque<Effect>,
    /// Events of the scheduler that wait until the queue is empty.
    pub(super) events: VecDeque<Event<TaskPayload, StoredValue>>,
    /// Buffer for the actions of a step.
    actions: Vec<Action<StoredValue>>,
}

/// An effect.
pub(crate) enum Effect {
    /// An action of the scheduler.
    Action(Action<StoredValue>),
    /// Step the scheduler in order with other effects.
    Step(Box<Event<TaskPayload, StoredValue>>),
    /// Submit a task of a worker or a peer.
    Submit(WorkerId, Box<Submission<TaskPayload>>),
    /// Reply to a task that looks up a named actor: object, requesting task and attempt.
    FindActor { worker: WorkerId, object: TaskId, task: TaskId, attempt: Attempt, name: String },
    /// Open a file of a job that this node runs.
    OpenFile(OpenedFile),
    /// Kill or restart an actor whose handle a worker holds.
    KillActor(WorkerId, sandbar_core::ActorId, bool),
    /// Interrupt an attempt, with the error that it ends with.
    Interrupt { worker: WorkerId, task: TaskId, attempt: Attempt, reason: Option<Fault> },
    /// End a running call of an actor, wherever it is.
    EndCall(TaskId),
    /// Limit each attempt of a task.
    Limit(TaskId, Duration),
    /// Forget the time limit of a task that does not run here.
    ForgetLimit(TaskId),
    /// Record something of a job.
    Job(JobEffect),
    /// Deliver a stored value to a worker.
    Deliver(ValueKey, Recipient),
    /// Deliver a remote value to a worker, once it is here.
    DeliverRemote(RemoteKey, Recipient),
    /// No object has a remote value any more.
    DropRemoteValue(RemoteKey),
    /// A worker was added.
    WorkerAdded(WorkerId),
    /// A worker has disconnected.
    WorkerDisconnected(WorkerId),
    /// Disconnect a peer that violates the protocol.
    Disconnect(NodeId),
    /// Fetch a value that this node has, by the object's id: see [`super::driver::Driver::fetch`].
    FetchLocally(u64, ObjectId),
}

/// What other parts of the engine report of a job. Reports of jobs that this node does not run are dropped.
pub(crate) enum JobEffect {
    /// An attempt has failed.
    AttemptFailed(JobId),
    /// A task has a result of an earlier run.
    Resumed(JobId),
    /// Attempts were lost, by job, with a node.
    NodeLost(BTreeMap<JobId, u64>, String),
    /// Log a warning.
    Warn(JobId, String),
}

impl Effects {
    /// Runs a step, and queues its actions.
    pub(super) fn run_step(
        &mut self,
        scheduler: &mut Scheduler<TaskPayload, StoredValue>,
        event: Event<TaskPayload, StoredValue>,
    ) {
        scheduler.step(event, &mut self.actions);
        self.queue.extend(self.actions.drain(..).map(Effect::Action));
    }
}
