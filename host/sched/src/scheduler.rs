//! The scheduler step: applies an event, settles its consequences, then dispatches tasks to free workers.

use crate::event::{Action, Event};
use crate::records::actors::Actors;
use crate::records::classes::Classes;
use crate::records::cluster::Cluster;
use crate::records::groups::Groups;
use crate::records::ids::Ids;
use crate::records::jobs::Jobs;
use crate::records::keys::ObjectKey;
use crate::records::lineage::PayloadCallbacks;
use crate::records::object::Object;
use crate::records::queue::Queue;
use crate::records::slab::Slab;
use crate::records::step_work::{StepWork, WorkItem};
use crate::records::tasks::Tasks;

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
    /// Nanoseconds that a tenant waits, while it uses less than its share, until its tasks start on processors that others
    /// use.
    pub patience_nanos: u64,
    /// Bytes of this process's memory for tasks, calls, objects and small values of all tenants.
    pub memory_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            window_nanos: 1_000_000,
            remote_window_nanos: 10_000_000,
            window_max: 1024,
            actors_max: 1000,
            patience_nanos: 10_000_000,
            memory_bytes_max: u64::MAX,
        }
    }
}

/// State of tasks, objects, actors, placement groups, workers and nodes. `C` is the call of a task, `V` the value of an
/// object; both are opaque.
#[derive(Debug)]
pub struct Scheduler<C, V> {
    pub(crate) options: Options,
    pub(crate) callbacks: PayloadCallbacks<C, V>,
    pub(crate) ids: Ids,
    pub(crate) tasks: Tasks<C>,
    pub(crate) objects: Slab<ObjectKey, Object<V>>,
    pub(crate) actors: Actors,
    pub(crate) groups: Groups<V>,
    pub(crate) jobs: Jobs,
    pub(crate) classes: Classes,
    pub(crate) queue: Queue,
    pub(crate) cluster: Cluster,
    pub(crate) work: StepWork<V>,
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
            ids: Ids::default(),
            tasks: Tasks::new(),
            objects: Slab::new(),
            actors: Actors::new(),
            groups: Groups::new(),
            jobs: Jobs::new(),
            classes: Classes::new(),
            queue: Queue::new(),
            cluster: Cluster::new(options.memory_bytes_max),
            work: StepWork::new(),
        }
    }

    /// Sets the time of the next events, in nanoseconds of a monotonic clock. Tenants are charged for the time that they use
    /// resources.
    pub fn set_time(&mut self, nanos: u64) {
        self.cluster.tenants.set_time(nanos);
    }

    /// Applies an event and appends the resulting actions to `actions`. Tasks and objects that the actions name exist
    /// until the next step, so execute the actions before it.
    pub fn step(&mut self, event: Event<C, V>, actions: &mut Vec<Action<V>>) {
        self.work.swap_actions(actions);
        self.remove_finished();
        self.handle_event(event);
        loop {
            self.settle();
            self.dispatch();
            if self.work.is_settled() {
                break;
            }
        }
        if let Some(changed_worker) = self.work.changed_worker.take() {
            self.cluster.refresh(changed_worker);
        }
        self.rebalance();
        self.deliver_awaited();
        self.work.swap_actions(actions);
    }

    /// Handles the step's failed tasks, unreferenced objects and lost values until none is left.
    fn settle(&mut self) {
        while let Some(item) = self.work.next() {
            match item {
                WorkItem::Fail(task, error) => self.fail(task, error),
                WorkItem::DropObject(object) => self.drop_unreferenced(object),
                WorkItem::DropLineage(task) => self.drop_unused_lineage(task),
                WorkItem::Reconstruct(task) => self.reconstruct(task),
            }
        }
    }
}
