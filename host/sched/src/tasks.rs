//! Tasks: what is kept of each, and how they go from one state to the next.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, TaskError, TaskId};

use crate::classes::Class;
use crate::event::Action;
use crate::lineage::Lineage;
use crate::places::{ActorAt, ClassAt, JobAt, ObjectAt, ShapeAt, TaskAt, WorkerAt};
use crate::queue::Level;
use crate::scheduler::Scheduler;

/// An error names so many tasks at most: the first and the last of its chain.
const CHAIN_MAX: usize = 64;

/// A task. There may be millions: what tasks have in common is in their class, what few have is in a box.
#[derive(Debug)]
pub(crate) struct Task<C> {
    pub(crate) id: TaskId,
    /// In the order of submission. No two tasks have the same.
    pub(crate) number: u64,
    pub(crate) links: Option<Box<Links>>,
    /// Of one that has ended, or had and was begun again.
    pub(crate) lineage: Option<Box<Lineage>>,
    /// None once it has ended, unless it is kept to make again what it returned.
    pub(crate) call: Option<C>,
    pub(crate) class: ClassAt,
    pub(crate) job: JobAt,
    /// Who submitted it.
    pub(crate) parent: Option<TaskAt>,
    /// The last that it submitted, of those that are kept.
    pub(crate) child: Option<TaskAt>,
    /// Others of its parent, submitted before and after.
    pub(crate) older: Option<TaskAt>,
    pub(crate) younger: Option<TaskAt>,
    /// Its neighbours in line.
    pub(crate) ahead: Option<TaskAt>,
    pub(crate) behind: Option<TaskAt>,
    /// Its shape, where that is another than its class's: it is to be near to what it needs.
    pub(crate) near: Option<ShapeAt>,
    /// Who was given it.
    pub(crate) worker: Option<WorkerAt>,
    /// The actor that it makes, or whose method it calls.
    pub(crate) actor: Option<ActorAt>,
    pub(crate) attempt: Attempt,
    /// 1 of a job's first task.
    pub(crate) depth: u32,
    /// How many of its needs are not there yet.
    pub(crate) missing: u32,
    pub(crate) returns: u32,
    /// What it counts for among its job's bytes of calls, until it ends.
    pub(crate) call_bytes: u32,
    pub(crate) state: State,
    pub(crate) stop: Stop,
    /// It stands in line beside those that came in order.
    pub(crate) is_late: bool,
    /// A call that waits for earlier ones of its caller.
    pub(crate) is_gated: bool,
    /// Submitted by an attempt of its parent that has succeeded.
    pub(crate) is_settled: bool,
    /// Begun again after it had succeeded.
    pub(crate) is_again: bool,
}

/// Objects that a task refers to.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) needs: Box<[ObjectAt]>,
    pub(crate) refs: Box<[ObjectAt]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// For its needs.
    Waiting,
    /// For a worker.
    Queued,
    /// In a worker.
    Given,
    /// In a worker, and waits for objects there.
    Blocked,
    /// In a worker, as the actor that it made.
    Resident,
    Ended(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    Failed,
    Stopped,
}

/// Whether a task in a worker was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    Alone,
    /// What it submits from now on is cancelled as well.
    WithChildren,
}

impl<C> Task<C> {
    pub(crate) fn level(&self, class: &Class) -> Level {
        Level::new(class.kind.priority, self.depth)
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }
}

impl<C, V> Scheduler<C, V> {
    /// A task has what it needs.
    pub(crate) fn enqueue(&mut self, at: TaskAt) {
        if let Some(actor) = self.tasks[at].actor {
            return self.enqueue_of_actor(at, actor);
        }
        let task = &mut self.tasks[at];
        task.state = State::Queued;
        let job = &mut self.jobs[task.job];
        if job.first == Some(at) {
            if job.driver.is_some() {
                self.starting.insert(job.id);
                self.is_stale = true;
            }
            return;
        }
        let shape = self.shape_in_line(at);
        let task = &self.tasks[at];
        let class = self.classes.get(task.class);
        let level = task.level(class);
        self.queue.shape_mut(shape).nanos = class.nanos().unwrap_or(self.options.window_nanos);
        let is_first = self.queue.push(&mut self.tasks, at, shape, level);
        // Of a line that is long some go elsewhere.
        self.is_stale |= is_first || self.queue.shape(shape).near.is_some();
        if !self.is_feasible(shape) {
            self.failing.push((at, self.infeasible(at, shape)));
        } else if self.newest.is_none_or(|(newest, _)| level < newest) {
            self.newest = Some((level, at));
        }
    }

