//! A DSL for scheduler tests: short methods for events, and resulting actions as text, such as `run w1 t10`, `drop
//! o10`, `finished t10`.

#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::sync::Arc;

pub use sandbar_core::RetryOn;
use sandbar_core::{
    ActorId, Attempt, Code, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, Strategy, TaskError, TaskId,
    TenantId, WorkerId,
};
pub use sandbar_sched::{
    Action, ActorSpec, ActorState, Event, Failure, GroupSpec, GroupView, JobLimits, Options, Outcome, ParentRef,
    PayloadCallbacks, RESOURCE_UNIT, ResourceSet, Scheduler, Submission, SubmissionKind, TaskState, TenantLimits,
    TenantShare, ValueBytes, ValueLocation, WorkerKind,
};

/// The first number whose value is in the store, in [`World::with_value_bytes`].
pub const STORED: u64 = 1 << 20;

/// The worker of task 1, the root task of job 1.
pub const DRIVER: u32 = 100;

/// Values from this number on cannot be lost.
pub const UNLOSABLE: u64 = 1 << 32;

pub struct World {
    pub steps: Scheduler<u64, u64>,
    actions: Vec<Action<u64>>,
    remote_nodes: Vec<u32>,
}

/// Processors, GPUs and bytes of memory.
pub fn resources(cpus: u64, gpus: u64, memory: u64) -> ResourceSet {
    ResourceSet { cpus: cpus * RESOURCE_UNIT, gpus: gpus * RESOURCE_UNIT, memory, ..ResourceSet::default() }
}

pub const LIMITS: JobLimits = JobLimits {
    tasks_max: 1000,
    depth_max: 10,
    objects_max: 1000,
    lineage_bytes_max: 1 << 20,
    groups_max: 10,
    call_bytes_max: 1 << 20,
};

/// The submitter of a task.
pub fn parent(task: u64, attempt: u32, worker: u32) -> ParentRef {
    ParentRef { task: TaskId(task), attempt: Attempt(attempt), worker: WorkerId(worker) }
}

/// A task of job 1 that the driver submits, with one return and one processor.
pub fn t(id: u64) -> Submission<u64> {
    Submission {
        id: TaskId(id),
        job: JobId(1),
        parent: Some(parent(1, 0, DRIVER)),
        remote_depth: 0,
        name: format!("t{id}").into(),
        returns: 1,
        demand: resources(1, 0, 0),
        strategy: Strategy::Default,
        priority: 0,
        retries_max: 0,
        retry_on: RetryOn::System,
        dependencies: Vec::new(),
        refs: Vec::new(),
        kind: SubmissionKind::Function,
        call: id,
    }
}

/// A creation task without resources, with this number of restarts.
pub fn actor(id: u64, restarts_max: u32) -> Submission<u64> {
    let spec = ActorSpec { name: None, detached: None, restarts_max, calls_max: 1000 };
    Submission { demand: resources(0, 0, 0), kind: SubmissionKind::ActorCreation(Box::new(spec)), ..t(id) }
}

pub fn with_spec(mut task: Submission<u64>, set: impl FnOnce(&mut ActorSpec)) -> Submission<u64> {
    if let SubmissionKind::ActorCreation(spec) = &mut task.kind {
        set(spec);
    }
    task
}

/// A method call.
pub fn call(id: u64, actor: u64) -> Submission<u64> {
    Submission { demand: resources(0, 0, 0), kind: SubmissionKind::Method(ActorId(actor)), ..t(id) }
}

/// A generator with this buffer.
pub fn stream(id: u64, buffer: u32) -> Submission<u64> {
    Submission { kind: SubmissionKind::Generator(buffer), ..t(id) }
}

/// The root task of a job.
pub fn first(id: u64, job: u32) -> Submission<u64> {
    Submission { job: JobId(job), parent: None, demand: resources(0, 0, 0), name: "main".into(), ..t(id) }
}

/// A task that another one submits, in a worker.
pub fn child(id: u64, parent: u64, worker: u32) -> Submission<u64> {
    Submission { parent: Some(self::parent(parent, 0, worker)), ..t(id) }
}

pub fn needs(mut task: Submission<u64>, needs: &[u64]) -> Submission<u64> {
    task.dependencies = objects(needs);
    task
}

