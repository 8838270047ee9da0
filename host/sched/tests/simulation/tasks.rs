//! What a scheduler should know of tasks, from their submission to their end, and of the jobs and workers that they go with.

use sandbar_core::{Code, ObjectId, Strategy, TaskId};
use sandbar_sched::{Outcome, Role, Submission, Work};

use crate::model::{Actor, Given, Model, Task, Value, Worker, is_light};

impl Task {
    /// One that refers to nothing.
    pub fn new(task: &Submission<u64>, number: u64, depth: u32) -> Task {
        Task {
            job: task.job.0,
            parent: task.parent.map(|(parent, ..)| parent.0),
            demand: task.demand.clone(),
            strategy: task.strategy,
            priority: task.priority,
            depth,
            number,
            returns: task.returns,
            links: Vec::new(),
            needs: Vec::new(),
            retries_max: task.retries_max,
            retry_on: task.retry_on,
            attempt: 0,
            worker: None,
            stop: 0,
            has_ended: false,
            work: task.work.clone(),
            is_blocked: false,
            lineage: None,
            is_settled: false,
            stands: false,
        }
    }
}

impl Model {
    /// Says whether there is a task now.
    pub fn submit(&mut self, task: &Submission<u64>, mut may: bool) -> bool {
        let Some(job) = self.jobs.get(&task.job.0) else { return false };
        let returns = u64::from(task.returns);
        if (task.id.0..task.id.0 + returns).any(|number| self.is_known(number)) || returns == 0 {
            return false;
        }
        let (mut depth, mut stop, mut holder) = (1, 0, None);
        match task.parent {
            None if job.first.is_some() => return false,
            None if task.strategy != Strategy::Default => may = false,
            None => {}
            Some((parent, attempt, worker)) => {
                let Some(parent) = self.running(worker, parent) else { return false };
                if parent.attempt != attempt.0 || parent.job != task.job.0 {
                    return false;
                }
                (depth, stop, holder) = (parent.depth + 1 + task.below, parent.stop, Some(worker.0));
            }
        }
        let live = self.tasks.values().filter(|other| other.job == task.job.0 && !other.has_ended).count() as u64;
        let is_over = depth > job.limits.depth_max
            || live + 1 > job.limits.tasks_max
            || self.job_objects(task.job.0) + returns > job.limits.objects_max;
        let links: Vec<ObjectId> = task.needs.iter().chain(&task.refs).copied().collect();
        let may = may && self.may_work(task) && self.may_be_there(task);
        let is_bad = !may || is_over || stop == 2 || !self.of_job(task.job.0, &links);
        let value = if is_bad { Value::Failed } else { Value::Pending };
        (task.id.0..task.id.0 + returns).for_each(|id| self.create(id, task.job.0, value.clone(), holder));
        let job = self.jobs.get_mut(&task.job.0).expect("it was found");
        if task.parent.is_none() {
            job.first = Some(task.id.0);
            if is_bad {
                self.step.jobs_done.insert(task.job.0);
            }
        }
        if is_bad {
            return false;
        }
        self.number += 1;
        let group = self.pending_group(task.strategy).map(ObjectId);
        let record = Task {
            links: links.iter().chain(&group).map(|id| id.0).collect(),
            needs: task.needs.iter().chain(&group).map(|id| id.0).collect(),
            ..Task::new(task, self.number, depth)
        };
        self.tasks.insert(task.id.0, record);
        if let Work::Actor(spec) = &task.work {
            let actor = Actor { restarts_max: spec.restarts_max, calls_max: spec.calls_max, saved: None };
            self.actors.insert(task.id.0, actor);
        }
        self.add_stream(task, holder);
        true
    }

    /// Whether a task may have to do with an actor as it wants to.
    pub fn may_work(&self, task: &Submission<u64>) -> bool {
        match &task.work {
            Work::Task => true,
            Work::Stream(_) => task.parent.is_some(),
            Work::Actor(_) => task.parent.is_some() && task.returns == 1,
            Work::Method(actor) if self.lent.contains_key(&actor.0) => {
                let lent = &self.lent[&actor.0];
                task.parent.is_some() && lent.job == task.job.0 && lent.owner.is_some()
            }
            Work::Method(actor) => {
                let is_alive =
                    self.tasks.get(&actor.0).is_some_and(|maker| !maker.has_ended && maker.job == task.job.0);
                let has_room =
                    self.actors.get(&actor.0).is_some_and(|of| (self.calls(actor.0).len() as u64) < of.calls_max);
                task.parent.is_some() && is_alive && has_room && self.objects.contains_key(&actor.0)
            }
        }
    }