    /// Takes a task out of whatever line it stands in.
    pub(crate) fn dequeue(&mut self, at: TaskAt) {
        if let Some(actor) = self.tasks[at].actor {
            return self.dequeue_of_actor(at, actor);
        }
        self.is_stale = true;
        let task = &self.tasks[at];
        let job = &self.jobs[task.job];
        if job.first == Some(at) {
            self.starting.remove(&job.id);
            return;
        }
        let level = task.level(self.classes.get(task.class));
        let shape = self.shape_of(at);
        self.queue.remove(&mut self.tasks, at, shape, level);
        self.left_line(at);
    }

    /// An attempt, which is in no worker any more, came to nothing. It is begun again if that `may_help`.
    pub(crate) fn fail_attempt(&mut self, at: TaskAt, error: Arc<TaskError>, may_help: bool) {
        if let Some(actor) = self.made_by(at) {
            return self.fail_actor(actor, at, error, may_help);
        }
        let task = &mut self.tasks[at];
        let class = self.classes.get(task.class);
        if task.stop != Stop::No {
            let error = self.error(at, self.stopped(at));
            let end = end_of(&error);
            self.end_failed(at, error, end);
        } else if may_help && task.attempt.0 < class.kind.retries_max {
            task.attempt.0 += 1;
            self.stop_descendants(at);
            self.ready(at);
        } else {
            let error = self.with_chain(at, error);
            self.end_failed(at, error, End::Failed);
        }
    }

    /// A task that is in no worker fails for good, if it has not ended before.
    pub(crate) fn fail(&mut self, at: TaskAt, error: Arc<TaskError>) {
        let Some(task) = self.tasks.get(at) else { return };
        let end = end_of(&error);
        match task.state {
            State::Waiting => self.end_failed(at, error, end),
            State::Queued => {
                self.dequeue(at);
                self.end_failed(at, error, end);
            }
            State::Given | State::Blocked | State::Resident | State::Ended(_) => {}
        }
    }

    /// Ends a task that stands in no line and in no worker: none of its returns has a value.
    pub(crate) fn end_failed(&mut self, at: TaskAt, error: Arc<TaskError>, end: End) {
        if let Some(actor) = self.made_by(at) {
            return self.end_actor(actor, at, &error, end);
        }
        for index in 0..self.tasks[at].returns {
            if let Some(object) = self.pending_return(at, index) {
                self.set_failed(object, &error);
            }
        }
        self.drop_lineage(at);
        self.end(at, end, Err(error));
    }

    /// A task has ended, for good but for what is lost of what it returned.
    pub(crate) fn end(&mut self, at: TaskAt, end: End, result: Result<(), Arc<TaskError>>) {
        let task = &mut self.tasks[at];
        task.state = State::Ended(end);
        if task.lineage.is_none() {
            task.call = None;
        }
        task.worker = None;
        let call_bytes = std::mem::take(&mut task.call_bytes);
        let links = task.links.take();
        let (id, job_at, class, actor, again) = (task.id, task.job, task.class, task.actor, task.is_again);
        self.ended.push((at, id));
        let job = &mut self.jobs[job_at];
        job.tasks -= 1;
        job.call_bytes -= u64::from(call_bytes);
        self.classes.get_mut(class).live -= 1;
        let error = result.as_ref().err().cloned();
        self.out.push(Action::Ended { task: id, job: job.id, error, again });
        if job.first == Some(at) {
            self.out.push(Action::JobDone { job: job.id, result });
        }
        if let Some(links) = links {
            links.needs.iter().chain(&links.refs).for_each(|object| self.unpin(*object));
        }
        if let Some(actor) = actor {
            self.ended_of_actor(at, actor);
        }
        self.end_kept_groups(at);
    }

    /// An error of a task, with the names of those on behalf of which it was begun.
    pub(crate) fn error(&self, at: TaskAt, fault: Fault) -> Arc<TaskError> {
        Arc::new(TaskError { fault, chain: self.chain(Some(at)) })
    }

    pub(crate) fn with_chain(&self, at: TaskAt, error: Arc<TaskError>) -> Arc<TaskError> {
        if error.chain.is_empty() { self.error(at, error.fault.clone()) } else { error }
    }

    /// Names of tasks from the job's first one down to this, of those that are known.
    pub(crate) fn chain(&self, from: Option<TaskAt>) -> Vec<String> {
        let parent = |at: &TaskAt| self.tasks[*at].parent;
        let name = |at: TaskAt| self.classes.get(self.tasks[at].class).kind.name.as_ref().to_owned();
        let all: Vec<TaskAt> = std::iter::successors(from, parent).collect();
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

/// How a task ends with an error.
pub(crate) fn end_of(error: &TaskError) -> End {
    if error.fault.code == Code::Cancelled { End::Stopped } else { End::Failed }
}

/// Why a task has no results that was cancelled.
pub(crate) fn cancelled() -> Fault {
    Fault::new(Code::Cancelled, "it was cancelled")
}
