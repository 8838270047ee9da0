//! The worker runtime: state that the tasks of a worker share, and the services that it offers to each task.
//!
//! Its parts own their state and do not call each other: the [channel] to the node, the [tasks], the objects that they
//! hold ([`ObjectTable`]), the [actors], the received [streams], and the [memory] of large values. [`WorkerRuntime`]
//! composes them, in one file for each kind of request.

mod actors;
mod calls;
mod channel;
mod context;
mod groups;
mod items;
mod limits;
mod memory;
mod objects;
mod progress;
mod reports;
mod results;
mod services;
mod streams;
mod tasks;
mod values;
mod wait;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, IdAllocator, TaskId, WorkerId};
use sandbar_sandbox::{Refusal, set_current_task};
use sandbar_store::SharedMemory;

pub(super) use self::actors::{QueuedCall, ResidentActor};
pub(super) use self::context::{AttemptReport, InlineTask, TaskContext};
pub(super) use self::services::TaskServices;
pub(super) use self::streams::GeneratorStream;

use self::channel::NodeChannel;
use self::limits::OBJECTS_MAX;
use self::memory::MemoryPool;
use self::streams::ReceivedStreams;
use self::tasks::Tasks;
use super::messages::WorkerMessage;
use super::node_doorbell::WorkerBell;
use super::objects::{ObjectTable, TaskSlot};

/// State that all tasks of a worker share with its event loop.
pub(super) struct WorkerRuntime {
    pub node: NodeChannel,
    pub tasks: Tasks,
    pub objects: ObjectTable,
    /// The tasks that are actors or create one.
    pub actors: FxHashMap<TaskSlot, ResidentActor>,
    streams: ReceivedStreams,
    memory_pool: MemoryPool,
    /// Numbers of new tasks and objects.
    ids: IdAllocator,
}

/// Options of a worker runtime.
pub(super) struct RuntimeOptions {
    pub worker: WorkerId,
    /// Maximum number of tasks at once.
    pub sandboxes: usize,
    /// Whether the worker runs tasks that its own tasks wait for.
    pub inline: bool,
    /// Maximum bytes of one value.
    pub value_bytes_max: u64,
}

impl WorkerRuntime {
    /// Creates the runtime of a worker that shares `memory` with its node.
    pub(super) fn new(memory: Arc<SharedMemory>, bell: WorkerBell, options: RuntimeOptions) -> WorkerRuntime {
        WorkerRuntime {
            node: NodeChannel::new(memory, bell),
            tasks: Tasks::new(options.sandboxes, options.inline),
            objects: ObjectTable::default(),
            actors: FxHashMap::default(),
            streams: ReceivedStreams::default(),
            memory_pool: MemoryPool::new(options.value_bytes_max),
            ids: IdAllocator::for_worker(options.worker),
        }
    }

    /// Announces a task that was started without the node, before the first message that refers to it.
    fn announce(&mut self, slot: TaskSlot) {
        let Some(InlineTask { parent, submission }) = self.tasks.get_mut(slot).and_then(|task| task.unannounced.take())
        else {
            return;
        };
        self.block(parent);
        if let Some(task) = self.tasks.get(slot) {
            set_current_task(TaskId(task.id));
            self.node.show_current_task(task.id);
        }
        if let Ok(WorkerMessage::Submit(submit)) = postcard::from_bytes(&submission) {
            self.node.send(&WorkerMessage::StartedInline(submit));
        }
    }

    /// Tells the node that a task waits.
    pub(super) fn block(&mut self, slot: TaskSlot) {
        self.announce(slot);
        if let Some(task) = self.tasks.get_mut(slot) {
            task.blocked = true;
            let (id, sleeps) = (task.id, task.waiting.as_ref().is_some_and(|waiting| waiting.objects.is_empty()));
            if sleeps {
                self.node.send(&WorkerMessage::Sleeps(id));
            }
            self.node.send(&WorkerMessage::Blocked(id, true));
        }
    }

    /// Reports to the node that a task continues, if its wait was reported.
    pub(super) fn unblock(&mut self, slot: TaskSlot) {
        self.show_current_call(slot);
        if let Some(task) = self.tasks.get_mut(slot)
            && std::mem::take(&mut task.blocked)
        {
            self.node.send(&WorkerMessage::Blocked(task.id, false));
        }
    }

    /// Takes numbers for new tasks or objects. Returns the first.
    fn take_ids(&mut self, count: u32) -> Result<u64, Refusal> {
        let refused = |message: String| Refusal { code: Code::TaskLimit, message };
        if self.objects.len() + count as usize > OBJECTS_MAX {
            let message = format!("its worker would use more than {OBJECTS_MAX} objects: drop references to some");
            return Err(refused(message));
        }
        self.ids.take(count).ok_or_else(|| refused("its worker has used up its task and object numbers".to_owned()))
    }
}
