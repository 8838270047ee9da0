//! A simulated cluster: executes the scheduler's actions after random delays, and adds random events.

use std::collections::{BTreeMap, VecDeque};

use sandbar_core::{ActorId, Attempt, Code, Fault, GroupId, JobId, NodeId, ObjectId, Seed, TaskId, TenantId, WorkerId};
use sandbar_sched::{Action, Event, JobLimits, Options, Outcome, RESOURCE_UNIT, ResourceSet, WorkerKind};

use crate::lineage::PAYLOAD_CALLBACKS;
use crate::model::{Model, Steps, Task, Value};

type SimEvent = Event<u64, u64>;

pub struct History {
    pub seed: Seed,
    pub steps: Steps,
    pub model: Model,
    pub workers: BTreeMap<u32, WorkerState>,
    pub nodes: Vec<u32>,
    /// Number of tenants.
    tenants: u32,
    /// Past events, for late and repeated delivery.
    pub past: Vec<SimEvent>,
    pub requests: Requests,
    pub next: u32,
    /// The last number used for a task, object or value.
    pub number: u64,
    /// Number of items that each attempt of a generator has yielded.
    pub yields: BTreeMap<(u64, u32), u64>,
    log: Log,
}

/// Requests of the scheduler without an answer.
#[derive(Default)]
pub struct Requests {
    pub workers: Vec<(u32, WorkerKind)>,
    pub reservations: Vec<(GroupId, NodeId, Attempt)>,
}

/// Events and actions, for people and for comparisons of histories.
struct Log {
    is_printed: bool,
    lines: Option<Vec<String>>,
}

/// State of a worker as the worker knows it.
#[derive(Default)]
pub struct WorkerState {
    pub inbox: VecDeque<Action<u64>>,
    pub waiting: VecDeque<(TaskId, Attempt)>,
    pub started: Vec<(TaskId, Attempt, bool)>,
    pub actors: Vec<(TaskId, Attempt)>,
}

impl Requests {
    fn add(&mut self, action: &Action<u64>) {
        match action {
            Action::StartWorker { node, kind } => self.workers.push((node.0, *kind)),
            Action::ReserveBundles { group, node, attempt, .. } => self.reservations.push((*group, *node, *attempt)),
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.reservations.is_empty()
    }
}

impl Log {
    fn add(&mut self, line: std::fmt::Arguments<'_>) {
        if self.is_printed {
            eprintln!("{line}");
        }
        if let Some(lines) = &mut self.lines {
            lines.push(line.to_string());
        }
    }
}

impl History {
    pub fn new(seed: u64, is_loud: bool) -> History {
        let mut seed = Seed::new(seed);
        // The checks are stricter if there is one.
        let tenants = if seed.below(2) == 0 { 1 } else { 3 };
        History {
            seed,
            tenants,
            steps: Steps::with_lineage(Options::default(), PAYLOAD_CALLBACKS),
            model: Model::default(),
            workers: BTreeMap::new(),
            nodes: Vec::new(),
            past: Vec::new(),
            requests: Requests::default(),
            next: 0,
            number: 1000,
            yields: BTreeMap::new(),
            log: Log { is_printed: is_loud, lines: None },
        }
    }

    /// Returns the events and actions of a seed, line by line.
    pub fn trace(seed: u64) -> Vec<String> {
        let log = Log { is_printed: false, lines: Some(Vec::new()) };
        let mut history = History { log, ..History::new(seed, false) };
        history.run();
        history.log.lines.expect("they were kept")
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.seed.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.seed.below(from.len().max(1) as u32) as usize;
        from.get(index).cloned()
    }

    pub fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn run(&mut self) {
        let events = 60 + self.seed.below(200);
        self.join();
        self.start_job();
        for _ in 0..events {
            self.random_event();
        }
        self.drain();
    }