pub fn refs(mut task: Submission<u64>, refs: &[u64]) -> Submission<u64> {
    task.refs = objects(refs);
    task
}

pub fn demanding(mut task: Submission<u64>, demand: ResourceSet) -> Submission<u64> {
    task.demand = demand;
    task
}

pub fn on(mut task: Submission<u64>, strategy: Strategy) -> Submission<u64> {
    task.strategy = strategy;
    task
}

/// Places a task in a bundle of a placement group, or in any of its bundles.
pub fn within(task: Submission<u64>, group: u64, bundle: Option<u32>) -> Submission<u64> {
    on(task, Strategy::Group { group: GroupId(group), bundle })
}

pub fn retries(mut task: Submission<u64>, retries_max: u32) -> Submission<u64> {
    task.retries_max = retries_max;
    task
}

pub fn retries_on(task: Submission<u64>, retries_max: u32, retry_on: impl Into<RetryOn>) -> Submission<u64> {
    Submission { retry_on: retry_on.into(), ..retries(task, retries_max) }
}

pub fn priority(mut task: Submission<u64>, priority: i32) -> Submission<u64> {
    task.priority = priority;
    task
}

/// A task of a class with a common name, for tests with short durations.
pub fn short(id: u64) -> Submission<u64> {
    Submission { name: "short".into(), ..t(id) }
}

pub fn objects(ids: &[u64]) -> Vec<ObjectId> {
    ids.iter().copied().map(ObjectId).collect()
}

pub fn tasks(ids: &[u64]) -> Vec<TaskId> {
    ids.iter().copied().map(TaskId).collect()
}

pub fn failed(message: &str, system: bool) -> Outcome<u64> {
    let fault = Fault::new(Code::Trap, message);
    Outcome::Failed(Failure { error: Arc::new(TaskError { fault, chain: Vec::new() }), system })
}

impl World {
    pub fn empty() -> World {
        World { steps: Scheduler::new(Options::default()), actions: Vec::new(), remote_nodes: Vec::new() }
    }

    /// A node with these numbers of processors and workers, and job 1, whose root task runs.
    pub fn new(cpus: u64, workers: u32) -> World {
        World::empty().started(cpus, workers, LIMITS)
    }

    /// Like `new`, where values below [`UNLOSABLE`] may be lost.
    pub fn with_losses(cpus: u64, workers: u32, limits: JobLimits) -> World {
        let callbacks = PayloadCallbacks {
            can_be_lost: |value| *value < UNLOSABLE,
            call_bytes: |_| 88,
            ..PayloadCallbacks::default()
        };
        let steps = Scheduler::with_lineage(Options::default(), callbacks);
        World { steps, actions: Vec::new(), remote_nodes: Vec::new() }.started(cpus, workers, limits)
    }

    /// An empty world whose values take as many bytes as their number, in the store from [`STORED`] on, and whose calls
    /// take 88 bytes. All tenants together may use `memory_bytes_max`.
    pub fn with_value_bytes(memory_bytes_max: u64) -> World {
        let value_bytes = |value: &u64| match value {
            0..STORED => ValueBytes { memory: *value, stored: 0 },
            _ => ValueBytes { memory: 0, stored: *value },
        };
        let callbacks = PayloadCallbacks { call_bytes: |_| 88, value_bytes, ..PayloadCallbacks::default() };
        let options = Options { memory_bytes_max, ..Options::default() };
        World { steps: Scheduler::with_lineage(options, callbacks), actions: Vec::new(), remote_nodes: Vec::new() }
    }

    /// Like `new`, where an object from 1000 on is 1 GiB on the node of its thousands digit.
    pub fn with_locations(cpus: u64, workers: u32) -> World {
        let location = |value: &u64| {
            let node = Some(NodeId((*value / 1000) as u32)).filter(|node| node.0 > 1);
            (*value >= 1000).then_some(ValueLocation { node, bytes: 1 << 30 })
        };
        let callbacks = PayloadCallbacks { location, ..PayloadCallbacks::default() };
        World {
            steps: Scheduler::with_lineage(Options::default(), callbacks),
            actions: Vec::new(),
            remote_nodes: Vec::new(),
        }
        .started(cpus, workers, LIMITS)
    }

