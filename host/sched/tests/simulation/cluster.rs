//! A cluster that does what a scheduler says, some time later, and whatever else comes to a seed's mind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, Code, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Seed, Strategy, TaskError,
    TaskId, TenantId, WorkerId,
};
use sandbar_sched::{
    Action, ActorSpec, Demand, Event, Failure, GroupSpec, JobLimits, Options, Outcome, Role, Submission, UNIT, Work,
};

use crate::lineage::INSPECT;
use crate::model::{Model, Steps, Task, Value};

type What = Event<u64, u64>;

pub struct History {
    pub seed: Seed,
    steps: Steps,
    pub model: Model,
    workers: BTreeMap<u32, Local>,
    nodes: Vec<u32>,
    /// Events of before, for those that come late or twice.
    past: Vec<What>,
    /// Workers that were asked for.
    hires: Vec<(u32, Role)>,
    next: u32,
    /// Numbers of tasks, objects and values.
    pub number: u64,
    /// How much each attempt of a generator has yielded.
    pub yields: BTreeMap<(u64, u32), u64>,
    is_loud: bool,
    trace: Option<Vec<String>>,
}

/// What a worker knows of itself.
#[derive(Default)]
struct Local {
    inbox: VecDeque<Action<u64>>,
    waiting: VecDeque<(TaskId, Attempt)>,
    begun: Vec<(TaskId, Attempt, bool)>,
    residents: Vec<(TaskId, Attempt)>,
}

impl History {
    pub fn new(seed: u64, is_loud: bool) -> History {
        History {
            seed: Seed::new(seed),
            steps: Steps::with_lineage(Options::default(), INSPECT),
            model: Model::default(),
            workers: BTreeMap::new(),
            nodes: Vec::new(),
            past: Vec::new(),
            hires: Vec::new(),
            next: 0,
            number: 1000,
            yields: BTreeMap::new(),
            is_loud,
            trace: None,
        }
    }

