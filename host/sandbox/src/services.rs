//! What a guest may ask of its host, as the host's side sees it.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sandbar_core::{ActorId, Code, Fault, GroupId, ObjectId};
use sandbar_dense::Session;

use crate::running::TaskCall;

/// How important a line of a guest's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For whoever writes the function.
    Debug,
    /// For whoever runs it.
    Info,
    /// Something may be wrong.
    Warn,
    /// Something is wrong.
    Error,
}

/// The body of a call's input.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// Its bytes.
    pub bytes: Bytes<'a>,
    /// The same bytes in a sealed file, where they can be mapped, and where they
    /// start in it: at a page.
    pub file: Option<(BorrowedFd<'a>, u64)>,
}

/// Bytes that stay as they are as long as this is there.
#[derive(Debug, Clone)]
pub enum Bytes<'a> {
    /// Somebody else's.
    Lent(&'a [u8]),
    /// Those of several.
    Shared(Arc<Vec<u8>>),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Lent(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes::Lent(bytes)
    }
}

/// A group as a guest is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupAt {
    /// Row at which it starts in every column.
    pub first_row: u32,
    /// Rows to train on.
    pub train_rows: u32,
    /// Rows to test on, behind them.
    pub test_rows: u32,
    /// A function of the job's seed and of the group.
    pub seed: u64,
}

/// What a model predicts for each test row, as a guest handed it over: f64,
/// little-endian, not aligned.
#[derive(Debug, Clone, Copy)]
pub struct Predictions<'a>(pub(crate) &'a [u8]);

impl<'a> Predictions<'a> {
    /// Number of predictions; none when the bytes are not whole numbers.
    pub fn count(&self) -> Option<usize> {
        self.0.len().is_multiple_of(8).then_some(self.0.len() / 8)
    }

    /// The predictions in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f64> + use<'a> {
        let (numbers, _) = self.0.as_chunks::<8>();
        numbers.iter().map(|bytes| f64::from_le_bytes(*bytes))
    }
}

/// What a guest gets that asks for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// A value of so many bytes.
    Value(u64),
    /// An error of so many bytes.
    Failed(u64),
    /// Nothing in time.
    TimeOut,
}

/// What a guest gets that asks for the next item of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// An object.
    Item(ObjectId),
    /// There are no more.
    Ended,
    /// Nothing in time.
    TimeOut,
}

/// What an actor is to do next.
#[derive(Debug)]
pub enum Next {
    /// Begin a call of a method.
    Run(TaskCall),
    /// Go on with a call that waits, by its number.
    Resume(u64),
    /// Forget a call that waits.
    Abandon(u64),
}

/// Why the host refuses what a guest asks; the guest traps with it.
#[derive(Debug)]
pub struct Refusal {
    /// What happened.
    pub code: Code,
    /// In words.
    pub message: String,
}

