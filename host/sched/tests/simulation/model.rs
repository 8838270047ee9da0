//! The model: the expected state of the scheduler, stored in the simplest way and recomputed by full scans.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Fault, ObjectId, RetryOn, Strategy, TaskId, TenantId, WorkerId};
use sandbar_sched::{Action, Event, JobLimits, Outcome, ResourceSet, Scheduler, SubmissionKind, WorkerKind};

use crate::groups::Group;
use crate::lineage::Source;
use crate::reservations::Reservations;
use crate::streams::Stream;
use crate::work::with_call;

pub type Steps = Scheduler<u64, u64>;

#[derive(Default)]
pub struct Model {
    pub nodes: BTreeMap<u32, Node>,
    pub reservations: Reservations,
    pub workers: BTreeMap<u32, Worker>,
    pub jobs: BTreeMap<u32, Job>,
    /// All tasks, until their job ends.
    pub tasks: BTreeMap<u64, Task>,
    pub objects: BTreeMap<u64, Object>,
    /// All actors, until their job ends.
    pub actors: BTreeMap<u64, Actor>,
    /// Borrowed actors with handles.
    pub borrowed_actors: BTreeMap<u64, BorrowedActor>,
    /// Groups, until they are removed or their job ends.
    pub groups: BTreeMap<u64, Group>,
    pub values: Values,
    pub step: Step,
}

#[derive(Default)]
pub struct Node {
    pub resources: ResourceSet,
    pub is_remote: bool,
    pub is_draining: bool,
    pub external_usage: ResourceSet,
    /// Requested workers.
    pub worker_requests: Vec<WorkerKind>,
}

/// Values that came in by events.
#[derive(Default)]
pub struct Values {
    /// Values that were not dropped.
    live: BTreeSet<u64>,
    /// Attempts whose values counted.
    committed: BTreeSet<(u64, u32)>,
}

impl Values {
    pub fn add(&mut self, values: impl IntoIterator<Item = u64>) {
        self.live.extend(values);
    }

    /// Records that the values of an attempt count, which happens once.
    pub fn commit(&mut self, task: u64, attempt: u32) {
        assert!(self.committed.insert((task, attempt)), "attempt {attempt} of task {task} was committed before");
    }

    /// Records that a value is dropped, which happens once.
    pub fn drop(&mut self, value: u64) {
        assert!(self.live.remove(&value), "value {value} was dropped before");
    }

    pub fn assert_none_left(&self) {
        assert!(self.live.is_empty(), "values {:?} are left", self.live);
    }
}

/// Expected results of the current step.
#[derive(Default)]
pub struct Step {
    pub failed: BTreeMap<u64, Vec<Code>>,
    /// Tasks that were assigned to workers.
    pub run: BTreeMap<u64, u32>,
    pub ended: BTreeSet<u64>,
    pub dropped: BTreeSet<u64>,
    /// Borrowed objects that are released to their owners.
    pub returned: BTreeSet<u64>,
    pub delivered: BTreeMap<(u32, u64), u32>,
    pub refused: BTreeMap<(u32, u64), u32>,
    pub interrupted: BTreeSet<(u32, u64)>,
    pub withdrawn: BTreeSet<(u32, u64)>,
    /// Delivered items: worker, stream, object.
    pub items: BTreeSet<(u32, u64, u64)>,
    pub credits: BTreeSet<(u32, u64, u64)>,
    pub jobs_done: BTreeSet<u32>,
    pub ready: BTreeSet<u64>,
    /// Tasks to run again for lost objects, those that did, and those that cannot.
    pub lost: Vec<u64>,
    pub reconstructed: Vec<u64>,
    pub unrecoverable: Vec<u64>,
    /// Tasks whose lineage was dropped.
    pub dropped_lineage: BTreeSet<u64>,
}

pub struct Worker {
    pub node: u32,
    pub kind: WorkerKind,
    pub assigned: Vec<AssignedTask>,
    /// Creation tasks of hosted actors.
    pub actors: Vec<AssignedTask>,
    pub recall_pending: bool,
}