    /// What happens with a seed, and what comes of it, line by line.
    pub fn trace(seed: u64) -> Vec<String> {
        let mut history = History { trace: Some(Vec::new()), ..History::new(seed, false) };
        history.run();
        history.trace.expect("it was kept")
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.seed.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.seed.below(from.len().max(1) as u32) as usize;
        from.get(index).cloned()
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn run(&mut self) {
        let events = 60 + self.seed.below(200);
        self.join();
        self.start_job();
        for _ in 0..events {
            self.happen();
        }
        self.come_to_rest();
    }

    /// Something happens.
    pub fn event(&mut self, event: What) {
        if self.is_loud {
            eprintln!("{event:?}");
        }
        let mut actions = Vec::new();
        self.steps.step(event.clone(), &mut actions);
        if self.is_loud {
            actions.iter().for_each(|action| eprintln!("    {action:?}"));
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{event:?}"));
            trace.extend(actions.iter().map(|action| format!("{action:?}")));
        }
        self.model.take_in(&event, &actions, &self.steps);
        if let Some(trace) = &mut self.trace {
            trace.extend(self.model.step.made_again.iter().map(|task| format!("{task} is made again")));
            trace.extend(self.model.step.given_up.iter().map(|task| format!("{task} is given up")));
        }
        self.model.check(&actions, &self.steps);
        self.past.push(event);
        for action in actions {
            let worker = match &action {
                Action::Run { worker, .. }
                | Action::Recall { worker }
                | Action::Interrupt { worker, .. }
                | Action::Withdraw { worker, .. } => worker.0,
                Action::Hire { node, role } => {
                    self.hires.push((node.0, *role));
                    continue;
                }
                _ => continue,
            };
            self.workers.get_mut(&worker).expect("the model knows it").inbox.push_back(action);
        }
    }

    fn happen(&mut self) {
        match self.seed.below(1000) {
            0..12 => self.join(),
            12..30 => self.start_job(),
            30..60 => self.hire(),
            60..75 => self.lose_worker(),
            75..79 => self.lose_node(),
            79..90 => self.cancel(),
            90..94 => self.end_job(),
            94..124 => self.lose_object(),
            124..154 => self.repeat(),
            154..170 => self.lie(),
            170..185 => self.kill(),
            185..205 => self.die(),
            205..280 => self.hire_asked_for(),
            280..330 => self.take_items(),
            330..345 => self.fulfil(),
            _ => self.work(),
        }
    }

    fn join(&mut self) {
        let node = self.fresh();
        let mut resources = Demand { cpus: UNIT * u64::from(self.seed.below(5)), ..Demand::default() };
        if self.chance(40) {
            resources.gpus = UNIT * u64::from(self.seed.below(3));
            resources.memory = 100;
        }
        if self.chance(20) {
            resources.custom.insert("tpu".into(), UNIT);
        }
        self.nodes.push(node);
        self.event(Event::NodeJoined { node: NodeId(node), resources });
        (0..1 + self.seed.below(4)).for_each(|_| self.hire_for(node, Role::Tasks));
    }

    fn hire(&mut self) {
        let Some(node) = self.pick(&self.nodes.clone()) else { return };
        let without: Vec<u32> =
            self.model.jobs.iter().filter(|(_, job)| job.driver.is_none()).map(|(id, _)| *id).collect();
        match self.pick(&without) {
            Some(job) => self.hire_for(node, Role::Driver(JobId(job))),
            None => self.hire_for(node, Role::Tasks),
        }
    }

    /// A worker comes that was asked for.
    fn hire_asked_for(&mut self) {
        if self.hires.is_empty() {
            return self.work();
        }
        let at = self.seed.below(self.hires.len() as u32) as usize;
        let (node, role) = self.hires.swap_remove(at);
        if self.nodes.contains(&node) {
            self.hire_for(node, role);
        }
    }

    fn any_actor(&mut self) -> Option<ActorId> {
        let all: Vec<u64> = self.model.actors.keys().copied().collect();
        self.pick(&all).map(ActorId)
    }

    fn kill(&mut self) {
        let restart = self.chance(50);
        if let Some(actor) = self.any_actor() {
            self.event(Event::Killed { actor, restart });
        }
    }

    /// An actor ends by itself.
    fn die(&mut self) {
        let all: Vec<(u32, TaskId, Attempt)> = self
            .workers
            .iter()
            .flat_map(|(id, local)| local.residents.iter().map(|(task, attempt)| (*id, *task, *attempt)))
            .collect();
        if let Some((worker, actor, attempt)) = self.pick(&all) {
            self.end_actor(worker, actor, attempt);
        }
    }

    /// What was begun of an actor fails with it, what was not is not heard of.
    fn end_actor(&mut self, worker: u32, actor: TaskId, attempt: Attempt) {
        let is_call = |task: &TaskId| {
            let task = self.model.tasks.get(&task.0);
            task.is_some_and(|task| task.work == Work::Method(ActorId(actor.0)))
        };
        let local = self.workers.get_mut(&worker).expect("it is there");
        local.residents.retain(|resident| *resident != (actor, attempt));
        local.waiting.retain(|(task, _)| !is_call(task));
        local.inbox.retain(|action| !matches!(action, Action::Run { task, .. } if is_call(task)));
        let begun: Vec<(TaskId, Attempt)> =
            local.begun.iter().filter(|(task, ..)| is_call(task)).map(|(task, attempt, _)| (*task, *attempt)).collect();
        for (task, attempt) in begun {
            self.finish(worker, task, attempt, false);
        }
        let outcome = self.outcome(actor, false);
        self.event(Event::Finished { task: actor, attempt, worker: WorkerId(worker), outcome, nanos: 0 });
    }

    fn hire_for(&mut self, node: u32, role: Role) {
        let worker = self.fresh();
        self.workers.insert(worker, Local::default());
        self.event(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role });
    }

    fn start_job(&mut self) {
        let job = self.fresh();
        let (tasks_max, depth_max) = if self.chance(20) { (3, 2) } else { (1000, 20) };
        let objects_max = if self.chance(10) { 6 } else { 1000 };
        let lineage_bytes_max = if self.chance(10) { 1200 } else { 1 << 20 };
        let limits = JobLimits { tasks_max, depth_max, objects_max, lineage_bytes_max, groups_max: 4 };
        self.event(Event::JobStarted { job: JobId(job), tenant: TenantId::DEFAULT, limits });
        let mut task = self.submission(job, None);
        let demand = if self.chance(80) { Demand::default() } else { task.demand.clone() };
        (task.demand, task.needs, task.refs) = (demand, Vec::new(), Vec::new());
        self.event(Event::Submitted { task });
        if let Some(node) = self.pick(&self.nodes.clone())
            && self.chance(90)
        {
            self.hire_for(node, Role::Driver(JobId(job)));
        }
    }