    pub fn began_inline(&mut self, task: &Submission<u64>, worker: u32) {
        if task.parent.is_none_or(|(_, _, of)| of.0 != worker) {
            return;
        }
        let known = self.objects.len();
        let is_usual = task.work == Work::Task && task.strategy == Strategy::Default;
        if self.submit(task, is_light(&task.demand) && is_usual) {
            let (id, demand, strategy) = (task.id.0, task.demand.clone(), task.strategy);
            let given =
                Given { task: id, attempt: 0, demand, strategy, bundle: None, is_blocked: false, is_ghost: false };
            self.workers.get_mut(&worker).expect("it has the parent").given.push(given);
            self.tasks.get_mut(&id).expect("it was added").worker = Some(worker);
        } else if self.objects.len() > known {
            self.step.interrupted.insert((worker, task.id.0));
        }
    }

    /// What becomes of a task whose attempt, which is in no worker any more, is over. It is not begun again after what is
    /// final.
    pub fn finish(&mut self, id: u64, outcome: &Outcome<u64>, is_final: bool) {
        let task = self.tasks.get_mut(&id).expect("who has it knows it");
        (task.worker, task.is_blocked) = (None, false);
        let (job, stop, returns, retry_on) = (task.job, task.stop, task.returns as usize, task.retry_on);
        match outcome {
            Outcome::Succeeded(values) => {
                let are_good = values.iter().all(|(_, refs)| self.of_job(job, refs));
                if stop == 0 && values.len() == returns && are_good {
                    let attempt = (id, self.tasks[&id].attempt);
                    assert!(self.committed.insert(attempt), "{attempt:?} was committed before");
                    self.keep_lineage(id, values.iter().map(|(value, _)| *value));
                    for ((value, refs), id) in values.iter().zip(id..) {
                        self.values.insert(*value);
                        let contents = refs.iter().map(|id| id.0).collect();
                        match self.objects.get_mut(&id).filter(|object| object.value == Value::Pending) {
                            Some(object) => object.value = Value::Ready(*value, contents),
                            // It was there, or nobody wants it any more.
                            None => drop(self.step.dropped.insert(*value)),
                        }
                        self.step.ready.insert(id);
                    }
                    self.end(id);
                } else {
                    self.discard(outcome);
                    let code = if values.len() == returns { Code::BadRequest } else { Code::BadOutput };
                    self.fail_attempt(id, code, !is_final && retry_on.allows(code, false));
                }
            }
            Outcome::Failed(failure) => {
                let code = failure.error.fault.code;
                self.fail_attempt(id, code, !is_final && retry_on.allows(code, failure.system));
            }
        }
    }

