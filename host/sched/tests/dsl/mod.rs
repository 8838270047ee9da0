//! Says what happens in few words, and what comes of it as text: `run w1 t10`, `drop o10`, `ended t10`.

#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::sync::Arc;

pub use sandbar_core::RetryOn;
use sandbar_core::{
    ActorId, Attempt, Code, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, Strategy, TaskError, TaskId,
    TenantId, WorkerId,
};
pub use sandbar_sched::{
    Action, ActorSpec, ActorState, Demand, Event, Failure, GroupSpec, GroupView, Inspect, JobLimits, Lies, Options,
    Outcome, Role, Scheduler, Submission, TaskState, UNIT, Work,
};

/// The worker of the first task of job 1, which is task 1.
pub const DRIVER: u32 = 100;

/// Values from here on can't be lost.
pub const LITTLE: u64 = 1 << 32;

pub struct World {
    pub steps: Scheduler<u64, u64>,
    actions: Vec<Action<u64>>,
}

/// Resources: processors, devices, memory.
pub fn of(cpus: u64, gpus: u64, memory: u64) -> Demand {
    Demand { cpus: cpus * UNIT, gpus: gpus * UNIT, memory, ..Demand::default() }
}

pub const LIMITS: JobLimits = JobLimits {
    tasks_max: 1000,
    depth_max: 10,
    objects_max: 1000,
    lineage_bytes_max: 1 << 20,
    groups_max: 10,
    call_bytes_max: 1 << 20,
};

/// A task of job 1 that the driver submits, with one return, for one processor.
pub fn t(id: u64) -> Submission<u64> {
    Submission {
        id: TaskId(id),
        job: JobId(1),
        parent: Some((TaskId(1), Attempt(0), WorkerId(DRIVER))),
        below: 0,
        name: format!("t{id}").into(),
        returns: 1,
        demand: of(1, 0, 0),
        strategy: Strategy::Default,
        priority: 0,
        retries_max: 0,
        retry_on: RetryOn::System,
        needs: Vec::new(),
        refs: Vec::new(),
        work: Work::Task,
        call: id,
    }
}

/// What makes an actor that asks for nothing and is begun anew so often.
pub fn actor(id: u64, restarts_max: u32) -> Submission<u64> {
    let spec = ActorSpec { name: None, detached: None, restarts_max, calls_max: 1000 };
    Submission { demand: of(0, 0, 0), work: Work::Actor(Box::new(spec)), ..t(id) }
}

pub fn with_spec(mut task: Submission<u64>, set: impl FnOnce(&mut ActorSpec)) -> Submission<u64> {
    if let Work::Actor(spec) = &mut task.work {
        set(spec);
    }
    task
}

/// A call of an actor's method.
pub fn call(id: u64, actor: u64) -> Submission<u64> {
    Submission { demand: of(0, 0, 0), work: Work::Method(ActorId(actor)), ..t(id) }
}

/// A generator that may be so many items ahead.
pub fn stream(id: u64, buffer: u32) -> Submission<u64> {
    Submission { work: Work::Stream(buffer), ..t(id) }
}

/// The first task of a job.
pub fn first(id: u64, job: u32) -> Submission<u64> {
    Submission { job: JobId(job), parent: None, demand: of(0, 0, 0), name: "main".into(), ..t(id) }
}

/// A task that another one submits, in a worker.
pub fn child(id: u64, parent: u64, worker: u32) -> Submission<u64> {
    Submission { parent: Some((TaskId(parent), Attempt(0), WorkerId(worker))), ..t(id) }
}

pub fn needs(mut task: Submission<u64>, needs: &[u64]) -> Submission<u64> {
    task.needs = objects(needs);
    task
}

pub fn refs(mut task: Submission<u64>, refs: &[u64]) -> Submission<u64> {
    task.refs = objects(refs);
    task
}

pub fn asks(mut task: Submission<u64>, demand: Demand) -> Submission<u64> {
    task.demand = demand;
    task
}

pub fn on(mut task: Submission<u64>, strategy: Strategy) -> Submission<u64> {
    task.strategy = strategy;
    task
}

/// In a bundle of a placement group, or in any of them.
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

