//! Workers: their assigned tasks, hosted actors, and references.

use std::collections::{BTreeMap, VecDeque};

use sandbar_core::{ActorId, Attempt, TaskId, WorkerId};

use crate::event::WorkerKind;
use crate::records::id_table::IdTable;
use crate::records::keys::{BundleKey, NodeKey, ObjectKey, ShapeKey, TaskKey, TenantKey, WorkerKey};
use crate::records::level::Level;
use crate::records::slab::{Slab, index_records};

/// A task assigned to a worker. It uses resources until the worker reports its end, even after its job has ended.
#[derive(Debug)]
pub(crate) struct AssignedTask {
    pub(crate) id: TaskId,
    /// `None` after the job has ended.
    pub(crate) task: Option<TaskKey>,
    pub(crate) shape: ShapeKey,
    pub(crate) tenant: TenantKey,
    /// The bundle that it uses resources of; `None` if it uses its node's.
    pub(crate) bundle: Option<BundleKey>,
    pub(crate) attempt: Attempt,
    pub(crate) level: Level,
    /// Expected duration in nanoseconds.
    pub(crate) nanos: u64,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) node: NodeKey,
    pub(crate) kind: WorkerKind,
    /// The tenant of a worker for its tasks or actors.
    pub(crate) tenant: Option<TenantKey>,
    /// Tasks that are not blocked, in execution order.
    pub(crate) assigned: VecDeque<AssignedTask>,
    pub(crate) blocked: Vec<AssignedTask>,
    /// Hosted actors, by their creation tasks.
    pub(crate) actors: BTreeMap<TaskId, AssignedTask>,
    pub(crate) leases: Vec<Lease>,
    /// Sum of the expected durations of `assigned`.
    pub(crate) nanos: u64,
    /// A recall was sent and not answered yet.
    pub(crate) recall_pending: bool,
    /// Tasks were recalled for an idle worker, and no task has finished here since.
    pub(crate) was_stolen_from: bool,
    /// References of the worker.
    pub(crate) held_objects: HeldObjects,
    /// Load under which the worker is in the idle set.
    pub(super) idle: Option<u32>,
    /// Level under which the worker is in the recallable set.
    pub(super) recallable: Option<(TenantKey, Level)>,
}

/// Processors that a worker holds once for all of its unblocked tasks of one CPU-only shape.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) shape: ShapeKey,
    pub(crate) bundle: Option<BundleKey>,
    /// Number of assigned tasks that share the lease.
    pub(crate) count: u32,
}

/// Keys of objects that the worker holds. The list may contain stale keys: check the object.
#[derive(Debug, Default)]
pub(crate) struct HeldObjects {
    pub(crate) places: Vec<ObjectKey>,
    pub(crate) count: usize,
}

/// Workers by key and by id.
#[derive(Debug)]
pub(crate) struct Workers {
    records: Slab<WorkerKey, Worker>,
    ids: IdTable<WorkerId, WorkerKey>,
    /// Workers dedicated to one actor each.
    dedicated: IdTable<ActorId, WorkerKey>,
    /// The worker that has the leases.
    pub(crate) lease_worker: Option<WorkerKey>,
    /// Number of workers of remote nodes for tasks.
    pub(crate) remote_workers: usize,
}

index_records!([] Workers, WorkerKey => Worker);

impl Worker {
    fn new(id: WorkerId, node: NodeKey, kind: WorkerKind, tenant: Option<TenantKey>) -> Worker {
        Worker {
            id,
            node,
            kind,
            tenant,
            assigned: VecDeque::new(),
            blocked: Vec::new(),
            actors: BTreeMap::new(),
            leases: Vec::new(),
            nanos: 0,
            recall_pending: false,
            was_stolen_from: false,
            held_objects: HeldObjects::default(),
            idle: None,
            recallable: None,
        }
    }
}

impl Lease {
    /// Whether an assigned task may share the lease.
    pub(super) fn is_for(&self, assigned: &AssignedTask) -> bool {
        self.shape == assigned.shape && self.bundle == assigned.bundle
    }
}

impl Workers {
    pub(crate) fn new() -> Workers {
        Workers {
            records: Slab::new(),
            ids: IdTable::default(),
            dedicated: IdTable::default(),
            lease_worker: None,
            remote_workers: 0,
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: WorkerKey) -> Option<&Worker> {
        self.records.get(at)
    }

    #[inline]
    pub(crate) fn find(&self, id: WorkerId) -> Option<WorkerKey> {
        self.ids.get(&id).copied()
    }

    /// Returns the worker that is dedicated to an actor.
    pub(crate) fn find_dedicated(&self, actor: ActorId) -> Option<WorkerKey> {
        self.dedicated.get(&actor).copied()
    }

    /// Iterates over the workers in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerKey, &Worker)> {
        self.records.iter()
    }

    /// Adds a worker with an unused id.
    pub(super) fn insert(
        &mut self,
        id: WorkerId,
        node: NodeKey,
        kind: WorkerKind,
        tenant: Option<TenantKey>,
    ) -> WorkerKey {
        let at = self.records.insert(Worker::new(id, node, kind, tenant));
        self.ids.insert(id, at);
        match kind {
            WorkerKind::Actor(actor) => drop(self.dedicated.insert(actor, at)),
            WorkerKind::Leases => self.lease_worker = Some(at),
            WorkerKind::RemoteTasks => self.remote_workers += 1,
            WorkerKind::Tasks(_) | WorkerKind::Driver(_) | WorkerKind::Actors(_) | WorkerKind::PeerProxy => {}
        }
        at
    }

    pub(super) fn remove(&mut self, at: WorkerKey) -> Option<Worker> {
        let worker = self.records.remove(at)?;
        self.ids.remove(&worker.id);
        match worker.kind {
            WorkerKind::Actor(actor) if self.dedicated.get(&actor) == Some(&at) => {
                _ = self.dedicated.remove(&actor);
            }
            WorkerKind::Leases => self.lease_worker = self.lease_worker.filter(|other| *other != at),
            WorkerKind::RemoteTasks => self.remote_workers -= 1,
            WorkerKind::Tasks(_)
            | WorkerKind::Driver(_)
            | WorkerKind::Actor(_)
            | WorkerKind::Actors(_)
            | WorkerKind::PeerProxy => {}
        }
        Some(worker)
    }
}
