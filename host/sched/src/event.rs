//! What happens to a scheduler, and what it wants done.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId,
    TenantId, WorkerId,
};

use crate::resources::Demand;

/// What happens. `C` is what a task calls and with what, `V` the value of an object; a scheduler looks at neither.
#[allow(missing_docs, reason = "a field is named for its type, or the line above it says what it is")]
#[derive(Debug, Clone)]
pub enum Event<C, V> {
    /// A node has joined, with so much of each resource. It is `far` if to give it a task takes a while: tasks go there that
    /// find no place nearer, and more of them in advance.
    NodeJoined { node: NodeId, resources: Demand, far: bool },
    /// A node is to go: it is given nothing more, and what it has not begun is asked back.
    NodeDraining { node: NodeId },
    /// So much of each resource of a node that is far is in use there, but for what this scheduler has given there: that much
    /// less is left. What the node has said before counts no more.
    NodeLoad { node: NodeId, others: Demand },
    /// A node and all of its workers are gone.
    NodeLost { node: NodeId },
    /// A worker can be given tasks.
    WorkerReady { worker: WorkerId, node: NodeId, role: Role },
    /// A worker is gone. `begun` are those of its tasks that it had begun, as far as anybody knows: the others cost no
    /// attempt.
    WorkerLost { worker: WorkerId, begun: Vec<TaskId> },
    /// A job begins.
    JobStarted { job: JobId, tenant: TenantId, limits: JobLimits },
    /// A job ends: whatever is left of it is cancelled, and forgotten.
    JobEnded { job: JobId },
    /// A task is to be run.
    Submitted { task: Submission<C> },
    /// A task's own child was run by the worker that waits for it, without having been submitted before.
    RanInline { task: Submission<C>, worker: WorkerId, outcome: Outcome<V>, nanos: u64 },
    /// The worker of a task has begun that one's own child, without having been given it, while the parent waits for it.
    BeganInline { task: Submission<C>, worker: WorkerId },
    /// A value was stored. The worker holds it once.
    Put { object: ObjectId, task: TaskId, worker: WorkerId, value: V, refs: Vec<ObjectId> },
    /// As `Put`, of a value that there was no room for.
    PutFailed { object: ObjectId, task: TaskId, worker: WorkerId, fault: Fault },
    /// A generator has handed over the item of its stream in this place, or there was no room for it. Who submitted the
    /// generator holds it once, in its worker.
    Yielded {
        task: TaskId,
        attempt: Attempt,
        worker: WorkerId,
        index: u64,
        object: ObjectId,
        value: Result<V, Fault>,
        refs: Vec<ObjectId>,
    },
    /// So many items of a stream were taken by who submitted its generator, in that worker.
    Taken { stream: ObjectId, worker: WorkerId, taken: u64 },
    /// A task asks for a value that whoever has the scheduler makes, and [fulfils](Event::Fulfilled) later. The worker holds
    /// the object once, and it outlives the task.
    Promised { object: ObjectId, task: TaskId, worker: WorkerId },
    /// What became of a value that was promised.
    Fulfilled { object: ObjectId, value: Result<V, Fault> },
    /// A worker holds an object once more that is another scheduler's, and may be new here.
    Borrowed { object: ObjectId, task: TaskId, worker: WorkerId },
    /// What there is of a borrowed object, and what its value contains.
    Arrived { object: ObjectId, value: Result<V, Arc<TaskError>>, refs: Vec<ObjectId> },
    /// What became of an attempt.
    Finished { task: TaskId, attempt: Attempt, worker: WorkerId, outcome: Outcome<V>, nanos: u64 },
    /// A task waits for objects, and gives its processors away (true), or goes on.
    Blocked { task: TaskId, worker: WorkerId, blocked: bool },
    /// A worker wants to be told when there is an object, and its value.
    Wanted { object: ObjectId, worker: WorkerId, task: TaskId },
    /// A worker holds an object once more, on behalf of a task whose arguments contain it.
    Held { object: ObjectId, worker: WorkerId, task: TaskId },
    /// A worker holds an object so many times less.
    Released { object: ObjectId, worker: WorkerId, times: u32 },
    /// A task, its attempts to come, and all that it submitted if `recursive`, are not wanted any more.
    Cancelled { task: TaskId, recursive: bool },
    /// A call of an actor can't ever begin: it fails, unless its actor's worker has it by now.
    Doomed { call: TaskId, fault: Fault },
    /// Another scheduler has tasks of a job run here from now on: this task, nobody's child, stands for it in its worker. What
    /// it has run are that task's children, and go with it.
    Seated { task: Submission<C>, worker: WorkerId },
    /// A borrowed object is the handle of an actor of the scheduler for which this worker stands: calls of it go there.
    ActorBorrowed { actor: ActorId, worker: WorkerId },
    /// Tasks that were given to a worker and taken back before it began them.
    Recalled { worker: WorkerId, tasks: Vec<TaskId> },
    /// The value of an object can't be had any more: it is made again, if that may be. The workers are those that were to be told of it and were not: each of
    /// them as often as that.
    ObjectLost { object: ObjectId, waiters: Vec<WorkerId> },
    /// An actor is to end, and all calls of it that have not; or to begin anew, if it may.
    Killed { actor: ActorId, restart: bool },
    /// From here on an actor begins anew with what lies in an object, which the worker that has the actor holds.
    Saved { actor: ActorId, attempt: Attempt, worker: WorkerId, object: ObjectId },
    /// Room is to be set aside. The worker holds the object that has this value once there is.
    GroupCreated { group: GroupId, task: TaskId, worker: WorkerId, spec: GroupSpec, value: V },
    /// What was set aside is to be given back, by a task of the same job. Who is in it ends.
    GroupRemoved { group: GroupId, task: TaskId, worker: WorkerId },
    /// Whether a node has set room aside as it was asked ([`Action::SetAside`]).
    SetAside { group: GroupId, node: NodeId, attempt: Attempt, done: bool },
}