    /// Applies an event to the scheduler and the model, and compares them.
    pub fn event(&mut self, event: SimEvent) {
        self.log.add(format_args!("{event:?}"));
        let mut actions = Vec::new();
        self.steps.step(event.clone(), &mut actions);
        actions.iter().for_each(|action| self.log.add(format_args!("    {action:?}")));
        self.model.apply(&event, &actions, &self.steps);
        for task in &self.model.step.reconstructed {
            self.log.add(format_args!("    {task} is reconstructed"));
        }
        for task in &self.model.step.unrecoverable {
            self.log.add(format_args!("    {task} is unrecoverable"));
        }
        self.model.check(&actions, &self.steps);
        self.past.push(event);
        for action in actions {
            let worker = match &action {
                Action::Run { worker, .. }
                | Action::Recall { worker }
                | Action::Interrupt { worker, .. }
                | Action::Withdraw { worker, .. } => worker.0,
                _ => {
                    self.requests.add(&action);
                    continue;
                }
            };
            self.workers.get_mut(&worker).expect("the model knows it").inbox.push_back(action);
        }
    }

    pub fn random_event(&mut self) {
        match self.seed.below(1000) {
            0..12 => self.join(),
            12..30 => self.start_job(),
            30..60 => self.start_some_worker(),
            60..75 => self.lose_worker(),
            75..79 => self.lose_node(),
            345..348 => self.drain_node(),
            79..90 => self.cancel(),
            90..94 => self.end_job(),
            94..124 => self.lose_object(),
            124..154 => self.repeat(),
            154..170 => self.send_false_event(),
            170..185 => self.kill(),
            185..205 => self.die(),
            205..280 => self.start_requested_worker(),
            280..330 => self.take_items(),
            330..345 => self.fulfil(),
            348..366 => self.start_proxy_task(),
            366..372 => self.end_proxy_task(),
            372..390 => self.use_objects(),
            390..420 => self.resolve_borrow(),
            420..435 => self.load(),
            435..455 => self.reply_to_reserve_request(75),
            455..480 => self.request_group(),
            480..500 => self.request_lease(),
            _ => self.run_worker_step(),
        }
    }

    pub fn join(&mut self) {
        let node = self.fresh();
        let mut resources =
            ResourceSet { cpus: RESOURCE_UNIT * u64::from(self.seed.below(5)), ..ResourceSet::default() };
        if self.chance(40) {
            resources.gpus = RESOURCE_UNIT * u64::from(self.seed.below(3));
            resources.memory = 100;
        }
        if self.chance(20) {
            resources.custom.insert("tpu".into(), RESOURCE_UNIT);
        }
        self.nodes.push(node);
        let (remote, workers) = (self.chance(55), self.seed.below(3));
        self.event(Event::NodeJoined { node: NodeId(node), resources, remote, workers });
        self.start_proxy(node);
        self.start_lease_worker();
        (0..1 + self.seed.below(4)).for_each(|_| self.start_task_worker(node));
    }

    pub fn start_some_worker(&mut self) {
        let Some(node) = self.pick(&self.nodes.clone()) else { return };
        let without: Vec<u32> =
            self.model.jobs.iter().filter(|(_, job)| job.driver.is_none()).map(|(id, _)| *id).collect();
        match (self.pick(&without), self.any_local_node()) {
            (Some(job), Some(local)) => self.start_worker(local, WorkerKind::Driver(JobId(job))),
            _ => self.start_task_worker(node),
        }
        self.start_proxy(node);
        self.start_lease_worker();
    }

    /// Starts the worker that has the leases, on a local node, unless there is one.
    fn start_lease_worker(&mut self) {
        if self.model.workers.values().all(|worker| worker.kind != WorkerKind::Leases)
            && let Some(node) = self.any_local_node()
        {
            self.start_worker(node, WorkerKind::Leases);
        }
    }

    /// A requested worker becomes ready.
    pub fn start_requested_worker(&mut self) {
        if self.requests.workers.is_empty() {
            return self.run_worker_step();
        }
        let at = self.seed.below(self.requests.workers.len() as u32) as usize;
        let (node, kind) = self.requests.workers.swap_remove(at);
        if self.nodes.contains(&node) {
            self.start_worker(node, kind);
        }
    }

