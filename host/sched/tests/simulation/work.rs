//! The simulated workers and the actions of their tasks.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, Code, Fault, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, WorkerId,
};
use sandbar_sched::{
    Action, ActorSpec, Event, Failure, Outcome, ParentRef, RESOURCE_UNIT, ResourceSet, Submission, SubmissionKind,
    WorkerKind,
};

use crate::cluster::{History, WorkerState};
use crate::model::Task;

impl History {
    /// A worker does one step.
    pub fn run_worker_step(&mut self) {
        let busy = |(id, state): (&u32, &WorkerState)| {
            (!state.inbox.is_empty() || !state.waiting.is_empty() || !state.started.is_empty()).then_some(*id)
        };
        let all: Vec<u32> = self.workers.iter().filter_map(busy).collect();
        let Some(worker) = self.pick(&all) else { return };
        let may_read = self.chance(70);
        let state = self.workers.get_mut(&worker).expect("it is there");
        if may_read && let Some(action) = state.inbox.pop_front() {
            return self.handle_action(worker, action);
        }
        // A proxy worker runs several tasks at once, and so do leases.
        let runs_several = matches!(self.model.workers[&worker].kind, WorkerKind::PeerProxy | WorkerKind::Leases);
        if (runs_several || state.started.iter().all(|(.., is_blocked)| *is_blocked))
            && let Some((task, attempt)) = state.waiting.pop_front()
        {
            return state.started.push((task, attempt, false));
        }
        let started = state.started.clone();
        match self.pick(&started) {
            Some((task, _, true)) => self.block(worker, task, false),
            Some((task, attempt, false)) => self.run_task_step(worker, task, attempt),
            None => {}
        }
    }

    /// A started task does something.
    pub fn run_task_step(&mut self, worker: u32, task: TaskId, attempt: Attempt) {
        let id = WorkerId(worker);
        if self.model.workers[&worker].kind == WorkerKind::Leases {
            let succeeds = self.chance(90);
            return self.finish(worker, task, attempt, succeeds);
        }
        let job = self.model.tasks.get(&task.0).map_or(0, |task| task.job);
        let is_generator = |task: &Task| matches!(task.kind, SubmissionKind::Generator(_));
        if self.model.tasks.get(&task.0).is_some_and(is_generator) && self.chance(50) {
            return self.yield_item(worker, task, attempt);
        }
        // A proxy task does not finish by itself.
        let max = if self.model.is_proxy_task(task.0) { 84 } else { 100 };
        match self.seed.below(max) {
            0..4 => self.borrow(worker, task),
            4..35 => {
                for _ in 0..1 + self.seed.below(4) * self.seed.below(3) {
                    let task = self.submission(job, Some(ParentRef { task, attempt, worker: id }));
                    self.event(Event::Submitted { task });
                }
            }
            35..42 => {
                self.number += 10;
                let refs = self.some_objects(Some(job), 40);
                if self.chance(10) {
                    let fault = Fault::new(Code::StoreFull, "no room");
                    return self.event(Event::PutFailed { object: ObjectId(self.number), task, worker: id, fault });
                }
                self.event(Event::Put { object: ObjectId(self.number), task, worker: id, value: self.number, refs });
            }
            42..45 => {
                self.number += 10;
                self.event(Event::Promised { object: ObjectId(self.number), task, worker: id });
            }
            45..55 => {
                for object in self.some_objects(Some(job), 60) {
                    self.event(Event::ObjectRequested { object, worker: id, task });
                }
            }
            55..68 => {
                let held = self.model.objects.iter().filter(|(_, object)| object.holds.contains_key(&worker));
                let held: Vec<u64> = held.map(|(id, _)| *id).collect();
                for _ in 0..3 {
                    if let Some(object) = self.pick(&held) {
                        self.event(Event::ReferencesReleased { object: ObjectId(object), worker: id, count: 1 });
                    }
                }
            }
            68..73 => self.block(worker, task, true),
            73..74 => self.save(worker, task),
            74..75 => {
                if let Some(group) = self.any_group(Some(job)) {
                    self.event(Event::GroupRemoved { group, task, worker: id });
                }
            }
            75..76 => self.create_group(id, task),
            76..77 => {
                for object in self.some_objects(Some(job), 60) {
                    self.event(Event::ReferenceAdded { object, worker: id, task });
                }
            }
            77..80 => {
                let mut child = self.submission(job, Some(ParentRef { task, attempt, worker: id }));
                if self.chance(90) {
                    child.strategy = Strategy::Default;
                }
                self.number += 1;
                let succeeds = self.chance(80);
                let mut outcome = self.outcome(child.id, succeeds);
                if let Outcome::Succeeded(values) = &mut outcome {
                    while values.len() < child.returns as usize {
                        self.number += 1;
                        values.push((self.number, Vec::new()));
                    }
                }
                self.event(Event::FinishedInline { task: child, worker: id, outcome, nanos: 1000 });
            }
            80..84 => {
                if self.chance(80) {
                    self.block(worker, task, true);
                }
                let mut child = self.submission(job, Some(ParentRef { task, attempt, worker: id }));
                if self.chance(80) {
                    child.demand = ResourceSet { cpus: RESOURCE_UNIT, ..ResourceSet::default() };
                    child.strategy = Strategy::Default;
                }
                let state = self.workers.get_mut(&worker).expect("it is there");
                state.started.push((child.id, Attempt(0), false));
                self.event(Event::StartedInline { task: child, worker: id });
            }
            84..95 => self.finish(worker, task, attempt, true),
            _ => self.finish(worker, task, attempt, false),
        }
    }

