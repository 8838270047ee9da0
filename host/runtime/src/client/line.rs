//! Between a client and the hub: what the one says waits in a queue, what the other tells is a call.

use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_store::{Mapping, SealedFile};
use sandbar_worker::program::{Delivery, Doorbell, NodeMessage, Polled, StartTask, TaskPosition, WorkerMessage};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, oneshot};

/// Bytes of messages that the hub has not heard, and of the values that come with them: who says more waits.
const AHEAD_BYTES_MAX: usize = 8 << 20;
/// What a message takes besides its bytes.
const MESSAGE_BYTES: usize = 64;

/// What a client of a job is told, by the hub's thread: each of these does its work and returns, and waits for nobody.
pub trait Listen: Send + Sync {
    /// What there is of an object that the client wanted, and the objects that its value contains, each of which the client
    /// holds once more from now on.
    fn delivered(&self, object: ObjectId, value: Result<ObjectValue, Arc<TaskError>>, contains: Vec<ObjectId>);

    /// The next item of a stream of the client's: an object, which the client holds once from now on, as it does once more
    /// what the item's value contains. Of a value that is not told it is asked as of that of any other object.
    fn item(
        &self,
        stream: ObjectId,
        item: ObjectId,
        value: Option<Result<ObjectValue, Arc<TaskError>>>,
        contains: Vec<ObjectId>,
    );

    /// All was delivered that there is for now.
    fn flush(&self);

    /// Nothing is delivered any more: the job has ended.
    fn ended(&self);
}

/// The bytes of an object.
#[derive(Debug, Clone)]
pub struct ObjectValue(Bytes);

#[derive(Debug, Clone)]
enum Bytes {
    Own(Arc<[u8]>),
    Lent(Arc<Lent>),
}

impl ObjectValue {
    /// Whether it lies in memory of its own, which others than the node count: it is small then.
    pub fn is_own(&self) -> bool {
        matches!(self.0, Bytes::Own(_))
    }
}

impl Deref for ObjectValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Lent(lent) => lent.mapping.as_deref().unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for ObjectValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A file that the node has lent: it is told when nobody has it in use any more.
#[derive(Debug)]
struct Lent {
    mapping: Option<Mapping>,
    number: u64,
    line: Arc<Line>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.mapping = None;
        self.line.say_now(&WorkerMessage::FileReleased(self.number));
    }
}

/// The client's side.
#[derive(Debug)]
pub(crate) struct Line {
    queue: Mutex<VecDeque<Message>>,
    /// How many there are.
    count: AtomicUsize,
    /// Bytes that there is room for.
    room: Semaphore,
    is_closed: AtomicBool,
    doorbell: Doorbell,
}

#[derive(Debug)]
struct Message {
    frame: Vec<u8>,
    /// A value that is named in it.
    object: Option<SealedFile>,
    /// Room that is given back once it is heard.
    room: usize,
}

impl Line {
    pub(crate) fn new(doorbell: Doorbell) -> Arc<Line> {
        Arc::new(Line {
            queue: Mutex::default(),
            count: AtomicUsize::new(0),
            room: Semaphore::new(AHEAD_BYTES_MAX),
            is_closed: AtomicBool::new(false),
            doorbell,
        })
    }