/// What a worker is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs tasks of whoever is scheduled there.
    Tasks,
    /// Runs the first task of one job, and no other task but that one's own children inline.
    Driver(JobId),
    /// Has actors that ask for less than a processor.
    Actors,
    /// Has one actor.
    Actor(ActorId),
    /// Is a node's scheduler, which is far: holds what the workers there use of ours, and has actors. It tries again by itself
    /// what may be tried again: what it says came of an actor, or of a call, is final.
    Peer,
}

impl Role {
    /// Whether a worker for this may have several actors.
    pub(crate) fn has_actors(self) -> bool {
        matches!(self, Role::Actors | Role::Peer)
    }
}

/// A task to be run.
#[derive(Debug, Clone)]
pub struct Submission<C> {
    /// Its id.
    pub id: TaskId,
    /// Its job.
    pub job: JobId,
    /// Which attempt of which task submitted it, in which worker, which holds each of its returns once; none for the first
    /// task of a job.
    pub parent: Option<(TaskId, Attempt, WorkerId)>,
    /// How many tasks of other schedulers lie between it and its parent.
    pub below: u32,
    /// For people, and for errors.
    pub name: Arc<str>,
    /// How many objects it returns, at least one.
    pub returns: u32,
    /// What it takes of a node while it runs.
    pub demand: Demand,
    /// Where. Calls of methods go where their actor is.
    pub strategy: Strategy,
    /// What comes first: higher numbers.
    pub priority: i32,
    /// How often it is begun again.
    pub retries_max: u32,
    /// And after which errors.
    pub retry_on: RetryOn,
    /// Objects that must be there before it is begun.
    pub needs: Vec<ObjectId>,
    /// Objects that its arguments contain besides, which are kept until it has ended.
    pub refs: Vec<ObjectId>,
    /// What kind of call it is.
    pub work: Work,
    /// What it calls, and with what.
    pub call: C,
}

impl<C> Submission<C> {
    /// A task that takes nothing of a node, needs nothing, and returns one object.
    pub fn bare(id: TaskId, job: JobId, name: Arc<str>, call: C) -> Submission<C> {
        Submission {
            id,
            job,
            parent: None,
            below: 0,
            name,
            returns: 1,
            demand: Demand::default(),
            strategy: Strategy::Default,
            priority: 0,
            retries_max: 0,
            retry_on: RetryOn::System,
            needs: Vec::new(),
            refs: Vec::new(),
            work: Work::Task,
            call,
        }
    }
}

/// A kind of call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Of a function, by itself.
    Task,
    /// Of what makes an actor. It returns the handle, lasts as long as the actor, and has what it takes of a node so long.
    Actor(Box<ActorSpec>),
    /// Of a generator, by itself: what it returns is its stream. It may yield so many items more than were taken.
    Stream(u32),
    /// Of a method. Calls by one task are begun in the order in which it submitted them. They take nothing of a node.
    Method(ActorId),
}

/// What is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorSpec {
    /// By which tasks of its job find it; those of its tenant's other jobs too, if it is detached.
    pub name: Option<Arc<str>>,
    /// The job that it belongs to instead of its maker's: it lives on when nobody has a handle to it, and its maker's job has
    /// ended, until it is killed. That job ends after all whose tasks may have such handles.
    pub detached: Option<JobId>,
    /// How often it is begun anew when its sandbox, or its worker, has ended.
    pub restarts_max: u32,
    /// So many calls may wait for it, or run, at once.
    pub calls_max: u64,
}

