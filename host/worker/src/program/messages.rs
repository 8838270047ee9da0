//! What node and worker say to each other, in postcard. Each frame of a ring is one message.

use sandbar_core::TaskError;
use serde::{Deserialize, Serialize};

/// A task that another submits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Submit<'a> {
    /// Its number, which its worker chose.
    pub task: u64,
    /// The task that submits it, and that one's attempt.
    pub parent: u64,
    /// As above.
    pub attempt: u32,
    /// Its function's place among the program's tasks.
    pub function: u32,
    /// How many objects it returns.
    pub returns: u32,
    /// Its seed.
    pub seed: u64,
    /// A [`sandbar_core::TaskRequest`].
    #[serde(borrow, with = "serde_bytes")]
    pub request: &'a [u8],
}

/// A value on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueUp<'a> {
    /// All of it.
    Inline(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// So many bytes of the next file that comes over the socket. With a number, the worker has it still, and could write
    /// to it: it is its memory of that number.
    File(u64, Option<u32>),
}

/// Objects that follow each other in one message.
pub const RUN_MAX: usize = 64;

/// Objects that a task waits for in one message.
pub const WAITS_MAX: usize = 64;

/// What a task returned: each value, and the objects that it contains.
pub type ReturnedUp<'a> = Vec<(ValueUp<'a>, Vec<u64>)>;

/// What an attempt took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// When its worker took it up, by [`super::monotonic_nanos`]. What a task may take is counted from later on.
    pub begun: u64,
    /// How long it computed, and how long it waited for its sandbox and for others since it began, in nanoseconds.
    pub nanos: u64,
    /// As above.
    pub waited: u64,
    /// How long GPUs worked for it, as far as it waited for them.
    pub gpu_nanos: u64,
    /// Most linear memory that it had, in bytes.
    pub memory_bytes: u64,
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Up<'a> {
    /// A task is to be run.
    Submit(#[serde(borrow)] Submit<'a>),
    /// A task was begun here, by the one that submits it and waits for it.
    Began(#[serde(borrow)] Submit<'a>),
    /// As above, and has ended.
    Ran {
        /// The task.
        #[serde(borrow)]
        submit: Submit<'a>,
        /// What it returned, or why it failed: by itself, without names of tasks, or with what another failed with.
        #[serde(borrow)]
        returned: Result<ReturnedUp<'a>, Box<TaskError>>,
        /// What it took.
        took: Took,
    },
    /// A task has ended.
    Finished {
        /// Which.
        task: u64,
        /// Which of its attempts.
        attempt: u32,
        /// What it returned, or why it failed: by itself, without names of tasks, or with what another failed with.
        #[serde(borrow)]
        returned: Result<ReturnedUp<'a>, Box<TaskError>>,
        /// What it took.
        took: Took,
        /// Whether it failed since its GPU was lost; of a call of an actor, whether that ended with it.
        lost: bool,
        /// Of a call of an actor: the object that this was saved in after it.
        saved: Option<u64>,
    },
    /// An attempt of a call of an actor runs from now on: said of those whose time is limited.
    Called(u64, u32),
    /// A call of an actor was not begun, and will not be: the actor ended before.
    Dropped(u64),
    /// What a task waits for without a limit of time, as the node asked: none of these objects was there.
    Waits {
        /// The task, or the call of an actor.
        task: u64,
        /// Some of the objects: no more than [`WAITS_MAX`].
        objects: Vec<u64>,
        /// How many of these it waits for.
        needed: u32,
        /// Whether it is a call that keeps later calls of its actor from beginning.
        holds_actor: bool,
    },
    /// A task wants the handle of the actor of a name, as an object of this number.
    Find {
        /// The object.
        object: u64,
        /// The task, and its attempt.
        task: u64,
        /// As above.
        attempt: u32,
        /// The name.
        name: &'a str,
    },
    /// An actor is to end, or to begin anew (true).
    Kill(u64, bool),
    /// A value was stored.
    Put {
        /// Its number.
        object: u64,
        /// By whom.
        task: u64,
        /// The value.
        #[serde(borrow)]
        value: ValueUp<'a>,
        /// What it contains.
        refs: Vec<u64>,
    },
    /// A generator has yielded.
    Yield {
        /// The generator, and its attempt.
        task: u64,
        /// As above.
        attempt: u32,
        /// Which of the attempt's items it is.
        index: u64,
        /// Its number.
        object: u64,
        /// The value.
        #[serde(borrow)]
        value: ValueUp<'a>,
        /// What it contains.
        refs: Vec<u64>,
    },
    /// So many items of a stream, all in all, were taken here.
    Took(u64, u64),
    /// A task wants what its job was given under a number, as an object.
    Open {
        /// The object's number.
        object: u64,
        /// Who wants it.
        task: u64,
        /// The number that it was given under.
        file: u64,
    },
    /// A task wants room set aside.
    Group {
        /// The placement group.
        group: u64,
        /// The task.
        task: u64,
        /// A [`sandbar_core::GroupRequest`].
        #[serde(borrow, with = "serde_bytes")]
        request: &'a [u8],
    },
    /// A placement group is not wanted any more, says a task (the second).
    RemoveGroup(u64, u64),
    /// A task waits (true), or goes on.
    Blocked(u64, bool),
    /// A task waits for a time and nothing else: said before that it waits.
    Sleeps(u64),
    /// A task (the second) wants to be told of an object.
    Want(u64, u64),
    /// As above, of so many objects (the second) from one on: no more than [`RUN_MAX`].
    WantRun(u64, u32, u64),
    /// An object that the arguments of a task contain (the second) is held once more, and beyond the task's end.
    Held(u64, u64),
    /// An object is held so many times less.
    Released(u64, u32),
    /// So many objects from one on are held once less: no more than [`RUN_MAX`].
    ReleasedRun(u64, u32),
    /// The task that an object comes of, and all that it submitted if so, is not wanted any more, says a task (the second).
    Cancel(u64, u64, bool),
    /// A file that was lent is not in use here any more.
    Forgot(u64),
    /// How far a task is with what it calls so, of how much if that is known.
    Progress {
        /// Which task.
        task: u64,
        /// What it is at.
        name: &'a str,
        /// How much of that is done.
        done: u64,
        /// Of how much.
        total: Option<u64>,
    },
    /// A line of a task's log: its level, and its words.
    Log(u64, u8, &'a str),
}

/// A task to be begun.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin<'a> {
    /// Its number.
    pub task: u64,
    /// Which attempt it is.
    pub attempt: u32,
    /// Its job: objects of others are none to it.
    pub job: u32,
    /// The program, which came over the socket.
    pub program: u32,
    /// Its function's place among the program's tasks.
    pub function: u32,
    /// Its seed.
    pub seed: u64,
    /// What it has to do with an actor.
    pub role: BeginRole,
    /// Whether it may use a GPU.
    pub has_gpu: bool,
    /// Objects among its arguments, each of which was delivered.
    pub needs: Vec<u64>,
    /// Objects that values among its arguments contain: of what an actor may keep.
    pub refs: Vec<u64>,
    /// A list of [`sandbar_core::Argument`].
    #[serde(borrow, with = "serde_bytes")]
    pub arguments: &'a [u8],
}

/// What a task has to do with an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BeginRole {
    /// Nothing.
    Task,
    /// Nothing, and it is a generator, which may be so many items ahead.
    Generate(u32),
    /// It makes one.
    Make(MakeOptions),
    /// It is a call of one: its number, in which attempt that was made, and whether it is to be said when the call runs.
    Call(u64, u32, bool),
}

