//! The worker runtime: state that the tasks of a worker share, and the context of each task.

mod actors;
mod groups;
mod memory;
mod objects;
mod progress;
mod results;
mod services;
mod streams;
mod wait;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{Code, IdAllocator, TaskError, TaskId, TaskKind};
use sandbar_sandbox::{Refusal, set_current_task};
use sandbar_store::SharedMemory;
use serde::Serialize;

pub(super) use self::actors::{QueuedCall, ResidentActor};
pub(super) use self::memory::ValueFile;
pub(super) use self::results::AttemptReport;
pub(super) use self::services::{TaskServices, lock};
pub(super) use self::streams::GeneratorStream;

use super::messages::WorkerMessage;
use super::objects::{LocalValue, ObjectTable, TaskSlot};
use super::ring::Sender;
use super::worker::{Doorbell, rings, words};

/// Number of messages, and age of the first, at which messages are published to the node.
const UNPUBLISHED_MAX: u32 = 16;
const UNPUBLISHED_TIME_MAX: Duration = Duration::from_micros(50);
/// Interval of attempts to write a message into a full ring.
const FULL_LOOK_AGAIN: Duration = Duration::from_micros(20);
/// Maximum number of results of one task.
const RETURNS_MAX: u32 = 10_000;

/// State that all tasks of a worker share with its event loop.
pub(super) struct WorkerRuntime {
    pub up: Sender,
    memory: Arc<SharedMemory>,
    /// Doorbell of the node.
    pub doorbell: Doorbell,
    pub ids: IdAllocator,
    pub objects: ObjectTable,
    /// Task contexts by slot.
    pub tasks: Vec<Option<TaskContext>>,
    /// The tasks that are actors or create one.
    pub actors: FxHashMap<TaskSlot, ResidentActor>,
    /// Received items of streams that tasks of this worker hold.
    streams: FxHashMap<u64, streams::ReceivedStream>,
    /// Streams with taken items that the worker has not reported to the node.
    unreported_streams: Vec<u64>,
    /// Tasks that can continue.
    pub woken: Vec<TaskSlot>,
    /// Jobs whose tasks must wait after submitting, and the tasks that do.
    held_jobs: FxHashSet<u32>,
    submitters: Vec<TaskSlot>,
    /// Tasks that wait for a GPU. They are polled, because nothing signals its results.
    pub wait_for_gpu: Vec<TaskSlot>,
    /// The last written frame, if it is a submitted task that can be taken back.
    pub child: Option<Child>,
    /// A task to run in this worker for its waiting parent: slot of the parent, encoded submission.
    pub inline: Option<(TaskSlot, Vec<u8>)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
    memory_pool: memory::MemoryPool,
    /// Maximum bytes of one value.
    pub value_bytes_max: u64,
    unpublished: u32,
    unpublished_since: Instant,
    /// Whether this worker runs tasks that its own tasks wait for.
    runs_children: bool,
    /// Maximum number of tasks at once.
    pub room: usize,
    pub alive: usize,
    /// Earliest deadline of the waiting tasks.
    first_deadline: Option<Instant>,
}

/// Context of one task.
pub(super) struct TaskContext {
    pub id: u64,
    pub attempt: u32,
    pub job: u32,
    pub seed: u64,
    /// Kinds of the tasks of its program.
    pub kinds: Arc<[TaskKind]>,
    children: u64,
    /// Objects that it holds.
    pub holds: FxHashSet<u64>,
    /// For an actor call: objects that were lent to it, and that the actor may keep.
    pub lent: Vec<u64>,
    /// Objects that it needs, which the node retains for it.
    pub needs: Vec<u64>,
    pub returned: Vec<(OutputValue, Vec<u64>)>,
    /// For a generator: the items that it has yielded.
    pub generator: Option<GeneratorStream>,
    /// Error of another task, with which this task is about to fail.
    pub fails_with: Option<Box<TaskError>>,
    pub waiting: Option<WaitState>,
    /// For an actor call that waits: objects of which it waits for any.
    pub awaits: Vec<u64>,
    /// The object that it waited for, with the value that has arrived.
    got: Option<(u64, Arc<LocalValue>)>,
    /// Mapped values and their address ranges.
    mapped: Vec<(Range<usize>, Arc<LocalValue>)>,
    /// Progress that it has reported.
    progress: Vec<progress::Progress>,
    pub log_left: u64,
    /// Number of log lines over the limit.
    pub log_dropped: u64,
    /// Behavior after submitting a task.
    submitted: SubmitState,
    /// Whether the worker has reported to the node that the task waits.
    pub blocked: bool,
    /// For a task that its parent started without telling the node: slot of the parent, encoded
    /// [`WorkerMessage::Submit`].
    pub unannounced: Option<(TaskSlot, Vec<u8>)>,
}

/// State of a task that has submitted another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubmitState {
    /// Continues.
    Running,
    /// Waits while its job is held.
    Waiting,
    /// Continues once, although its job is held.
    ResumedOnce,
}

pub(super) enum OutputValue {
    Inline(Vec<u8>),
    File(ValueFile),
}

#[derive(Debug)]
pub(super) struct WaitState {
    objects: Vec<u64>,
    count: usize,
    /// Whether it waits for the value of one object, not only for its outcome.
    is_get: bool,
    /// Number of outcomes that are still missing.
    pub missing: usize,
    pub deadline: Option<Instant>,
}

/// The task that was submitted last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    at: u32,
    parent: TaskSlot,
    task: u64,
}