/// What is to be set aside: all of it, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// What people call it.
    pub name: Option<Arc<str>>,
    /// How its bundles lie on nodes.
    pub strategy: GroupStrategy,
    /// What is set aside, each on one node.
    pub bundles: Vec<Demand>,
    /// Whether it lies on nodes alone that are near: another scheduler asks for it ([`Action::SetAside`]). Such a group goes
    /// with the task that made it.
    pub near: bool,
}

/// What became of an attempt.
#[derive(Debug, Clone)]
pub enum Outcome<V> {
    /// A value for each return, and the objects that it contains.
    Succeeded(Vec<(V, Vec<ObjectId>)>),
    /// It failed.
    Failed(Failure),
}

/// Why an attempt failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// In words.
    pub error: Arc<TaskError>,
    /// Whether its worker or this system did it, rather than the task.
    pub system: bool,
}

/// What a job may have at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Tasks that have not ended.
    pub tasks_max: u64,
    /// Tasks of which each was submitted by the one before.
    pub depth_max: u32,
    /// Objects.
    pub objects_max: u64,
    /// Bytes of what is kept of tasks that have ended, to make what they returned again. Of more the first are forgotten.
    pub lineage_bytes_max: u64,
    /// Placement groups.
    pub groups_max: u64,
    /// Bytes of what tasks call that have not ended. Whoever has the scheduler sees to it ([`crate::Scheduler::call_bytes`]).
    pub call_bytes_max: u64,
}

/// What is to be done.
#[allow(missing_docs, reason = "a field is named for its type, or the line above it says what it is")]
#[derive(Debug, Clone)]
pub enum Action<V> {
    /// Give a task to a worker, behind those that it has been given. What it calls is [`crate::Scheduler::call`].
    Run { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Take back all tasks that the worker has been given and has not begun, and say which ([`Event::Recalled`], also when
    /// there are none).
    Recall { worker: WorkerId },
    /// End an attempt that was given to a worker, begun or not. The worker says that it failed, unless it has ended by then.
    Interrupt { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Take a call of an actor's method back, unless it is begun. The worker says that it failed, unless it goes on.
    Withdraw { worker: WorkerId, task: TaskId, attempt: Attempt },
    /// Start a worker on a node, for this.
    Hire { node: NodeId, role: Role },
    /// Tell a worker of an object that a task of a job there wants: its value or why there is none. The worker then holds each
    /// object that the value contains once (more). The job is the object's, unless that is the handle of an actor that no
    /// job owns, or something else of such an actor.
    Deliver { worker: WorkerId, object: ObjectId, job: JobId },
    /// Tell a worker that it can't have an object that it wants, and why: there is none of that number, or it is another
    /// job's. ([`Event::Wanted`] is answered by this or by `Deliver`, once, unless the worker or the job ends before.)
    Refuse { worker: WorkerId, object: ObjectId, error: Arc<TaskError> },
    /// Tell a worker of the next item of a stream: its value or why there is none. It holds the item, and each object that the
    /// value contains once (more).
    Item { worker: WorkerId, stream: ObjectId, object: ObjectId },
    /// Tell a worker that so many items were taken of the stream of a generator which it was given.
    Credit { worker: WorkerId, task: TaskId, taken: u64 },
    /// Somebody wants a borrowed object: [`Event::Arrived`] is to say what there is of it. Said once, or again if it was lost.
    Ask { object: ObjectId },
    /// Nobody here refers to a borrowed object any more.
    Returned { object: ObjectId },
    /// A value is not needed any more. Each value that comes in goes out by this once, also one that was refused: then
    /// under the number that it came by, which may be another value's.
    Drop { object: ObjectId, value: V },
    /// Have a node that is far set room aside for these bundles of a group, by their places in it: for all or for none, and at
    /// once. [`Event::SetAside`] is to say whether it has, once, unless the node is lost before. What it sets aside for later
    /// attempts comes on top of that.
    SetAside { group: GroupId, node: NodeId, attempt: Attempt, bundles: Vec<(u32, Demand)> },
    /// Have a node give back what it was asked to set aside in an attempt, if it has, and end who is in it. Whether it has may
    /// not be known yet: the node is to be told of this after it was asked.
    GiveBack { group: GroupId, node: NodeId, attempt: Attempt },
    /// A task has ended, with an error or without: for who keeps records. It is said `again` of one that had succeeded and
    /// was begun again for what was lost of what it had returned.
    Ended { task: TaskId, job: JobId, error: Option<Arc<TaskError>>, again: bool },
    /// The first task of a job has ended.
    JobDone { job: JobId, result: Result<(), Arc<TaskError>> },
}
