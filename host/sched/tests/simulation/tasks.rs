//! The model's tasks, from submission to finish, with their jobs and workers.

use sandbar_core::{Code, ObjectId, Strategy, TaskId, TenantId};
use sandbar_sched::{Outcome, ParentRef, Submission, SubmissionKind, WorkerKind};

use crate::model::{Actor, AssignedTask, Model, Task, Value, Worker, is_cpu_only};

impl Task {
    /// A task without references.
    pub fn new(task: &Submission<u64>, tenant: TenantId, number: u64, depth: u32) -> Task {
        Task {
            job: task.job.0,
            tenant,
            parent: task.parent.map(|parent| parent.task.0),
            demand: task.demand.clone(),
            strategy: task.strategy,
            priority: task.priority,
            depth,
            number,
            returns: task.returns,
            links: Vec::new(),
            dependencies: Vec::new(),
            retries_max: task.retries_max,
            retry_on: task.retry_on,
            attempt: 0,
            uncounted: 0,
            worker: None,
            cancellation: 0,
            has_finished: false,
            kind: task.kind.clone(),
            is_blocked: false,
            lineage: None,
            is_committed: false,
            is_queued: false,
        }
    }
}

impl Model {
    /// Handles a submission. Returns whether it added a task.
    pub fn submit(&mut self, task: &Submission<u64>, mut may: bool) -> bool {
        let Some(job) = self.jobs.get(&task.job.0) else { return false };
        let returns = u64::from(task.returns);
        if (task.id.0..task.id.0 + returns).any(|number| self.is_known(number)) || returns == 0 {
            return false;
        }
        let (mut depth, mut cancellation, mut holder) = (1, 0, None);
        match task.parent {
            None if job.first.is_some() && task.kind != SubmissionKind::Lease => return false,
            None if task.strategy != Strategy::Default => may = false,
            None => {}
            Some(ParentRef { task: parent, attempt, worker }) => {
                let Some(parent) = self.running(worker, parent) else { return false };
                if parent.attempt != attempt.0 || parent.job != task.job.0 {
                    return false;
                }
                (depth, cancellation, holder) =
                    (parent.depth + 1 + task.remote_depth, parent.cancellation, Some(worker.0));
            }
        }
        let live = self.tasks.values().filter(|other| other.job == task.job.0 && !other.has_finished).count() as u64;
        let is_over = depth > job.limits.depth_max
            || live + 1 > job.limits.tasks_max
            || self.job_objects(task.job.0) + returns > job.limits.objects_max;
        let is_over = is_over && task.kind != SubmissionKind::Lease;
        let links: Vec<ObjectId> = task.dependencies.iter().chain(&task.refs).copied().collect();
        let may = may && self.is_kind_valid(task) && self.is_placement_valid(task);
        let is_bad = !may || is_over || cancellation == 2 || !self.of_job(task.job.0, &links);
        let value = if is_bad { Value::Failed } else { Value::Pending };
        (task.id.0..task.id.0 + returns).for_each(|id| self.create(id, task.job.0, value.clone(), holder));
        let job = self.jobs.get_mut(&task.job.0).expect("it was found");
        if task.parent.is_none() && task.kind != SubmissionKind::Lease {
            job.first = Some(task.id.0);
            if is_bad {
                self.step.jobs_done.insert(task.job.0);
            }
        }
        if is_bad {
            return false;
        }
        let group = self.pending_group(task.strategy).map(ObjectId);
        let record = Task {
            links: links.iter().chain(&group).map(|id| id.0).collect(),
            dependencies: task.dependencies.iter().chain(&group).map(|id| id.0).collect(),
            ..Task::new(task, self.jobs[&task.job.0].tenant, self.next_number(), depth)
        };
        self.tasks.insert(task.id.0, record);
        if let SubmissionKind::ActorCreation(spec) = &task.kind {
            let actor = Actor { restarts_max: spec.restarts_max, calls_max: spec.calls_max, checkpoint: None };
            self.actors.insert(task.id.0, actor);
        }
        self.add_stream(task, holder);
        true
    }