    fn started(mut self, cpus: u64, workers: u32, limits: JobLimits) -> World {
        let world = &mut self;
        world.node(1, resources(cpus, 0, 0)).job(1, limits).driver(DRIVER, 1, 1);
        (1..=workers).for_each(|worker| {
            world.worker(worker, 1);
        });
        world.submit(first(1, 1)).emits("run w100 t1");
        self
    }

    pub fn step(&mut self, event: Event<u64, u64>) -> &mut World {
        self.steps.step(event, &mut self.actions);
        self
    }

    /// Checks the actions since the last check.
    pub fn emits(&mut self, expected: &str) -> &mut World {
        let actual: Vec<String> = self.actions.drain(..).map(|action| text(&action)).collect();
        assert_eq!(actual.join(", "), expected);
        self
    }

    /// Checks only the actions that begin with this word.
    pub fn emits_only(&mut self, word: &str, expected: &str) -> &mut World {
        self.actions.retain(|action| text(action).split(' ').next() == Some(word));
        self.emits(expected)
    }

    /// Discards the actions since the last check.
    pub fn discard_actions(&mut self) -> &mut World {
        self.actions.clear();
        self
    }

    pub fn node(&mut self, node: u32, resources: ResourceSet) -> &mut World {
        self.step(Event::NodeJoined { node: NodeId(node), resources, remote: false, workers: 0 })
    }

    pub fn remote_node(&mut self, node: u32, resources: ResourceSet) -> &mut World {
        self.remote_nodes.push(node);
        self.step(Event::NodeJoined { node: NodeId(node), resources, remote: true, workers: 0 })
    }

    /// Reports external usage of a node.
    pub fn load(&mut self, node: u32, external_usage: ResourceSet) -> &mut World {
        self.step(Event::NodeLoad { node: NodeId(node), external_usage })
    }