/// How an actor is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeOptions {
    /// So many calls wait beside each other.
    pub concurrency: u32,
    /// The function that gives what it can be made anew with.
    pub checkpoint: Option<u32>,
    /// After how many calls it is asked for that.
    pub checkpoint_every: u32,
}

/// What there is of an object.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Delivery<'a> {
    /// A value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// A value of so many bytes, in the next file that comes over the socket, which is lent by this number until it is to
    /// be [forgotten](Down::Forget).
    File(u64, u64),
    /// A value in a file that is lent by this number.
    Same(u64),
    /// Nothing yet, of what a task needs or takes: it asks for it.
    Later,
    /// An error: a [`sandbar_core::TaskError`].
    Failed(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// What a node says besides giving tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Down<'a> {
    /// An object of a job that was wanted, or that a task needs which is given next.
    Deliver {
        /// The job.
        job: u32,
        /// The object.
        object: u64,
        /// What there is of it.
        #[serde(borrow)]
        value: Delivery<'a>,
        /// What its value contains. Of an object that was wanted, the worker holds each of these once more.
        contains: Vec<u64>,
        /// Whether it was wanted.
        wanted: bool,
    },
    /// The next item of a stream of a job. The worker holds it, and what its value contains once more.
    Item {
        /// The job.
        job: u32,
        /// The stream.
        stream: u64,
        /// The item.
        object: u64,
        /// What there is of it.
        #[serde(borrow)]
        value: Delivery<'a>,
        /// What its value contains.
        contains: Vec<u64>,
    },
    /// So many items of a generator, all in all, were taken.
    Credit(u64, u64),
    /// An object of a job was delivered for a task that was taken back.
    Unneeded(u32, u64),
    /// A file that was lent by this number is to be forgotten, once no task has it in use, and that to be said.
    Forget(u64),
    /// Memory that a value was written to here is given up, by its number.
    Close(u32),
    /// An attempt of a task is to end: it is not begun, if it was not yet, and does not go on, if it waits.
    Cancel(u64, u32),
    /// Tasks of a job that submit are to wait (true), or go on: what it has submitted takes as much as it may.
    Hold(u32, bool),
    /// Each task of a held job that waits goes on until it has submitted once more.
    GoOn(u32),
    /// What a task waits for is to be said ([`Up::Waits`]), or what the calls of the actor that it made do.
    AskWaits(u64),
    /// A call of an actor is not wanted any more: the actor, the call, its attempt. What runs goes on.
    Withdraw(u64, u64, u32),
}