    /// A worker executes an action.
    pub fn handle_action(&mut self, worker: u32, action: Action<u64>) {
        let fails_at_once = self.chance(70);
        let state = self.workers.get_mut(&worker).expect("it is there");
        match action {
            Action::Run { task, attempt, .. } => state.waiting.push_back((task, attempt)),
            Action::Recall { .. } => {
                let tasks = state.waiting.drain(..).map(|(task, _)| task).collect();
                self.event(Event::Recalled { worker: WorkerId(worker), tasks });
            }
            Action::Interrupt { task, attempt, .. } if state.actors.contains(&(task, attempt)) => {
                let is_live = self.model.tasks.get(&task.0).is_some_and(|creator| creator.cancellation == 0);
                // A remote scheduler may restart an actor by itself, without a report.
                if !(is_live && self.model.is_peer(worker) && self.chance(50)) {
                    self.end_actor(worker, task, attempt);
                }
            }
            Action::Withdraw { task, attempt, .. } if state.waiting.contains(&(task, attempt)) => {
                self.finish(worker, task, attempt, false);
            }
            Action::Interrupt { task, attempt, .. } => {
                let is_waiting = state.waiting.contains(&(task, attempt));
                let is_here =
                    state.started.iter().any(|(id, started_attempt, _)| (*id, *started_attempt) == (task, attempt));
                if is_waiting || is_here && fails_at_once {
                    self.finish(worker, task, attempt, false);
                }
            }
            _ => {}
        }
    }

    pub fn block(&mut self, worker: u32, task: TaskId, blocked: bool) {
        let state = self.workers.get_mut(&worker).expect("it is there");
        state.started.iter_mut().filter(|(id, ..)| *id == task).for_each(|(.., is_blocked)| *is_blocked = blocked);
        self.event(Event::Blocked { task, worker: WorkerId(worker), blocked });
    }