    /// Waits until there is room for a message of so many bytes.
    ///
    /// # Errors
    /// When the job has ended: nobody listens.
    pub(super) async fn room_for(&self, bytes: usize) -> Result<SemaphorePermit<'_>, AcquireError> {
        let room = bytes.saturating_add(MESSAGE_BYTES).min(AHEAD_BYTES_MAX);
        self.room.acquire_many(room as u32).await
    }

    /// Says something that there is room for.
    pub(super) fn say(&self, message: &WorkerMessage<'_>, object: Option<SealedFile>, room: SemaphorePermit<'_>) {
        self.add(frame(message), object, room.num_permits());
        // The hub gives it back.
        room.forget();
    }

    fn add(&self, frame: Vec<u8>, object: Option<SealedFile>, room: usize) {
        let mut queue = self.queue();
        queue.push_back(Message { frame, object, room });
        self.count.store(queue.len(), Relaxed);
        drop(queue);
        self.doorbell.ring();
    }

    /// Says something whether there is room or not: what can't wait, and of which there is no more than of what could.
    pub(super) fn say_now(&self, message: &WorkerMessage<'_>) {
        if !self.is_closed() {
            self.add(frame(message), None, 0);
        }
    }

    /// Says what may be no message.
    pub(crate) fn say_bytes(&self, frame: Vec<u8>, object: Option<SealedFile>) {
        self.add(frame, object, 0);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn frame(message: &WorkerMessage<'_>) -> Vec<u8> {
    // To memory, which grows.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// What a client's place is called: its numbers, and those of the task that it stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(super) worker: WorkerId,
    pub(super) task: TaskId,
    pub(super) attempt: Attempt,
    pub(super) seed: u64,
}

/// The hub's side.
pub(crate) struct Seat {
    line: Arc<Line>,
    listener: Arc<dyn Listen>,
    begun: Option<oneshot::Sender<Begun>>,
    worker: WorkerId,
    /// Files, until they are to be forgotten.
    lent: FxHashMap<u64, Arc<Lent>>,
    /// The value that the message at hand names.
    object: Option<SealedFile>,
    /// Room of messages that were heard.
    heard: usize,
    /// Whether it was told something.
    told: bool,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl Seat {
    pub(crate) fn new(line: Arc<Line>, listener: Arc<dyn Listen>, begun: oneshot::Sender<Begun>) -> Seat {
        Seat {
            line,
            listener,
            begun: Some(begun),
            worker: WorkerId(0),
            lent: FxHashMap::default(),
            object: None,
            heard: 0,
            told: false,
        }
    }

    /// It is the member of this number from now on.
    pub(crate) fn sit(&mut self, worker: WorkerId) {
        self.worker = worker;
    }

    /// The job's first task is begun, by the client.
    pub(crate) fn begin(&mut self, task: &StartTask<'_>) -> TaskPosition {
        if let Some(begun) = self.begun.take() {
            let (id, attempt) = (TaskId(task.task), Attempt(task.attempt));
            // Who began the job may be gone.
            let _ = begun.send(Begun { worker: self.worker, task: id, attempt, seed: task.seed });
        }
        TaskPosition::IMMEDIATE
    }

    pub(crate) fn has_some(&self) -> bool {
        self.line.count.load(Relaxed) > 0
    }

    pub(crate) fn hear(&mut self, frame: &mut Vec<u8>) -> Polled {
        let mut queue = self.line.queue();
        let Some(message) = queue.pop_front() else { return Polled::Empty };
        self.line.count.store(queue.len(), Relaxed);
        drop(queue);
        self.heard += message.room;
        (*frame, self.object) = (message.frame, message.object);
        Polled::Message
    }

    pub(crate) fn next_object(&mut self) -> io::Result<SealedFile> {
        self.object.take().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a value's file is missing"))
    }

    pub(crate) fn tell(&mut self, message: &NodeMessage<'_>) {
        match message {
            NodeMessage::Deliver { object, value, contains, .. } => {
                // That it comes later is not said of what was wanted.
                if let Some(value) = self.value(value) {
                    self.deliver(*object, value, contains);
                }
            }
            NodeMessage::DeliverItem { stream, object, value, contains, .. } => {
                self.told = true;
                let value = self.value(value).map(|value| value.map_err(Arc::new));
                self.listener.item(ObjectId(*stream), ObjectId(*object), value, objects(contains));
            }
            NodeMessage::ReleaseFile(file) => drop(self.lent.remove(file)),
            // Of tasks that a client has none of: its own is the job, and no generator.
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

    pub(crate) fn tell_with(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        let NodeMessage::Deliver { object, value: Delivery::File(bytes, number), contains, .. } = message else {
            return Ok(());
        };
        let mapping = Some(Mapping::sealed(file.as_fd(), *bytes)?);
        let lent = Arc::new(Lent { mapping, number: *number, line: self.line.clone() });
        self.lent.insert(*number, lent.clone());
        self.deliver(*object, Ok(ObjectValue(Bytes::Lent(lent))), contains);
        Ok(())
    }

    /// What is told of an object without a file, if that is more than a promise.
    fn value(&self, value: &Delivery<'_>) -> Option<Result<ObjectValue, TaskError>> {
        match value {
            Delivery::Value(bytes) => Some(Ok(ObjectValue(Bytes::Own((*bytes).into())))),
            Delivery::LentFile(file) => Some(self.same(*file)),
            Delivery::Failed(error) => Some(Err(postcard::from_bytes(error).unwrap_or_else(|_| missing()))),
            Delivery::File(..) | Delivery::Pending => None,
        }
    }

    fn same(&self, file: u64) -> Result<ObjectValue, TaskError> {
        self.lent.get(&file).map(|lent| ObjectValue(Bytes::Lent(lent.clone()))).ok_or_else(missing)
    }

    fn deliver(&mut self, object: u64, value: Result<ObjectValue, TaskError>, contains: &[u64]) {
        self.told = true;
        self.listener.delivered(ObjectId(object), value.map_err(Arc::new), objects(contains));
    }

    pub(crate) fn flush(&mut self) {
        if self.heard > 0 {
            self.line.room.add_permits(std::mem::take(&mut self.heard));
        }
        if std::mem::take(&mut self.told) {
            self.listener.flush();
        }
    }

    /// Nobody listens any more.
    pub(crate) fn close(&mut self) {
        if !self.line.is_closed.swap(true, Relaxed) {
            self.line.room.close();
            self.line.queue().clear();
            self.listener.ended();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.close();
    }
}

fn objects(numbers: &[u64]) -> Vec<ObjectId> {
    numbers.iter().copied().map(ObjectId).collect()
}

fn missing() -> TaskError {
    TaskError { fault: Fault::new(Code::Host, "the node did not say what it is"), chain: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbar_core::JobId;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    /// Notes what it is told.
    #[derive(Default)]
    struct Notes(Mutex<Vec<(String, Option<ObjectValue>)>>);

    impl Listen for Notes {
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

    fn seat() -> (Arc<Line>, Seat, Arc<Notes>) {
        let (line, notes) = (Line::new(Doorbell::new().unwrap()), Arc::<Notes>::default());
        let seat = Seat::new(line.clone(), notes.clone(), oneshot::channel().0);
        (line, seat, notes)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    fn hear(seat: &mut Seat) -> Option<String> {
        let mut frame = Vec::new();
        let heard = seat.hear(&mut frame) == Polled::Message;
        heard.then(|| format!("{:?}", postcard::from_bytes::<WorkerMessage<'_>>(&frame).unwrap()))
    }

    #[test]
    fn who_says_too_much_waits_until_it_is_heard() {
        run(async {
            let (line, mut seat, _) = seat();
            for object in 0..2 {
                let room = line.room_for(AHEAD_BYTES_MAX / 2 - MESSAGE_BYTES).await.unwrap();
                line.say(&WorkerMessage::RequestObject(object, 7), None, room);
            }
            assert!(timeout(SOON, line.room_for(0)).await.is_err());
            // Who can't wait says it nevertheless.
            line.say_now(&WorkerMessage::Release(0, 1));
            assert_eq!(hear(&mut seat).as_deref(), Some("RequestObject(0, 7)"));
            seat.flush();
            // What would never fit has all of the room.
            assert!(timeout(SOON, line.room_for(0)).await.is_ok());
            assert!(timeout(SOON, line.room_for(usize::MAX)).await.is_err());
            assert_eq!([hear(&mut seat), hear(&mut seat), hear(&mut seat)].iter().flatten().count(), 2);
            seat.flush();
            assert!(timeout(SOON, line.room_for(usize::MAX)).await.is_ok());
        });
    }

    #[test]
    fn nobody_waits_for_who_has_ended() {
        run(async {
            let (line, seat, notes) = seat();
            let all = line.room_for(usize::MAX).await.unwrap();
            let waits = async { line.room_for(0).await.is_err() };
            let (refused, ()) = tokio::join!(waits, async { drop(seat) });
            assert!(refused && line.is_closed());
            drop(all);
            line.say_now(&WorkerMessage::Release(0, 1));
            assert_eq!(line.count.load(Relaxed), 0);
            assert_eq!(notes.0.lock().unwrap().len(), 1);
        });
    }

    #[test]
    fn items_are_told_with_their_values_where_those_are_small() {
        let (_line, mut seat, notes) = seat();
        let item = |object, value| NodeMessage::DeliverItem { job: 1, stream: 5, object, value, contains: vec![9] };
        let error = postcard::to_stdvec(&missing()).unwrap();
        seat.tell(&item(6, Delivery::Value(b"a")));
        seat.tell(&item(7, Delivery::Pending));
        seat.tell(&item(8, Delivery::Failed(&error)));
        seat.flush();
        let told = std::mem::take(&mut *notes.0.lock().unwrap());
        let words: Vec<_> = told.iter().map(|(words, _)| words.as_str()).collect();
        let of = "[ObjectId(9)]";
        let expected =
            [format!("5 6 Some(Ok([97])) {of}"), format!("5 7 None {of}"), format!("5 8 Some(Err(Host)) {of}")];
        assert_eq!((&words[..3], words[3]), (&expected.each_ref().map(String::as_str)[..], "flush"));
    }

    #[test]
    fn a_file_is_forgotten_when_nobody_has_its_bytes() {
        let (_line, mut seat, notes) = seat();
        let file = SealedFile::new(b"a large value").unwrap();
        let job = JobId(1).0;
        let deliver = |value| NodeMessage::Deliver { job, object: 5, value, contains: vec![6], requested: true };
        seat.tell_with(&deliver(Delivery::File(7, 3)), &file).unwrap();
        seat.tell(&deliver(Delivery::LentFile(3)));
        seat.tell(&deliver(Delivery::LentFile(4)));
        let mut told = std::mem::take(&mut *notes.0.lock().unwrap());
        let words: Vec<_> = told.iter().map(|(words, _)| words.as_str()).collect();
        assert_eq!(words, ["5 None [ObjectId(6)]", "5 None [ObjectId(6)]", "5 Some(Host) [ObjectId(6)]"]);
        let value = told.remove(0).1.unwrap();
        drop(told);
        seat.tell(&NodeMessage::ReleaseFile(3));
        assert_eq!((&value[..], value.is_own(), hear(&mut seat)), (&b"a large"[..], false, None));
        drop(value);
        assert_eq!(hear(&mut seat).as_deref(), Some("FileReleased(3)"));
    }
}