impl WorkerRuntime {
    pub(super) fn new(
        memory: Arc<SharedMemory>,
        doorbell: Doorbell,
        ids: IdAllocator,
        room: usize,
        runs_children: bool,
    ) -> WorkerRuntime {
        WorkerRuntime {
            up: Sender::new(rings(&memory).0),
            memory,
            doorbell,
            ids,
            objects: ObjectTable::default(),
            tasks: Vec::new(),
            actors: FxHashMap::default(),
            streams: FxHashMap::default(),
            unreported_streams: Vec::new(),
            woken: Vec::new(),
            held_jobs: FxHashSet::default(),
            submitters: Vec::new(),
            wait_for_gpu: Vec::new(),
            child: None,
            inline: None,
            frame: Vec::new(),
            packet: Vec::new(),
            memory_pool: memory::MemoryPool::new(),
            value_bytes_max: u64::MAX,
            unpublished: 0,
            unpublished_since: Instant::now(),
            runs_children,
            room,
            alive: 0,
            first_deadline: None,
        }
    }

    /// Writes a message, which the node receives once it is published. Returns its position in the ring.
    pub(super) fn send(&mut self, message: &WorkerMessage<'_>) -> u32 {
        self.child = None;
        let frame = encode(message, &mut self.frame);
        let at = loop {
            match self.up.write(frame) {
                Some(at) => break at,
                None => {
                    // Either the node reads the ring, or it has ended and ends this process as well.
                    self.up.publish();
                    self.doorbell.ring();
                    std::thread::sleep(FULL_LOOK_AGAIN);
                }
            }
        };
        if self.unpublished == 0 {
            self.unpublished_since = Instant::now();
        }
        self.unpublished += 1;
        at
    }

    /// Publishes the written messages, if they are many or old.
    pub(super) fn publish_in_time(&mut self) {
        if self.unpublished >= UNPUBLISHED_MAX || self.unpublished_since.elapsed() > UNPUBLISHED_TIME_MAX {
            self.publish();
        }
    }

    /// Publishes the written messages.
    pub(super) fn publish(&mut self) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.child = None;
            self.up.publish();
            self.doorbell.ring();
        }
    }

    /// Announces a task that was started without the node, before the first message that refers to it.
    fn announce(&mut self, slot: TaskSlot) {
        let Some((parent, frame)) = self.task(slot).and_then(|task| task.unannounced.take()) else { return };
        self.block(parent);
        if let Some(task) = self.task(slot) {
            let id = task.id;
            set_current_task(TaskId(id));
            self.memory.atomic(words::CURRENT_TASK).store(id, SeqCst);
        }
        if let Ok(WorkerMessage::Submit(submit)) = postcard::from_bytes(&frame) {
            self.send(&WorkerMessage::StartedInline(submit));
        }
    }

    /// Tells the node that a task waits.
    pub(super) fn block(&mut self, slot: TaskSlot) {
        self.announce(slot);
        if let Some(task) = self.task(slot) {
            task.blocked = true;
            let (id, sleeps) = (task.id, task.waiting.as_ref().is_some_and(|waiting| waiting.objects.is_empty()));
            if sleeps {
                self.send(&WorkerMessage::Sleeps(id));
            }
            self.send(&WorkerMessage::Blocked(id, true));
        }
    }

    /// Registers a task that waits for a GPU.
    pub(super) fn wait_for_gpu(&mut self, slot: TaskSlot) {
        self.wait_for_gpu.push(slot);
    }

    /// Reports to the node that a task continues, if its wait was reported.
    pub(super) fn unblock(&mut self, slot: TaskSlot) {
        self.publish_current_call(slot);
        if let Some(task) = self.task(slot)
            && std::mem::take(&mut task.blocked)
        {
            let id = task.id;
            self.send(&WorkerMessage::Blocked(id, false));
        }
    }

    pub(super) fn task(&mut self, slot: TaskSlot) -> Option<&mut TaskContext> {
        self.tasks.get_mut(slot)?.as_mut()
    }

    /// Inserts a task at a slot.
    pub(super) fn insert_task(&mut self, slot: TaskSlot, task: TaskContext) {
        if slot >= self.tasks.len() {
            self.tasks.resize_with(slot + 1, || None);
        }
        self.tasks[slot] = Some(task);
        self.alive += 1;
    }

    /// Removes the finished task of a slot.
    pub(super) fn remove_task(&mut self, slot: TaskSlot) -> Option<TaskContext> {
        let task = self.tasks.get_mut(slot)?.take();
        self.alive -= usize::from(task.is_some());
        task
    }
}

impl TaskContext {
    pub(super) fn new(
        id: u64,
        attempt: u32,
        job: u32,
        seed: u64,
        kinds: Arc<[TaskKind]>,
        needs: Vec<u64>,
        unannounced: Option<(TaskSlot, Vec<u8>)>,
    ) -> TaskContext {
        TaskContext {
            id,
            attempt,
            job,
            seed,
            kinds,
            children: 0,
            holds: FxHashSet::default(),
            lent: Vec::new(),
            needs,
            returned: Vec::new(),
            generator: None,
            fails_with: None,
            waiting: None,
            awaits: Vec::new(),
            got: None,
            mapped: Vec::new(),
            progress: Vec::new(),
            log_left: 0,
            log_dropped: 0,
            submitted: SubmitState::Running,
            blocked: false,
            unannounced,
        }
    }
}

fn encode<'b>(message: &impl Serialize, buffer: &'b mut Vec<u8>) -> &'b [u8] {
    buffer.clear();
    // Writing to a `Vec` cannot fail.
    let _ = postcard::to_io(message, &mut *buffer);
    buffer
}

fn task_gone() -> Refusal {
    Refusal { code: Code::Host, message: "the task has left this worker".into() }
}