    pub fn finish(&mut self, worker: u32, task: TaskId, attempt: Attempt, succeeds: bool) {
        let state = self.workers.get_mut(&worker).expect("it is there");
        state.started.retain(|(id, started_attempt, _)| (*id, *started_attempt) != (task, attempt));
        state.waiting.retain(|other| *other != (task, attempt));
        let outcome = self.outcome(task, succeeds);
        let makes =
            self.model.tasks.get(&task.0).is_some_and(|task| matches!(task.kind, SubmissionKind::ActorCreation(_)));
        if makes && let Outcome::Succeeded(_) = outcome {
            self.workers.get_mut(&worker).expect("it is there").actors.push((task, attempt));
        }
        let nanos = [1_000, 100_000, 2_000_000][self.seed.below(3) as usize];
        self.event(Event::AttemptFinished { task, attempt, worker: WorkerId(worker), outcome, nanos });
    }

    pub fn outcome(&mut self, task: TaskId, succeeds: bool) -> Outcome<u64> {
        if !succeeds {
            let code = [Code::Trap, Code::Panic, Code::Refused][self.seed.below(3) as usize];
            let fault = Fault::new(code, "it failed");
            let error = Arc::new(TaskError { fault, chain: Vec::new() });
            return Outcome::Failed(Failure { error, system: self.chance(30) });
        }
        let job = self.model.tasks.get(&task.0).map(|task| task.job);
        let returns = self.model.tasks.get(&task.0).map_or(1, |task| task.returns);
        let returns = if self.chance(2) { returns + 1 } else { returns };
        let value = |history: &mut History| {
            history.number += 1;
            (history.number, history.some_objects(job, 20))
        };
        Outcome::Succeeded((0..returns).map(|_| value(self)).collect())
    }

    /// Picks objects of a job, in rare cases others.
    pub fn some_objects(&mut self, job: Option<u32>, percent: u32) -> Vec<ObjectId> {
        let mut found = Vec::new();
        while self.chance(percent) {
            let is_wild = self.chance(2);
            let all: Vec<u64> = self
                .model
                .objects
                .iter()
                .filter(|(_, object)| is_wild || Some(object.job) == job)
                .map(|(id, _)| *id)
                .collect();
            found.extend(self.pick(&all).map(ObjectId));
        }
        found
    }

    pub fn strategy(&mut self, job: u32) -> Strategy {
        match self.seed.below(100) {
            0..6 => Strategy::Spread,
            6..12 => {
                let node = self.pick(&self.nodes.clone()).unwrap_or(1 + self.seed.below(9));
                Strategy::Node { node: NodeId(node), soft: self.chance(60) }
            }
            12..40 => {
                let job = if self.chance(97) { Some(job) } else { None };
                let bundle = if self.chance(50) { None } else { Some(self.seed.below(3)) };
                self.any_group(job).map_or(Strategy::Default, |group| Strategy::Group { group, bundle })
            }
            _ => Strategy::Default,
        }
    }

    pub fn submission(&mut self, job: u32, parent: Option<ParentRef>) -> Submission<u64> {
        self.number += 10;
        let dice = self.seed.below(100);
        let cpus = |units: u64| ResourceSet { cpus: units * RESOURCE_UNIT / 2, ..ResourceSet::default() };
        let demand = match dice {
            0..55 => cpus(2),
            55..65 => cpus(1),
            65..75 => cpus(4),
            75..82 => cpus(0),
            82..90 => ResourceSet { gpus: RESOURCE_UNIT / 2, ..cpus(2) },
            90..95 => ResourceSet { memory: 60, ..cpus(1) },
            95..98 => ResourceSet { custom: [("tpu".into(), RESOURCE_UNIT / 2)].into(), ..cpus(2) },
            _ => cpus(100),
        };
        let (kind, demand) = self.task_kind(job, parent.is_some(), demand);
        let may = (parent.is_some() && !matches!(kind, SubmissionKind::Method(_))) || self.chance(1);
        let strategy = if may { self.strategy(job) } else { Strategy::Default };
        Submission {
            id: TaskId(self.number),
            job: JobId(job),
            parent,
            remote_depth: if parent.is_some_and(|parent| self.model.is_proxy_task(parent.task.0)) {
                self.seed.below(3)
            } else {
                0
            },
            name: ["a", "b", "c"][self.seed.below(3) as usize].into(),
            returns: if self.chance(80) { 1 } else { 1 + self.seed.below(3) },
            demand,
            strategy,
            priority: if self.chance(85) { 0 } else { 1 },
            retries_max: self.seed.below(3),
            retry_on: self.retry_on(),
            dependencies: self.some_objects(Some(job), 25),
            refs: self.some_objects(Some(job), 15),
            kind,
            call: self.number,
        }
    }

