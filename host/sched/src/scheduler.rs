//! The scheduler step: applies an event, settles its consequences, then dispatches tasks to free workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{ActorId, JobId, ObjectId, TaskError, TaskId};

use crate::event::{Action, Event};
use crate::records::actors::{Actor, ActorNames, PendingActors};
use crate::records::classes::Classes;
use crate::records::cluster::Cluster;
use crate::records::groups::Groups;
use crate::records::id_table::IdTable;
use crate::records::jobs::Job;
use crate::records::keys::{ActorKey, JobKey, NodeKey, ObjectKey, TaskKey, WorkerKey};
use crate::records::level::Level;
use crate::records::lineage::{LineageQueue, PayloadCallbacks};
use crate::records::object::Object;
use crate::records::queue::Queue;
use crate::records::slab::Slab;
use crate::records::tasks::Task;

/// Options of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Nanoseconds of work that a worker is assigned in advance.
    pub window_nanos: u64,
    /// Nanoseconds of work that a worker of a remote node is assigned in advance.
    pub remote_window_nanos: u64,
    /// Maximum number of tasks that a worker is assigned in advance.
    pub window_max: u32,
    /// Maximum number of actors in a worker that hosts several.
    pub actors_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { window_nanos: 1_000_000, remote_window_nanos: 10_000_000, window_max: 1024, actors_max: 1000 }
    }
}

/// State of tasks, objects, actors, placement groups, workers and nodes. `C` is the call of a task, `V` the value of an
/// object; both are opaque.
#[derive(Debug)]
pub struct Scheduler<C, V> {
    pub(crate) options: Options,
    pub(crate) callbacks: PayloadCallbacks<C, V>,
    pub(crate) ids: IdTable<u64, Entry>,
    pub(crate) tasks: Slab<TaskKey, Task<C>>,
    pub(crate) objects: Slab<ObjectKey, Object<V>>,
    pub(crate) actors: Slab<ActorKey, Actor>,
    pub(crate) actor_ids: IdTable<ActorId, ActorKey>,
    pub(crate) names: ActorNames,
    pub(crate) pending_actors: PendingActors,
    pub(crate) groups: Groups<V>,
    pub(crate) jobs: Slab<JobKey, Job>,
    pub(crate) job_ids: IdTable<JobId, JobKey>,
    pub(crate) classes: Classes,
    pub(crate) queue: Queue,
    pub(crate) cluster: Cluster,
    /// Jobs whose root task is ready and whose driver worker exists.
    pub(crate) starting: BTreeSet<JobId>,
    /// Nodes that are held for a job's root task or for a placement group.
    pub(crate) held_nodes: Vec<NodeKey>,
    /// Number of tasks added so far.
    pub(crate) number: u64,
    /// Tasks that finished in this step or the previous one.
    pub(crate) finished_tasks: Vec<(TaskKey, TaskId)>,

    // Work that is left in the current step.
    /// Tasks to fail, with their errors.
    pub(crate) failing: Vec<(TaskKey, Arc<TaskError>)>,
    /// Objects that may have lost their last reference.
    pub(crate) unreferenced: Vec<ObjectKey>,
    pub(crate) lineage: LineageQueue,
    /// Objects that got a value or an error while workers wait for them.
    pub(crate) awaited: Vec<ObjectKey>,
    /// The worker whose assigned tasks have changed.
    pub(crate) changed_worker: Option<WorkerKey>,
    /// The first task, in queue order, that became ready in this step.
    pub(crate) newest: Option<(Level, TaskKey)>,
    /// Whether a task may find room that found none before.
    pub(crate) needs_dispatch: bool,
    pub(crate) out: Vec<Action<V>>,
}

/// What an id number refers to: a task, its first return, or both.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) task: Option<TaskKey>,
    pub(crate) object: Option<ObjectKey>,
}

impl<C, V> Scheduler<C, V> {
    /// Returns a scheduler of a cluster without nodes. It keeps no lineage.
    pub fn new(options: Options) -> Scheduler<C, V> {
        Scheduler::with_lineage(options, PayloadCallbacks::default())
    }

    /// Returns a scheduler of a cluster without nodes that reconstructs lost values by lineage.
    pub fn with_lineage(options: Options, callbacks: PayloadCallbacks<C, V>) -> Scheduler<C, V> {
        Scheduler {
            options,
            callbacks,
            ids: IdTable::default(),
            tasks: Slab::new(),
            objects: Slab::new(),
            actors: Slab::new(),
            actor_ids: IdTable::default(),
            names: ActorNames::default(),
            pending_actors: PendingActors::default(),
            groups: Groups::new(),
            jobs: Slab::new(),
            job_ids: IdTable::default(),
            classes: Classes::new(),
            queue: Queue::new(),
            cluster: Cluster::new(),
            starting: BTreeSet::new(),
            held_nodes: Vec::new(),
            number: 0,
            finished_tasks: Vec::new(),
            failing: Vec::new(),
            unreferenced: Vec::new(),
            lineage: LineageQueue::default(),
            awaited: Vec::new(),
            changed_worker: None,
            newest: None,
            needs_dispatch: false,
            out: Vec::new(),
        }
    }

    /// Applies an event and appends the resulting actions to `actions`. Tasks and objects that the actions name exist
    /// until the next step, so execute the actions before it.
    pub fn step(&mut self, event: Event<C, V>, actions: &mut Vec<Action<V>>) {
        std::mem::swap(&mut self.out, actions);
        self.remove_finished();
        self.handle_event(event);
        self.settle();
        loop {
            self.dispatch();
            if self.failing.is_empty() && self.unreferenced.is_empty() {
                break;
            }
            self.settle();
        }
        if let Some(changed_worker) = self.changed_worker.take() {
            self.cluster.refresh(changed_worker);
        }
        self.rebalance();
        self.deliver_awaited();
        std::mem::swap(&mut self.out, actions);
    }

    /// Processes the step's failed tasks, unreferenced objects and lost values until none is left.
    fn settle(&mut self) {
        loop {
            if let Some((task, error)) = self.failing.pop() {
                self.fail(task, error);
            } else if let Some(object) = self.unreferenced.pop() {
                self.drop_unreferenced(object);
            } else if let Some(task) = self.lineage.unused.pop() {
                self.drop_unused_lineage(task);
            } else if let Some(task) = self.lineage.lost.pop() {
                self.reconstruct(task);
            } else {
                break;
            }
        }
    }

    #[inline]
    pub(crate) fn find_task(&self, id: TaskId) -> Option<TaskKey> {
        self.ids.get(&id.0)?.task
    }

    #[inline]
    pub(crate) fn find_object(&self, id: ObjectId) -> Option<ObjectKey> {
        self.ids.get(&id.0)?.object
    }

    /// Clears a part of the entry of an id number, and removes the entry if it is empty.
    pub(crate) fn forget_id(&mut self, number: u64, forget: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.ids.get_mut(&number) {
            forget(entry);
            if entry.task.is_none() && entry.object.is_none() {
                self.ids.remove(&number);
            }
        }
    }
}
