//! The connection between a client and the runtime. Messages of the client wait in a queue; messages of the runtime are calls
//! of the client's listener.

use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_store::{Mapping, SealedFile};
use sandbar_worker::program::{Delivery, NodeDoorbell, NodeMessage, Polled, StartTask, TaskPosition, WorkerMessage};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, oneshot};

use crate::encoding::AlwaysEncodes;

/// Maximum bytes of queued messages and of their values' files. A client with more waits.
const QUEUED_BYTES_MAX: usize = 8 << 20;
/// Bytes that a queued message counts in addition to its frame and file.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// Receives the objects of a client's job. The runtime's thread calls these methods: they must not block.
pub trait ClientListener: Send + Sync {
    /// A requested object is ready, or its task failed. From now on, the client holds each object that the value contains once
    /// more.
    fn delivered(&self, object: ObjectId, value: Result<ObjectValue, Arc<TaskError>>, contains: Vec<ObjectId>);

    /// A stream of the client has yielded an item. From now on, the client holds the item's object once, and each object that
    /// the value contains once more. A large item has no value here: the client requests it like any other object.
    fn item(
        &self,
        stream: ObjectId,
        item: ObjectId,
        value: Option<Result<ObjectValue, Arc<TaskError>>>,
        contains: Vec<ObjectId>,
    );

    /// A batch of deliveries is complete.
    fn flush(&self);

    /// The job has ended. No delivery follows.
    fn ended(&self);
}

/// The bytes of an object.
#[derive(Debug, Clone)]
pub struct ObjectValue(Bytes);

#[derive(Debug, Clone)]
enum Bytes {
    Inline(Arc<[u8]>),
    File(Arc<LentFile>),
}

impl ObjectValue {
    /// Returns whether the value is a small copy on this process's heap, which the node's object memory does not count.
    pub fn is_inline(&self) -> bool {
        matches!(self.0, Bytes::Inline(_))
    }
}

impl Deref for ObjectValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline(bytes) => bytes,
            Bytes::File(file) => file.mapping.as_deref().unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for ObjectValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A mapped file that the node has lent. Dropping it notifies the node that the client has released the file.
#[derive(Debug)]
struct LentFile {
    mapping: Option<Mapping>,
    number: u64,
    line: Arc<ClientLine>,
}

impl Drop for LentFile {
    fn drop(&mut self) {
        self.mapping = None;
        self.line.send_now(&WorkerMessage::FileReleased(self.number));
    }
}

/// The client's end of the connection.
#[derive(Debug)]
pub(crate) struct ClientLine {
    queue: Mutex<VecDeque<QueuedMessage>>,
    /// Number of queued messages.
    count: AtomicUsize,
    /// Bytes that can be queued.
    capacity: Semaphore,
    is_closed: AtomicBool,
    doorbell: NodeDoorbell,
}

#[derive(Debug)]
struct QueuedMessage {
    frame: Vec<u8>,
    /// File of the value that the message names.
    file: Option<SealedFile>,
    /// Reserved bytes, which the runtime returns after it has polled the message.
    reserved_bytes: usize,
}

impl ClientLine {
    pub(crate) fn new(doorbell: NodeDoorbell) -> Arc<ClientLine> {
        Arc::new(ClientLine {
            queue: Mutex::default(),
            count: AtomicUsize::new(0),
            capacity: Semaphore::new(QUEUED_BYTES_MAX),
            is_closed: AtomicBool::new(false),
            doorbell,
        })
    }

