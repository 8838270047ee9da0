//! A cluster that does what a scheduler says, some time later, and whatever else comes to a seed's mind.

use std::collections::{BTreeMap, VecDeque};

use sandbar_core::{ActorId, Attempt, Code, Fault, GroupId, JobId, NodeId, ObjectId, Seed, TaskId, TenantId, WorkerId};
use sandbar_sched::{Action, Demand, Event, JobLimits, Options, Outcome, Role, UNIT};

use crate::lineage::INSPECT;
use crate::model::{Model, Steps, Task, Value};

type What = Event<u64, u64>;

pub struct History {
    pub seed: Seed,
    pub steps: Steps,
    pub model: Model,
    pub workers: BTreeMap<u32, Local>,
    pub nodes: Vec<u32>,
    /// Events of before, for those that come late or twice.
    pub past: Vec<What>,
    /// Workers that were asked for.
    pub hires: Vec<(u32, Role)>,
    /// Groups for which nodes were asked to set something aside, and have not answered.
    pub questions: Vec<(GroupId, NodeId, Attempt)>,
    pub next: u32,
    /// Numbers of tasks, objects and values.
    pub number: u64,
    /// How much each attempt of a generator has yielded.
    pub yields: BTreeMap<(u64, u32), u64>,
    pub is_loud: bool,
    pub trace: Option<Vec<String>>,
}

/// What a worker knows of itself.
#[derive(Default)]
pub struct Local {
    pub inbox: VecDeque<Action<u64>>,
    pub waiting: VecDeque<(TaskId, Attempt)>,
    pub begun: Vec<(TaskId, Attempt, bool)>,
    pub residents: Vec<(TaskId, Attempt)>,
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
            questions: Vec::new(),
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