    fn any_tenant(&mut self) -> TenantId {
        TenantId(self.seed.below(self.tenants).into())
    }

    fn start_task_worker(&mut self, node: u32) {
        let tenant = self.any_tenant();
        self.start_worker_for(node, tenant);
    }

    /// Starts a worker for a tenant's tasks. Those of remote nodes run tasks of any tenant.
    fn start_worker_for(&mut self, node: u32, tenant: TenantId) {
        let is_remote = self.model.is_remote(node);
        self.start_worker(node, if is_remote { WorkerKind::RemoteTasks } else { WorkerKind::Tasks(tenant) });
    }

    pub fn start_worker(&mut self, node: u32, kind: WorkerKind) {
        let worker = self.fresh();
        self.workers.insert(worker, WorkerState::default());
        self.event(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), kind });
    }

    pub fn start_job(&mut self) {
        let job = self.fresh();
        let (tasks_max, depth_max) = if self.chance(20) { (3, 2) } else { (1000, 20) };
        let objects_max = if self.chance(10) { 6 } else { 1000 };
        let lineage_bytes_max = if self.chance(10) { 1200 } else { 1 << 20 };
        let limits =
            JobLimits { tasks_max, depth_max, objects_max, lineage_bytes_max, groups_max: 4, call_bytes_max: 1 << 20 };
        let tenant = self.any_tenant();
        self.event(Event::JobStarted { job: JobId(job), tenant, limits });
        if self.chance(10) {
            self.start_proxy_task_in(job);
            if self.chance(50) {
                // The job has proxy tasks only.
                return;
            }
        }
        let mut task = self.submission(job, None);
        let demand = if self.chance(80) { ResourceSet::default() } else { task.demand.clone() };
        (task.demand, task.dependencies, task.refs) = (demand, Vec::new(), Vec::new());
        self.event(Event::Submitted { task });
        if let Some(node) = self.any_local_node()
            && self.chance(90)
        {
            self.start_worker(node, WorkerKind::Driver(JobId(job)));
        }
    }

    pub fn lose_worker(&mut self) {
        let all: Vec<u32> = self.workers.keys().copied().collect();
        let Some(worker) = self.pick(&all) else { return };
        let state = self.workers.remove(&worker).expect("it is there");
        let mut started: Vec<TaskId> = state.started.iter().map(|(task, ..)| *task).collect();
        match self.seed.below(10) {
            0 => started.extend(self.any_task()),
            // No task is known to have started.
            1 => started.clear(),
            _ => {}
        }
        let culprit = if self.chance(30) { started.first().copied() } else { None };
        self.event(Event::WorkerLost { worker: WorkerId(worker), started, culprit });
    }

    pub fn lose_node(&mut self) {
        if let Some(node) = self.pick(&self.nodes.clone()) {
            self.lose_this(node);
        }
    }

    fn lose_this(&mut self, node: u32) {
        self.nodes.retain(|other| *other != node);
        self.requests.reservations.retain(|(_, other, _)| other.0 != node);
        let model = &self.model;
        self.workers.retain(|worker, _| model.workers[worker].node != node);
        self.event(Event::NodeLost { node: NodeId(node) });
    }

    pub fn drain_node(&mut self) {
        if let Some(node) = self.pick(&self.nodes.clone()) {
            self.event(Event::NodeDraining { node: NodeId(node) });
        }
    }

    pub fn any_task(&mut self) -> Option<TaskId> {
        let all: Vec<u64> = self.model.tasks.keys().copied().collect();
        self.pick(&all).map(TaskId)
    }

    pub fn cancel(&mut self) {
        // Jobs with low task limits keep no complete records of finished tasks.
        let is_there = |(id, task): (&u64, &Task)| {
            (!task.has_finished || self.model.jobs[&task.job].limits.tasks_max > 100).then_some(*id)
        };
        let all: Vec<u64> = self.model.tasks.iter().filter_map(is_there).collect();
        let recursive = self.chance(50);
        let is_doomed = self.chance(25);
        if is_doomed && let Some(call) = self.pick(&all) {
            return self
                .event(Event::DeadlockDetected { call: TaskId(call), fault: Fault::new(Code::Deadlock, "for ever") });
        }
        if let Some(task) = self.pick(&all) {
            self.event(Event::Cancelled { task: TaskId(task), recursive });
        }
    }

    pub fn end_job(&mut self) {
        let all: Vec<u32> = self.model.jobs.keys().copied().collect();
        if let Some(job) = self.pick(&all) {
            self.event(Event::JobEnded { job: JobId(job) });
        }
    }

    pub fn lose_object(&mut self) {
        let is_there = |object: &crate::model::Object| matches!(object.value, Value::Ready(..));
        let only_there = self.chance(90);
        // Handles of actors are small and cannot be lost.
        let all = self.model.objects.iter().filter(|(id, _)| !self.model.actors.contains_key(id));
        let all = all.filter(|(_, object)| !only_there || is_there(object));
        let all: Vec<u64> = all.map(|(id, _)| *id).collect();
        let Some(object) = self.pick(&all) else { return };
        let waiters = if self.chance(70) { Vec::new() } else { self.undelivered_workers(object) };
        self.event(Event::ObjectLost { object: ObjectId(object), waiters });
    }

    /// Returns a worker that could have missed a delivery of an object: it holds the object's contents.
    pub fn undelivered_workers(&mut self, object: u64) -> Vec<WorkerId> {
        let contents = match &self.model.objects[&object].value {
            Value::Ready(_, contents) => contents.clone(),
            _ => Vec::new(),
        };
        let holds = |worker: &u32| contents.iter().all(|id| self.model.objects[id].holds.contains_key(worker));
        let all: Vec<u32> = self.workers.keys().copied().filter(holds).collect();
        self.pick(&all).map(WorkerId).into_iter().collect()
    }

    /// A promise is fulfilled or fails, or an object that was not promised is fulfilled.
    pub fn fulfil(&mut self) {
        let is_wild = self.chance(5);
        let may =
            |(id, object): (&u64, &crate::model::Object)| (is_wild || object.value == Value::Promised).then_some(*id);
        let all: Vec<u64> = self.model.objects.iter().filter_map(may).chain(is_wild.then_some(5)).collect();
        let Some(object) = self.pick(&all).map(ObjectId) else { return };
        self.number += 1;
        let value = if self.chance(80) { Ok(self.number) } else { Err(Fault::new(Code::Input, "no file")) };
        self.event(Event::Fulfilled { object, value });
    }

    /// An event comes late or twice.
    pub fn repeat(&mut self) {
        let Some(mut event) = self.pick(&self.past.clone()) else { return };
        self.number += 1;
        let has_finished = |number| self.model.tasks.get(&number).is_none_or(|task| task.has_finished);
        let is_new = |number: u64| !self.model.objects.contains_key(&number) && has_finished(number);
        match &mut event {
            // An id that was removed counts as new.
            Event::LeaseRequested { lease } if is_new(lease.id.0) => return,
            Event::Submitted { task }
            | Event::ProxyTaskStarted { task, .. }
            | Event::FinishedInline { task, .. }
            | Event::StartedInline { task, .. }
                if is_new(task.id.0) =>
            {
                return;
            }
            Event::Put { object, .. }
            | Event::PutFailed { object, .. }
            | Event::Promised { object, .. }
            | Event::Yielded { object, .. }
                if is_new(object.0) =>
            {
                return;
            }
            // A returned object may be borrowed again, but not the return of a local task.
            Event::Borrowed { object, .. } if is_new(object.0) && self.model.producer(object.0).is_some() => return,
            // Lost nodes and workers stay lost.
            Event::NodeJoined { node, .. } if !self.nodes.contains(&node.0) => return,
            Event::WorkerReady { worker, .. } if !self.workers.contains_key(&worker.0) => return,
            Event::JobStarted { job, .. } if !self.model.jobs.contains_key(&job.0) => return,
            Event::Cancelled { task, .. } if self.model.tasks.get(&task.0).is_none_or(|task| task.has_finished) => {
                return;
            }
            Event::JobEnded { .. } | Event::NodeLost { .. } => return,
            Event::WorkerLost { worker, .. } if self.workers.contains_key(&worker.0) => return,
            Event::GroupCreated { group, .. } if is_new(group.0) && !self.model.groups.contains_key(&group.0) => {
                return;
            }
            Event::Put { value, .. }
            | Event::GroupCreated { value, .. }
            | Event::Yielded { value: Ok(value), .. }
            | Event::Fulfilled { value: Ok(value), .. }
            | Event::BorrowResolved { value: Ok(value), .. } => *value = self.number,
            _ => {}
        }
        let outcome = match &mut event {
            Event::AttemptFinished { outcome, .. } | Event::FinishedInline { outcome, .. } => Some(outcome),
            _ => None,
        };
        if let Some(Outcome::Succeeded(values)) = outcome {
            for (value, _) in values {
                self.number += 1;
                *value = self.number;
            }
        }
        self.event(event);
    }

    /// A worker sends a false event.
    pub fn send_false_event(&mut self) {
        let workers: Vec<u32> = self.workers.keys().copied().chain([0, 999_999]).collect();
        let (Some(worker), Some(task)) = (self.pick(&workers).map(WorkerId), self.any_task()) else { return };
        let object =
            self.pick(&self.model.objects.keys().copied().chain([5]).collect::<Vec<_>>()).map_or(ObjectId(7), ObjectId);
        self.number += 10;
        let actor = self.any_actor().unwrap_or(ActorId(task.0));
        let event = match self.seed.below(16) {
            14 => Event::ReserveReply {
                group: self.any_group(None).unwrap_or(GroupId(5)),
                node: NodeId(self.pick(&self.nodes.clone()).unwrap_or(7)),
                attempt: Attempt(self.seed.below(3)),
                granted: self.chance(50),
            },
            15 => Event::NodeLoad {
                node: NodeId(worker.0),
                external_usage: ResourceSet { cpus: RESOURCE_UNIT, ..ResourceSet::default() },
            },
            10 => {
                let task = self.submission(self.model.tasks[&task.0].job, None);
                return self.add_proxy_task(task, worker.0);
            }
            11 => Event::ActorBorrowed { actor: ActorId(object.0), worker },
            12 => Event::Borrowed { object, task, worker },
            13 => Event::BorrowResolved { object, value: Ok(self.number), refs: vec![object] },
            8 => Event::GroupRemoved { group: self.any_group(None).unwrap_or(GroupId(5)), task, worker },
            0 => Event::AttemptFinished {
                task,
                attempt: Attempt(self.seed.below(2)),
                worker,
                outcome: Outcome::Succeeded(vec![(self.number, vec![object])]),
                nanos: u64::MAX,
            },
            1 => Event::Blocked { task, worker, blocked: self.chance(50) },
            2 => Event::ObjectRequested { object, worker, task },
            3 => Event::ReferencesReleased { object, worker, count: 1 + 1000 * self.seed.below(2) },
            5 => Event::Checkpointed { actor, attempt: Attempt(self.seed.below(2)), worker, object },
            4 => Event::Recalled { worker, tasks: vec![task, task] },
            6 => Event::ItemsConsumed { stream: object, worker, consumed: self.seed.below(5).into() },
            7 => Event::Yielded {
                task,
                attempt: Attempt(self.seed.below(2)),
                worker,
                index: self.seed.below(3).into(),
                object: ObjectId(self.number),
                value: Ok(self.number),
                refs: vec![object],
            },
            _ => Event::Put { object: ObjectId(self.number), task, worker, value: self.number, refs: vec![object] },
        };
        self.event(event);
    }

    /// Finishes everything and checks that no state is left.
    pub fn drain(&mut self) {
        let node = self.fresh();
        let custom = [("tpu".into(), 10 * RESOURCE_UNIT)].into();
        let resources = ResourceSet { cpus: 100 * RESOURCE_UNIT, gpus: 10 * RESOURCE_UNIT, memory: 1000, custom };
        self.nodes.push(node);
        self.event(Event::NodeJoined { node: NodeId(node), resources, remote: false, workers: 1 });
        // Some tasks would wait for these nodes forever.
        let draining = self.model.nodes.keys().copied().filter(|node| self.model.is_draining(*node));
        draining.collect::<Vec<_>>().into_iter().for_each(|node| self.lose_this(node));
        let remote = self.model.nodes.keys().copied().filter(|node| self.model.is_remote(*node));
        for node in remote.collect::<Vec<_>>() {
            self.event(Event::NodeLoad { node: NodeId(node), external_usage: ResourceSet::default() });
        }
        // Some tasks are bound to one node.
        for node in self.nodes.clone().into_iter().chain([node, node]) {
            (0..self.tenants).for_each(|tenant| self.start_worker_for(node, TenantId(tenant.into())));
            self.start_proxy(node);
        }
        // Some leases find room only here.
        let leases = self.workers.keys().copied().filter(|id| self.model.workers[id].kind == WorkerKind::Leases);
        for worker in leases.collect::<Vec<_>>() {
            self.workers.remove(&worker);
            self.event(Event::WorkerLost { worker: WorkerId(worker), started: Vec::new(), culprit: None });
        }
        self.start_worker(node, WorkerKind::Leases);
        for round in 0.. {
            assert!(round < 1000, "it comes to no end");
            while self.model.objects.values().any(|object| object.value == Value::Promised) {
                self.fulfil();
            }
            while self.model.has_pending_fetch() {
                self.resolve_borrow();
            }
            while !self.requests.reservations.is_empty() {
                self.reply_to_reserve_request(100);
            }
            let without = self.model.jobs.iter().filter(|(_, job)| job.driver.is_none()).map(|(id, _)| *id);
            for job in without.collect::<Vec<_>>() {
                self.start_worker(node, WorkerKind::Driver(JobId(job)));
            }
            while !self.requests.workers.is_empty() {
                self.start_requested_worker();
            }
            for worker in self.workers.keys().copied().collect::<Vec<_>>() {
                while let Some(action) = self.workers.get_mut(&worker).and_then(|state| state.inbox.pop_front()) {
                    self.handle_action(worker, action);
                }
                let state = &self.workers[&worker];
                let all = state
                    .started
                    .iter()
                    .map(|(task, attempt, _)| (*task, *attempt))
                    .chain(state.waiting.iter().copied());
                for (task, attempt) in all.collect::<Vec<_>>() {
                    self.finish(worker, task, attempt, true);
                }
            }
            let assigned = |(id, state): (&u32, &WorkerState)| {
                !state.inbox.is_empty() || !self.model.workers[id].assigned.is_empty()
            };
            let has_requests = self.model.has_pending_fetch() || !self.requests.is_empty();
            if self.workers.iter().any(assigned) || has_requests {
                continue;
            }
            let alive = |actor: &u64| self.model.tasks.get(actor).is_some_and(|creator| !creator.has_finished);
            if let Some(actor) = self.model.actors.keys().copied().find(alive) {
                self.event(Event::Killed { actor: ActorId(actor), restart: false });
                continue;
            }
            // Groups without a removal end with their job, and so do the tasks that wait for them.
            let Some(job) = self.model.groups.values().next().map(|group| group.job) else { break };
            self.event(Event::JobEnded { job: JobId(job) });
        }
        assert!(self.model.tasks.values().all(|task| task.has_finished), "all tasks have ended");
        for job in self.model.jobs.keys().copied().collect::<Vec<_>>() {
            self.event(Event::JobEnded { job: JobId(job) });
        }
        assert!(self.steps.is_empty(), "something is left");
        assert!(self.model.reservations.is_empty(), "reservations are left");
        self.model.values.assert_none_left();
        for node in self.steps.nodes() {
            assert_eq!(node.free_cpus, node.total.cpus.into());
            assert_eq!(node.free_rest, &ResourceSet { cpus: 0, ..node.total.clone() });
        }
    }
}
