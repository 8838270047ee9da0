//! The runtime: what the tasks of a worker share, and what each of them has there.

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
use sandbar_sandbox::{Refusal, runs_on_behalf_of};
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

/// Messages are the node's to read when there are so many, or when the first of them waits so long.
const UNPUBLISHED_MAX: u32 = 16;
const UNPUBLISHED_TIME_MAX: Duration = Duration::from_micros(50);
/// How often who finds no room for a message looks again.
const FULL_LOOK_AGAIN: Duration = Duration::from_micros(20);
/// Results of one task.
const RETURNS_MAX: u32 = 10_000;

/// What all tasks of a worker share with its loop.
pub(super) struct WorkerRuntime {
    pub up: Sender,
    memory: Arc<SharedMemory>,
    /// The node's.
    pub doorbell: Doorbell,
    pub ids: IdAllocator,
    pub objects: ObjectTable,
    /// The tasks here, by their places.
    pub tasks: Vec<Option<TaskContext>>,
    /// Those of them that are actors, or make one.
    pub actors: FxHashMap<TaskSlot, ResidentActor>,
    /// What has come of streams that somebody here has.
    streams: FxHashMap<u64, streams::ReceivedStream>,
    /// Those of which something was taken that the node does not know of.
    unreported_streams: Vec<u64>,
    /// Tasks that can go on.
    pub woken: Vec<TaskSlot>,
    /// Jobs whose tasks wait when they have submitted, and those that do.
    held_jobs: FxHashSet<u32>,
    submitters: Vec<TaskSlot>,
    /// Those that wait for what a GPU gives: nobody says when.
    pub wait_for_gpu: Vec<TaskSlot>,
    /// The frame that was written last, if it is of a task that was submitted and can be taken back.
    pub child: Option<Child>,
    /// A task that its parent waits for, to be run here: the parent, and what it submitted.
    pub inline: Option<(TaskSlot, Vec<u8>)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
    memory_pool: memory::MemoryPool,
    /// Bytes of one value.
    pub value_bytes_max: u64,
    unpublished: u32,
    unpublished_since: Instant,
    /// Whether tasks are run here that others here wait for.
    runs_children: bool,
    /// How many tasks there may be at once.
    pub room: usize,
    pub alive: usize,
    /// When the first of those is over who wait for so long only.
    first_deadline: Option<Instant>,
}

/// What a task has.
pub(super) struct TaskContext {
    pub id: u64,
    pub attempt: u32,
    pub job: u32,
    pub seed: u64,
    /// What tasks its program has.
    pub kinds: Arc<[TaskKind]>,
    children: u64,
    /// ObjectTable that it holds.
    pub holds: FxHashSet<u64>,
    /// Of an actor's call: objects that it was lent, and may keep.
    pub lent: Vec<u64>,
    /// ObjectTable that it needs, which the node keeps for it.
    pub needs: Vec<u64>,
    pub returned: Vec<(OutputValue, Vec<u64>)>,
    /// Of a generator: what it has yielded.
    pub generator: Option<GeneratorStream>,
    /// What another failed with, if it is going to fail with that.
    pub fails_with: Option<Box<TaskError>>,
    pub waiting: Option<WaitState>,
    /// Of an actor's call that says that it waits: for any of these.
    pub awaits: Vec<u64>,
    /// The object that it waited for, and that it has got.
    got: Option<(u64, Arc<LocalValue>)>,
    /// What it has mapped, and where.
    mapped: Vec<(Range<usize>, Arc<LocalValue>)>,
    /// How far it said that it is.
    progress: Vec<progress::Progress>,
    pub log_left: u64,
    /// Lines that were too many.
    pub log_dropped: u64,
    /// What it is to do that has submitted.
    submitted: SubmitState,
    /// Whether the node was told that it waits.
    pub blocked: bool,
    /// A task that its parent, which is there, had run here, and that the node was not told of: its [`WorkerMessage::Submit`].
    pub unannounced: Option<(TaskSlot, Vec<u8>)>,
}

/// What a task is to do that has submitted another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubmitState {
    /// Go on.
    GoesOn,
    /// Wait until its job is not held.
    Waits,
    /// Go on this once, though its job is held.
    GoesOnOnce,
}

pub(super) enum OutputValue {
    Inline(Vec<u8>),
    File(ValueFile),
}

#[derive(Debug)]
pub(super) struct WaitState {
    objects: Vec<u64>,
    count: usize,
    /// For the value of one, not only for what became of it.
    is_get: bool,
    /// How many more must come before it is worth looking.
    pub missing: usize,
    pub deadline: Option<Instant>,
}

/// A task that was submitted last.
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

    /// Writes a message, which the node gets with others. Gives where it stands.
    pub(super) fn send(&mut self, message: &WorkerMessage<'_>) -> u32 {
        self.child = None;
        let frame = encode(message, &mut self.frame);
        let at = loop {
            match self.up.write(frame) {
                Some(at) => break at,
                None => {
                    // The node reads, or is gone and takes this process with it.
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

    /// Has the node read what there is, if that is much or old.
    pub(super) fn publish_in_time(&mut self) {
        if self.unpublished >= UNPUBLISHED_MAX || self.unpublished_since.elapsed() > UNPUBLISHED_TIME_MAX {
            self.publish();
        }
    }

    /// Has the node read what there is.
    pub(super) fn publish(&mut self) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.child = None;
            self.up.publish();
            self.doorbell.ring();
        }
    }

    /// Tells the node of a task that was begun without it, before the first thing of which it has to know who did it.
    fn announce(&mut self, slot: TaskSlot) {
        let Some((parent, frame)) = self.task(slot).and_then(|task| task.unannounced.take()) else { return };
        self.block(parent);
        if let Some(task) = self.task(slot) {
            let id = task.id;
            runs_on_behalf_of(TaskId(id));
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

    /// A task waits for what a GPU gives.
    pub(super) fn waits_for_gpu(&mut self, slot: TaskSlot) {
        self.wait_for_gpu.push(slot);
    }

    /// Tells the node that a task goes on, if it was told that it waits.
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

    /// A task begins at a place.
    pub(super) fn insert_task(&mut self, slot: TaskSlot, task: TaskContext) {
        if slot >= self.tasks.len() {
            self.tasks.resize_with(slot + 1, || None);
        }
        self.tasks[slot] = Some(task);
        self.alive += 1;
    }

    /// The task there has ended.
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
    // To memory, which grows.
    let _ = postcard::to_io(message, &mut *buffer);
    buffer
}

fn gone() -> Refusal {
    Refusal { code: Code::Host, message: "the task is not here any more".into() }
}
