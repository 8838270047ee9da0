//! Lineage: of tasks whose results may be lost, what is needed to run them again.
//!
//! The record of such a task stays when it has ended, with its call, while an object that it returned is there, or the
//! lineage of another task that was made of one. What it was made of is not kept on its account, unless that is little:
//! it is there because somebody else refers to it, or is made again as well. So values go as they would without lineage.

use std::collections::BTreeMap;

use sandbar_core::{NodeId, ObjectId, TaskId};

use crate::places::{ObjectAt, TaskAt};
use crate::refs::{Object, Value};
use crate::scheduler::Scheduler;

/// What the record of a task takes beside its call, in bytes, and what it takes to know one of its objects.
const RECORD_BYTES: u64 = 512;
const SOURCE_BYTES: u64 = 32;

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lies {
    /// The node that has it; none of one that is here.
    pub node: Option<NodeId>,
    /// Its length.
    pub bytes: u64,
}

/// What a scheduler asks of calls and values, at which it does not look otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Inspect<C, V> {
    /// Whether a value may be lost, so that it is known how to make it again. What may not be is little.
    pub can_be_lost: fn(&V) -> bool,
    /// Where a value lies, if that is known.
    pub lies: fn(&V) -> Option<Lies>,
    /// Bytes that a call takes.
    pub call_bytes: fn(&C) -> u64,
}

impl<C, V> Default for Inspect<C, V> {
    /// Nothing is ever lost.
    fn default() -> Inspect<C, V> {
        Inspect { can_be_lost: |_| false, lies: |_| None, call_bytes: |_| 0 }
    }
}

/// Of a task.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Objects there are that it returned, and how often lineages of other tasks name one.
    uses: u32,
    /// What it counts for.
    bytes: u64,
    /// What it was made of, until it is made again.
    pub(crate) needs: Box<[Source]>,
    pub(crate) refs: Box<[Source]>,
}

/// An object that a task was made of.
#[derive(Debug)]
pub(crate) enum Source {
    /// One that is kept: its value is little, or an error.
    Kept(ObjectAt),
    /// One that may be there, or is made again by the task that lies there, if it has this number.
    Named(ObjectId, Option<(TaskAt, u64)>),
}

/// What is kept for a job.
#[derive(Debug, Default)]
pub(crate) struct OfJob {
    /// Tasks that have lineage.
    pub(crate) all: u64,
    /// Those that have ended, by number.
    pub(crate) tasks: BTreeMap<u64, TaskAt>,
    bytes: u64,
}

/// What is left to do in a step.
#[derive(Debug, Default)]
pub(crate) struct ToDo {
    /// Tasks whose lineage nobody may need any more.
    pub(crate) unused: Vec<TaskAt>,
    /// Tasks that are to make an object again.
    pub(crate) lost: Vec<TaskAt>,
}

impl<C, V> Scheduler<C, V> {
    /// Whether how a value was made is to be kept.
    #[inline]
    pub(crate) fn can_be_lost(&self, value: &V) -> bool {
        (self.inspect.can_be_lost)(value)
    }

