//! Lineage: the data for running a finished task again when one of its results is lost.
//!
//! The record of such a task stays, with its call, while one of its returns exists or another task's lineage names one.
//! Lineage does not keep dependencies alive, except small ones: a dependency exists because something else refers to
//! it, or is reconstructed as well. So lineage does not extend the lifetime of large values.

use sandbar_core::TaskId;

use crate::records::keys::{NumberedTask, ObjectKey, TaskKey};
use crate::records::lineage::{Lineage, Source};
use crate::records::object::{Object, ObjectOutcome};
use crate::records::step_work::WorkItem;
use crate::scheduler::Scheduler;

/// Accounted bytes of a task record without its call, and of one recorded dependency.
const RECORD_BYTES: u64 = 512;
const SOURCE_BYTES: u64 = 32;

impl<C, V> Scheduler<C, V> {
    /// Whether lineage must be kept for a value.
    #[inline]
    pub(crate) fn can_be_lost(&self, value: &V) -> bool {
        (self.callbacks.can_be_lost)(value)
    }

    /// Keeps the lineage of a task that has succeeded with a value that may be lost, before the task finishes.
    pub(crate) fn keep_lineage(&mut self, at: TaskKey) {
        let mut lineage = self.tasks[at].lineage.take().unwrap_or_else(|| self.new_lineage(at));
        lineage.bytes = RECORD_BYTES;
        if self.may_run_again(at) {
            if let Some(links) = self.tasks[at].links.take() {
                lineage.dependencies = links.dependencies.iter().map(|object| self.source(*object)).collect();
                lineage.refs = links.refs.iter().map(|object| self.source(*object)).collect();
                self.tasks[at].links = Some(links);
            }
            let call = self.tasks[at].call.as_ref().map_or(0, self.callbacks.call_bytes);
            lineage.bytes += call + SOURCE_BYTES * (lineage.dependencies.len() + lineage.refs.len()) as u64;
        } else {
            self.tasks[at].call = None;
        }
        let task = &mut self.tasks[at];
        let kept = &mut self.jobs[task.job].lineage;
        kept.bytes += lineage.bytes;
        kept.tasks.insert(task.number, at);
        task.lineage = Some(lineage);
        self.bound_lineage(at);
    }

    fn new_lineage(&mut self, at: TaskKey) -> Box<Lineage> {
        let task = &self.tasks[at];
        self.jobs[task.job].lineage.all += 1;
        let there = (0..task.returns).filter(|index| self.returned(at, *index).is_some());
        Box::new(Lineage { uses: there.count() as u32, ..Lineage::default() })
    }

    /// Whether a task has attempts left and is no actor call or lease.
    fn may_run_again(&self, at: TaskKey) -> bool {
        let task = &self.tasks[at];
        task.actor.is_none() && !self.is_lease(at) && task.retries() < self.classes.get(task.class).spec.retries_max
    }

    /// Drops the lineage of the job's earliest tasks while the job is over its limit.
    fn bound_lineage(&mut self, at: TaskKey) {
        let job = self.tasks[at].job;
        while self.jobs[job].lineage.bytes > self.jobs[job].limits.lineage_bytes_max
            && let Some((_, first)) = self.jobs[job].lineage.tasks.pop_first()
        {
            self.drop_lineage(first);
        }
    }

    /// Returns the lineage entry of a dependency.
    fn source(&mut self, at: ObjectKey) -> Source {
        let object = &self.objects[at];
        let is_kept = match &object.value {
            ObjectOutcome::Ready(value) => !self.can_be_lost(value),
            ObjectOutcome::Failed(_) => true,
            ObjectOutcome::Pending => false,
        };
        let id = object.id;
        if is_kept {
            self.pin(at);
            return Source::Kept(at);
        }
        let producer = self.returned_by(object).and_then(|producer| {
            let task = &mut self.tasks[producer];
            task.lineage.as_mut()?.uses += 1;
            Some(NumberedTask { task: producer, number: task.number })
        });
        Source::Named(id, producer)
    }