    fn lose_worker(&mut self) {
        let all: Vec<u32> = self.workers.keys().copied().collect();
        let Some(worker) = self.pick(&all) else { return };
        let local = self.workers.remove(&worker).expect("it is there");
        let mut begun: Vec<TaskId> = local.begun.iter().map(|(task, ..)| *task).collect();
        if self.chance(10) {
            begun.extend(self.any_task());
        }
        self.event(Event::WorkerLost { worker: WorkerId(worker), begun });
    }

    fn lose_node(&mut self) {
        let Some(node) = self.pick(&self.nodes.clone()) else { return };
        self.nodes.retain(|other| *other != node);
        let model = &self.model;
        self.workers.retain(|worker, _| model.workers[worker].node != node);
        self.event(Event::NodeLost { node: NodeId(node) });
    }

    fn any_task(&mut self) -> Option<TaskId> {
        let all: Vec<u64> = self.model.tasks.keys().copied().collect();
        self.pick(&all).map(TaskId)
    }

    fn cancel(&mut self) {
        // What has ended is known only while there are not too many of these.
        let is_there = |(id, task): (&u64, &Task)| {
            (!task.has_ended || self.model.jobs[&task.job].limits.tasks_max > 100).then_some(*id)
        };
        let all: Vec<u64> = self.model.tasks.iter().filter_map(is_there).collect();
        let recursive = self.chance(50);
        if let Some(task) = self.pick(&all) {
            self.event(Event::Cancelled { task: TaskId(task), recursive });
        }
    }

    fn end_job(&mut self) {
        let all: Vec<u32> = self.model.jobs.keys().copied().collect();
        if let Some(job) = self.pick(&all) {
            self.event(Event::JobEnded { job: JobId(job) });
        }
    }

    fn lose_object(&mut self) {
        let is_there = |object: &crate::model::Object| matches!(object.value, Value::Ready(..));
        let only_there = self.chance(90);
        // Handles of actors are little.
        let all = self.model.objects.iter().filter(|(id, _)| !self.model.actors.contains_key(id));
        let all = all.filter(|(_, object)| !only_there || is_there(object));
        let all: Vec<u64> = all.map(|(id, _)| *id).collect();
        let Some(object) = self.pick(&all) else { return };
        let waiters = if self.chance(70) { Vec::new() } else { self.untold(object) };
        self.event(Event::ObjectLost { object: ObjectId(object), waiters });
    }

    /// A worker that could have been told of an object and does not know yet: it holds what that contains.
    fn untold(&mut self, object: u64) -> Vec<WorkerId> {
        let contents = match &self.model.objects[&object].value {
            Value::Ready(_, contents) => contents.clone(),
            _ => Vec::new(),
        };
        let holds = |worker: &u32| contents.iter().all(|id| self.model.objects[id].holds.contains_key(worker));
        let all: Vec<u32> = self.workers.keys().copied().filter(holds).collect();
        self.pick(&all).map(WorkerId).into_iter().collect()
    }

    /// What was promised comes, or does not; or something comes that was not.
    fn fulfil(&mut self) {
        let is_wild = self.chance(5);
        let may =
            |(id, object): (&u64, &crate::model::Object)| (is_wild || object.value == Value::Promised).then_some(*id);
        let all: Vec<u64> = self.model.objects.iter().filter_map(may).chain(is_wild.then_some(5)).collect();
        let Some(object) = self.pick(&all).map(ObjectId) else { return };
        self.number += 1;
        let value = if self.chance(80) { Ok(self.number) } else { Err(Fault::new(Code::Input, "no file")) };
        self.event(Event::Fulfilled { object, value });
    }