    /// Adds the proxy worker of a remote node.
    pub fn peer(&mut self, worker: u32, node: u32) -> &mut World {
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind: WorkerKind::PeerProxy })
    }

    /// Adds a proxy task of another scheduler.
    pub fn proxy_task(&mut self, task: u64, job: u32, worker: u32) -> &mut World {
        self.step(Event::ProxyTaskStarted { task: first(task, job), worker: WorkerId(worker) })
    }

    pub fn borrow_actor(&mut self, actor: u64, worker: u32) -> &mut World {
        self.step(Event::ActorBorrowed { actor: ActorId(actor), worker: WorkerId(worker) })
    }

    pub fn worker(&mut self, worker: u32, node: u32) -> &mut World {
        let is_remote = self.remote_nodes.contains(&node);
        let kind = if is_remote { WorkerKind::RemoteTasks } else { WorkerKind::Tasks(TenantId::DEFAULT) };
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind })
    }

    pub fn driver(&mut self, worker: u32, node: u32, job: u32) -> &mut World {
        self.step(Event::WorkerReady {
            worker: WorkerId(worker),
            node: NodeId(node),
            kind: WorkerKind::Driver(JobId(job)),
        })
    }

    /// Adds a worker for several actors.
    pub fn actor_worker(&mut self, worker: u32, node: u32) -> &mut World {
        let kind = WorkerKind::Actors(TenantId::DEFAULT);
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind })
    }

    /// Adds a worker dedicated to one actor.
    pub fn own_worker(&mut self, worker: u32, node: u32, actor: u64) -> &mut World {
        let kind = WorkerKind::Actor(ActorId(actor));
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind })
    }

    pub fn kill(&mut self, actor: u64, restart: bool) -> &mut World {
        self.step(Event::Killed { actor: ActorId(actor), restart })
    }

    /// Ends an actor in its worker.
    pub fn dies(&mut self, actor: u64, attempt: u32, worker: u32) -> &mut World {
        self.finish(actor, attempt, worker, failed("it trapped", true), 0)
    }

    pub fn checkpoint(&mut self, actor: u64, attempt: u32, worker: u32, object: u64) -> &mut World {
        let (actor, attempt, worker) = (ActorId(actor), Attempt(attempt), WorkerId(worker));
        self.step(Event::Checkpointed { actor, attempt, worker, object: ObjectId(object) })
    }

    pub fn actor_is(&mut self, actor: u64, expected: Option<ActorState>) -> &mut World {
        assert_eq!(self.steps.actor(ActorId(actor)).map(|actor| actor.state), expected);
        self
    }

    pub fn job(&mut self, job: u32, limits: JobLimits) -> &mut World {
        self.step(Event::JobStarted { job: JobId(job), tenant: TenantId::DEFAULT, limits })
    }

    pub fn job_of(&mut self, job: u32, tenant: u64) -> &mut World {
        self.step(Event::JobStarted { job: JobId(job), tenant: TenantId(tenant), limits: LIMITS })
    }

    /// A job of a tenant, whose root task runs in a driver.
    pub fn running_job_of(&mut self, job: u32, tenant: u64, root: u64, driver: u32) -> &mut World {
        self.job_of(job, tenant).driver(driver, 1, job).submit(first(root, job))
    }

    /// A local node on which tenants get task workers as they need them.
    pub fn node_with_workers(&mut self, node: u32, cpus: u64, workers: u32) -> &mut World {
        let resources = resources(cpus, 0, 0);
        self.step(Event::NodeJoined { node: NodeId(node), resources, remote: false, workers })
    }

    /// Adds a worker for tasks of a tenant.
    pub fn worker_of(&mut self, worker: u32, node: u32, tenant: u64) -> &mut World {
        let kind = WorkerKind::Tasks(TenantId(tenant));
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind })
    }

    pub fn share(&mut self, tenant: u64, weight: u32, reserved_cpus: u64) -> &mut World {
        let share = TenantShare { weight, reserved_cpus: reserved_cpus * RESOURCE_UNIT };
        let limits = TenantLimits::default();
        self.step(Event::TenantChanged { tenant: TenantId(tenant), share, limits })
    }

    pub fn limit(&mut self, tenant: u64, limits: TenantLimits) -> &mut World {
        self.step(Event::TenantChanged { tenant: TenantId(tenant), share: TenantShare::default(), limits })
    }

    /// Time passes, up to this millisecond.
    pub fn at_ms(&mut self, ms: u64) -> &mut World {
        self.steps.set_time(ms * 1_000_000);
        self.step(Event::Tick)
    }

    /// A worker is lost because of one of its tasks.
    pub fn lose_worker_by(&mut self, worker: u32, started: &[u64], culprit: u64) -> &mut World {
        let (started, culprit) = (tasks(started), Some(TaskId(culprit)));
        self.step(Event::WorkerLost { worker: WorkerId(worker), started, culprit })
    }

    pub fn job_ends(&mut self, job: u32) -> &mut World {
        self.step(Event::JobEnded { job: JobId(job) })
    }

    pub fn submit(&mut self, task: Submission<u64>) -> &mut World {
        self.step(Event::Submitted { task })
    }

    pub fn submit_all(&mut self, all: impl IntoIterator<Item = Submission<u64>>) -> &mut World {
        all.into_iter().for_each(|task| {
            self.submit(task);
        });
        self
    }

    /// Finishes the first attempt of a task after `nanos`. The value is the task's number.
    pub fn finish_after(&mut self, task: u64, worker: u32, nanos: u64) -> &mut World {
        self.finish(task, 0, worker, Outcome::Succeeded(vec![(task, Vec::new())]), nanos)
    }

    pub fn done(&mut self, task: u64, worker: u32) -> &mut World {
        self.finish_after(task, worker, 50_000_000)
    }

    /// Like `done`, with objects in the value.
    pub fn returned(&mut self, task: u64, worker: u32, contents: &[u64]) -> &mut World {
        self.finish(task, 0, worker, Outcome::Succeeded(vec![(task, objects(contents))]), 50_000_000)
    }

    pub fn fails(&mut self, task: u64, attempt: u32, worker: u32, system: bool) -> &mut World {
        self.finish(task, attempt, worker, failed("it failed", system), 50_000_000)
    }

    pub fn finish(&mut self, task: u64, attempt: u32, worker: u32, outcome: Outcome<u64>, nanos: u64) -> &mut World {
        let (task, attempt, worker) = (TaskId(task), Attempt(attempt), WorkerId(worker));
        self.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos })
    }

    pub fn finish_inline(&mut self, task: Submission<u64>, worker: u32, outcome: Outcome<u64>) -> &mut World {
        self.step(Event::FinishedInline { task, worker: WorkerId(worker), outcome, nanos: 1000 })
    }

    pub fn start_inline(&mut self, task: Submission<u64>, worker: u32) -> &mut World {
        self.step(Event::StartedInline { task, worker: WorkerId(worker) })
    }

    pub fn put(&mut self, object: u64, task: u64, worker: u32, refs: &[u64]) -> &mut World {
        let (object_id, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Put { object: object_id, task, worker, value: object, refs: objects(refs) })
    }

    /// Yields an item, in the generator's first attempt. The value is the object's number.
    pub fn yields(&mut self, task: u64, worker: u32, index: u64, object: u64) -> &mut World {
        self.yields_with_refs(task, 0, worker, index, object, &[])
    }

    pub fn yields_with_refs(
        &mut self,
        task: u64,
        attempt: u32,
        worker: u32,
        index: u64,
        object: u64,
        refs: &[u64],
    ) -> &mut World {
        let (task, attempt, worker) = (TaskId(task), Attempt(attempt), WorkerId(worker));
        let (value, object, refs) = (Ok(object), ObjectId(object), objects(refs));
        self.step(Event::Yielded { task, attempt, worker, index, object, value, refs })
    }

    pub fn consumes(&mut self, stream: u64, worker: u32, consumed: u64) -> &mut World {
        self.step(Event::ItemsConsumed { stream: ObjectId(stream), worker: WorkerId(worker), consumed })
    }

    pub fn promise(&mut self, object: u64, task: u64, worker: u32) -> &mut World {
        let (object, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Promised { object, task, worker })
    }

    /// Fulfils a promise with a value, or with an error.
    pub fn fulfil(&mut self, object: u64, succeeds: bool) -> &mut World {
        let value = if succeeds { Ok(object) } else { Err(Fault::new(Code::Input, "no file")) };
        self.step(Event::Fulfilled { object: ObjectId(object), value })
    }

    pub fn borrow(&mut self, object: u64, task: u64, worker: u32) -> &mut World {
        let (object, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Borrowed { object, task, worker })
    }

    pub fn add_reference(&mut self, object: u64, worker: u32, task: u64) -> &mut World {
        self.step(Event::ReferenceAdded { object: ObjectId(object), worker: WorkerId(worker), task: TaskId(task) })
    }

    /// Resolves a borrow with a value that contains these objects.
    pub fn resolve_borrow(&mut self, object: u64, contains: &[u64]) -> &mut World {
        let refs = contains.iter().copied().map(ObjectId).collect();
        self.step(Event::BorrowResolved { object: ObjectId(object), value: Ok(object), refs })
    }

    pub fn resolve_borrow_failed(&mut self, object: u64) -> &mut World {
        let error = TaskError { fault: Fault::new(Code::Input, "no file"), chain: Vec::new() };
        self.step(Event::BorrowResolved { object: ObjectId(object), value: Err(Arc::new(error)), refs: Vec::new() })
    }

    /// Creates a placement group by the root task of job 1.
    pub fn group(&mut self, group: u64, strategy: GroupStrategy, bundles: &[ResourceSet]) -> &mut World {
        self.group_by(
            group,
            1,
            DRIVER,
            GroupSpec { name: None, strategy, bundles: bundles.to_vec(), local_only: false },
        )
    }

    pub fn group_by(&mut self, group: u64, task: u64, worker: u32, spec: GroupSpec) -> &mut World {
        let (task, worker) = (TaskId(task), WorkerId(worker));
        self.step(Event::GroupCreated { group: GroupId(group), task, worker, spec, value: group })
    }

    /// Like `group`, for another scheduler's request, by its proxy task in a worker.
    pub fn local_group(
        &mut self,
        group: u64,
        task: u64,
        worker: u32,
        strategy: GroupStrategy,
        bundles: &[ResourceSet],
    ) -> &mut World {
        self.group_by(
            group,
            task,
            worker,
            GroupSpec { name: None, strategy, bundles: bundles.to_vec(), local_only: true },
        )
    }

    /// Replies to a reservation request.
    pub fn reserve_reply(&mut self, node: u32, group: u64, attempt: u32, granted: bool) -> &mut World {
        let (group, node, attempt) = (GroupId(group), NodeId(node), Attempt(attempt));
        self.step(Event::ReserveReply { group, node, attempt, granted })
    }

    /// Checks the group and the bundle of a task.
    pub fn bundle_is(&mut self, task: u64, expected: Option<(u64, u32)>) -> &mut World {
        let expected = expected.map(|(group, index)| (GroupId(group), index));
        assert_eq!(self.steps.bundle_of(TaskId(task)), expected, "t{task}");
        self
    }

    pub fn remove_group(&mut self, group: u64) -> &mut World {
        self.step(Event::GroupRemoved { group: GroupId(group), task: TaskId(1), worker: WorkerId(DRIVER) })
    }

    /// Checks the state of a group and the nodes of its bundles, in parentheses while the reservation is pending:
    /// `Created 1 2`, `Pending (2) (3)`.
    pub fn group_is(&mut self, group: u64, expected: &str) -> &mut World {
        let view = self.steps.group(GroupId(group));
        assert_eq!(view.map_or_else(|| "gone".to_owned(), |view| group_text(&view)), expected);
        self
    }

    pub fn request(&mut self, object: u64, worker: u32, task: u64) -> &mut World {
        self.step(Event::ObjectRequested { object: ObjectId(object), worker: WorkerId(worker), task: TaskId(task) })
    }

    pub fn release(&mut self, object: u64, worker: u32) -> &mut World {
        self.step(Event::ReferencesReleased { object: ObjectId(object), worker: WorkerId(worker), count: 1 })
    }

    pub fn block(&mut self, task: u64, worker: u32, blocked: bool) -> &mut World {
        self.step(Event::Blocked { task: TaskId(task), worker: WorkerId(worker), blocked })
    }

    pub fn cancel(&mut self, task: u64, recursive: bool) -> &mut World {
        self.step(Event::Cancelled { task: TaskId(task), recursive })
    }

    pub fn recalled(&mut self, worker: u32, back: &[u64]) -> &mut World {
        self.step(Event::Recalled { worker: WorkerId(worker), tasks: tasks(back) })
    }

    pub fn lose(&mut self, worker: u32, started: &[u64]) -> &mut World {
        self.step(Event::WorkerLost { worker: WorkerId(worker), started: tasks(started), culprit: None })
    }

    pub fn lose_node(&mut self, node: u32) -> &mut World {
        self.step(Event::NodeLost { node: NodeId(node) })
    }

    pub fn drain_node(&mut self, node: u32) -> &mut World {
        self.step(Event::NodeDraining { node: NodeId(node) })
    }

    /// Finishes a later attempt of a task.
    pub fn done_rerun(&mut self, task: u64, attempt: u32, worker: u32) -> &mut World {
        self.finish(task, attempt, worker, Outcome::Succeeded(vec![(task, Vec::new())]), 50_000_000)
    }

    /// Like `lose_object`, with a missed delivery to a worker.
    pub fn lose_object_for(&mut self, object: u64, worker: u32) -> &mut World {
        self.step(Event::ObjectLost { object: ObjectId(object), waiters: vec![WorkerId(worker)] })
    }

    pub fn lose_object(&mut self, object: u64) -> &mut World {
        self.step(Event::ObjectLost { object: ObjectId(object), waiters: Vec::new() })
    }

    pub fn state(&self, task: u64) -> Option<TaskState> {
        self.steps.task(TaskId(task)).map(|task| task.state)
    }

    /// Returns the error of an object.
    pub fn error(&self, object: u64) -> TaskError {
        self.steps.value(ObjectId(object)).expect("it is known").expect_err("there is none").as_ref().clone()
    }

    pub fn error_is(&mut self, object: u64, expected: &str) -> &mut World {
        assert_eq!(self.error(object).to_string(), expected);
        self
    }

    /// Checks that an object has no error yet.
    pub fn has_no_error(&mut self, object: u64) -> &mut World {
        assert!(!matches!(self.steps.value(ObjectId(object)), Some(Err(_))), "object {object} has an error");
        self
    }

    pub fn attempt_is(&mut self, task: u64, attempt: u32) -> &mut World {
        assert_eq!(self.steps.task(TaskId(task)).expect("it exists").attempt, Attempt(attempt));
        self
    }

    /// Finishes the creation of an actor.
    pub fn created(&mut self, actor: u64, worker: u32) -> &mut World {
        self.done(actor, worker)
    }

    /// Adds a worker for actors of a tenant.
    pub fn actor_worker_of(&mut self, worker: u32, node: u32, tenant: u64) -> &mut World {
        let kind = WorkerKind::Actors(TenantId(tenant));
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind })
    }

    /// Takes the actions that begin with this word.
    pub fn actions_of(&mut self, word: &str) -> Vec<String> {
        let all = self.actions.drain(..).map(|action| text(&action));
        all.filter(|action| action.split(' ').next() == Some(word)).collect()
    }

    /// Returns the free processors of a node, in whole units.
    pub fn free_cpus(&self, node: u32) -> i128 {
        let node = self.steps.nodes().find(|view| view.id == NodeId(node)).expect("it is there");
        node.free_cpus / i128::from(RESOURCE_UNIT)
    }

    /// Returns the external usage of a node.
    pub fn external_usage(&self, node: u32) -> ResourceSet {
        self.steps.nodes().find(|view| view.id == NodeId(node)).expect("it is there").external_usage.clone()
    }

    /// Returns the ids of the existing objects.
    pub fn kept(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.steps.objects().map(|object| object.id.0).collect();
        all.sort_unstable();
        all
    }
}

