//! What the workers of a cluster do: they begin what they were given, and their tasks submit, store, wait and end.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, Code, Fault, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, WorkerId,
};
use sandbar_sched::{Action, ActorSpec, Demand, Event, Failure, Outcome, Submission, UNIT, Work};

use crate::cluster::{History, Local};
use crate::model::Task;

impl History {
    /// A worker goes on.
    pub fn work(&mut self) {
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
        // A scheduler does several things at once.
        if (self.model.is_peer(worker) || local.begun.iter().all(|(.., is_blocked)| *is_blocked))
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

    /// A task does something.
    pub fn go_on(&mut self, worker: u32, task: TaskId, attempt: Attempt) {
        let id = WorkerId(worker);
        let job = self.model.tasks.get(&task.0).map_or(0, |task| task.job);
        let is_generator = |task: &Task| matches!(task.work, Work::Stream(_));
        if self.model.tasks.get(&task.0).is_some_and(is_generator) && self.chance(50) {
            return self.yield_item(worker, task, attempt);
        }
        // What stands for a scheduler does not end by itself.
        let most = if self.model.is_seat(task.0) { 84 } else { 100 };
        match self.seed.below(most) {
            0..4 => self.borrow(worker, task),
            4..35 => {
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

    /// A worker does what it is told.
    pub fn read(&mut self, worker: u32, action: Action<u64>) {
        let fails_at_once = self.chance(70);
        let local = self.workers.get_mut(&worker).expect("it is there");
        match action {
            Action::Run { task, attempt, .. } => local.waiting.push_back((task, attempt)),
            Action::Recall { .. } => {
                let tasks = local.waiting.drain(..).map(|(task, _)| task).collect();
                self.event(Event::Recalled { worker: WorkerId(worker), tasks });
            }
            Action::Interrupt { task, attempt, .. } if local.residents.contains(&(task, attempt)) => {
                let is_wanted = self.model.tasks.get(&task.0).is_some_and(|maker| maker.stop == 0);
                // A scheduler begins an actor anew by itself, and says nothing of it.
                if !(is_wanted && self.model.is_peer(worker) && self.chance(50)) {
                    self.end_actor(worker, task, attempt);
                }
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

    pub fn block(&mut self, worker: u32, task: TaskId, blocked: bool) {
        let local = self.workers.get_mut(&worker).expect("it is there");
        local.begun.iter_mut().filter(|(id, ..)| *id == task).for_each(|(.., is_blocked)| *is_blocked = blocked);
        self.event(Event::Blocked { task, worker: WorkerId(worker), blocked });
    }

    pub fn finish(&mut self, worker: u32, task: TaskId, attempt: Attempt, succeeds: bool) {
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

    pub fn submission(&mut self, job: u32, parent: Option<(TaskId, Attempt, WorkerId)>) -> Submission<u64> {
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
            below: if parent.is_some_and(|(parent, ..)| self.model.is_seat(parent.0)) { self.seed.below(3) } else { 0 },
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

    pub fn work_of(&mut self, job: u32, may: bool, demand: Demand) -> (Work, Demand) {
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
                let lent = self.model.lent.iter().filter(|(_, lent)| is_wild || lent.job == job).map(|(id, _)| *id);
                let all: Vec<u64> = self.model.actors.keys().copied().filter(of_job).chain(lent).collect();
                match self.pick(&all) {
                    Some(actor) => (Work::Method(ActorId(actor)), Demand::default()),
                    None => (Work::Task, demand),
                }
            }
            45..62 if may => (Work::Stream(self.seed.below(4)), demand),
            _ => (Work::Task, demand),
        }
    }
}
