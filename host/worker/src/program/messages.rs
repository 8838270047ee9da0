//! Messages between a node and a worker for programs, encoded with postcard. Each frame of a ring holds one message.

use sandbar_core::TaskError;
use serde::{Deserialize, Serialize};

/// A task that another task submits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubmitTask<'a> {
    /// Number of the task, chosen by its worker.
    pub task: u64,
    /// The task that submits it.
    pub parent: u64,
    /// Attempt of the submitting task.
    pub attempt: u32,
    /// Index of its function among the program's tasks.
    pub function: u32,
    /// Number of objects that it returns.
    pub returns: u32,
    /// Seed of the task.
    pub seed: u64,
    /// An encoded [`sandbar_core::TaskRequest`].
    #[serde(borrow, with = "serde_bytes")]
    pub request: &'a [u8],
}

/// A value that a worker sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SentValue<'a> {
    /// The bytes of the value.
    Inline(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// Length in bytes of a value in the next file on the socket. With a number, the file is the worker's memory of
    /// that number, which the worker still maps and can write.
    File(u64, Option<u32>),
}

/// Maximum number of consecutive objects in one message.
pub const RANGE_OBJECTS_MAX: usize = 64;

/// Maximum number of objects in one [`WorkerMessage::Waits`].
pub const WAIT_OBJECTS_MAX: usize = 64;

/// Results of a task: each value with the objects that it contains.
pub type ReturnedValues<'a> = Vec<(SentValue<'a>, Vec<u64>)>;

/// Resources that an attempt of a task used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptUsage {
    /// Time at which its worker took it up, by [`super::monotonic_nanos`]. The time limit of the task counts from a
    /// later moment.
    pub started: u64,
    /// Computing time in nanoseconds.
    pub nanos: u64,
    /// Time in nanoseconds that it waited, for its sandbox and for objects, since `started`.
    pub waited_nanos: u64,
    /// GPU time in nanoseconds, of work for which it waited.
    pub gpu_nanos: u64,
    /// Peak linear memory in bytes.
    pub memory_bytes: u64,
}

/// A message from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum WorkerMessage<'a> {
    /// A task was submitted, and should be scheduled.
    Submit(#[serde(borrow)] SubmitTask<'a>),
    /// A task was started in this worker, by the task that submitted it and waits for it.
    StartedInline(#[serde(borrow)] SubmitTask<'a>),
    /// A task was started in this worker by the task that submitted it, and has finished.
    FinishedInline {
        /// The task.
        #[serde(borrow)]
        submit: SubmitTask<'a>,
        /// Its results, or its error: an error of its own, without a chain of tasks, or the error of another task.
        #[serde(borrow)]
        returned: Result<ReturnedValues<'a>, Box<TaskError>>,
        /// Its resource usage.
        usage: AttemptUsage,
    },
    /// A task has finished.
    Finished {
        /// The task.
        task: u64,
        /// Its attempt.
        attempt: u32,
        /// Its results, or its error: an error of its own, without a chain of tasks, or the error of another task.
        #[serde(borrow)]
        returned: Result<ReturnedValues<'a>, Box<TaskError>>,
        /// Its resource usage.
        usage: AttemptUsage,
        /// Whether it failed because its GPU was lost; for an actor call, whether the actor ended with it.
        lost: bool,
        /// For an actor call: the object with the checkpoint of the actor after it.
        saved: Option<u64>,
    },
    /// An attempt of an actor call has started: its number and attempt. Sent only for calls with a time limit.
    CallStarted(u64, u32),
    /// An actor call will not start, because the actor has ended.
    CallDropped(u64),
    /// What a task waits for without a time limit, in reply to [`NodeMessage::ReportWaits`]: none of these objects was
    /// available.
    Waits {
        /// The task or the actor call.
        task: u64,
        /// At most [`WAIT_OBJECTS_MAX`] of the objects.
        objects: Vec<u64>,
        /// How many of these objects it waits for.
        needed: u32,
        /// Whether it is a call that keeps later calls of its actor from starting.
        holds_actor: bool,
    },
    /// A task requests the handle of a named actor, as an object.
    FindActor {
        /// Number of the object.
        object: u64,
        /// The task.
        task: u64,
        /// Its attempt.
        attempt: u32,
        /// Name of the actor.
        name: &'a str,
    },
    /// A task (second) ends an actor (first), or restarts it if the flag is set.
    KillActor(u64, u64, bool),
    /// A task stored a value.
    Put {
        /// Number of the object.
        object: u64,
        /// The task.
        task: u64,
        /// The value.
        #[serde(borrow)]
        value: SentValue<'a>,
        /// Objects that the value contains.
        refs: Vec<u64>,
    },
    /// A generator yielded an item.
    Yield {
        /// The generator.
        task: u64,
        /// Its attempt.
        attempt: u32,
        /// Index of the item among those of the attempt.
        index: u64,
        /// Number of the object.
        object: u64,
        /// The value.
        #[serde(borrow)]
        value: SentValue<'a>,
        /// Objects that the value contains.
        refs: Vec<u64>,
    },
    /// Total number of items of a stream that tasks of this worker have taken: stream, number.
    ItemsTaken(u64, u64),
    /// A task opens a file of its job, as an object.
    OpenFile {
        /// Number of the object.
        object: u64,
        /// The task.
        task: u64,
        /// Number of the file within the job.
        file: u64,
    },
    /// A task creates a placement group.
    CreateGroup {
        /// Number of the group.
        group: u64,
        /// The task.
        task: u64,
        /// An encoded [`sandbar_core::GroupRequest`].
        #[serde(borrow, with = "serde_bytes")]
        request: &'a [u8],
    },
    /// A task (second) removes a placement group (first).
    RemoveGroup(u64, u64),
    /// A task starts to wait (true), or continues (false).
    Blocked(u64, bool),
    /// A task sleeps, and waits for nothing else. Sent before [`WorkerMessage::Blocked`].
    Sleeps(u64),
    /// A task (second) requests an object (first).
    RequestObject(u64, u64),
    /// A task (third) requests consecutive objects: the first, and their number of at most [`RANGE_OBJECTS_MAX`].
    RequestRange(u64, u32, u64),
    /// A task (second) retains an object (first) that its arguments contain: the worker holds it once more, beyond the
    /// end of the task.
    Retain(u64, u64),
    /// The worker holds an object less often: object, number of references released.
    Release(u64, u32),
    /// The worker holds each of consecutive objects once less: the first, and their number of at most
    /// [`RANGE_OBJECTS_MAX`].
    ReleaseRange(u64, u32),
    /// A task (second) cancels the task that returns an object (first); the flag includes all tasks that it has
    /// submitted.
    Cancel(u64, u64, bool),
    /// A lent file is no longer in use in the worker.
    FileReleased(u64),
    /// Progress of a task in a named activity.
    Progress {
        /// The task.
        task: u64,
        /// Name of the activity.
        name: &'a str,
        /// Amount finished.
        done: u64,
        /// Total amount, if known.
        total: Option<u64>,
    },
    /// A line of a task's log: task, level, text.
    Log(u64, u8, &'a str),
}

/// A task to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartTask<'a> {
    /// Number of the task.
    pub task: u64,
    /// Its attempt.
    pub attempt: u32,
    /// Its job. A task can refer only to objects of its job.
    pub job: u32,
    /// Number of the program, which is sent over the socket.
    pub program: u32,
    /// Index of its function among the program's tasks.
    pub function: u32,
    /// Seed of the task.
    pub seed: u64,
    /// Its relation to an actor or a stream.
    pub role: TaskRole,
    /// Whether it may use a GPU.
    pub has_gpu: bool,
    /// Objects among its arguments, each of which is delivered before.
    pub needs: Vec<u64>,
    /// Objects contained in values among its arguments. Set only for tasks of actors, which may keep them.
    pub refs: Vec<u64>,
    /// An encoded list of [`sandbar_core::Argument`].
    #[serde(borrow, with = "serde_bytes")]
    pub arguments: &'a [u8],
}

/// Kind of a task with respect to actors and streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskRole {
    /// A task without an actor or a stream.
    Plain,
    /// A generator, with the number of items that it may be ahead.
    Generator(u32),
    /// Creates an actor.
    CreateActor(ActorSettings),
    /// A call of an actor: the actor's number, the attempt that created it, and whether the worker reports the start of
    /// the call.
    ActorCall(u64, u32, bool),
}

