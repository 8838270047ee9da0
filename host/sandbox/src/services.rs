//! The requests that a guest may make to its host, as an interface for the host.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sandbar_core::{ActorId, Code, Fault, GroupId, ObjectId};
use sandbar_dense::Session;

use crate::task_call::TaskCall;

/// Level of a line of a guest's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For the author of the function.
    Debug,
    /// For its user.
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
    pub bytes: InputBytes<'a>,
    /// The same bytes in a sealed file, if they can be mapped, with their page-aligned offset in it.
    pub file: Option<(BorrowedFd<'a>, u64)>,
}

/// Bytes that do not change while this value lives.
#[derive(Debug, Clone)]
pub enum InputBytes<'a> {
    /// Borrowed bytes.
    Lent(&'a [u8]),
    /// Bytes with shared ownership.
    Shared(Arc<Vec<u8>>),
}

impl Deref for InputBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            InputBytes::Lent(bytes) => bytes,
            InputBytes::Shared(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a [u8]> for InputBytes<'a> {
    fn from(bytes: &'a [u8]) -> InputBytes<'a> {
        InputBytes::Lent(bytes)
    }
}

/// A group, as described to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRange {
    /// Index of its first row in every column.
    pub first_row: u32,
    /// Number of rows to train on.
    pub train_rows: u32,
    /// Number of rows to test on, after the training rows.
    pub test_rows: u32,
    /// Seed, a function of the job's seed and of the group.
    pub seed: u64,
}

/// Predictions of a model, one per test row, as received from a guest: f64, little-endian, unaligned.
#[derive(Debug, Clone, Copy)]
pub struct Predictions<'a>(pub(crate) &'a [u8]);

impl<'a> Predictions<'a> {
    /// Returns the number of predictions; `None` if the bytes are not a whole number of values.
    pub fn count(&self) -> Option<usize> {
        self.0.len().is_multiple_of(8).then_some(self.0.len() / 8)
    }

    /// Returns the predictions in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f64> + use<'a> {
        let (numbers, _) = self.0.as_chunks::<8>();
        numbers.iter().map(|bytes| f64::from_le_bytes(*bytes))
    }
}

/// Outcome of a guest's request for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetOutcome {
    /// A value, with its length in bytes.
    Value(u64),
    /// An error, with its length in bytes.
    Failed(u64),
    /// The time limit has passed.
    TimeOut,
}

/// Outcome of a guest's request for the next item of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextItem {
    /// An object.
    Item(ObjectId),
    /// The stream has ended.
    Ended,
    /// The time limit has passed.
    TimeOut,
}

/// The next step of an actor.
#[derive(Debug)]
pub enum ActorStep {
    /// Starts a call of a method.
    Run(TaskCall),
    /// Continues a waiting call, by its number.
    Resume(u64),
    /// Drops a waiting call, by its number.
    Abandon(u64),
}

/// Reason for which the host refuses a guest's request; the guest traps with it.
#[derive(Debug)]
pub struct Refusal {
    /// Code of the fault.
    pub code: Code,
    /// Message of the fault.
    pub message: String,
}

impl Refusal {
    /// Refuses a request for something that does not exist or is out of bounds.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Refusal { code: Code::BadRequest, message: message.into() }
    }

    /// Refuses output of the guest.
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

