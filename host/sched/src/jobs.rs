//! Jobs: what belongs together, is limited together and goes together.

use sandbar_core::{JobId, TenantId};

use crate::classes::OfJob;
use crate::event::{Action, JobLimits};
use crate::lineage::{self, Source};
use crate::places::{JobAt, ObjectAt, TaskAt, WorkerAt};
use crate::refs::Value;
use crate::scheduler::Scheduler;
use crate::tasks::{State, Stop};

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) limits: JobLimits,
    /// Its first task, while that is kept.
    pub(crate) first: Option<TaskAt>,
    /// It has had its first task.
    pub(crate) has_begun: bool,
    /// The last of its tasks that is nobody's child, of those that are kept: its first one, and what makes actors that outlive
    /// other jobs.
    pub(crate) child: Option<TaskAt>,
    /// The worker that its first task is for.
    pub(crate) driver: Option<WorkerAt>,
    /// Tasks that have not ended.
    pub(crate) tasks: u64,
    /// Bytes of what these call, but for what makes actors.
    pub(crate) call_bytes: u64,
    /// Tasks that have not been forgotten.
    pub(crate) records: u64,
    pub(crate) objects: u64,
    /// Of the chain through its objects.
    pub(crate) objects_first: Option<ObjectAt>,
    pub(crate) classes: OfJob,
    pub(crate) lineage: lineage::OfJob,
}

impl<C, V> Scheduler<C, V> {
    pub(crate) fn start_job(&mut self, id: JobId, tenant: TenantId, limits: JobLimits) {
        if self.job_ids.contains_key(&id) {
            return;
        }
        let at = self.jobs.insert(Job {
            id,
            tenant,
            limits,
            first: None,
            has_begun: false,
            child: None,
            driver: None,
            tasks: 0,
            call_bytes: 0,
            records: 0,
            objects: 0,
            objects_first: None,
            classes: OfJob::default(),
            lineage: lineage::OfJob::default(),
        });
        self.job_ids.insert(id, at);
    }

    /// Everything of a job goes at once, but for the room that its tasks take of workers.
    pub(crate) fn end_job(&mut self, id: JobId) {
        let Some(at) = self.job_ids.remove(&id) else { return };
        self.starting.remove(&id);
        let actors = self.actors_of(at);
        self.end_tasks(at);
        self.end_groups(at);
        self.end_objects(at);
        actors.into_iter().for_each(|id| self.forget_if_gone(id));
        if let Some(job) = self.jobs.remove(at) {
            self.classes.forget(&mut self.queue, job.classes);
        }
        self.tasks.shrink();
        self.objects.shrink();
        self.queue.shrink();
        if self.ids.len() < self.ids.capacity() / 8 {
            self.ids.shrink_to_fit();
        }
    }

    fn end_tasks(&mut self, job: JobAt) {
        let last = self.jobs[job].child.take();
        let tasks = self.descendants(last, |_| true);
        let mut workers: Vec<WorkerAt> = Vec::new();
        for at in &tasks {
            let task = &self.tasks[*at];
            if self.is_method(*at) {
                self.forget_call(*at);
            } else if let Some(worker) = task.worker {
                workers.push(worker);
                if task.stop == Stop::No {
                    let worker = self.cluster.workers[worker].id;
                    self.out.push(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
                }
            } else if task.state == State::Queued {
                self.dequeue(*at);
            }
        }
        workers.sort_unstable();
        workers.dedup();
        for worker in workers {
            let worker = &mut self.cluster.workers[worker];
            for given in worker.given.iter_mut().chain(&mut worker.blocked).chain(worker.residents.values_mut()) {
                given.task = given.task.filter(|task| self.tasks[*task].job != job);
            }
        }
        for at in tasks {
            let links = self.tasks[at].links.take();
            let linked = links.iter().flat_map(|links| links.needs.iter().chain(&links.refs));
            linked.for_each(|object| self.unpin_of_others(*object, job));
            let lineage = self.tasks[at].lineage.take();
            for source in lineage.iter().flat_map(|lineage| lineage.needs.iter().chain(&lineage.refs)) {
                if let Source::Kept(object) = source {
                    self.unpin_of_others(*object, job);
                }
            }
            if let Some(actor) = self.made_by(at) {
                self.orphan(actor);
            }
            self.remove_task(at);
        }
    }

    fn end_objects(&mut self, job: JobAt) {
        let mut next = self.jobs[job].objects_first.take();
        while let Some(object) = next.and_then(|at| self.objects.remove(at)) {
            next = object.after;
            self.forget_id(object.id.0, |entry| entry.object = None);
            object.contents().iter().for_each(|content| self.unpin_of_others(*content, job));
            for (holder, _) in object.holders() {
                if let Some(holder) = self.cluster.find(holder) {
                    self.cluster.workers[holder].holds.count -= 1;
                }
            }
            if object.is_borrowed() {
                self.out.push(Action::Returned { object: object.id });
            }
            if let Value::Ready(value) = object.value {
                self.out.push(Action::Drop { object: object.id, value });
            }
        }
    }

    /// What an object of another job is not referred to by any more.
    fn unpin_of_others(&mut self, object: ObjectAt, job: JobAt) {
        if self.objects.get(object).is_some_and(|object| object.job != job) {
            self.unpin(object);
        }
    }
}