    /// A job requests a lease. In rare cases the request is invalid.
    pub fn request_lease(&mut self) {
        let jobs: Vec<u32> = self.model.jobs.keys().copied().collect();
        let Some(job) = self.pick(&jobs) else { return };
        let mut task = self.submission(job, None);
        let parent = self.any_task().filter(|_| self.chance(3));
        let worker = parent.and_then(|parent| self.model.tasks[&parent.0].worker);
        task.parent =
            parent.zip(worker).map(|(task, worker)| ParentRef { task, attempt: Attempt(0), worker: WorkerId(worker) });
        (task.kind, task.dependencies, task.refs) = (SubmissionKind::Lease, Vec::new(), Vec::new());
        let event = match self.seed.below(50) {
            0 => Event::Submitted { task },
            1 => Event::LeaseRequested { lease: Submission { kind: SubmissionKind::Function, ..with_call(&task, ()) } },
            _ => Event::LeaseRequested { lease: with_call(&task, ()) },
        };
        self.event(event);
    }

    fn retry_on(&mut self) -> RetryOn {
        match self.seed.below(10) {
            0..6 => RetryOn::System,
            6..8 => RetryOn::All,
            8 => Code::Trap.into(),
            _ => [Code::Panic, Code::TimeOut].into(),
        }
    }

    pub fn task_kind(&mut self, job: u32, may: bool, demand: ResourceSet) -> (SubmissionKind, ResourceSet) {
        let dice = self.seed.below(100);
        match dice {
            0..12 if may || dice == 0 => {
                let (restarts_max, calls_max) = (self.seed.below(3), if self.chance(90) { 100 } else { 1 });
                let spec = ActorSpec { name: None, detached: None, restarts_max, calls_max };
                let demand = if self.chance(60) { ResourceSet::default() } else { demand };
                (SubmissionKind::ActorCreation(Box::new(spec)), demand)
            }
            12..45 if may => {
                let is_wild = self.chance(2);
                let of_job = |actor: &u64| is_wild || self.model.tasks.get(actor).is_some_and(|task| task.job == job);
                let borrowed = self
                    .model
                    .borrowed_actors
                    .iter()
                    .filter(|(_, borrowed)| is_wild || borrowed.job == job)
                    .map(|(id, _)| *id);
                let all: Vec<u64> = self.model.actors.keys().copied().filter(of_job).chain(borrowed).collect();
                match self.pick(&all) {
                    Some(actor) => (SubmissionKind::Method(ActorId(actor)), ResourceSet::default()),
                    None => (SubmissionKind::Function, demand),
                }
            }
            45..62 if may => (SubmissionKind::Generator(self.seed.below(4)), demand),
            _ => (SubmissionKind::Function, demand),
        }
    }
}

/// Returns a submission with another call.
pub fn with_call<C, D>(task: &Submission<C>, call: D) -> Submission<D> {
    Submission {
        id: task.id,
        job: task.job,
        parent: task.parent,
        remote_depth: task.remote_depth,
        name: task.name.clone(),
        returns: task.returns,
        demand: task.demand.clone(),
        strategy: task.strategy,
        priority: task.priority,
        retries_max: task.retries_max,
        retry_on: task.retry_on,
        dependencies: task.dependencies.clone(),
        refs: task.refs.clone(),
        kind: task.kind.clone(),
        call,
    }
}