/// The requests that a guest may make to its host during one call. All arguments are untrusted. The default of each
/// method refuses the request.
pub trait Services: Send + 'static {
    /// Returns the body of the input.
    fn input(&self) -> Input<'_> {
        Input { bytes: InputBytes::Lent(&[]), file: None }
    }

    /// Accepts a batch: its header and its buffers.
    fn emit(&mut self, _header: &[u8], _buffers: &[&[u8]]) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call accepts no output batches"))
    }

    /// Accepts a log line. The implementor must bound the log.
    fn log(&mut self, _level: Level, _message: &str) {}

    /// Returns the next group to fit or predict.
    fn next_group(&mut self) -> Result<Option<GroupRange>, Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// Returns the stored model of the current group.
    fn model(&self) -> Result<Vec<u8>, Refusal> {
        Err(Refusal::bad_request("this call has no models"))
    }

    /// Settles the current group as fitted.
    fn fitted(&mut self, _model: &[u8], _params: &str, _predictions: Predictions<'_>) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call fits no groups"))
    }

    /// Settles the current group as predicted.
    fn predicted(&mut self, _predictions: Predictions<'_>) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call predicts no groups"))
    }

    /// Settles the current group as failed.
    fn failed(&mut self, _message: &str) -> Result<(), Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// Returns the groups that remain.
    fn groups_ahead(&self) -> Result<Vec<GroupRange>, Refusal> {
        Err(Refusal::bad_request("this call has no groups"))
    }

    /// Returns the session with the guest's tensors and their devices; `None` if the call has no tensors.
    fn dense(&mut self) -> Option<&mut Session> {
        None
    }

    /// Returns the GPU time in nanoseconds, of work for which the guest has waited.
    fn gpu_nanos(&self) -> u64 {
        0
    }

    /// Returns whether the guest's GPU was lost through no fault of the guest.
    fn has_lost_gpu(&self) -> bool {
        false
    }

    /// Returns whether tensors of the guest were lost with its GPU. An actor's state is lost with them.
    fn has_lost_tensors(&self) -> bool {
        false
    }

    /// Registers a wait for a GPU. The guest must be polled again later, because nothing signals the result.
    fn wait_for_gpu(&mut self) {}

    /// Starts to wait until `due` and for nothing else. Called again on every earlier poll of the wait.
    ///
    /// # Errors
    /// When the call cannot wait.
    fn sleep_until(&mut self, _due: Instant) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Ends the wait that [`Services::sleep_until`] started.
    fn end_sleep(&mut self) {}

    /// Submits a task. Returns its first result.
    fn submit(&mut self, _task: u32, _returns: u32, _request: &[u8]) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Returns ready when the guest may continue after submitting a task. It waits while too many submitted tasks are
    /// unfinished.
    fn poll_submitted(&mut self) -> Poll<()> {
        Poll::Ready(())
    }

    /// Stores a value, given in parts, that contains these objects.
    fn put(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Polls the wait that [`Services::begin_wait`] started. Returns for each object whether it is available.
    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        Poll::Ready(Err(no_program()))
    }

    /// Starts to wait until `count` of these objects are available, for at most `nanos` nanoseconds.
    fn begin_wait(&mut self, _objects: &[u64], _count: u32, _nanos: Option<u64>) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Starts to wait for the value of one object: [`Services::poll_wait`] and [`Services::object`] follow.
    fn begin_get(&mut self, object: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        self.begin_wait(&[object.0], 1, nanos)
    }

    /// Records that pages of the object that was read last are mapped over `bytes` bytes of the guest's memory from
    /// address `at`. They stay until they are replaced or the guest ends.
    fn object_mapped(&mut self, _at: usize, _bytes: usize) {}

    /// Returns the state of an object, with all bytes of its value or error.
    fn object(&mut self, _object: ObjectId) -> Result<(GetOutcome, Input<'_>), Refusal> {
        Err(no_program())
    }

    /// Releases references to objects.
    fn release(&mut self, _objects: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Cancels the task that returns an object.
    fn cancel(&mut self, _object: ObjectId, _recursive: bool) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Looks up an actor by its name. Returns the object of its future handle.
    fn find(&mut self, _name: &str) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Opens a file of the job by its number. Returns the object of its future content.
    fn open(&mut self, _file: u64) -> Result<ObjectId, Refusal> {
        Err(no_program())
    }

    /// Ends or restarts an actor.
    fn kill(&mut self, _actor: ActorId, _restart: bool) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Creates a placement group from an encoded [`sandbar_core::GroupRequest`].
    fn group(&mut self, _request: &[u8]) -> Result<GroupId, Refusal> {
        Err(no_program())
    }

    /// Removes a placement group.
    fn remove_group(&mut self, _group: GroupId) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Sets the objects that an actor's current call waits for when it returns unfinished.
    fn awaits(&mut self, _objects: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Marks the actor as created; it accepts calls from now on.
    fn actor_created(&mut self) {}

    /// Returns the actor's next step, once there is one.
    fn poll_next(&mut self) -> Poll<ActorStep> {
        Poll::Pending
    }

    /// Handles the return of an actor's current call: finished (true), waiting (false), or failed. `memory_bytes` is
    /// the sandbox's current linear memory.
    fn call_returned(&mut self, _result: Result<bool, Fault>, _memory_bytes: u64) {}

    /// Reports progress in a named activity, with the total if it is known. The implementor must bound the reports.
    fn progress(&mut self, _name: &str, _done: u64, _total: Option<u64>) {}

    /// Sets the error with which the guest is about to fail: another task's [`sandbar_core::TaskError`], in postcard.
    fn fail_with(&mut self, _error: &[u8]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Accepts the next result, given in parts, that contains these objects.
    fn returned(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Accepts the next item of a generator, in the form of [`Services::returned`]. The generator continues once
    /// [`Services::poll_yielded`] is ready.
    fn yielded(&mut self, _parts: &[&[u8]], _contained: &[u64]) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Returns ready when there is room for another item.
    fn poll_yielded(&mut self) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Err(no_program()))
    }

    /// Starts to wait for the next item of a stream, for at most `nanos` nanoseconds: [`Services::poll_item`] follows.
    fn begin_item(&mut self, _stream: ObjectId, _nanos: Option<u64>) -> Result<(), Refusal> {
        Err(no_program())
    }

    /// Polls for the next item of a stream.
    fn poll_item(&mut self, _stream: ObjectId) -> Poll<Result<NextItem, Refusal>> {
        Poll::Ready(Err(no_program()))
    }
}

fn no_program() -> Refusal {
    Refusal::bad_request("only tasks can use tasks and objects; submit the program as its own job")
}

/// Refuses every request; for describing a component.
#[derive(Debug, Default)]
pub struct NoServices;

impl Services for NoServices {}
