//! Task records, and the transitions between task states.

use std::sync::Arc;

use sandbar_core::{Fault, TaskError, TaskId, WorkerId};

use crate::event::Action;
use crate::records::keys::TaskKey;
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Cancellation, FinalState, TaskPhase};
use crate::scheduler::Scheduler;

/// Maximum number of task names in an error: the first and the last ones of the chain.
const CHAIN_MAX: usize = 64;

impl<C, V> Scheduler<C, V> {
    /// Queues a task whose dependencies all have values.
    pub(crate) fn enqueue(&mut self, at: TaskKey) {
        if let Some(actor) = self.tasks[at].actor {
            return self.enqueue_of_actor(at, actor);
        }
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Queued;
        let job_at = task.job;
        let job = &self.jobs[job_at];
        if job.first == Some(at) {
            if job.driver.is_some() {
                self.jobs.insert_starting(job_at);
                self.work.needs_dispatch = true;
            }
            return;
        }
        let shape = self.shape_for_queue(at);
        let task = &self.tasks[at];
        let class = self.classes.get(task.class);
        let level = class.level(task.depth);
        self.queue.shape_mut(shape).nanos = class.nanos().unwrap_or(self.options.window_nanos);
        let is_first = self.queue.push(&mut self.tasks, at, shape, level);
        // Tasks with a preferred node move to other nodes when their queue is long.
        let has_preferred_node = self.queue.shape(shape).preferred_node.is_some();
        self.work.needs_dispatch |= is_first || has_preferred_node || self.needs_worker(shape);
        if !self.is_feasible(shape) {
            self.work.add(WorkItem::Fail(at, self.infeasible(at, shape)));
        } else {
            self.work.add_ready(level, at);
        }
    }

    /// Whether a task is a lease.
    pub(crate) fn is_lease(&self, at: TaskKey) -> bool {
        self.queue.shape(self.classes.get(self.tasks[at].class).spec.shape).is_lease
    }

    /// Takes a queued task out of its queue.
    pub(crate) fn dequeue(&mut self, at: TaskKey) {
        if let Some(actor) = self.tasks[at].actor {
            return self.dequeue_of_actor(at, actor);
        }
        self.work.needs_dispatch = true;
        let task = &self.tasks[at];
        if self.jobs[task.job].first == Some(at) {
            return self.jobs.remove_starting(task.job);
        }
        let level = self.classes.get(task.class).level(task.depth);
        let shape = self.shape_of(at);
        self.queue.remove(&mut self.tasks, at, shape, level);
        self.release_locality_shape(at);
    }

    /// Records that a task waits for objects in its worker, or continues.
    pub(crate) fn block(&mut self, id: TaskId, worker: WorkerId, is_blocked: bool) {
        let Some(at) = self.cluster.workers.find(worker) else { return };
        if let Some(task) = self.ids.find_task(id).filter(|task| self.is_method(*task)) {
            let task = &mut self.tasks[task];
            if task.worker == Some(at) {
                task.state = if is_blocked { TaskPhase::Blocked } else { TaskPhase::Assigned };
            }
            return;
        }
        let place = if is_blocked { self.cluster.position(at, id) } else { self.cluster.position_blocked(at, id) };
        let Some(place) = place else { return };
        let (task, state) = if is_blocked {
            (self.cluster.block(at, place, &self.queue), TaskPhase::Blocked)
        } else {
            (self.cluster.unblock(at, place, &self.queue), TaskPhase::Assigned)
        };
        if let Some(task) = task {
            self.tasks[task].state = state;
        }
        self.assignments_changed(at);
    }

    /// Handles a failed attempt of a task that is in no worker. `may_help` is set if a retry may help.
    pub(crate) fn fail_attempt(&mut self, at: TaskKey, error: Arc<TaskError>, may_help: bool) {
        if let Some(actor) = self.created_by(at) {
            return self.fail_actor(actor, at, error, may_help);
        }
        let task = &mut self.tasks[at];
        let class = self.classes.get(task.class);
        if task.cancellation != Cancellation::None {
            let error = self.error(at, self.cancellation_fault(at));
            let end = FinalState::from_error(&error);
            self.finish_with_error(at, error, end);
        } else if may_help && task.retries() < class.spec.retries_max {
            task.attempt.0 += 1;
            self.cancel_descendants(at);
            self.ready(at);
        } else {
            let error = self.with_chain(at, error);
            self.finish_with_error(at, error, FinalState::Failed);
        }
    }