impl Refusal {
    /// A refusal of something that is not there or is out of bounds.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Refusal { code: Code::BadRequest, message: message.into() }
    }

    /// A refusal of something that the guest handed back.
    pub fn bad_output(message: impl Into<String>) -> Self {
        Refusal { code: Code::BadOutput, message: message.into() }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal { code: fault.code, message: fault.message }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Fault::new(refusal.code, refusal.message)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// What a guest may ask of its host during one call. Everything handed in is
/// untrusted. Each method's default refuses.
pub trait Services: Send + 'static {
    /// The body of the input.
    fn input(&self) -> Input<'_> {
        Input { bytes: Bytes::Lent(&[]), file: None }
    }

    /// Takes a batch: its header and its buffers.
    fn emit(&mut self, _header: &[u8], _buffers: &[&[u8]]) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call takes no batches back"))
    }

    /// Takes a line of log. Bounding it is the implementor's.
    fn log(&mut self, _level: Level, _message: &str) {}

    /// The next group to fit or predict.
    fn next_group(&mut self) -> Result<Option<GroupAt>, Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// The stored model of the group at hand.
    fn model(&self) -> Result<Vec<u8>, Refusal> {
        Err(Refusal::bad_request("this call has no models"))
    }

    /// The group at hand is fitted.
    fn fitted(&mut self, _model: &[u8], _params: &str, _predictions: Predictions<'_>) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call fits no groups"))
    }

    /// The group at hand is predicted.
    fn predicted(&mut self, _predictions: Predictions<'_>) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call predicts no groups"))
    }

    /// The group at hand can't be fitted or predicted.
    fn failed(&mut self, _message: &str) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// The groups that are yet to be handed over.
    fn groups_ahead(&self) -> Result<Vec<GroupAt>, Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// Its tensors, and where operations on them are done. None where there are none.
    fn dense(&mut self) -> Option<&mut Session> {
        None
    }

    /// For how many nanoseconds GPUs have worked for it, as far as it has waited for them.
    fn gpu_nanos(&self) -> u64 {
        0
    }

    /// Whether its GPU was lost, for a reason that is not its own.
    fn has_lost_gpu(&self) -> bool {
        false
    }

    /// Whether something that it made is gone with its GPU: an actor is not what it was then.
    fn has_lost_tensors(&self) -> bool {
        false
    }

    /// It waits for what a GPU is to give it: it is to go on some time, as nobody tells when.
    fn waits_for_gpu(&mut self) {}

    /// Begins to wait until this time and for nothing else; called again each time that the wait is polled before.
    ///
    /// # Errors
    /// Where nobody can wait.
    fn sleep_until(&mut self, _due: Instant) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// What began by [`Services::sleep_until`] is over.
    fn woke(&mut self) {}

    /// Submits a task; gives its first result.
    fn submit(&mut self, _task: u32, _returns: u32, _request: &[u8]) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Whether it may go on that has submitted a task: it waits while too much was submitted and has not ended.
    fn poll_submitted(&mut self) -> Poll<()> {
        Poll::Ready(())
    }

    /// Stores a value, in parts, that contains these objects.
    fn put(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Waits until `count` of these objects are there, for so many nanoseconds at most: [`Services::begin_wait`], then
    /// this until it is ready. Says of each whether it is.
    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        Poll::Ready(Err(no_program()))
    }

    /// Begins to wait.
    fn begin_wait(&mut self, _objects: &[u64], _count: u32, _nanos: Option<u64>) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Begins to wait for one object, with its value: then [`Services::poll_wait`], then [`Services::object`].
    fn begin_get(&mut self, object: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        self.begin_wait(&[object.0], 1, nanos)
    }

    /// Pages of the object that was asked for last were laid over so many bytes of the guest's memory from an address on:
    /// they stay until others are, or the guest's end.
    fn mapped(&mut self, _at: usize, _bytes: usize) {}

    /// What there is of an object: all of its value, or of its error.
    fn object(&mut self, _object: ObjectId) -> Result<(Got, Input<'_>), Refusal> {
        Err(no_program())
    }

    /// These objects are held no more.
    fn release(&mut self, _objects: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Ends the task that an object comes of.
    fn cancel(&mut self, _object: ObjectId, _recursive: bool) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// The actor of this name: an object that will be its handle.
    fn find(&mut self, _name: &str) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// What the program was given under this number: an object that will be it.
    fn open(&mut self, _file: u64) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Ends an actor, or has it begun anew.
    fn kill(&mut self, _actor: ActorId, _restart: bool) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Has room set aside: a [`sandbar_core::GroupRequest`].
    fn group(&mut self, _request: &[u8]) -> Result<GroupId, Refusal> {
        Err(no_program())
    }

    /// What was set aside is given back.
    fn remove_group(&mut self, _group: GroupId) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// What the call at hand of an actor waits for, if it says that it has not ended.
    fn awaits(&mut self, _objects: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// The actor is made, and takes calls from here on.
    fn made(&mut self) {}

    /// What the actor is to do next, once there is something.
    fn poll_next(&mut self) -> Poll<Next> {
        Poll::Pending
    }

    /// The call at hand of the actor has ended, or waits (false), or failed by itself. The sandbox has so much memory.
    fn answered(&mut self, _answer: Result<bool, Fault>, _memory_bytes: u64) {}

    /// How far it is with what it calls so, of how much if that is known. Bounding it is the implementor's.
    fn progress(&mut self, _name: &str, _done: u64, _total: Option<u64>) {}

    /// It is going to fail with this [`sandbar_core::TaskError`] of another, in postcard.
    fn fails_with(&mut self, _error: &[u8]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Takes the next result, in parts, that contains these objects.
    fn returned(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Takes the next item of the generator at hand, as [`Services::returned`] takes a result. It goes on once
    /// [`Services::poll_yielded`] is ready.
    fn yielded(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Whether there is room for another item.
    fn poll_yielded(&mut self) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Err(no_program()))
    }

    /// Begins to wait for the next item of a stream, for so many nanoseconds at most: then [`Services::poll_item`].
    fn begin_item(&mut self, _stream: ObjectId, _nanos: Option<u64>) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// What there is of it.
    fn poll_item(&mut self, _stream: ObjectId) -> Poll<Result<Following, Refusal>> {
        Poll::Ready(Err(no_program()))
    }
}

fn no_program() -> Refusal {
    Refusal::bad_request("only tasks have tasks and objects; submit the program as a job of its own")
}

/// Refuses everything: for describing a component.
#[derive(Debug, Default)]
pub struct NoServices;

impl Services for NoServices {}