/// Settings of an actor's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSettings {
    /// Maximum number of calls that wait in the actor at once.
    pub concurrency: u32,
    /// Index of the function that returns a checkpoint.
    pub checkpoint: Option<u32>,
    /// Number of calls between checkpoints.
    pub checkpoint_every: u32,
}

/// State of an object in a delivery.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Delivery<'a> {
    /// The bytes of its value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// A value in the next file on the socket: its length in bytes, and the number under which the file is lent until
    /// it is [released](NodeMessage::ReleaseFile).
    File(u64, u64),
    /// A value in a file that was lent before under this number.
    LentFile(u64),
    /// Not available yet: the worker requests it when a task needs it.
    Pending,
    /// An encoded [`sandbar_core::TaskError`].
    Failed(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// A message from the node, other than a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum NodeMessage<'a> {
    /// An object that was requested, or that the next assigned task needs.
    Deliver {
        /// The job.
        job: u32,
        /// The object.
        object: u64,
        /// Its value or state.
        #[serde(borrow)]
        value: Delivery<'a>,
        /// Objects that the value contains. If the object was requested, the worker holds each of them once more.
        contains: Vec<u64>,
        /// Whether it was requested.
        requested: bool,
    },
    /// The next item of a stream. The worker holds it, and the objects that its value contains, once more.
    DeliverItem {
        /// The job.
        job: u32,
        /// The stream.
        stream: u64,
        /// The item.
        object: u64,
        /// Its value or state.
        #[serde(borrow)]
        value: Delivery<'a>,
        /// Objects that the value contains.
        contains: Vec<u64>,
    },
    /// Total number of items of a generator that were taken: generator, number.
    Credit(u64, u64),
    /// An object (job, object) was delivered for a task that was taken back.
    DropDelivery(u32, u64),
    /// Releases the lent file of this number. The worker answers [`WorkerMessage::FileReleased`] once no task uses it.
    ReleaseFile(u64),
    /// Drops the worker's memory of this number, which holds a value.
    DropMemory(u32),
    /// Ends an attempt of a task (task, attempt): a queued attempt does not start, a waiting one does not continue.
    Cancel(u64, u32),
    /// Holds tasks of a job when they submit (true), or lets them continue (false). The limit of submitted tasks is
    /// reached.
    HoldJob(u32, bool),
    /// Lets each waiting task of a held job continue until it has submitted once more.
    ResumeOnce(u32),
    /// Requests [`WorkerMessage::Waits`] of a task, or of the calls of the actor that it created.
    ReportWaits(u64),
    /// Withdraws a call of an actor (actor, call, attempt) that does not run. A running call continues.
    WithdrawCall(u64, u64, u32),
}