    /// Fails a task that is in no worker, if it has not finished.
    pub(crate) fn fail(&mut self, at: TaskKey, error: Arc<TaskError>) {
        let Some(task) = self.tasks.get(at) else { return };
        let end = FinalState::from_error(&error);
        match task.state {
            TaskPhase::Waiting => self.finish_with_error(at, error, end),
            TaskPhase::Queued => {
                self.dequeue(at);
                self.finish_with_error(at, error, end);
            }
            TaskPhase::Assigned | TaskPhase::Blocked | TaskPhase::HostsActor | TaskPhase::Finished(_) => {}
        }
    }

    /// Finishes a task that is in no queue and no worker with an error, which becomes the error of its returns.
    pub(crate) fn finish_with_error(&mut self, at: TaskKey, error: Arc<TaskError>, end: FinalState) {
        if let Some(actor) = self.created_by(at) {
            return self.end_actor(actor, at, &error, end);
        }
        for index in 0..self.tasks[at].returns {
            if let Some(object) = self.pending_return(at, index) {
                self.set_failed(object, &error);
            }
        }
        self.drop_lineage(at);
        self.finish_task(at, end, Err(error));
    }

    /// Finishes a task. It runs again only if one of its returns is lost.
    pub(crate) fn finish_task(&mut self, at: TaskKey, end: FinalState, result: Result<(), Arc<TaskError>>) {
        let task = &mut self.tasks[at];
        task.state = TaskPhase::Finished(end);
        if task.lineage.is_none() {
            task.call = None;
        }
        task.worker = None;
        let call_bytes = std::mem::take(&mut task.call_bytes);
        let links = task.links.take();
        let (id, job_at, class, actor, rerun) = (task.id, task.job, task.class, task.actor, task.is_rerun);
        self.tasks.remove_later(at);
        self.count(job_at, |usage| {
            usage.tasks -= 1;
            usage.call_bytes -= u64::from(call_bytes);
        });
        let job = &self.jobs[job_at];
        self.classes.get_mut(class).live -= 1;
        let error = result.as_ref().err().cloned();
        self.work.act(Action::TaskFinished { task: id, job: job.id, error, rerun });
        if job.first == Some(at) {
            self.work.act(Action::JobDone { job: job.id, result });
        }
        if let Some(links) = links {
            links.dependencies.iter().chain(&links.refs).for_each(|object| self.unpin(*object));
        }
        if let Some(actor) = actor {
            self.actor_task_finished(at, actor);
        }
        self.end_groups_of_task(at);
    }

    /// Returns an error with the names of the task and its ancestors.
    pub(crate) fn error(&self, at: TaskKey, fault: Fault) -> Arc<TaskError> {
        Arc::new(TaskError { fault, chain: self.chain(Some(at)) })
    }

    pub(crate) fn with_chain(&self, at: TaskKey, error: Arc<TaskError>) -> Arc<TaskError> {
        if error.chain.is_empty() { self.error(at, error.fault.clone()) } else { error }
    }

    /// Returns the names of the known ancestors of a task, from the job's root task down to the task itself.
    pub(crate) fn chain(&self, from: Option<TaskKey>) -> Vec<String> {
        let parent = |at: &TaskKey| self.tasks[*at].parent;
        let name = |at: TaskKey| self.classes.get(self.tasks[at].class).spec.name.as_ref().to_owned();
        let all: Vec<TaskKey> = std::iter::successors(from, parent).collect();
        let mut names: Vec<String> = if all.len() <= CHAIN_MAX {
            all.into_iter().map(name).collect()
        } else {
            let half = CHAIN_MAX / 2;
            let left_out = format!("({} more)", all.len() - 2 * half);
            let (last, first) = (&all[..half], &all[all.len() - half..]);
            last.iter().copied().map(name).chain([left_out]).chain(first.iter().copied().map(name)).collect()
        };
        names.reverse();
        names
    }
}