    pub fn fresh(&mut self) -> u32 {
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
                Action::SetAside { group, node, attempt, .. } => {
                    self.questions.push((*group, *node, *attempt));
                    continue;
                }
                _ => continue,
            };
            self.workers.get_mut(&worker).expect("the model knows it").inbox.push_back(action);
        }
    }

    pub fn happen(&mut self) {
        match self.seed.below(1000) {
            0..12 => self.join(),
            12..30 => self.start_job(),
            30..60 => self.hire(),
            60..75 => self.lose_worker(),
            75..79 => self.lose_node(),
            345..348 => self.drain_node(),
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
            348..366 => self.seat(),
            366..372 => self.end_seat(),
            372..390 => self.use_objects(),
            390..420 => self.arrive(),
            420..435 => self.load(),
            435..455 => self.answer(75),
            455..480 => self.make_group(),
            _ => self.work(),
        }
    }

    pub fn join(&mut self) {
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
        let far = self.chance(55);
        self.event(Event::NodeJoined { node: NodeId(node), resources, far });
        self.hire_peer(node);
        (0..1 + self.seed.below(4)).for_each(|_| self.hire_for(node, Role::Tasks));
    }

    pub fn hire(&mut self) {
        let Some(node) = self.pick(&self.nodes.clone()) else { return };
        let without: Vec<u32> =
            self.model.jobs.iter().filter(|(_, job)| job.driver.is_none()).map(|(id, _)| *id).collect();
        match (self.pick(&without), self.any_near()) {
            (Some(job), Some(near)) => self.hire_for(near, Role::Driver(JobId(job))),
            _ => self.hire_for(node, Role::Tasks),
        }
        self.hire_peer(node);
    }

    /// A worker comes that was asked for.
    pub fn hire_asked_for(&mut self) {
        if self.hires.is_empty() {
            return self.work();
        }
        let at = self.seed.below(self.hires.len() as u32) as usize;
        let (node, role) = self.hires.swap_remove(at);
        if self.nodes.contains(&node) {
            self.hire_for(node, role);
        }
    }

    pub fn hire_for(&mut self, node: u32, role: Role) {
        let worker = self.fresh();
        self.workers.insert(worker, Local::default());
        self.event(Event::WorkerReady { worker: WorkerId(worker), node: NodeId(node), role });
    }

    pub fn start_job(&mut self) {
        let job = self.fresh();
        let (tasks_max, depth_max) = if self.chance(20) { (3, 2) } else { (1000, 20) };
        let objects_max = if self.chance(10) { 6 } else { 1000 };
        let lineage_bytes_max = if self.chance(10) { 1200 } else { 1 << 20 };
        let limits =
            JobLimits { tasks_max, depth_max, objects_max, lineage_bytes_max, groups_max: 4, call_bytes_max: 1 << 20 };
        self.event(Event::JobStarted { job: JobId(job), tenant: TenantId::DEFAULT, limits });
        if self.chance(10) {
            self.seat_in(job);
            if self.chance(50) {
                // It is of other schedulers alone.
                return;
            }
        }
        let mut task = self.submission(job, None);
        let demand = if self.chance(80) { Demand::default() } else { task.demand.clone() };
        (task.demand, task.needs, task.refs) = (demand, Vec::new(), Vec::new());
        self.event(Event::Submitted { task });
        if let Some(node) = self.any_near()
            && self.chance(90)
        {
            self.hire_for(node, Role::Driver(JobId(job)));
        }
    }

    pub fn lose_worker(&mut self) {
        let all: Vec<u32> = self.workers.keys().copied().collect();
        let Some(worker) = self.pick(&all) else { return };
        let local = self.workers.remove(&worker).expect("it is there");
        let mut begun: Vec<TaskId> = local.begun.iter().map(|(task, ..)| *task).collect();
        match self.seed.below(10) {
            0 => begun.extend(self.any_task()),
            // Nobody knows.
            1 => begun.clear(),
            _ => {}
        }
        self.event(Event::WorkerLost { worker: WorkerId(worker), begun });
    }

    pub fn lose_node(&mut self) {
        if let Some(node) = self.pick(&self.nodes.clone()) {
            self.lose_this(node);
        }
    }

    fn lose_this(&mut self, node: u32) {
        self.nodes.retain(|other| *other != node);
        self.questions.retain(|(_, other, _)| other.0 != node);
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
        // What has ended is known only while there are not too many of these.
        let is_there = |(id, task): (&u64, &Task)| {
            (!task.has_ended || self.model.jobs[&task.job].limits.tasks_max > 100).then_some(*id)
        };
        let all: Vec<u64> = self.model.tasks.iter().filter_map(is_there).collect();
        let recursive = self.chance(50);
        let is_doomed = self.chance(25);
        if is_doomed && let Some(call) = self.pick(&all) {
            return self.event(Event::Doomed { call: TaskId(call), fault: Fault::new(Code::Deadlock, "for ever") });
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
        // Handles of actors are little.
        let all = self.model.objects.iter().filter(|(id, _)| !self.model.actors.contains_key(id));
        let all = all.filter(|(_, object)| !only_there || is_there(object));
        let all: Vec<u64> = all.map(|(id, _)| *id).collect();
        let Some(object) = self.pick(&all) else { return };
        let waiters = if self.chance(70) { Vec::new() } else { self.untold(object) };
        self.event(Event::ObjectLost { object: ObjectId(object), waiters });
    }

    /// A worker that could have been told of an object and does not know yet: it holds what that contains.
    pub fn untold(&mut self, object: u64) -> Vec<WorkerId> {
        let contents = match &self.model.objects[&object].value {
            Value::Ready(_, contents) => contents.clone(),
            _ => Vec::new(),
        };
        let holds = |worker: &u32| contents.iter().all(|id| self.model.objects[id].holds.contains_key(worker));
        let all: Vec<u32> = self.workers.keys().copied().filter(holds).collect();
        self.pick(&all).map(WorkerId).into_iter().collect()
    }

    /// What was promised comes, or does not; or something comes that was not.
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

    /// Something comes late, or twice.
    pub fn repeat(&mut self) {
        let Some(mut event) = self.pick(&self.past.clone()) else { return };
        self.number += 1;
        let has_ended = |number| self.model.tasks.get(&number).is_none_or(|task| task.has_ended);
        let is_new = |number: u64| !self.model.objects.contains_key(&number) && has_ended(number);
        match &mut event {
            // Numbers that were forgotten are as good as new ones.
            Event::Submitted { task }
            | Event::Seated { task, .. }
            | Event::RanInline { task, .. }
            | Event::BeganInline { task, .. }
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
            // What was returned may be borrowed again, but not what a task here returned.
            Event::Borrowed { object, .. } if is_new(object.0) && self.model.maker(object.0).is_some() => return,
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
            | Event::Fulfilled { value: Ok(value), .. }
            | Event::Arrived { value: Ok(value), .. } => *value = self.number,
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
    pub fn lie(&mut self) {
        let workers: Vec<u32> = self.workers.keys().copied().chain([0, 999_999]).collect();
        let (Some(worker), Some(task)) = (self.pick(&workers).map(WorkerId), self.any_task()) else { return };
        let object =
            self.pick(&self.model.objects.keys().copied().chain([5]).collect::<Vec<_>>()).map_or(ObjectId(7), ObjectId);
        self.number += 10;
        let actor = self.any_actor().unwrap_or(ActorId(task.0));
        let event = match self.seed.below(16) {
            14 => Event::SetAside {
                group: self.any_group(None).unwrap_or(GroupId(5)),
                node: NodeId(self.pick(&self.nodes.clone()).unwrap_or(7)),
                attempt: Attempt(self.seed.below(3)),
                done: self.chance(50),
            },
            15 => Event::NodeLoad { node: NodeId(worker.0), others: Demand { cpus: UNIT, ..Demand::default() } },
            10 => {
                let task = self.submission(self.model.tasks[&task.0].job, None);
                return self.take_seat(task, worker.0);
            }
            11 => Event::ActorBorrowed { actor: ActorId(object.0), worker },
            12 => Event::Borrowed { object, task, worker },
            13 => Event::Arrived { object, value: Ok(self.number), refs: vec![object] },
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

    /// Everything comes to an end, and nothing is left.
    pub fn come_to_rest(&mut self) {
        let node = self.fresh();
        let custom = [("tpu".into(), 10 * UNIT)].into();
        let resources = Demand { cpus: 100 * UNIT, gpus: 10 * UNIT, memory: 1000, custom };
        self.nodes.push(node);
        self.event(Event::NodeJoined { node: NodeId(node), resources, far: false });
        // Some tasks would wait for these forever.
        self.model.draining.clone().into_iter().for_each(|node| self.lose_this(node));
        for node in self.model.far.clone() {
            self.event(Event::NodeLoad { node: NodeId(node), others: Demand::default() });
        }
        // Some tasks are for one node.
        for node in self.nodes.clone().into_iter().chain([node, node]) {
            self.hire_for(node, Role::Tasks);
            self.hire_peer(node);
        }
        for round in 0.. {
            assert!(round < 1000, "it comes to no end");
            while self.model.objects.values().any(|object| object.value == Value::Promised) {
                self.fulfil();
            }
            while self.model.is_any_asked_for() {
                self.arrive();
            }
            while !self.questions.is_empty() {
                self.answer(100);
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
            let is_asked = self.model.is_any_asked_for() || !self.questions.is_empty();
            if self.workers.iter().any(given) || !self.hires.is_empty() || is_asked {
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
        assert!(self.model.aside.is_empty(), "what was set aside is given back");
        assert!(self.model.values.is_empty(), "values {:?} are left", self.model.values);
        for node in self.steps.nodes() {
            assert_eq!(node.free_cpus, node.total.cpus.into());
            assert_eq!(node.free_rest, &Demand { cpus: 0, ..node.total.clone() });
        }
    }
}
