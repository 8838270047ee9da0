//! Actor records, their names, and the actors that wait for a worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sandbar_core::{ActorId, JobId, NodeId, TaskError};

use crate::event::ActorSpec;
use crate::records::id_table::IdTable;
use crate::records::jobs::Job;
use crate::records::keys::{ActorKey, JobKey, ObjectKey, ShapeKey, TaskKey, TenantKey, WorkerKey};
use crate::records::level::Level;
use crate::records::slab::{Slab, index_records};

/// An actor. Its record outlives its creation task, until the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) id: ActorId,
    pub(crate) job: JobKey,
    pub(crate) spec: ActorSpec,
    /// The creation task, until the actor is dead.
    pub(crate) creator: Option<TaskKey>,
    /// The worker that hosts it, once it is created.
    pub(crate) worker: Option<WorkerKey>,
    /// Calls ready for assignment, by submission number.
    pub(crate) ready_calls: BTreeMap<u64, TaskKey>,
    /// Calls assigned to its worker, in the order of assignment.
    pub(crate) assigned: VecDeque<TaskKey>,
    /// By caller: a call that waits for dependencies, and the later calls of that caller, by submission number.
    pub(crate) gates: BTreeMap<TaskKey, BTreeMap<u64, TaskKey>>,
    /// Number of unfinished calls.
    pub(crate) calls: u64,
    /// Checkpoint for the next restart.
    pub(crate) checkpoint: Option<ObjectKey>,
    /// Why it is dead.
    pub(crate) death_cause: Option<Arc<TaskError>>,
    /// The node on which a dedicated worker was requested.
    pub(crate) worker_requested_on: Option<NodeId>,
    /// Another scheduler owns it: it has no creation task here, and its worker stands for that scheduler.
    pub(crate) is_borrowed: bool,
}

impl Actor {
    /// Returns an actor without a creation task.
    pub(crate) fn new(id: ActorId, job: JobKey, spec: ActorSpec) -> Actor {
        Actor {
            id,
            job,
            spec,
            creator: None,
            worker: None,
            ready_calls: BTreeMap::new(),
            assigned: VecDeque::new(),
            gates: BTreeMap::new(),
            calls: 0,
            checkpoint: None,
            death_cause: None,
            worker_requested_on: None,
            is_borrowed: false,
        }
    }
}

/// Actors by key, by id and by name, and those that wait for a worker.
#[derive(Debug)]
pub(crate) struct Actors {
    records: Slab<ActorKey, Actor>,
    ids: IdTable<ActorId, ActorKey>,
    names: BTreeMap<ActorName, ActorId>,
    pub(crate) pending: PendingActors,
}

/// A name with its scope. The name of a detached actor has no job.
type ActorName = (TenantKey, Option<JobId>, Arc<str>);

index_records!([] Actors, ActorKey => Actor);

impl Actors {
    pub(crate) fn new() -> Actors {
        Actors {
            records: Slab::new(),
            ids: IdTable::default(),
            names: BTreeMap::new(),
            pending: PendingActors::default(),
        }
    }

    /// Whether no actor is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.len() + self.ids.len() + self.names.len() == 0 && self.pending.is_empty()
    }

    /// Iterates over the actors in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ActorKey, &Actor)> {
        self.records.iter()
    }

    #[inline]
    pub(crate) fn get(&self, at: ActorKey) -> Option<&Actor> {
        self.records.get(at)
    }

    #[inline]
    pub(crate) fn find(&self, id: ActorId) -> Option<ActorKey> {
        self.ids.get(&id).copied()
    }

    /// Returns the actor that tasks of a job find under a name.
    pub(crate) fn find_named(&self, job: &Job, name: &str) -> Option<ActorId> {
        let find = |id: Option<JobId>| self.names.get(&(job.tenant, id, name.into())).copied();
        find(Some(job.id)).or_else(|| find(None))
    }

    /// Returns the name that an actor of a job would have, if another actor has it.
    pub(crate) fn taken_name<'a>(&self, job: &Job, spec: &'a ActorSpec) -> Option<&'a Arc<str>> {
        let name = name_of(job, spec)?;
        spec.name.as_ref().filter(|_| self.names.contains_key(&name))
    }

    /// Adds an actor of a job, with its name.
    pub(crate) fn insert(&mut self, actor: Actor, job: &Job) -> ActorKey {
        let id = actor.id;
        self.names.extend(name_of(job, &actor.spec).map(|name| (name, id)));
        let at = self.records.insert(actor);
        self.ids.insert(id, at);
        at
    }

    /// Removes the name of an actor of a job.
    pub(crate) fn remove_name(&mut self, at: ActorKey, job: &Job) {
        if let Some(name) = name_of(job, &self.records[at].spec) {
            self.names.remove(&name);
        }
    }

    /// Removes an actor that has no name any more.
    pub(crate) fn remove(&mut self, at: ActorKey) {
        if let Some(actor) = self.records.remove(at) {
            self.ids.remove(&actor.id);
        }
    }
}

fn name_of(job: &Job, spec: &ActorSpec) -> Option<ActorName> {
    let name = spec.name.as_ref()?;
    Some((job.tenant, spec.detached.is_none().then_some(job.id), name.clone()))
}

/// Creation tasks that wait for a worker, by shape, in dispatch order.
#[derive(Debug, Default)]
pub(crate) struct PendingActors {
    shapes: BTreeMap<ShapeKey, BTreeSet<(Level, u64, TaskKey)>>,
    places: BTreeMap<TaskKey, (ShapeKey, Level, u64)>,
}

impl PendingActors {
    pub(crate) fn insert(&mut self, shape: ShapeKey, level: Level, number: u64, at: TaskKey) {
        self.shapes.entry(shape).or_default().insert((level, number, at));
        self.places.insert(at, (shape, level, number));
    }

    pub(crate) fn remove(&mut self, at: TaskKey) {
        let Some((shape, level, number)) = self.places.remove(&at) else { return };
        if let Some(line) = self.shapes.get_mut(&shape) {
            line.remove(&(level, number, at));
            if line.is_empty() {
                self.shapes.remove(&shape);
            }
        }
    }

    /// Returns the shapes in key order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = ShapeKey> {
        self.shapes.keys().copied()
    }

    /// Sorts shapes by the dispatch order of their first tasks.
    pub(crate) fn sort(&self, shapes: &mut [ShapeKey]) {
        shapes.sort_by_key(|shape| self.shapes.get(shape).and_then(|line| line.first().copied()));
    }

    /// Returns the first task of a shape.
    pub(crate) fn first(&self, shape: ShapeKey) -> Option<TaskKey> {
        self.shapes.get(&shape)?.first().map(|(.., at)| *at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }
}