pub struct Actor {
    pub restarts_max: u32,
    pub calls_max: u64,
    pub checkpoint: Option<u64>,
}

pub struct BorrowedActor {
    pub job: u32,
    /// The proxy worker of the owner, until it is lost.
    pub owner: Option<u32>,
}

#[derive(Clone)]
pub struct AssignedTask {
    pub task: u64,
    pub tenant: TenantId,
    pub attempt: u32,
    pub demand: ResourceSet,
    pub strategy: Strategy,
    /// The group and the index of its bundle.
    pub bundle: Option<(u64, u32)>,
    pub is_blocked: bool,
    pub is_ghost: bool,
}

pub struct Job {
    pub tenant: TenantId,
    pub limits: JobLimits,
    pub first: Option<u64>,
    pub driver: Option<u32>,
}

pub struct Task {
    pub job: u32,
    pub tenant: TenantId,
    pub parent: Option<u64>,
    pub demand: ResourceSet,
    pub strategy: Strategy,
    pub priority: i32,
    pub depth: u32,
    pub number: u64,
    pub returns: u32,
    pub links: Vec<u64>,
    pub dependencies: Vec<u64>,
    pub retries_max: u32,
    pub retry_on: RetryOn,
    pub attempt: u32,
    /// Attempts that were lost because of other tasks.
    pub uncounted: u32,
    pub worker: Option<u32>,
    pub cancellation: u8,
    pub has_finished: bool,
    pub kind: SubmissionKind,
    /// Whether the call is blocked in its actor's worker.
    pub is_blocked: bool,
    /// Recorded dependencies for reconstruction.
    pub lineage: Option<Vec<Source>>,
    /// Submitted by an attempt of the parent that succeeded.
    pub is_committed: bool,
    /// Whether the scheduler has it queued. A dependency may have been lost since.
    pub is_queued: bool,
}

impl Task {
    pub fn retries(&self) -> u32 {
        self.attempt.saturating_sub(self.uncounted)
    }
}

pub struct Object {
    pub job: u32,
    pub value: Value,
    pub holds: BTreeMap<u32, u64>,
    pub wants: BTreeMap<u32, u32>,
    /// Had a value that was lost.
    pub was_ready: bool,
    /// Whether it is borrowed, and whether its value was requested from the owner.
    pub is_borrowed: bool,
    pub is_fetching: bool,
    /// State of the stream, if it is the return of a generator.
    pub stream: Option<Stream>,
}

#[derive(Clone, PartialEq)]
pub enum Value {
    Pending,
    /// Pending, and not produced by a task.
    Promised,
    /// Pending, and owned by another scheduler.
    Borrowed,
    Ready(u64, Vec<u64>),
    Failed,
    /// A lost value that cannot be reconstructed.
    Lost,
}

impl Value {
    pub fn is_pending(&self) -> bool {
        matches!(self, Value::Pending | Value::Promised | Value::Borrowed)
    }
}

pub fn fits(demand: &ResourceSet, cpus: i128, rest: &ResourceSet) -> bool {
    let custom = |name| rest.custom.get(name).copied().unwrap_or(0);
    (demand.cpus == 0 || i128::from(demand.cpus) <= cpus)
        && demand.gpus <= rest.gpus
        && demand.memory <= rest.memory
        && demand.custom.iter().all(|(name, amount)| *amount <= custom(name))
}

pub fn is_cpu_only(demand: &ResourceSet) -> bool {
    demand.gpus == 0 && demand.memory == 0 && demand.custom.is_empty()
}

impl Model {
    pub fn is_known(&self, number: u64) -> bool {
        self.objects.contains_key(&number) || self.tasks.contains_key(&number)
    }