    /// A task has succeeded, with a value that may be lost, and is about to end.
    pub(crate) fn keep_lineage(&mut self, at: TaskAt) {
        let mut lineage = self.tasks[at].lineage.take().unwrap_or_else(|| self.new_lineage(at));
        lineage.bytes = RECORD_BYTES;
        if self.may_run_again(at) {
            if let Some(links) = self.tasks[at].links.take() {
                lineage.needs = links.needs.iter().map(|object| self.source(*object)).collect();
                lineage.refs = links.refs.iter().map(|object| self.source(*object)).collect();
                self.tasks[at].links = Some(links);
            }
            let call = self.tasks[at].call.as_ref().map_or(0, self.inspect.call_bytes);
            lineage.bytes += call + SOURCE_BYTES * (lineage.needs.len() + lineage.refs.len()) as u64;
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

    fn new_lineage(&mut self, at: TaskAt) -> Box<Lineage> {
        let task = &self.tasks[at];
        self.jobs[task.job].lineage.all += 1;
        let there = (0..task.returns).filter(|index| self.returned(at, *index).is_some());
        Box::new(Lineage { uses: there.count() as u32, ..Lineage::default() })
    }

    /// Whether a task, if it is not a call of an actor, has attempts left.
    fn may_run_again(&self, at: TaskAt) -> bool {
        let task = &self.tasks[at];
        task.actor.is_none() && task.attempt.0 < self.classes.get(task.class).kind.retries_max
    }

    /// Of a job that has too much of it, the lineage of those goes that were submitted first.
    fn bound_lineage(&mut self, at: TaskAt) {
        let job = self.tasks[at].job;
        while self.jobs[job].lineage.bytes > self.jobs[job].limits.lineage_bytes_max
            && let Some((_, first)) = self.jobs[job].lineage.tasks.pop_first()
        {
            self.drop_lineage(first);
        }
    }

    /// What a task is made of, for when it is made again.
    fn source(&mut self, at: ObjectAt) -> Source {
        let object = &self.objects[at];
        let is_kept = match &object.value {
            Value::Ready(value) => !self.can_be_lost(value),
            Value::Failed(_) => true,
            Value::Pending => false,
        };
        let id = object.id;
        if is_kept {
            self.pin(at);
            return Source::Kept(at);
        }
        let maker = self.returned_by(object).and_then(|maker| {
            let task = &mut self.tasks[maker];
            task.lineage.as_mut()?.uses += 1;
            Some((maker, task.number))
        });
        Source::Named(id, maker)
    }

    /// The task that returned an object, while its record is kept.
    pub(crate) fn returned_by(&self, object: &Object<V>) -> Option<TaskAt> {
        let index = object.index?;
        let at = self.find_task(TaskId(object.id.0 - u64::from(index)))?;
        // The number may have been given again, to one that returns less.
        (index < self.tasks[at].returns).then_some(at)
    }

    /// One of the objects that a task returns, while there is such.
    pub(crate) fn returned(&self, at: TaskAt, index: u32) -> Option<ObjectAt> {
        let object = self.find_object(self.tasks[at].id.returns(index))?;
        (self.objects[object].index == Some(index)).then_some(object)
    }

    /// As `returned`, if it is not known what becomes of it.
    pub(crate) fn pending_return(&self, at: TaskAt, index: u32) -> Option<ObjectAt> {
        self.returned(at, index).filter(|object| self.objects[*object].is_pending())
    }

    /// The lineage of a task, if the one that lies there still is the one.
    pub(crate) fn lineage_of(&mut self, (at, number): (TaskAt, u64)) -> Option<&mut Lineage> {
        let task = self.tasks.get_mut(at).filter(|task| task.number == number)?;
        task.lineage.as_deref_mut()
    }

    /// An object that a task returns was made again.
    pub(crate) fn use_lineage(&mut self, at: TaskAt) {
        if let Some(lineage) = &mut self.tasks[at].lineage {
            lineage.uses += 1;
        }
    }

    /// An object is gone that this task returned, or the lineage of a task that was made of one.
    pub(crate) fn unuse_lineage(&mut self, at: TaskAt) {
        if let Some(lineage) = self.tasks.get_mut(at).and_then(|task| task.lineage.as_mut()) {
            lineage.uses = lineage.uses.saturating_sub(1);
            if lineage.uses == 0 {
                self.lineage.unused.push(at);
            }
        }
    }

    /// Drops the lineage of a task, if that is still not needed.
    pub(crate) fn drop_unused_lineage(&mut self, at: TaskAt) {
        let is_unused = |lineage: &Lineage| lineage.uses == 0;
        let task = self.tasks.get(at).filter(|task| task.has_ended());
        if task.and_then(|task| task.lineage.as_deref()).is_some_and(is_unused) {
            self.drop_lineage(at);
        }
    }

    /// Nothing of what a task returned is made again any more.
    pub(crate) fn drop_lineage(&mut self, at: TaskAt) {
        let Some(lineage) = self.take_sources(at) else { return };
        lineage.needs.iter().chain(&lineage.refs).for_each(|source| self.let_go(source));
        let task = &mut self.tasks[at];
        task.lineage = None;
        self.jobs[task.job].lineage.all -= 1;
        if task.has_ended() {
            task.call = None;
            self.ended.push((at, task.id));
        }
    }

    /// Takes what a task was made of: it is not kept on its account any more, or not at all.
    pub(crate) fn take_sources(&mut self, at: TaskAt) -> Option<Lineage> {
        let task = &mut self.tasks[at];
        let lineage = task.lineage.as_mut()?;
        let kept = &mut self.jobs[task.job].lineage;
        kept.tasks.remove(&task.number);
        kept.bytes -= std::mem::take(&mut lineage.bytes);
        let (needs, refs) = (std::mem::take(&mut lineage.needs), std::mem::take(&mut lineage.refs));
        Some(Lineage { needs, refs, ..Lineage::default() })
    }

    pub(crate) fn let_go(&mut self, source: &Source) {
        match source {
            Source::Kept(object) => self.unpin(*object),
            Source::Named(_, Some((task, number))) => {
                if self.lineage_of((*task, *number)).is_some() {
                    self.unuse_lineage(*task);
                }
            }
            Source::Named(_, None) => {}
        }
    }
}