    /// Waits until a message of about this size can be queued, and reserves its bytes.
    ///
    /// # Errors
    /// Fails if the job has ended.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<SemaphorePermit<'_>, AcquireError> {
        let reserved = bytes.saturating_add(MESSAGE_OVERHEAD_BYTES).min(QUEUED_BYTES_MAX);
        self.capacity.acquire_many(reserved as u32).await
    }

    /// Queues a message with reserved bytes.
    pub(super) fn send(&self, message: &WorkerMessage<'_>, file: Option<SealedFile>, reserved: SemaphorePermit<'_>) {
        self.push(message.encode(), file, reserved.num_permits());
        // The runtime returns the bytes.
        reserved.forget();
    }

    fn push(&self, frame: Vec<u8>, file: Option<SealedFile>, reserved_bytes: usize) {
        let mut queue = self.queue();
        queue.push_back(QueuedMessage { frame, file, reserved_bytes });
        self.count.store(queue.len(), Relaxed);
        drop(queue);
        self.doorbell.ring();
    }

    /// Queues a message without reserving bytes, for callers that can't wait. The number of such messages is bounded by that of
    /// reserved messages and of deliveries.
    pub(super) fn send_now(&self, message: &WorkerMessage<'_>) {
        if !self.is_closed() {
            self.push(message.encode(), None, 0);
        }
    }

    /// Queues bytes that need not be a valid message.
    pub(crate) fn send_bytes(&self, frame: Vec<u8>, file: Option<SealedFile>) {
        self.push(frame, file, 0);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedMessage>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids of a client: its worker, and the job's first task, which it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientTask {
    pub(super) worker: WorkerId,
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) seed: u64,
}

/// The runtime's end of the connection.
pub(crate) struct ClientLink {
    line: Arc<ClientLine>,
    listener: Arc<dyn ClientListener>,
    /// Receives the ids when the first task starts.
    started: Option<oneshot::Sender<ClientTask>>,
    worker: WorkerId,
    /// Lent files, by number, until the runtime releases them.
    lent_files: FxHashMap<u64, Arc<LentFile>>,
    /// File of the polled message.
    file: Option<SealedFile>,
    /// Reserved bytes of polled messages, to return by the next flush.
    polled_bytes: usize,
    /// Whether the listener was called since the last flush.
    has_delivered: bool,
}

impl std::fmt::Debug for ClientLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientLink").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl ClientLink {
    pub(crate) fn new(
        line: Arc<ClientLine>,
        listener: Arc<dyn ClientListener>,
        started: oneshot::Sender<ClientTask>,
    ) -> ClientLink {
        ClientLink {
            line,
            listener,
            started: Some(started),
            worker: WorkerId(0),
            lent_files: FxHashMap::default(),
            file: None,
            polled_bytes: 0,
            has_delivered: false,
        }
    }

    /// Sets the client's worker id.
    pub(crate) fn set_worker(&mut self, worker: WorkerId) {
        self.worker = worker;
    }

    /// Starts the job's first task, which the client runs.
    pub(crate) fn start(&mut self, task: &StartTask<'_>) -> TaskPosition {
        if let Some(started) = self.started.take() {
            let (id, attempt) = (TaskId(task.task), Attempt(task.attempt));
            // The receiver was dropped if the start of the job was cancelled.
            let _ = started.send(ClientTask { worker: self.worker, task: id, attempt, seed: task.seed });
        }
        TaskPosition::IMMEDIATE
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.line.count.load(Relaxed) > 0
    }

    /// Reads the next message into `frame`.
    pub(crate) fn poll(&mut self, frame: &mut Vec<u8>) -> Polled {
        let mut queue = self.line.queue();
        let Some(message) = queue.pop_front() else { return Polled::Empty };
        self.line.count.store(queue.len(), Relaxed);
        drop(queue);
        self.polled_bytes += message.reserved_bytes;
        (*frame, self.file) = (message.frame, message.file);
        Polled::Message
    }

    /// Returns the file of the polled message.
    pub(crate) fn next_file(&mut self) -> io::Result<SealedFile> {
        self.file.take().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a value's file is missing"))
    }

    pub(crate) fn send(&mut self, message: &NodeMessage<'_>) {
        match message {
            NodeMessage::Deliver { object, value, contains, .. } => {
                // A requested object that is pending is delivered later.
                if let Some(value) = self.decode_value(value) {
                    self.deliver(*object, value, contains);
                }
            }
            NodeMessage::DeliverItem { stream, object, value, contains, .. } => {
                self.has_delivered = true;
                let value = self.decode_value(value).map(|value| value.map_err(Arc::new));
                self.listener.item(ObjectId(*stream), ObjectId(*object), value, object_ids(contains));
            }
            NodeMessage::ReleaseFile(file) => drop(self.lent_files.remove(file)),
            // These concern tasks of a worker's process. A client's task is the job itself, and not a generator.
            NodeMessage::DropDelivery(..)
            | NodeMessage::DropMemory(_)
            | NodeMessage::Cancel(..)
            | NodeMessage::WithdrawCall(..)
            | NodeMessage::Credit(..)
            | NodeMessage::ReportWaits(_)
            | NodeMessage::HoldJob(..)
            | NodeMessage::ResumeOnce(_) => {}
        }
    }

    /// Like [`ClientLink::send`], with a value in a file.
    pub(crate) fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        let NodeMessage::Deliver { object, value: Delivery::File(bytes, number), contains, .. } = message else {
            return Ok(());
        };
        let mapping = Some(Mapping::sealed(file.as_fd(), *bytes)?);
        let lent = Arc::new(LentFile { mapping, number: *number, line: self.line.clone() });
        self.lent_files.insert(*number, lent.clone());
        self.deliver(*object, Ok(ObjectValue(Bytes::File(lent))), contains);
        Ok(())
    }

    /// Decodes a delivery without a new file. Returns `None` if the object is pending.
    fn decode_value(&self, value: &Delivery<'_>) -> Option<Result<ObjectValue, TaskError>> {
        match value {
            Delivery::Value(bytes) => Some(Ok(ObjectValue(Bytes::Inline((*bytes).into())))),
            Delivery::LentFile(file) => Some(self.lent_value(*file)),
            Delivery::Failed(error) => Some(Err(postcard::from_bytes(error).unwrap_or_else(|_| invalid_delivery()))),
            Delivery::File(..) | Delivery::Pending => None,
        }
    }

    fn lent_value(&self, file: u64) -> Result<ObjectValue, TaskError> {
        self.lent_files.get(&file).map(|lent| ObjectValue(Bytes::File(lent.clone()))).ok_or_else(invalid_delivery)
    }

    fn deliver(&mut self, object: u64, value: Result<ObjectValue, TaskError>, contains: &[u64]) {
        self.has_delivered = true;
        self.listener.delivered(ObjectId(object), value.map_err(Arc::new), object_ids(contains));
    }

    /// Returns the reserved bytes of polled messages, and flushes the listener.
    pub(crate) fn flush(&mut self) {
        if self.polled_bytes > 0 {
            self.line.capacity.add_permits(std::mem::take(&mut self.polled_bytes));
        }
        if std::mem::take(&mut self.has_delivered) {
            self.listener.flush();
        }
    }

    /// Closes the connection: the job has ended.
    pub(crate) fn close(&mut self) {
        if !self.line.is_closed.swap(true, Relaxed) {
            self.line.capacity.close();
            self.line.queue().clear();
            self.listener.ended();
        }
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.close();
    }
}