    pub fn is_remote(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_remote)
    }

    pub fn is_draining(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_draining)
    }

    /// Returns the submission number of the next task.
    pub fn next_number(&self) -> u64 {
        self.tasks.values().map(|task| task.number).max().unwrap_or(0) + 1
    }

    pub fn in_worker(&self, worker: WorkerId, task: TaskId) -> Option<usize> {
        self.workers.get(&worker.0)?.assigned.iter().position(|assigned| assigned.task == task.0)
    }

    /// Returns the task of an event if it is in that worker.
    pub fn running(&self, worker: WorkerId, task: TaskId) -> Option<&Task> {
        self.tasks.get(&task.0).filter(|task| task.worker == Some(worker.0))
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &Event<u64, u64>, actions: &[Action<u64>], steps: &Steps) {
        self.step = Step::default();
        match event {
            Event::NodeJoined { node, resources, remote, .. } => {
                let record = Node { resources: resources.clone(), is_remote: *remote, ..Node::default() };
                self.nodes.entry(node.0).or_insert(record);
                self.fail_infeasible_groups();
            }
            Event::NodeDraining { node } => {
                if let Some(node) = self.nodes.get_mut(&node.0) {
                    node.is_draining = true;
                }
            }
            Event::NodeLoad { node, external_usage } => self.load(node.0, external_usage),
            Event::NodeLost { node } => {
                self.reservations.lose_node(node.0);
                let of_node = |(id, worker): (&u32, &Worker)| (worker.node == node.0).then_some(*id);
                let workers = self.workers.iter().filter_map(of_node).collect();
                self.nodes.remove(&node.0);
                self.lose(workers, None, None);
                self.lose_bundles(node.0);
                self.fail_infeasible_groups();
            }
            Event::WorkerReady { worker, node, kind } => {
                if let Some(host) = self.nodes.get_mut(&node.0)
                    && !self.workers.contains_key(&worker.0)
                {
                    match host.worker_requests.iter().position(|request| request == kind) {
                        Some(at) if matches!(kind, WorkerKind::Tasks(_)) => _ = host.worker_requests.swap_remove(at),
                        _ => host.worker_requests.retain(|request| request != kind),
                    }
                    let record = Worker {
                        node: node.0,
                        kind: *kind,
                        assigned: Vec::new(),
                        actors: Vec::new(),
                        recall_pending: false,
                    };
                    self.workers.insert(worker.0, record);
                    if let WorkerKind::Driver(job) = kind
                        && let Some(job) = self.jobs.get_mut(&job.0)
                    {
                        job.driver.get_or_insert(worker.0);
                    }
                }
            }
            Event::WorkerLost { worker, started, culprit } => self.lose(vec![worker.0], Some(started), *culprit),
            Event::TenantChanged { .. } | Event::TenantCharged { .. } | Event::DayStarted | Event::Tick => {}
            Event::JobStarted { job, tenant, limits } => {
                let record = Job { tenant: *tenant, limits: *limits, first: None, driver: None };
                self.jobs.entry(job.0).or_insert(record);
            }
            Event::JobEnded { job } => self.end_job(job.0),
            Event::Submitted { task } => {
                self.submit(task, true);
            }
            Event::LeaseRequested { lease } => {
                if lease.kind == SubmissionKind::Lease {
                    self.submit(&with_call(lease, 0), true);
                }
            }
            Event::FinishedInline { task, worker, outcome, .. } => {
                let is_so = task.parent.is_some_and(|parent| parent.worker == *worker);
                let may = task.kind == SubmissionKind::Function && task.strategy == Strategy::Default;
                if is_so && self.submit(task, may) {
                    self.finish(task.id.0, outcome, false);
                } else {
                    self.discard(outcome);
                }
            }
            Event::StartedInline { task, worker } => self.started_inline(task, worker.0),
            Event::Put { object, task, worker, value, refs } => self.put(object.0, *task, *worker, *value, refs),
            Event::PutFailed { object, task, worker, .. } => {
                let job = self.running(*worker, *task).map(|task| task.job).filter(|_| !self.is_known(object.0));
                if let Some(job) = job {
                    self.create(object.0, job, Value::Failed, Some(worker.0));
                }
            }
            Event::Yielded { task, attempt, worker, index, object, value, refs } => {
                let value = value.as_ref().ok().copied();
                self.yielded((*task, attempt.0, *worker), *index, object.0, value, refs);
            }
            Event::ItemsConsumed { stream, worker, consumed } => self.consumed(stream.0, worker.0, *consumed),
            Event::ProxyTaskStarted { task, worker } => self.start_proxy_task(task, worker.0),
            Event::ActorBorrowed { actor, worker } => self.borrow_actor(actor.0, worker.0),
            Event::Promised { object, task, worker } => {
                let job = self.running(*worker, *task).map(|task| task.job).filter(|_| !self.is_known(object.0));
                if let Some(job) = job {
                    let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
                    let value = if has_room { Value::Promised } else { Value::Failed };
                    self.create(object.0, job, value, Some(worker.0));
                }
            }
            Event::Fulfilled { object, value } => self.fulfil(object.0, value),
            Event::Borrowed { object, task, worker } => self.borrow(object.0, *worker, *task),
            Event::BorrowResolved { object, value, refs } => {
                self.resolve_borrow(object.0, value.as_ref().ok().copied(), refs)
            }
            Event::AttemptFinished { task, attempt, worker, outcome, .. }
                if self.tasks.get(&task.0).is_some_and(|task| matches!(task.kind, SubmissionKind::Method(_))) =>
            {
                let call = &self.tasks[&task.0];
                if call.worker != Some(worker.0) || call.attempt != attempt.0 {
                    return self.finish_step(outcome, actions, steps);
                }
                self.finish(task.0, outcome, self.is_peer(worker.0));
            }
            Event::AttemptFinished { task, attempt, worker, outcome, .. }
                if self.has_actor(*worker, *task, attempt.0) =>
            {
                let actors = &mut self.workers.get_mut(&worker.0).expect("it was found").actors;
                let at = actors.iter().position(|assigned| assigned.task == task.0).expect("it was found");
                let assigned = actors.remove(at);
                self.discard(outcome);
                if !assigned.is_ghost {
                    let calls = self.take_calls(task.0);
                    self.lose_actor(task.0, calls, &|_| false, !self.is_peer(worker.0));
                }
            }
            Event::AttemptFinished { task, attempt, worker, outcome, .. } => {
                let assigned = self.workers.get_mut(&worker.0).map(|worker| &mut worker.assigned);
                let is_it = |assigned: &AssignedTask| assigned.task == task.0 && assigned.attempt == attempt.0;
                let position = assigned.as_ref().and_then(|assigned| assigned.iter().position(is_it));
                let Some((assigned, position)) = assigned.zip(position) else {
                    return self.finish_step(outcome, actions, steps);
                };
                let assigned = assigned.remove(position);
                if assigned.is_ghost {
                    return self.finish_step(outcome, actions, steps);
                }
                match (&self.tasks[&task.0].kind, outcome) {
                    (SubmissionKind::ActorCreation(_), Outcome::Succeeded(values)) => {
                        self.actor_created(task.0, worker.0, assigned, values)
                    }
                    (SubmissionKind::ActorCreation(_), _) => self.finish(task.0, outcome, self.is_peer(worker.0)),
                    _ => self.finish(task.0, outcome, false),
                }
            }
            Event::Blocked { task, worker, blocked }
                if self.tasks.get(&task.0).is_some_and(|task| matches!(task.kind, SubmissionKind::Method(_))) =>
            {
                let task = self.tasks.get_mut(&task.0).expect("it was found");
                if task.worker == Some(worker.0) && self.workers.contains_key(&worker.0) {
                    task.is_blocked = *blocked;
                }
            }
            Event::Blocked { task, worker, blocked } => {
                if let Some(at) = self.in_worker(*worker, *task) {
                    let assigned = &mut self.workers.get_mut(&worker.0).expect("it was found").assigned;
                    assigned[at].is_blocked = *blocked;
                }
            }
            Event::ObjectRequested { object, worker, task } => self.request_object(object.0, *worker, *task),
            Event::ReferenceAdded { object, worker, task } => self.hold(object.0, *worker, *task),
            Event::ReferencesReleased { object, worker, count } => self.release(object.0, *worker, *count),
            Event::DeadlockDetected { call, fault } => {
                let is_idle = |task: &Task| {
                    task.worker.is_none() && !task.has_finished && matches!(task.kind, SubmissionKind::Method(_))
                };
                if self.tasks.get(&call.0).is_some_and(is_idle) {
                    self.fail(call.0, fault.code);
                }
            }
            Event::Cancelled { task, recursive } => {
                if self.tasks.contains_key(&task.0) {
                    self.cancel_task(task.0, 1 + u8::from(*recursive));
                    if *recursive {
                        self.descendants(task.0).into_iter().for_each(|id| self.cancel_task(id, 2));
                    }
                }
            }
            Event::Recalled { worker, tasks } => {
                // A remote scheduler keeps its assigned tasks.
                if let Some(record) =
                    self.workers.get_mut(&worker.0).filter(|worker| worker.kind != WorkerKind::PeerProxy)
                {
                    record.recall_pending = false;
                    let mut back = Vec::new();
                    for task in tasks {
                        let assigned = &mut self.workers.get_mut(&worker.0).expect("it was found").assigned;
                        let is_it = |assigned: &AssignedTask| assigned.task == task.0;
                        if let Some(at) = assigned.iter().position(is_it)
                            && !assigned.remove(at).is_ghost
                        {
                            self.tasks.get_mut(&task.0).expect("it is known").worker = None;
                            back.push(task.0);
                        }
                    }
                    back.into_iter().for_each(|task| self.requeue(task));
                }
            }
            Event::Killed { actor, restart: false } => {
                if self.tasks.get(&actor.0).is_some_and(|creator| !creator.has_finished)
                    && self.actors.contains_key(&actor.0)
                {
                    self.cancel_task(actor.0, 1);
                }
            }
            Event::Killed { actor, restart: true } => {
                let is_live = self.tasks.get(&actor.0).is_some_and(|creator| creator.cancellation == 0);
                if let Some(worker) = self.actor_worker(actor.0).filter(|_| is_live) {
                    self.step.interrupted.insert((worker, actor.0));
                }
            }
            Event::Checkpointed { actor, attempt, worker, object } => {
                let is_now = |creator: &Task| creator.attempt == attempt.0;
                if self.actor_worker(actor.0) == Some(worker.0)
                    && self.tasks.get(&actor.0).is_some_and(is_now)
                    && let Some(object_is) = self.objects.get(&object.0)
                    && object_is.job == self.tasks[&actor.0].job
                    && matches!(object_is.value, Value::Ready(..))
                {
                    self.actors.get_mut(&actor.0).expect("it is alive").checkpoint = Some(object.0);
                }
            }
            Event::GroupCreated { group, task, worker, spec, value } => {
                self.create_group(group.0, *task, *worker, spec, *value);
            }
            Event::GroupRemoved { group, task, worker } => {
                let job = self.running(*worker, *task).map(|task| task.job);
                if self.groups.get(&group.0).is_some_and(|group| Some(group.job) == job) {
                    self.close_group(group.0);
                    self.groups.remove(&group.0);
                }
            }
            Event::ReserveReply { group, node, attempt, granted } => {
                self.handle_reserve_reply((group.0, node.0, attempt.0), *granted)
            }
            Event::ObjectLost { object, waiters } => self.lose_object(object.0, waiters),
        }
        self.settle(actions, steps);
    }

    pub fn finish_step(&mut self, outcome: &Outcome<u64>, actions: &[Action<u64>], steps: &Steps) {
        self.discard(outcome);
        self.settle(actions, steps);
    }

    pub fn discard(&mut self, outcome: &Outcome<u64>) {
        if let Outcome::Succeeded(values) = outcome {
            self.values.add(values.iter().map(|(value, _)| *value));
            self.step.dropped.extend(values.iter().map(|(value, _)| value));
        }
    }

    pub fn job_objects(&self, job: u32) -> u64 {
        self.objects.values().filter(|object| object.job == job).count() as u64
    }

    pub fn of_job(&self, job: u32, ids: &[ObjectId]) -> bool {
        ids.iter().all(|id| self.objects.get(&id.0).is_some_and(|object| object.job == job))
    }

    pub fn lose_object(&mut self, id: u64, waiters: &[WorkerId]) {
        let Some(object) = self.objects.get(&id) else { return };
        let value = object.value.clone();
        for worker in waiters.iter().filter(|worker| self.workers.contains_key(&worker.0)).copied().collect::<Vec<_>>()
        {
            if let Value::Ready(_, contents) = &value {
                contents.iter().for_each(|content| self.release(*content, worker, 1));
            }
            *self.objects.get_mut(&id).expect("it was found").wants.entry(worker.0).or_default() += 1;
        }
        if let Value::Ready(value, _) = value {
            self.step.dropped.insert(value);
            self.lose_value(id);
        }
    }

    pub fn release(&mut self, object: u64, worker: WorkerId, times: u32) {
        if self.workers.contains_key(&worker.0)
            && let Some(object) = self.objects.get_mut(&object)
            && let Some(held) = object.holds.get_mut(&worker.0)
        {
            *held = held.saturating_sub(times.into());
            object.holds.retain(|_, held| *held > 0);
        }
    }

    pub fn create(&mut self, id: u64, job: u32, value: Value, holder: Option<u32>) {
        let holds = holder.map(|holder| (holder, 1)).into_iter().collect();
        let (is_borrowed, wants) = (value == Value::Borrowed, BTreeMap::new());
        let object =
            Object { job, value, holds, wants, was_ready: false, is_borrowed, is_fetching: false, stream: None };
        self.objects.insert(id, object);
    }

    pub fn put(&mut self, id: u64, task: TaskId, worker: WorkerId, value: u64, refs: &[ObjectId]) {
        self.values.add([value]);
        let Some(job) = self.running(worker, task).map(|task| task.job).filter(|_| !self.is_known(id)) else {
            self.step.dropped.insert(value);
            return;
        };
        let has_room = self.job_objects(job) < self.jobs[&job].limits.objects_max;
        if has_room && self.of_job(job, refs) {
            let contents = refs.iter().map(|id| id.0).collect();
            self.create(id, job, Value::Ready(value, contents), Some(worker.0));
        } else {
            self.create(id, job, Value::Failed, Some(worker.0));
            self.step.dropped.insert(value);
        }
    }

    pub fn fulfil(&mut self, id: u64, value: &Result<u64, Fault>) {
        let promised = self.objects.get_mut(&id).filter(|object| object.value == Value::Promised);
        self.values.add(value.as_ref().ok().copied());
        match (promised, value) {
            (Some(object), Ok(value)) => object.value = Value::Ready(*value, Vec::new()),
            (Some(object), Err(_)) => object.value = Value::Failed,
            (None, Ok(value)) => drop(self.step.dropped.insert(*value)),
            (None, Err(_)) => {}
        }
    }

    /// Adds a reference of a worker.
    pub fn hold(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if let Some(job) = self.acts_for(worker, task)
            && let Some(object) = self.objects.get_mut(&id).filter(|object| object.job == job)
        {
            *object.holds.entry(worker.0).or_default() += 1;
        }
    }

    pub fn request_object(&mut self, id: u64, worker: WorkerId, task: TaskId) {
        if !self.workers.contains_key(&worker.0) {
            return;
        }
        let job = self.acts_for(worker, task);
        let is_peer = self.workers[&worker.0].kind == WorkerKind::PeerProxy;
        let may = |object: &&mut Object| Some(object.job) == job || is_peer && object.holds.contains_key(&worker.0);
        match self.objects.get_mut(&id).filter(may) {
            Some(object) => *object.wants.entry(worker.0).or_default() += 1,
            None => *self.step.refused.entry((worker.0, id)).or_default() += 1,
        }
    }
}