/// A class of tasks of one name, which are known to be short once one has ended.
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
        World { steps: Scheduler::new(Options::default()), actions: Vec::new() }
    }

    /// A node with so many processors and workers, and job 1, whose first task runs.
    pub fn new(cpus: u64, workers: u32) -> World {
        World::empty().begun(cpus, workers, LIMITS)
    }

    /// As `new`, where values may be lost: those below [`LITTLE`].
    pub fn losing(cpus: u64, workers: u32, limits: JobLimits) -> World {
        let inspect = Inspect { can_be_lost: |value| *value < LITTLE, lies: |_| None, call_bytes: |_| 88 };
        let steps = Scheduler::with_lineage(Options::default(), inspect);
        World { steps, actions: Vec::new() }.begun(cpus, workers, limits)
    }

    /// As `new`, where objects of 1000 and more lie on the node that the thousands say: 1 GiB each.
    pub fn lying(cpus: u64, workers: u32) -> World {
        let lies = |value: &u64| {
            let node = Some(NodeId((*value / 1000) as u32)).filter(|node| node.0 > 1);
            (*value >= 1000).then_some(Lies { node, bytes: 1 << 30 })
        };
        let inspect = Inspect { can_be_lost: |_| false, lies, call_bytes: |_| 0 };
        World { steps: Scheduler::with_lineage(Options::default(), inspect), actions: Vec::new() }
            .begun(cpus, workers, LIMITS)
    }

    fn begun(mut self, cpus: u64, workers: u32, limits: JobLimits) -> World {
        let world = &mut self;
        world.node(1, of(cpus, 0, 0)).job(1, limits).driver(DRIVER, 1, 1);
        (1..=workers).for_each(|worker| {
            world.worker(worker, 1);
        });
        world.submit(first(1, 1)).gives("run w100 t1");
        self
    }

    pub fn step(&mut self, event: Event<u64, u64>) -> &mut World {
        self.steps.step(event, &mut self.actions);
        self
    }

    /// What has come of all that happened since this was asked last.
    pub fn gives(&mut self, expected: &str) -> &mut World {
        let got: Vec<String> = self.actions.drain(..).map(|action| text(&action)).collect();
        assert_eq!(got.join(", "), expected);
        self
    }

    /// As `gives`, of actions that begin with this word.
    pub fn gives_of(&mut self, word: &str, expected: &str) -> &mut World {
        self.actions.retain(|action| text(action).split(' ').next() == Some(word));
        self.gives(expected)
    }

    /// Whatever has come of it.
    pub fn somehow(&mut self) -> &mut World {
        self.actions.clear();
        self
    }

    pub fn node(&mut self, node: u32, resources: Demand) -> &mut World {
        self.step(Event::NodeJoined { node: NodeId(node), resources, far: false })
    }

    pub fn far_node(&mut self, node: u32, resources: Demand) -> &mut World {
        self.step(Event::NodeJoined { node: NodeId(node), resources, far: true })
    }

    /// So much of a node is used by others.
    pub fn load(&mut self, node: u32, others: Demand) -> &mut World {
        self.step(Event::NodeLoad { node: NodeId(node), others })
    }

    /// Is a node's scheduler.
    pub fn peer(&mut self, worker: u32, node: u32) -> &mut World {
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role: Role::Peer })
    }

    /// Another scheduler has tasks of a job run here: this one stands for it.
    pub fn seat(&mut self, task: u64, job: u32, worker: u32) -> &mut World {
        self.step(Event::Seated { task: first(task, job), worker: WorkerId(worker) })
    }

    pub fn borrow_actor(&mut self, actor: u64, worker: u32) -> &mut World {
        self.step(Event::ActorBorrowed { actor: ActorId(actor), worker: WorkerId(worker) })
    }

    pub fn worker(&mut self, worker: u32, node: u32) -> &mut World {
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role: Role::Tasks })
    }

    pub fn driver(&mut self, worker: u32, node: u32, job: u32) -> &mut World {
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role: Role::Driver(JobId(job)) })
    }

    /// A worker that has several actors.
    pub fn actor_worker(&mut self, worker: u32, node: u32) -> &mut World {
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role: Role::Actors })
    }

    /// A worker that has one actor.
    pub fn own_worker(&mut self, worker: u32, node: u32, actor: u64) -> &mut World {
        let role = Role::Actor(ActorId(actor));
        self.step(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role })
    }

    pub fn kill(&mut self, actor: u64, restart: bool) -> &mut World {
        self.step(Event::Killed { actor: ActorId(actor), restart })
    }

    /// An actor has ended in its worker.
    pub fn dies(&mut self, actor: u64, attempt: u32, worker: u32) -> &mut World {
        self.finish(actor, attempt, worker, failed("it trapped", true), 0)
    }

    pub fn saved(&mut self, actor: u64, attempt: u32, worker: u32, object: u64) -> &mut World {
        let (actor, attempt, worker) = (ActorId(actor), Attempt(attempt), WorkerId(worker));
        self.step(Event::Saved { actor, attempt, worker, object: ObjectId(object) })
    }

    pub fn actor_is(&mut self, actor: u64, expected: Option<ActorState>) -> &mut World {
        assert_eq!(self.steps.actor(ActorId(actor)).map(|actor| actor.state), expected);
        self
    }

    pub fn job(&mut self, job: u32, limits: JobLimits) -> &mut World {
        self.step(Event::JobStarted { job: JobId(job), tenant: TenantId::DEFAULT, limits })
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

    /// A worker has run a task to its end in `nanos`, in its first attempt. The value is the task's number.
    pub fn ran(&mut self, task: u64, worker: u32, nanos: u64) -> &mut World {
        self.finish(task, 0, worker, Outcome::Succeeded(vec![(task, Vec::new())]), nanos)
    }

    pub fn done(&mut self, task: u64, worker: u32) -> &mut World {
        self.ran(task, worker, 50_000_000)
    }

    /// As `done`, with objects in its value.
    pub fn returned(&mut self, task: u64, worker: u32, contents: &[u64]) -> &mut World {
        self.finish(task, 0, worker, Outcome::Succeeded(vec![(task, objects(contents))]), 50_000_000)
    }

    pub fn fails(&mut self, task: u64, attempt: u32, worker: u32, system: bool) -> &mut World {
        self.finish(task, attempt, worker, failed("it failed", system), 50_000_000)
    }

    pub fn finish(&mut self, task: u64, attempt: u32, worker: u32, outcome: Outcome<u64>, nanos: u64) -> &mut World {
        let (task, attempt, worker) = (TaskId(task), Attempt(attempt), WorkerId(worker));
        self.step(Event::Finished { task, attempt, worker, outcome, nanos })
    }

    pub fn inline(&mut self, task: Submission<u64>, worker: u32, outcome: Outcome<u64>) -> &mut World {
        self.step(Event::RanInline { task, worker: WorkerId(worker), outcome, nanos: 1000 })
    }

    pub fn begin(&mut self, task: Submission<u64>, worker: u32) -> &mut World {
        self.step(Event::BeganInline { task, worker: WorkerId(worker) })
    }

    pub fn put(&mut self, object: u64, task: u64, worker: u32, refs: &[u64]) -> &mut World {
        let (object_id, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Put { object: object_id, task, worker, value: object, refs: objects(refs) })
    }

    /// A generator has yielded an item, in its first attempt. Its value is its number.
    pub fn yields(&mut self, task: u64, worker: u32, index: u64, object: u64) -> &mut World {
        self.yields_of(task, 0, worker, (index, object), &[])
    }

    pub fn yields_of(
        &mut self,
        task: u64,
        attempt: u32,
        worker: u32,
        (index, object): (u64, u64),
        refs: &[u64],
    ) -> &mut World {
        let (task, attempt, worker) = (TaskId(task), Attempt(attempt), WorkerId(worker));
        let (value, object, refs) = (Ok(object), ObjectId(object), objects(refs));
        self.step(Event::Yielded { task, attempt, worker, index, object, value, refs })
    }

    pub fn takes(&mut self, stream: u64, worker: u32, taken: u64) -> &mut World {
        self.step(Event::Taken { stream: ObjectId(stream), worker: WorkerId(worker), taken })
    }

    pub fn promise(&mut self, object: u64, task: u64, worker: u32) -> &mut World {
        let (object, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Promised { object, task, worker })
    }

    /// With a value, or with an error.
    pub fn fulfil(&mut self, object: u64, succeeds: bool) -> &mut World {
        let value = if succeeds { Ok(object) } else { Err(Fault::new(Code::Input, "no file")) };
        self.step(Event::Fulfilled { object: ObjectId(object), value })
    }

    pub fn borrow(&mut self, object: u64, task: u64, worker: u32) -> &mut World {
        let (object, task, worker) = (ObjectId(object), TaskId(task), WorkerId(worker));
        self.step(Event::Borrowed { object, task, worker })
    }

    pub fn hold(&mut self, object: u64, worker: u32, task: u64) -> &mut World {
        self.step(Event::Held { object: ObjectId(object), worker: WorkerId(worker), task: TaskId(task) })
    }

    /// With a value that contains these.
    pub fn arrive(&mut self, object: u64, contains: &[u64]) -> &mut World {
        let refs = contains.iter().copied().map(ObjectId).collect();
        self.step(Event::Arrived { object: ObjectId(object), value: Ok(object), refs })
    }

    pub fn arrive_failed(&mut self, object: u64) -> &mut World {
        let error = TaskError { fault: Fault::new(Code::Input, "no file"), chain: Vec::new() };
        self.step(Event::Arrived { object: ObjectId(object), value: Err(Arc::new(error)), refs: Vec::new() })
    }

    /// The first task of job 1 makes a placement group.
    pub fn group(&mut self, group: u64, strategy: GroupStrategy, bundles: &[Demand]) -> &mut World {
        self.group_by(group, 1, DRIVER, GroupSpec { name: None, strategy, bundles: bundles.to_vec(), near: false })
    }

    pub fn group_by(&mut self, group: u64, task: u64, worker: u32, spec: GroupSpec) -> &mut World {
        let (task, worker) = (TaskId(task), WorkerId(worker));
        self.step(Event::GroupCreated { group: GroupId(group), task, worker, spec, value: group })
    }

    /// As `group`, of one that another scheduler wants, for which a task stands in a worker.
    pub fn near_group(
        &mut self,
        group: u64,
        (task, worker): (u64, u32),
        strategy: GroupStrategy,
        bundles: &[Demand],
    ) -> &mut World {
        self.group_by(group, task, worker, GroupSpec { name: None, strategy, bundles: bundles.to_vec(), near: true })
    }

    /// A node has set aside what it was asked for in an attempt, or has not.
    pub fn answers(&mut self, node: u32, group: u64, attempt: u32, done: bool) -> &mut World {
        let (group, node, attempt) = (GroupId(group), NodeId(node), Attempt(attempt));
        self.step(Event::SetAside { group, node, attempt, done })
    }

    /// The group and the bundle that a task was given.
    pub fn bundle_is(&mut self, task: u64, expected: Option<(u64, u32)>) -> &mut World {
        let expected = expected.map(|(group, index)| (GroupId(group), index));
        assert_eq!(self.steps.bundle_of(TaskId(task)), expected, "t{task}");
        self
    }

    pub fn remove_group(&mut self, group: u64) -> &mut World {
        self.step(Event::GroupRemoved { group: GroupId(group), task: TaskId(1), worker: WorkerId(DRIVER) })
    }

    /// Where a group is, and the nodes of its bundles, in brackets where they were asked: `Created 1 2`, `Pending (2) (3)`.
    pub fn group_is(&mut self, group: u64, expected: &str) -> &mut World {
        let view = self.steps.group(GroupId(group));
        assert_eq!(view.map_or_else(|| "gone".to_owned(), |view| group_text(&view)), expected);
        self
    }

    pub fn want(&mut self, object: u64, worker: u32, task: u64) -> &mut World {
        self.step(Event::Wanted { object: ObjectId(object), worker: WorkerId(worker), task: TaskId(task) })
    }

    pub fn release(&mut self, object: u64, worker: u32) -> &mut World {
        self.step(Event::Released { object: ObjectId(object), worker: WorkerId(worker), times: 1 })
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

    pub fn lose(&mut self, worker: u32, begun: &[u64]) -> &mut World {
        self.step(Event::WorkerLost { worker: WorkerId(worker), begun: tasks(begun) })
    }

    pub fn lose_node(&mut self, node: u32) -> &mut World {
        self.step(Event::NodeLost { node: NodeId(node) })
    }

    pub fn drain_node(&mut self, node: u32) -> &mut World {
        self.step(Event::NodeDraining { node: NodeId(node) })
    }

    /// A later attempt of a task has succeeded.
    pub fn done_again(&mut self, task: u64, attempt: u32, worker: u32) -> &mut World {
        self.finish(task, attempt, worker, Outcome::Succeeded(vec![(task, Vec::new())]), 50_000_000)
    }

    /// As `lose_object`, of one that a worker was to be told of.
    pub fn lose_object_for(&mut self, object: u64, worker: u32) -> &mut World {
        self.step(Event::ObjectLost { object: ObjectId(object), waiters: vec![WorkerId(worker)] })
    }

    pub fn lose_object(&mut self, object: u64) -> &mut World {
        self.step(Event::ObjectLost { object: ObjectId(object), waiters: Vec::new() })
    }

    pub fn state(&self, task: u64) -> Option<TaskState> {
        self.steps.task(TaskId(task)).map(|task| task.state)
    }

    /// Why there is no value.
    pub fn error(&self, object: u64) -> TaskError {
        self.steps.value(ObjectId(object)).expect("it is known").expect_err("there is none").as_ref().clone()
    }

    pub fn error_is(&mut self, object: u64, expected: &str) -> &mut World {
        assert_eq!(self.error(object).to_string(), expected);
        self
    }

    /// Each processor that is free, in whole units.
    pub fn free_cpus(&self, node: u32) -> i128 {
        let node = self.steps.nodes().find(|view| view.id == NodeId(node)).expect("it is there");
        node.free_cpus / i128::from(UNIT)
    }

    /// What others use of a node.
    pub fn others(&self, node: u32) -> Demand {
        self.steps.nodes().find(|view| view.id == NodeId(node)).expect("it is there").others.clone()
    }

    /// Numbers of the objects there are.
    pub fn kept(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.steps.objects().map(|object| object.id.0).collect();
        all.sort_unstable();
        all
    }
}

fn group_text(view: &GroupView<'_>) -> String {
    let nodes = view.bundles.iter().map(|bundle| match (bundle.placed, bundle.asked) {
        (None, None) => "-".to_owned(),
        (Some((node, ..)), None) => node.to_string(),
        (None, Some(node)) => format!("({node})"),
        (Some(_), Some(_)) => panic!("a bundle that is placed is asked for"),
    });
    std::iter::once(format!("{:?}", view.state)).chain(nodes).collect::<Vec<_>>().join(" ")
}

pub fn text(action: &Action<u64>) -> String {
    let again = |attempt: &Attempt| if attempt.0 == 0 { String::new() } else { format!("#{attempt}") };
    match action {
        Action::Run { worker, task, attempt } => format!("run w{worker} t{task}{}", again(attempt)),
        Action::Recall { worker } => format!("recall w{worker}"),
        Action::Interrupt { worker, task, attempt } => format!("interrupt w{worker} t{task}{}", again(attempt)),
        Action::Withdraw { worker, task, attempt } => format!("withdraw w{worker} t{task}{}", again(attempt)),
        Action::Hire { node, role: Role::Actor(actor) } => format!("hire n{node} for t{actor}"),
        Action::Hire { node, .. } => format!("hire n{node}"),
        Action::Deliver { worker, object, .. } => format!("deliver w{worker} o{object}"),
        Action::Refuse { worker, object, error } => format!("refuse w{worker} o{object} ({error})"),
        Action::Item { worker, stream, object } => format!("item w{worker} o{stream} o{object}"),
        Action::Credit { worker, task, taken } => format!("credit w{worker} t{task} {taken}"),
        Action::Ask { object } => format!("ask o{object}"),
        Action::Returned { object } => format!("returned o{object}"),
        Action::Drop { object, value } if object.0 == *value => format!("drop o{object}"),
        Action::Drop { object, value } => format!("drop o{object}={value}"),
        Action::SetAside { group, node, attempt, bundles } => {
            let bundles = bundles.iter().map(|(index, _)| format!(" {index}")).collect::<String>();
            format!("set-aside n{node} g{group}{}{bundles}", again(attempt), group = group.0)
        }
        Action::GiveBack { group, node, attempt } => format!("give-back n{node} g{}{}", group.0, again(attempt)),
        Action::Ended { task, again: true, .. } => format!("ended t{task} again"),
        Action::Ended { task, job: JobId(1), .. } => format!("ended t{task}"),
        Action::Ended { task, job, .. } => format!("ended t{task} of j{job}"),
        Action::JobDone { job, result: Ok(()) } => format!("done j{job}"),
        Action::JobDone { job, result: Err(error) } => format!("done j{job} ({error})"),
    }
}