fn group_text(view: &GroupView<'_>) -> String {
    let nodes = view.bundles.iter().map(|bundle| match (bundle.placed, bundle.reserving_on) {
        (None, None) => "-".to_owned(),
        (Some((node, ..)), None) => node.to_string(),
        (None, Some(node)) => format!("({node})"),
        (Some(_), Some(_)) => panic!("a bundle that is placed is asked for"),
    });
    std::iter::once(format!("{:?}", view.state)).chain(nodes).collect::<Vec<_>>().join(" ")
}

pub fn text(action: &Action<u64>) -> String {
    let attempt_suffix = |attempt: &Attempt| if attempt.0 == 0 { String::new() } else { format!("#{attempt}") };
    match action {
        Action::Run { worker, task, attempt } => format!("run w{worker} t{task}{}", attempt_suffix(attempt)),
        Action::Recall { worker } => format!("recall w{worker}"),
        Action::Interrupt { worker, task, attempt } => {
            format!("interrupt w{worker} t{task}{}", attempt_suffix(attempt))
        }
        Action::Withdraw { worker, task, attempt } => format!("withdraw w{worker} t{task}{}", attempt_suffix(attempt)),
        Action::StartWorker { node, kind: WorkerKind::Actor(actor) } => format!("start-worker n{node} for t{actor}"),
        Action::StartWorker { node, kind: WorkerKind::Tasks(tenant) } => {
            format!("start-worker n{node} of {}", tenant.0)
        }
        Action::StartWorker { node, .. } => format!("start-worker n{node}"),
        Action::Deliver { worker, object, .. } => format!("deliver w{worker} o{object}"),
        Action::Refuse { worker, object, error, .. } => format!("refuse w{worker} o{object} ({error})"),
        Action::DeliverItem { worker, stream, object } => format!("item w{worker} o{stream} o{object}"),
        Action::Credit { worker, task, consumed } => format!("credit w{worker} t{task} {consumed}"),
        Action::FetchBorrowed { object } => format!("fetch o{object}"),
        Action::ReleaseBorrow { object } => format!("release-borrow o{object}"),
        Action::Drop { object, value } if object.0 == *value => format!("drop o{object}"),
        Action::Drop { object, value } => format!("drop o{object}={value}"),
        Action::ReserveBundles { group, node, attempt, bundles } => {
            let bundles = bundles.iter().map(|(index, _)| format!(" {index}")).collect::<String>();
            format!("reserve n{node} g{group}{}{bundles}", attempt_suffix(attempt), group = group.0)
        }
        Action::ReleaseBundles { group, node, attempt } => {
            format!("release n{node} g{}{}", group.0, attempt_suffix(attempt))
        }
        Action::TaskFinished { task, rerun: true, .. } => format!("finished t{task} rerun"),
        Action::TaskFinished { task, job: JobId(1), .. } => format!("finished t{task}"),
        Action::TaskFinished { task, job, .. } => format!("finished t{task} of j{job}"),
        Action::JobDone { job, result: Ok(()) } => format!("done j{job}"),
        Action::JobDone { job, result: Err(error) } => format!("done j{job} ({error})"),
    }
}