    /// Returns the task that produced an object, if its record exists.
    pub(crate) fn returned_by(&self, object: &Object<V>) -> Option<TaskKey> {
        let index = object.index?;
        let at = self.ids.find_task(TaskId(object.id.0 - u64::from(index)))?;
        // The id may be in use again, by a task with fewer returns.
        (index < self.tasks[at].returns).then_some(at)
    }

    /// Returns one of a task's return objects, if it exists.
    pub(crate) fn returned(&self, at: TaskKey, index: u32) -> Option<ObjectKey> {
        let object = self.ids.find_object(self.tasks[at].id.returns(index))?;
        (self.objects[object].index == Some(index)).then_some(object)
    }

    /// Like `returned`, for an object that is still pending.
    pub(crate) fn pending_return(&self, at: TaskKey, index: u32) -> Option<ObjectKey> {
        self.returned(at, index).filter(|object| self.objects[*object].is_pending())
    }

    /// Returns the lineage of a task, if its key still refers to it.
    pub(crate) fn lineage_of(&mut self, task: NumberedTask) -> Option<&mut Lineage> {
        let task = self.tasks.get_numbered_mut(task)?;
        task.lineage.as_deref_mut()
    }

    /// Counts a return that exists again.
    pub(crate) fn use_lineage(&mut self, at: TaskKey) {
        if let Some(lineage) = &mut self.tasks[at].lineage {
            lineage.uses += 1;
        }
    }

    /// Removes one use: a return of the task was dropped, or the lineage entry of another task that names one.
    pub(crate) fn unuse_lineage(&mut self, at: TaskKey) {
        if let Some(lineage) = self.tasks.get_mut(at).and_then(|task| task.lineage.as_mut()) {
            lineage.uses = lineage.uses.saturating_sub(1);
            if lineage.uses == 0 {
                self.work.add(WorkItem::DropLineage(at));
            }
        }
    }

    /// Drops the lineage of a finished task, if it is still unused.
    pub(crate) fn drop_unused_lineage(&mut self, at: TaskKey) {
        let is_unused = |lineage: &Lineage| lineage.uses == 0;
        let task = self.tasks.get(at).filter(|task| task.has_finished());
        if task.and_then(|task| task.lineage.as_deref()).is_some_and(is_unused) {
            self.drop_lineage(at);
        }
    }

    /// Drops the lineage of a task: its returns cannot be reconstructed any more.
    pub(crate) fn drop_lineage(&mut self, at: TaskKey) {
        let Some(lineage) = self.take_sources(at) else { return };
        lineage.dependencies.iter().chain(&lineage.refs).for_each(|source| self.release_source(source));
        let task = &mut self.tasks[at];
        task.lineage = None;
        self.jobs[task.job].lineage.all -= 1;
        if task.has_finished() {
            task.call = None;
            self.tasks.remove_later(at);
        }
    }

    /// Takes the recorded dependencies out of the lineage, and subtracts its accounted bytes.
    pub(crate) fn take_sources(&mut self, at: TaskKey) -> Option<Lineage> {
        let task = &mut self.tasks[at];
        let lineage = task.lineage.as_mut()?;
        let kept = &mut self.jobs[task.job].lineage;
        kept.tasks.remove(&task.number);
        kept.bytes -= std::mem::take(&mut lineage.bytes);
        let (dependencies, refs) = (std::mem::take(&mut lineage.dependencies), std::mem::take(&mut lineage.refs));
        Some(Lineage { dependencies, refs, ..Lineage::default() })
    }

    pub(crate) fn release_source(&mut self, source: &Source) {
        match source {
            Source::Kept(object) => self.unpin(*object),
            Source::Named(_, Some(producer)) => {
                if self.lineage_of(*producer).is_some() {
                    self.unuse_lineage(producer.task);
                }
            }
            Source::Named(_, None) => {}
        }
    }
}