    /// Whether the actor part of a submission is valid.
    pub fn is_kind_valid(&self, task: &Submission<u64>) -> bool {
        match &task.kind {
            SubmissionKind::Function => true,
            SubmissionKind::Lease => {
                let is_bare = task.dependencies.is_empty() && task.refs.is_empty();
                task.parent.is_none() && task.strategy == Strategy::Default && is_bare
            }
            SubmissionKind::Generator(_) => task.parent.is_some(),
            SubmissionKind::ActorCreation(_) => task.parent.is_some() && task.returns == 1,
            SubmissionKind::Method(actor) if self.borrowed_actors.contains_key(&actor.0) => {
                let borrowed = &self.borrowed_actors[&actor.0];
                task.parent.is_some() && borrowed.job == task.job.0 && borrowed.owner.is_some()
            }
            SubmissionKind::Method(actor) => {
                let is_alive =
                    self.tasks.get(&actor.0).is_some_and(|creator| !creator.has_finished && creator.job == task.job.0);
                let has_room = self
                    .actors
                    .get(&actor.0)
                    .is_some_and(|record| (self.calls(actor.0).len() as u64) < record.calls_max);
                task.parent.is_some() && is_alive && has_room && self.objects.contains_key(&actor.0)
            }
        }
    }

    pub fn started_inline(&mut self, task: &Submission<u64>, worker: u32) {
        if task.parent.is_none_or(|parent| parent.worker.0 != worker) {
            return;
        }
        let known = self.objects.len();
        let is_usual = task.kind == SubmissionKind::Function && task.strategy == Strategy::Default;
        if self.submit(task, is_cpu_only(&task.demand) && is_usual) {
            let (id, demand, strategy) = (task.id.0, task.demand.clone(), task.strategy);
            let assigned = AssignedTask {
                task: id,
                tenant: self.tasks[&id].tenant,
                attempt: 0,
                demand,
                strategy,
                bundle: None,
                is_blocked: false,
                is_ghost: false,
            };
            self.workers.get_mut(&worker).expect("it has the parent").assigned.push(assigned);
            self.tasks.get_mut(&id).expect("it was added").worker = Some(worker);
        } else if self.objects.len() > known {
            self.step.interrupted.insert((worker, task.id.0));
        }
    }