    /// An attempt came to nothing. The task is begun again if that `may_help`.
    pub fn fail_attempt(&mut self, id: u64, code: Code, may_help: bool) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        (task.worker, task.is_blocked) = (None, false);
        let retries_max = self.actors.get(&id).map_or(task.retries_max, |actor| actor.restarts_max);
        if task.stop > 0 {
            self.fail_stopped(id);
        } else if may_help && task.attempt < retries_max {
            task.attempt += 1;
            self.stop_descendants(id);
        } else {
            self.fail(id, code);
        }
    }

    pub fn give_back(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        task.worker = None;
        if task.stop > 0 {
            self.fail_stopped(id);
        } else {
            self.stop_descendants(id);
        }
    }

    pub fn lose(&mut self, ids: Vec<u32>, begun: Option<&[TaskId]>) {
        let workers: Vec<Worker> = ids.iter().filter_map(|id| self.workers.remove(id)).collect();
        for object in self.objects.values_mut() {
            object.holds.retain(|worker, _| !ids.contains(worker));
            object.wants.retain(|worker, _| !ids.contains(worker));
        }
        for job in self.jobs.values_mut() {
            job.driver = job.driver.filter(|driver| !ids.contains(driver));
        }
        let residents = workers.iter().flat_map(|worker| &worker.residents);
        let makers: Vec<u64> = residents.filter(|given| !given.is_ghost).map(|given| given.task).collect();
        let all = workers.iter().flat_map(|worker| worker.given.iter().map(|given| (given, worker.role)));
        let lost: Vec<(&Given, Role)> = all.filter(|(given, _)| !given.is_ghost).collect();
        for (given, _) in &lost {
            self.tasks.get_mut(&given.task).expect("it is known").worker = None;
        }
        let calls: Vec<Vec<u64>> = makers.iter().map(|maker| self.take_calls(*maker)).collect();
        let lent = self.take_lent(&ids);
        for (given, role) in lost {
            let has_begun = begun.is_none_or(|begun| begun.contains(&TaskId(given.task)));
            let has_children = self.kept_child(given.task);
            // A scheduler is given nothing to begin but actors.
            let is_seat = role == Role::Peer && !self.actors.contains_key(&given.task);
            if has_begun || given.is_blocked || has_children || is_seat {
                self.stop_descendants(given.task);
                self.fail_attempt(given.task, Code::WorkerLost, true);
            } else {
                self.give_back(given.task);
            }
        }
        for (maker, calls) in makers.into_iter().zip(calls) {
            let has_begun = |call: u64| begun.is_none_or(|begun| begun.contains(&TaskId(call)));
            self.lose_actor(maker, calls, &has_begun, true);
        }
        lent.into_iter().for_each(|(actor, calls)| self.lose_lent(actor, calls));
    }

    /// Whether something is left of what a task submitted.
    pub fn kept_child(&self, id: u64) -> bool {
        let is_kept = |id: &u64| {
            let task = &self.tasks[id];
            !task.has_ended || task.lineage.is_some() || self.step.ended.contains(id) || self.step.unkept.contains(id)
        };
        self.of_attempt(id).iter().any(is_kept)
    }

    pub fn descendants(&self, id: u64) -> Vec<u64> {
        let mut found = vec![id];
        let mut at = 0;
        while at < found.len() {
            let parent = Some(found[at]);
            found.extend(self.tasks.iter().filter(|(_, task)| task.parent == parent).map(|(id, _)| *id));
            at += 1;
        }
        found.split_off(1)
    }

    /// Descendants of a task, but for what attempts of it submitted that have succeeded.
    pub fn of_attempt(&self, id: u64) -> Vec<u64> {
        let children = self.tasks.iter().filter(|(_, task)| task.parent == Some(id) && !task.is_settled);
        children.flat_map(|(child, _)| [*child].into_iter().chain(self.descendants(*child))).collect()
    }

    pub fn stop_descendants(&mut self, id: u64) {
        self.of_attempt(id).into_iter().for_each(|id| self.stop(id, 2));
    }

    /// A task fails that was cancelled, or whose group is gone.
    pub fn fail_stopped(&mut self, id: u64) {
        match self.group_is_gone(self.tasks[&id].strategy) {
            true => self.fail_of_group(id),
            false => self.fail(id, Code::Cancelled),
        }
    }

    pub fn stop(&mut self, id: u64, how: u8) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        match task.worker {
            _ if task.has_ended => self.drop_lineage(id),
            None => self.fail_stopped(id),
            Some(worker) => {
                if task.stop == 0 {
                    match task.work {
                        Work::Method(_) => self.step.withdrawn.insert((worker, id)),
                        _ => self.step.interrupted.insert((worker, id)),
                    };
                }
                task.stop = task.stop.max(how);
            }
        }
    }

    pub fn fail(&mut self, id: u64, code: Code) {
        self.step.failed.entry(id).or_default().push(code);
    }

    pub fn end(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        assert!(!task.has_ended, "task {id} ends twice");
        task.has_ended = true;
        task.worker = None;
        self.step.ended.insert(id);
        if matches!(task.work, Work::Actor(_)) {
            self.calls(id).into_iter().for_each(|call| self.fail(call, Code::ActorDied));
            self.actors.get_mut(&id).expect("it was made").saved = None;
        }
        let task = &self.tasks[&id];
        if self.jobs[&task.job].first == Some(id) {
            self.step.jobs_done.insert(task.job);
        }
    }

    pub fn end_job(&mut self, id: u32) {
        if self.jobs.remove(&id).is_none() {
            return;
        }
        for (number, task) in self.tasks.iter().filter(|(_, task)| task.job == id) {
            if let Some(worker) = task.worker
                && task.stop == 0
            {
                match task.work {
                    Work::Method(_) => self.step.withdrawn.insert((worker, *number)),
                    _ => self.step.interrupted.insert((worker, *number)),
                };
            }
        }
        let all = self.workers.values_mut().flat_map(|worker| worker.given.iter_mut().chain(&mut worker.residents));
        for given in all {
            given.is_ghost |= self.tasks.get(&given.task).is_some_and(|task| task.job == id);
        }
        self.end_groups(id);
        self.actors.retain(|actor, _| self.tasks[actor].job != id);
        self.lent.retain(|_, lent| lent.job != id);
        self.streams.retain(|generator, _| self.tasks[generator].job != id);
        self.tasks.retain(|_, task| task.job != id);
        for (number, object) in self.objects.iter().filter(|(_, object)| object.job == id) {
            self.step.returned.extend(object.is_borrowed.then_some(*number));
            if let Value::Ready(value, _) = object.value {
                self.step.dropped.insert(value);
            }
        }
        self.objects.retain(|_, object| object.job != id);
    }
}