    /// Something comes late, or twice.
    fn repeat(&mut self) {
        let Some(mut event) = self.pick(&self.past.clone()) else { return };
        self.number += 1;
        let has_ended = |number| self.model.tasks.get(&number).is_none_or(|task| task.has_ended);
        let is_new = |number: u64| !self.model.objects.contains_key(&number) && has_ended(number);
        match &mut event {
            // Numbers that were forgotten are as good as new ones.
            Event::Submitted { task } | Event::RanInline { task, .. } | Event::BeganInline { task, .. }
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
            // Who is lost stays lost, who is there is not lost without having been told.
            Event::NodeJoined { node, .. } if !self.nodes.contains(&node.0) => return,
            Event::WorkerReady { worker, .. } if !self.workers.contains_key(&worker.0) => return,
            Event::JobStarted { job, .. } if !self.model.jobs.contains_key(&job.0) => return,
            Event::Cancelled { task, .. } if self.model.tasks.get(&task.0).is_none_or(|task| task.has_ended) => return,
            Event::JobEnded { .. } | Event::NodeLost { .. } => return,
            Event::WorkerLost { worker, .. } if self.workers.contains_key(&worker.0) => return,
            Event::GroupCreated { group, .. } if is_new(group.0) && !self.model.groups.contains_key(&group.0) => {
                return;
            }
            Event::Put { value, .. }
            | Event::GroupCreated { value, .. }
            | Event::Yielded { value: Ok(value), .. }
            | Event::Fulfilled { value: Ok(value), .. } => *value = self.number,
            _ => {}
        }
        let outcome = match &mut event {
            Event::Finished { outcome, .. } | Event::RanInline { outcome, .. } => Some(outcome),
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

    /// A worker says something that is not so.
    fn lie(&mut self) {
        let workers: Vec<u32> = self.workers.keys().copied().chain([0, 999_999]).collect();
        let (Some(worker), Some(task)) = (self.pick(&workers).map(WorkerId), self.any_task()) else { return };
        let object =
            self.pick(&self.model.objects.keys().copied().chain([5]).collect::<Vec<_>>()).map_or(ObjectId(7), ObjectId);
        self.number += 10;
        let actor = self.any_actor().unwrap_or(ActorId(task.0));
        let event = match self.seed.below(10) {
            8 => Event::GroupRemoved { group: self.any_group(None).unwrap_or(GroupId(5)), task, worker },
            0 => Event::Finished {
                task,
                attempt: Attempt(self.seed.below(2)),
                worker,
                outcome: Outcome::Succeeded(vec![(self.number, vec![object])]),
                nanos: u64::MAX,
            },
            1 => Event::Blocked { task, worker, blocked: self.chance(50) },
            2 => Event::Wanted { object, worker, task },
            3 => Event::Released { object, worker, times: 1 + 1000 * self.seed.below(2) },
            5 => Event::Saved { actor, attempt: Attempt(self.seed.below(2)), worker, object },
            4 => Event::Recalled { worker, tasks: vec![task, task] },
            6 => Event::Taken { stream: object, worker, taken: self.seed.below(5).into() },
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

    /// A worker goes on.
    fn work(&mut self) {
        let busy = |(id, local): (&u32, &Local)| {
            (!local.inbox.is_empty() || !local.waiting.is_empty() || !local.begun.is_empty()).then_some(*id)
        };
        let all: Vec<u32> = self.workers.iter().filter_map(busy).collect();
        let Some(worker) = self.pick(&all) else { return };
        let may_read = self.chance(70);
        let local = self.workers.get_mut(&worker).expect("it is there");
        if may_read && let Some(action) = local.inbox.pop_front() {
            return self.read(worker, action);
        }
        if local.begun.iter().all(|(.., is_blocked)| *is_blocked)
            && let Some((task, attempt)) = local.waiting.pop_front()
        {
            return local.begun.push((task, attempt, false));
        }
        let begun = local.begun.clone();
        match self.pick(&begun) {
            Some((task, _, true)) => self.block(worker, task, false),
            Some((task, attempt, false)) => self.go_on(worker, task, attempt),
            None => {}
        }
    }

    /// A worker does what it is told.
    fn read(&mut self, worker: u32, action: Action<u64>) {
        let fails_at_once = self.chance(70);
        let local = self.workers.get_mut(&worker).expect("it is there");
        match action {
            Action::Run { task, attempt, .. } => local.waiting.push_back((task, attempt)),
            Action::Recall { .. } => {
                let tasks = local.waiting.drain(..).map(|(task, _)| task).collect();
                self.event(Event::Recalled { worker: WorkerId(worker), tasks });
            }
            Action::Interrupt { task, attempt, .. } if local.residents.contains(&(task, attempt)) => {
                self.end_actor(worker, task, attempt);
            }
            Action::Withdraw { task, attempt, .. } if local.waiting.contains(&(task, attempt)) => {
                self.finish(worker, task, attempt, false);
            }
            Action::Interrupt { task, attempt, .. } => {
                let is_waiting = local.waiting.contains(&(task, attempt));
                let is_here = local.begun.iter().any(|(id, of, _)| (*id, *of) == (task, attempt));
                if is_waiting || is_here && fails_at_once {
                    self.finish(worker, task, attempt, false);
                }
            }
            _ => {}
        }
    }

    fn block(&mut self, worker: u32, task: TaskId, blocked: bool) {
        let local = self.workers.get_mut(&worker).expect("it is there");
        local.begun.iter_mut().filter(|(id, ..)| *id == task).for_each(|(.., is_blocked)| *is_blocked = blocked);
        self.event(Event::Blocked { task, worker: WorkerId(worker), blocked });
    }

    fn finish(&mut self, worker: u32, task: TaskId, attempt: Attempt, succeeds: bool) {
        let local = self.workers.get_mut(&worker).expect("it is there");
        local.begun.retain(|(id, of, _)| (*id, *of) != (task, attempt));
        local.waiting.retain(|other| *other != (task, attempt));
        let outcome = self.outcome(task, succeeds);
        let makes = self.model.tasks.get(&task.0).is_some_and(|task| matches!(task.work, Work::Actor(_)));
        if makes && let Outcome::Succeeded(_) = outcome {
            self.workers.get_mut(&worker).expect("it is there").residents.push((task, attempt));
        }
        let nanos = [1_000, 100_000, 2_000_000][self.seed.below(3) as usize];
        self.event(Event::Finished { task, attempt, worker: WorkerId(worker), outcome, nanos });
    }

    fn outcome(&mut self, task: TaskId, succeeds: bool) -> Outcome<u64> {
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

    /// Objects of a job, or, seldom, others.
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

    /// A placement group, of a job if one is named.
    fn any_group(&mut self, job: Option<u32>) -> Option<GroupId> {
        let of_job = self.model.groups.iter().filter(|(_, group)| job.is_none_or(|job| job == group.job));
        let all: Vec<u64> = of_job.map(|(id, _)| *id).collect();
        self.pick(&all).map(GroupId)
    }

    fn strategy(&mut self, job: u32) -> Strategy {
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

    /// A task makes a placement group.
    fn create_group(&mut self, worker: WorkerId, task: TaskId) {
        self.number += 10;
        let strategies =
            [GroupStrategy::Pack, GroupStrategy::Spread, GroupStrategy::StrictPack, GroupStrategy::StrictSpread];
        let strategy = strategies[self.seed.below(4) as usize];
        let mut bundle = || {
            let demand = Demand { cpus: UNIT / 2 * u64::from(1 + self.seed.below(4)), ..Demand::default() };
            match self.seed.below(10) {
                0..7 => demand,
                7 => Demand { gpus: UNIT, ..demand },
                8 => Demand { memory: 60, ..demand },
                _ => Demand { custom: [("tpu".into(), UNIT)].into(), ..demand },
            }
        };
        let bundles = (0..3).map(|_| bundle()).collect::<Vec<_>>();
        let bundles = bundles.into_iter().take(self.seed.below(16) as usize / 5).collect();
        let (group, spec) = (GroupId(self.number), GroupSpec { name: None, strategy, bundles });
        self.event(Event::GroupCreated { group, task, worker, spec, value: self.number });
    }

    fn submission(&mut self, job: u32, parent: Option<(TaskId, Attempt, WorkerId)>) -> Submission<u64> {
        self.number += 10;
        let kind = self.seed.below(100);
        let cpus = |units: u64| Demand { cpus: units * UNIT / 2, ..Demand::default() };
        let demand = match kind {
            0..55 => cpus(2),
            55..65 => cpus(1),
            65..75 => cpus(4),
            75..82 => cpus(0),
            82..90 => Demand { gpus: UNIT / 2, ..cpus(2) },
            90..95 => Demand { memory: 60, ..cpus(1) },
            95..98 => Demand { custom: [("tpu".into(), UNIT / 2)].into(), ..cpus(2) },
            _ => cpus(100),
        };
        let (work, demand) = self.work_of(job, parent.is_some(), demand);
        let may = (parent.is_some() && !matches!(work, Work::Method(_))) || self.chance(1);
        let strategy = if may { self.strategy(job) } else { Strategy::Default };
        Submission {
            id: TaskId(self.number),
            job: JobId(job),
            parent,
            name: ["a", "b", "c"][self.seed.below(3) as usize].into(),
            returns: if self.chance(80) { 1 } else { 1 + self.seed.below(3) },
            demand,
            strategy,
            priority: if self.chance(85) { 0 } else { 1 },
            retries_max: self.seed.below(3),
            retry_on: self.retry_on(),
            needs: self.some_objects(Some(job), 25),
            refs: self.some_objects(Some(job), 15),
            work,
            call: self.number,
        }
    }

    fn retry_on(&mut self) -> RetryOn {
        match self.seed.below(10) {
            0..6 => RetryOn::System,
            6..8 => RetryOn::All,
            8 => Code::Trap.into(),
            _ => [Code::Panic, Code::TimeOut].into(),
        }
    }

    fn work_of(&mut self, job: u32, may: bool, demand: Demand) -> (Work, Demand) {
        let kind = self.seed.below(100);
        match kind {
            0..12 if may || kind == 0 => {
                let (restarts_max, calls_max) = (self.seed.below(3), if self.chance(90) { 100 } else { 1 });
                let spec = ActorSpec { name: None, detached: None, restarts_max, calls_max };
                let demand = if self.chance(60) { Demand::default() } else { demand };
                (Work::Actor(Box::new(spec)), demand)
            }
            12..45 if may => {
                let is_wild = self.chance(2);
                let of_job = |actor: &u64| is_wild || self.model.tasks.get(actor).is_some_and(|task| task.job == job);
                let all: Vec<u64> = self.model.actors.keys().copied().filter(of_job).collect();
                match self.pick(&all) {
                    Some(actor) => (Work::Method(ActorId(actor)), Demand::default()),
                    None => (Work::Task, demand),
                }
            }
            45..62 if may => (Work::Stream(self.seed.below(4)), demand),
            _ => (Work::Task, demand),
        }
    }

    /// An actor is saved, by a call.
    fn save(&mut self, worker: u32, task: TaskId) {
        let Some(Work::Method(actor)) = self.model.tasks.get(&task.0).map(|task| task.work.clone()) else { return };
        let attempt = self.model.tasks.get(&actor.0).map_or(Attempt(0), |maker| Attempt(maker.attempt));
        self.number += 10;
        let (object, worker) = (ObjectId(self.number), WorkerId(worker));
        let refs = self.some_objects(self.model.tasks.get(&task.0).map(|task| task.job), 20);
        self.event(Event::Put { object, task, worker, value: self.number, refs });
        self.event(Event::Saved { actor, attempt, worker, object });
        self.event(Event::Released { object, worker, times: 1 });
    }

    /// A task does something.
    fn go_on(&mut self, worker: u32, task: TaskId, attempt: Attempt) {
        let id = WorkerId(worker);
        let job = self.model.tasks.get(&task.0).map_or(0, |task| task.job);
        let is_generator = |task: &Task| matches!(task.work, Work::Stream(_));
        if self.model.tasks.get(&task.0).is_some_and(is_generator) && self.chance(50) {
            return self.yield_item(worker, task, attempt);
        }
        match self.seed.below(100) {
            0..35 => {
                for _ in 0..1 + self.seed.below(4) * self.seed.below(3) {
                    let task = self.submission(job, Some((task, attempt, id)));
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
                    self.event(Event::Wanted { object, worker: id, task });
                }
            }
            55..68 => {
                let held = self.model.objects.iter().filter(|(_, object)| object.holds.contains_key(&worker));
                let held: Vec<u64> = held.map(|(id, _)| *id).collect();
                for _ in 0..3 {
                    if let Some(object) = self.pick(&held) {
                        self.event(Event::Released { object: ObjectId(object), worker: id, times: 1 });
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
                    self.event(Event::Held { object, worker: id, task });
                }
            }
            77..80 => {
                let mut child = self.submission(job, Some((task, attempt, id)));
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
                self.event(Event::RanInline { task: child, worker: id, outcome, nanos: 1000 });
            }
            80..84 => {
                if self.chance(80) {
                    self.block(worker, task, true);
                }
                let mut child = self.submission(job, Some((task, attempt, id)));
                if self.chance(80) {
                    child.demand = Demand { cpus: UNIT, ..Demand::default() };
                    child.strategy = Strategy::Default;
                }
                let local = self.workers.get_mut(&worker).expect("it is there");
                local.begun.push((child.id, Attempt(0), false));
                self.event(Event::BeganInline { task: child, worker: id });
            }
            84..95 => self.finish(worker, task, attempt, true),
            _ => self.finish(worker, task, attempt, false),
        }
    }

    /// Everything comes to an end, and nothing is left.
    fn come_to_rest(&mut self) {
        let node = self.fresh();
        let custom = [("tpu".into(), 10 * UNIT)].into();
        let resources = Demand { cpus: 100 * UNIT, gpus: 10 * UNIT, memory: 1000, custom };
        self.nodes.push(node);
        self.event(Event::NodeJoined { node: NodeId(node), resources });
        // Some tasks are for one node.
        self.nodes.clone().into_iter().chain([node, node]).for_each(|node| self.hire_for(node, Role::Tasks));
        for round in 0.. {
            assert!(round < 1000, "it comes to no end");
            while self.model.objects.values().any(|object| object.value == Value::Promised) {
                self.fulfil();
            }
            let without = self.model.jobs.iter().filter(|(_, job)| job.driver.is_none()).map(|(id, _)| *id);
            for job in without.collect::<Vec<_>>() {
                self.hire_for(node, Role::Driver(JobId(job)));
            }
            while !self.hires.is_empty() {
                self.hire_asked_for();
            }
            for worker in self.workers.keys().copied().collect::<Vec<_>>() {
                while let Some(action) = self.workers.get_mut(&worker).and_then(|local| local.inbox.pop_front()) {
                    self.read(worker, action);
                }
                let local = &self.workers[&worker];
                let all =
                    local.begun.iter().map(|(task, attempt, _)| (*task, *attempt)).chain(local.waiting.iter().copied());
                for (task, attempt) in all.collect::<Vec<_>>() {
                    self.finish(worker, task, attempt, true);
                }
            }
            let given =
                |(id, local): (&u32, &Local)| !local.inbox.is_empty() || !self.model.workers[id].given.is_empty();
            if self.workers.iter().any(given) || !self.hires.is_empty() {
                continue;
            }
            let alive = |actor: &u64| self.model.tasks.get(actor).is_some_and(|maker| !maker.has_ended);
            if let Some(actor) = self.model.actors.keys().copied().find(alive) {
                self.event(Event::Killed { actor: ActorId(actor), restart: false });
                continue;
            }
            // Groups that nobody removes go with their job, and who waits for them with it.
            let Some(job) = self.model.groups.values().next().map(|group| group.job) else { break };
            self.event(Event::JobEnded { job: JobId(job) });
        }
        assert!(self.model.tasks.values().all(|task| task.has_ended), "all tasks have ended");
        for job in self.model.jobs.keys().copied().collect::<Vec<_>>() {
            self.event(Event::JobEnded { job: JobId(job) });
        }
        assert!(self.steps.is_empty(), "something is left");
        assert!(self.model.values.is_empty(), "values {:?} are left", self.model.values);
        for node in self.steps.nodes() {
            assert_eq!(node.free_cpus, node.total.cpus.into());
            assert_eq!(node.free_rest, &Demand { cpus: 0, ..node.total.clone() });
        }
    }
}
