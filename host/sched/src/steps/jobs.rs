//! Jobs: the unit of limits, ownership and removal of tasks, objects and groups.

use sandbar_core::{JobId, TenantId};

use crate::event::{Action, JobLimits};
use crate::records::jobs::Job;
use crate::records::keys::{JobKey, ObjectKey, WorkerKey};
use crate::records::lineage::Source;
use crate::records::object::ObjectOutcome;
use crate::records::tasks::{Cancellation, TaskPhase};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn start_job(&mut self, id: JobId, tenant: TenantId, limits: JobLimits) {
        if self.jobs.find(id).is_none() {
            let tenant = self.cluster.tenants.get_or_insert(tenant);
            self.jobs.insert(Job::new(id, tenant, limits));
        }
    }

    /// Registers the driver worker of a job.
    pub(crate) fn add_driver(&mut self, job: JobId, worker: WorkerKey) {
        let Some(at) = self.jobs.find(job) else { return };
        let record = &mut self.jobs[at];
        if record.driver.is_some() {
            return;
        }
        record.driver = Some(worker);
        if record.first.is_some_and(|first| self.tasks[first].state == TaskPhase::Queued) {
            self.jobs.insert_starting(at);
            self.work.needs_dispatch = true;
        }
    }

    /// Removes all state of a job, except the resources of tasks that still run in workers.
    pub(crate) fn end_job(&mut self, id: JobId) {
        let Some(at) = self.jobs.remove_id(id) else { return };
        let actors = self.actors_of(at);
        self.end_tasks(at);
        self.end_groups(at);
        self.end_objects(at);
        actors.into_iter().for_each(|id| self.forget_if_unused(id));
        if let Some(job) = self.jobs.remove(at) {
            self.cluster.tenants.count(job.tenant, |usage| usage.subtract(&job.usage));
            self.classes.forget(&mut self.queue, job.classes);
        }
        self.tasks.shrink();
        self.objects.shrink();
        self.queue.shrink();
        self.ids.shrink();
    }

    fn end_tasks(&mut self, job: JobKey) {
        let last = self.jobs[job].child.take();
        let tasks = self.tasks.descendants(last, |_| true);
        let mut workers: Vec<WorkerKey> = Vec::new();
        for at in &tasks {
            let task = &self.tasks[*at];
            if self.is_method(*at) {
                self.forget_call(*at);
            } else if let Some(worker) = task.worker {
                workers.push(worker);
                if task.cancellation == Cancellation::None {
                    let worker = self.cluster.workers[worker].id;
                    self.work.act(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
                }
            } else if task.state == TaskPhase::Queued {
                self.dequeue(*at);
            }
        }
        workers.sort_unstable();
        workers.dedup();
        for worker in workers {
            let worker = &mut self.cluster.workers[worker];
            for assigned in worker.assigned.iter_mut().chain(&mut worker.blocked).chain(worker.actors.values_mut()) {
                assigned.task = assigned.task.filter(|task| self.tasks[*task].job != job);
            }
        }
        for at in tasks {
            let links = self.tasks[at].links.take();
            let linked = links.iter().flat_map(|links| links.dependencies.iter().chain(&links.refs));
            linked.for_each(|object| self.unpin_if_foreign(*object, job));
            let lineage = self.tasks[at].lineage.take();
            for source in lineage.iter().flat_map(|lineage| lineage.dependencies.iter().chain(&lineage.refs)) {
                if let Source::Kept(object) = source {
                    self.unpin_if_foreign(*object, job);
                }
            }
            if let Some(actor) = self.created_by(at) {
                self.orphan(actor);
            }
            self.remove_task(at);
        }
    }

    fn end_objects(&mut self, job: JobKey) {
        let mut next = self.jobs[job].objects_first.take();
        while let Some(object) = next.and_then(|at| self.objects.remove(at)) {
            next = object.after;
            self.ids.remove_object(object.id);
            object.contents().iter().for_each(|content| self.unpin_if_foreign(*content, job));
            for holder in object.holders() {
                if let Some(holder) = self.cluster.workers.find(holder.worker) {
                    self.cluster.workers[holder].held_objects.count -= 1;
                }
            }
            if object.is_borrowed() {
                self.work.act(Action::ReleaseBorrow { object: object.id });
            }
            if let ObjectOutcome::Ready(value) = object.value {
                self.work.act(Action::Drop { object: object.id, value });
            }
        }
    }

    /// Unpins an object if it is of another job.
    fn unpin_if_foreign(&mut self, object: ObjectKey, job: JobKey) {
        if self.objects.get(object).is_some_and(|object| object.job != job) {
            self.unpin(object);
        }
    }
}
