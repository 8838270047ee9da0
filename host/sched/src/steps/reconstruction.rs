//! Lost values: their tasks run again, after lost inputs are rebuilt, or the objects get an error.

use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId, TaskError, WorkerId};

use crate::records::keys::{ObjectKey, TaskKey};
use crate::records::lineage::Source;
use crate::records::object::ObjectOutcome;
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Links, TaskPhase};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Handles the loss of an object's value. Each of the `waiters` missed a delivery of it.
    pub(crate) fn lose_object(&mut self, id: ObjectId, waiters: &[WorkerId]) {
        let Some(at) = self.ids.find_object(id) else { return };
        let was_ready = matches!(self.objects[at].value, ObjectOutcome::Ready(_));
        let contents = if was_ready { self.objects[at].take_contents() } else { Box::default() };
        for worker in waiters {
            if self.cluster.workers.find(*worker).is_none() {
                continue;
            }
            // The worker counted as holding the contents since the delivery.
            for content in &contents {
                self.release(self.objects[*content].id, *worker, 1);
            }
            self.objects[at].wait(*worker);
        }
        if was_ready {
            self.lose_value(at);
        } else if self.objects[at].has_waiters() {
            match self.objects[at].is_pending() {
                true => self.fetch_borrowed(at),
                false => self.work.awaited.push(at),
            }
        }
        contents.iter().for_each(|content| self.unpin(*content));
    }

    fn lose_value(&mut self, at: ObjectKey) {
        let object = &mut self.objects[at];
        if let ObjectOutcome::Ready(value) = std::mem::replace(&mut object.value, ObjectOutcome::Pending) {
            let (id, job) = (object.id, object.job);
            self.drop_value(id, job, value);
        }
        if self.objects[at].is_borrowed() {
            return self.refetch_borrowed(at);
        }
        match self.returned_by(&self.objects[at]).filter(|producer| self.tasks[*producer].lineage.is_some()) {
            Some(producer) => self.work.add(WorkItem::Reconstruct(producer)),
            None => {
                let reason = match self.objects[at].index {
                    None => "objects that were put are not reconstructed".to_owned(),
                    Some(_) if self.objects[at].stream().is_some() => "streams are not reconstructed".to_owned(),
                    Some(_) => format!(
                        "its lineage was dropped: its task was cancelled or failed since, or its job's lineage \
                         exceeded {} bytes",
                        self.jobs[self.objects[at].job].limits.lineage_bytes_max
                    ),
                };
                let error = Arc::new(TaskError { fault: lost(self.objects[at].id, &reason), chain: Vec::new() });
                self.set_failed(at, &error);
            }
        }
    }

    /// Runs a finished task again for lost returns. An unfinished task needs no further attempt: several losses cost
    /// one.
    pub(crate) fn reconstruct(&mut self, at: TaskKey) {
        if !self.tasks.get(at).is_some_and(|task| task.has_finished() && task.lineage.is_some()) {
            return;
        }
        if let Err(why) = self.can_reconstruct(at) {
            return self.fail_lost(at, &why);
        }
        let Some(lineage) = self.take_sources(at) else { return };
        let dependencies: Box<[ObjectKey]> =
            lineage.dependencies.iter().filter_map(|source| self.pin_source(source)).collect();
        let refs: Box<[ObjectKey]> = lineage.refs.iter().filter_map(|source| self.pin_source(source)).collect();
        lineage.dependencies.iter().chain(&lineage.refs).for_each(|source| self.release_source(source));
        let task = &mut self.tasks[at];
        if dependencies.len() + refs.len() > 0 {
            task.links = Some(Box::new(Links { dependencies, refs }));
        }
        task.attempt.0 += 1;
        (task.state, task.is_rerun) = (TaskPhase::Waiting, true);
        let (job, class) = (task.job, task.class);
        self.count(job, |usage| usage.tasks += 1);
        self.classes.get_mut(class).live += 1;
        self.count_call(at);
        self.tasks.commit_children(at);
        self.ready(at);
    }

    /// Whether a finished task can run again, or the reason why not.
    fn can_reconstruct(&self, at: TaskKey) -> Result<(), String> {
        let task = &self.tasks[at];
        let retries_max = self.classes.get(task.class).spec.retries_max;
        if task.retries() >= retries_max {
            let times = u64::from(task.attempt.0) + 1;
            return Err(match times {
                1 => "its task has no retries (max_retries 0)".to_owned(),
                _ => format!("its task used all of its {times} attempts (max_retries {retries_max})"),
            });
        }
        if task.call.is_none() {
            return Err("results of actor methods are not reconstructed".to_owned());
        }
        let Some(lineage) = &task.lineage else { return Err("its lineage was dropped".to_owned()) };
        match lineage.dependencies.iter().chain(&lineage.refs).find_map(|source| self.missing(at, source)) {
            Some(missing) => Err(format!("its input, object {missing}, no longer exists")),
            None => Ok(()),
        }
    }

    /// Returns the object of a lineage entry if it cannot be had again.
    fn missing(&self, at: TaskKey, source: &Source) -> Option<ObjectId> {
        let Source::Named(id, producer) = source else { return None };
        let is_there = match self.ids.find_object(*id) {
            Some(object) => {
                let (object, job) = (&self.objects[object], self.tasks[at].job);
                object.job == job || self.is_shared(object, job)
            }
            None => producer.is_some_and(|producer| {
                let task = self.tasks.get_numbered(producer);
                task.is_some_and(|task| task.lineage.is_some())
            }),
        };
        (!is_there).then_some(*id)
    }

    /// Pins the object of a lineage entry. An object that does not exist is created, and its task runs again first.
    fn pin_source(&mut self, source: &Source) -> Option<ObjectKey> {
        let at = match source {
            Source::Kept(object) => *object,
            Source::Named(id, producer) => match (self.ids.find_object(*id), producer) {
                (Some(object), _) => object,
                (None, Some(producer)) => {
                    let producer = producer.task;
                    let task = &self.tasks[producer];
                    let index = (id.0 - task.id.0) as u32;
                    let object = self.create(*id, task.job, Some(index), ObjectOutcome::Pending, None);
                    self.use_lineage(producer);
                    self.work.add(WorkItem::Reconstruct(producer));
                    object
                }
                (None, None) => return None,
            },
        };
        self.pin(at);
        Some(at)
    }

    /// Fails the lost returns of a task.
    fn fail_lost(&mut self, at: TaskKey, why: &str) {
        for index in 0..self.tasks[at].returns {
            if let Some(object) = self.pending_return(at, index) {
                let error = self.error(at, lost(self.objects[object].id, why));
                self.set_failed(object, &error);
            }
        }
    }

    /// Sends a task that has left its queue back to wait for a lost dependency, or to fail. Returns whether a
    /// dependency was missing.
    pub(crate) fn requeue_if_incomplete(&mut self, at: TaskKey) -> bool {
        if !self.is_incomplete(at) {
            return false;
        }
        self.tasks[at].state = TaskPhase::Waiting;
        self.ready(at);
        true
    }

    /// Whether a dependency of a task has no value.
    #[inline]
    pub(crate) fn is_incomplete(&self, at: TaskKey) -> bool {
        let dependencies = self.tasks[at].links.iter().flat_map(|links| &links.dependencies);
        dependencies.into_iter().any(|need| !matches!(self.objects[*need].value, ObjectOutcome::Ready(_)))
    }
}

fn lost(object: ObjectId, why: &str) -> Fault {
    Fault::new(Code::ObjectLost, format!("the value of object {object} is lost: {why}"))
}