    /// Handles the result of an attempt that is in no worker any more. A final failure is not retried.
    pub fn finish(&mut self, id: u64, outcome: &Outcome<u64>, is_final: bool) {
        let task = self.tasks.get_mut(&id).expect("the owner knows the task");
        (task.worker, task.is_blocked) = (None, false);
        let (job, cancellation, returns, retry_on) =
            (task.job, task.cancellation, task.returns as usize, task.retry_on);
        match outcome {
            Outcome::Succeeded(values) => {
                let are_good = values.iter().all(|(_, refs)| self.of_job(job, refs));
                if cancellation == 0 && values.len() == returns && are_good {
                    self.values.commit(id, self.tasks[&id].attempt);
                    self.keep_lineage(id, values.iter().map(|(value, _)| *value));
                    for ((value, refs), id) in values.iter().zip(id..) {
                        self.values.add([*value]);
                        let contents = refs.iter().map(|id| id.0).collect();
                        match self.objects.get_mut(&id).filter(|object| object.value == Value::Pending) {
                            Some(object) => object.value = Value::Ready(*value, contents),
                            // The object had its value, or nothing refers to it.
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

    /// Handles a failed attempt. `may_help` is set if a retry may help.
    pub fn fail_attempt(&mut self, id: u64, code: Code, may_help: bool) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        (task.worker, task.is_blocked) = (None, false);
        let retries_max = self.actors.get(&id).map_or(task.retries_max, |actor| actor.restarts_max);
        if task.cancellation > 0 {
            self.fail_cancelled(id);
        } else if may_help && task.retries() < retries_max {
            task.attempt += 1;
            self.cancel_descendants(id);
        } else {
            self.fail(id, code);
        }
    }

    pub fn requeue(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        task.worker = None;
        if task.cancellation > 0 {
            self.fail_cancelled(id);
        } else {
            self.cancel_descendants(id);
        }
    }

    pub fn lose(&mut self, ids: Vec<u32>, started: Option<&[TaskId]>, culprit: Option<TaskId>) {
        let workers: Vec<Worker> = ids.iter().filter_map(|id| self.workers.remove(id)).collect();
        for object in self.objects.values_mut() {
            object.holds.retain(|worker, _| !ids.contains(worker));
            object.wants.retain(|worker, _| !ids.contains(worker));
        }
        for job in self.jobs.values_mut() {
            job.driver = job.driver.filter(|driver| !ids.contains(driver));
        }
        let actors = workers.iter().flat_map(|worker| &worker.actors);
        let makers: Vec<u64> = actors.filter(|assigned| !assigned.is_ghost).map(|assigned| assigned.task).collect();
        let all = workers.iter().flat_map(|worker| worker.assigned.iter().map(|assigned| (assigned, worker.kind)));
        let lost: Vec<(&AssignedTask, WorkerKind)> = all.filter(|(assigned, _)| !assigned.is_ghost).collect();
        for (assigned, _) in &lost {
            self.tasks.get_mut(&assigned.task).expect("it is known").worker = None;
        }
        let calls: Vec<Vec<u64>> = makers.iter().map(|creator| self.take_calls(*creator)).collect();
        let borrowed = self.take_borrowed_actors(&ids);
        for (assigned, kind) in lost {
            let has_started = started.is_none_or(|started| started.contains(&TaskId(assigned.task)));
            let has_children = self.has_kept_child(assigned.task);
            // Proxy workers are assigned creation tasks only.
            let is_proxy_task = kind == WorkerKind::PeerProxy && !self.actors.contains_key(&assigned.task);
            if has_started || assigned.is_blocked || has_children || is_proxy_task {
                self.excuse(assigned.task, culprit);
                self.cancel_descendants(assigned.task);
                self.fail_attempt(assigned.task, Code::WorkerLost, true);
            } else {
                self.requeue(assigned.task);
            }
        }
        for (creator, calls) in makers.into_iter().zip(calls) {
            let has_started = |call: u64| started.is_none_or(|started| started.contains(&TaskId(call)));
            self.excuse(creator, culprit);
            for call in &calls {
                if has_started(*call) || self.has_kept_child(*call) {
                    self.excuse(*call, culprit);
                }
            }
            self.lose_actor(creator, calls, &has_started, true);
        }
        borrowed.into_iter().for_each(|(actor, calls)| self.lose_borrowed_actor(actor, calls));
    }

    /// Does not count an attempt that is lost because of another task.
    fn excuse(&mut self, id: u64, culprit: Option<TaskId>) {
        let is_innocent = culprit.is_some_and(|culprit| culprit.0 != id);
        self.tasks.get_mut(&id).expect("it is known").uncounted += u32::from(is_innocent);
    }

    /// Whether the scheduler still has a record of a descendant of the current attempt.
    pub fn has_kept_child(&self, id: u64) -> bool {
        let is_kept = |id: &u64| {
            let task = &self.tasks[id];
            !task.has_finished
                || task.lineage.is_some()
                || self.step.ended.contains(id)
                || self.step.dropped_lineage.contains(id)
        };
        self.attempt_descendants(id).iter().any(is_kept)
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

    /// Returns the descendants that the current attempt submitted.
    pub fn attempt_descendants(&self, id: u64) -> Vec<u64> {
        let children = self.tasks.iter().filter(|(_, task)| task.parent == Some(id) && !task.is_committed);
        children.flat_map(|(child, _)| [*child].into_iter().chain(self.descendants(*child))).collect()
    }

    pub fn cancel_descendants(&mut self, id: u64) {
        self.attempt_descendants(id).into_iter().for_each(|id| self.cancel_task(id, 2));
    }

    /// Fails a cancelled task, or one whose group was removed.
    pub fn fail_cancelled(&mut self, id: u64) {
        match self.group_is_removed(self.tasks[&id].strategy) {
            true => self.fail_of_group(id),
            false => self.fail(id, Code::Cancelled),
        }
    }

    pub fn cancel_task(&mut self, id: u64, cancellation: u8) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        match task.worker {
            _ if task.has_finished => self.drop_lineage(id),
            None => self.fail_cancelled(id),
            Some(worker) => {
                if task.cancellation == 0 {
                    match task.kind {
                        SubmissionKind::Method(_) => self.step.withdrawn.insert((worker, id)),
                        _ => self.step.interrupted.insert((worker, id)),
                    };
                }
                task.cancellation = task.cancellation.max(cancellation);
            }
        }
    }

    pub fn fail(&mut self, id: u64, code: Code) {
        self.step.failed.entry(id).or_default().push(code);
    }

    pub fn end(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        assert!(!task.has_finished, "task {id} ends twice");
        task.has_finished = true;
        task.worker = None;
        self.step.ended.insert(id);
        if matches!(task.kind, SubmissionKind::ActorCreation(_)) {
            self.calls(id).into_iter().for_each(|call| self.fail(call, Code::ActorDied));
            self.actors.get_mut(&id).expect("the actor exists").checkpoint = None;
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
                && task.cancellation == 0
            {
                match task.kind {
                    SubmissionKind::Method(_) => self.step.withdrawn.insert((worker, *number)),
                    _ => self.step.interrupted.insert((worker, *number)),
                };
            }
        }
        let all = self.workers.values_mut().flat_map(|worker| worker.assigned.iter_mut().chain(&mut worker.actors));
        for assigned in all {
            assigned.is_ghost |= self.tasks.get(&assigned.task).is_some_and(|task| task.job == id);
        }
        self.end_groups(id);
        self.actors.retain(|actor, _| self.tasks[actor].job != id);
        self.borrowed_actors.retain(|_, borrowed| borrowed.job != id);
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