fn object_ids(numbers: &[u64]) -> Vec<ObjectId> {
    numbers.iter().copied().map(ObjectId).collect()
}

fn invalid_delivery() -> TaskError {
    TaskError { fault: Fault::new(Code::Host, "the node delivered an object that can't be decoded"), chain: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbar_core::JobId;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    /// Records the calls of a listener.
    #[derive(Default)]
    struct RecordingListener(Mutex<Vec<(String, Option<ObjectValue>)>>);

    impl ClientListener for RecordingListener {
        fn delivered(&self, object: ObjectId, value: Result<ObjectValue, Arc<TaskError>>, contains: Vec<ObjectId>) {
            let code = value.as_ref().err().map(|error| error.fault.code);
            self.0.lock().unwrap().push((format!("{object} {code:?} {contains:?}"), value.ok()));
        }

        fn item(
            &self,
            stream: ObjectId,
            item: ObjectId,
            value: Option<Result<ObjectValue, Arc<TaskError>>>,
            contains: Vec<ObjectId>,
        ) {
            let value = value.map(|value| value.map(|value| value.to_vec()).map_err(|error| error.fault.code));
            self.0.lock().unwrap().push((format!("{stream} {item} {value:?} {contains:?}"), None));
        }

        fn flush(&self) {
            self.0.lock().unwrap().push(("flush".to_owned(), None));
        }

        fn ended(&self) {
            self.0.lock().unwrap().push(("ended".to_owned(), None));
        }
    }

    fn connect() -> (Arc<ClientLine>, ClientLink, Arc<RecordingListener>) {
        let (line, listener) = (ClientLine::new(NodeDoorbell::new().unwrap()), Arc::<RecordingListener>::default());
        let link = ClientLink::new(line.clone(), listener.clone(), oneshot::channel().0);
        (line, link, listener)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    fn poll(link: &mut ClientLink) -> Option<String> {
        let mut frame = Vec::new();
        let has_message = link.poll(&mut frame) == Polled::Message;
        has_message.then(|| format!("{:?}", postcard::from_bytes::<WorkerMessage<'_>>(&frame).unwrap()))
    }

    #[test]
    fn a_client_with_too_many_queued_bytes_waits() {
        run(async {
            let (line, mut link, _) = connect();
            for object in 0..2 {
                let reserved = line.reserve(QUEUED_BYTES_MAX / 2 - MESSAGE_OVERHEAD_BYTES).await.unwrap();
                line.send(&WorkerMessage::RequestObject(object, 7), None, reserved);
            }
            assert!(timeout(SOON, line.reserve(0)).await.is_err());
            // A message without a reservation is queued nevertheless.
            line.send_now(&WorkerMessage::Release(0, 1));
            assert_eq!(poll(&mut link).as_deref(), Some("RequestObject(0, 7)"));
            link.flush();
            // A message larger than the queue reserves all of it.
            assert!(timeout(SOON, line.reserve(0)).await.is_ok());
            assert!(timeout(SOON, line.reserve(usize::MAX)).await.is_err());
            assert_eq!([poll(&mut link), poll(&mut link), poll(&mut link)].iter().flatten().count(), 2);
            link.flush();
            assert!(timeout(SOON, line.reserve(usize::MAX)).await.is_ok());
        });
    }

    #[test]
    fn reservations_fail_when_the_job_ends() {
        run(async {
            let (line, link, listener) = connect();
            let all = line.reserve(usize::MAX).await.unwrap();
            let waits = async { line.reserve(0).await.is_err() };
            let (refused, ()) = tokio::join!(waits, async { drop(link) });
            assert!(refused && line.is_closed());
            drop(all);
            line.send_now(&WorkerMessage::Release(0, 1));
            assert_eq!(line.count.load(Relaxed), 0);
            assert_eq!(listener.0.lock().unwrap().len(), 1);
        });
    }

    #[test]
    fn small_items_are_delivered_with_their_values() {
        let (_line, mut link, listener) = connect();
        let item = |object, value| NodeMessage::DeliverItem { job: 1, stream: 5, object, value, contains: vec![9] };
        let error = postcard::to_stdvec(&invalid_delivery()).unwrap();
        link.send(&item(6, Delivery::Value(b"a")));
        link.send(&item(7, Delivery::Pending));
        link.send(&item(8, Delivery::Failed(&error)));
        link.flush();
        let calls = std::mem::take(&mut *listener.0.lock().unwrap());
        let names: Vec<_> = calls.iter().map(|(names, _)| names.as_str()).collect();
        let contains = "[ObjectId(9)]";
        let expected = [
            format!("5 6 Some(Ok([97])) {contains}"),
            format!("5 7 None {contains}"),
            format!("5 8 Some(Err(Host)) {contains}"),
        ];
        assert_eq!((&names[..3], names[3]), (&expected.each_ref().map(String::as_str)[..], "flush"));
    }

    #[test]
    fn a_file_is_released_with_the_last_copy_of_its_value() {
        let (_line, mut link, listener) = connect();
        let file = SealedFile::new(b"a large value").unwrap();
        let job = JobId(1).0;
        let deliver = |value| NodeMessage::Deliver { job, object: 5, value, contains: vec![6], requested: true };
        link.send_with_file(&deliver(Delivery::File(7, 3)), &file).unwrap();
        link.send(&deliver(Delivery::LentFile(3)));
        link.send(&deliver(Delivery::LentFile(4)));
        let mut calls = std::mem::take(&mut *listener.0.lock().unwrap());
        let names: Vec<_> = calls.iter().map(|(names, _)| names.as_str()).collect();
        assert_eq!(names, ["5 None [ObjectId(6)]", "5 None [ObjectId(6)]", "5 Some(Host) [ObjectId(6)]"]);
        let value = calls.remove(0).1.unwrap();
        drop(calls);
        link.send(&NodeMessage::ReleaseFile(3));
        assert_eq!((&value[..], value.is_inline(), poll(&mut link)), (&b"a large"[..], false, None));
        drop(value);
        assert_eq!(poll(&mut link).as_deref(), Some("FileReleased(3)"));
    }
}
