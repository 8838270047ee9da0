//! Who refers to an object and who waits for it: mostly one worker, for which there is room in the record.

use std::sync::Arc;

use sandbar_core::{JobId, ObjectId, TaskError, WorkerId};

use crate::places::{JobAt, ObjectAt, TaskAt};
use crate::streams::Stream;

/// An object.
#[derive(Debug)]
pub(crate) struct Object<V> {
    pub(crate) id: ObjectId,
    pub(crate) value: Value<V>,
    more: Option<Box<More>>,
    pub(crate) job: JobAt,
    /// Which return of its task it is; none of what was put or promised.
    pub(crate) index: Option<u32>,
    /// A chain through the objects of its job.
    pub(crate) before: Option<ObjectAt>,
    pub(crate) after: Option<ObjectAt>,
    /// Tasks and values that refer to it.
    pub(crate) pins: u32,
    holder: (WorkerId, u32),
    waiter: (WorkerId, u32),
}

/// What is known of the value of an object.
#[derive(Debug)]
pub(crate) enum Value<V> {
    Pending,
    Ready(V),
    Failed(Arc<TaskError>),
}

/// What few objects have.
#[derive(Debug, Default)]
struct More {
    holders: Vec<(WorkerId, u32)>,
    waiters: Vec<(WorkerId, u32)>,
    /// Waits among these of tasks of other jobs than the object's.
    visitors: Vec<(WorkerId, JobId)>,
    /// Tasks that wait for it, by place and number: where the number is another's by now, the task is gone.
    dependents: Vec<(TaskAt, u64)>,
    /// What its value contains.
    contents: Box<[ObjectAt]>,
    /// Of what a generator returns.
    stream: Option<Box<Stream>>,
    /// Of another scheduler's, and whether that was asked for it.
    borrowed: Option<bool>,
}

/// Of no worker.
const NOBODY: (WorkerId, u32) = (WorkerId(0), 0);

impl<V> Object<V> {
    pub(crate) fn new(id: ObjectId, job: JobAt, index: Option<u32>, value: Value<V>) -> Object<V> {
        Object { id, value, more: None, job, index, before: None, after: None, pins: 0, holder: NOBODY, waiter: NOBODY }
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.value, Value::Pending)
    }

    /// Whether nothing refers to it.
    #[inline]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.pins == 0 && self.holder.1 == 0 && self.more.as_ref().is_none_or(|more| more.holders.is_empty())
    }

    /// Whether nobody will ask for it: a stream is pending as long as its generator goes on, and what is borrowed until somebody
    /// asks.
    #[inline]
    pub(crate) fn is_unwanted(&self) -> bool {
        self.is_forgotten() && (!self.is_pending() || self.stream().is_some() || self.is_borrowed())
    }

    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.more.as_ref()?.stream.as_deref()
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        self.more.as_mut()?.stream.as_deref_mut()
    }

    pub(crate) fn set_stream(&mut self, stream: Stream) {
        self.more().stream = Some(Box::new(stream));
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.borrowed.is_some())
    }

    pub(crate) fn set_borrowed(&mut self) {
        self.more().borrowed = Some(false);
    }

    /// Notes whether its owner was asked for it. Gives what was noted; none if it is not borrowed.
    pub(crate) fn set_asked(&mut self, is_asked: bool) -> Option<bool> {
        self.more.as_mut()?.borrowed.as_mut().map(|asked| std::mem::replace(asked, is_asked))
    }

    /// Each worker that holds it, and how often.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (WorkerId, u32)> {
        let more = self.more.iter().flat_map(|more| more.holders.iter());
        std::iter::once(&self.holder).chain(more).copied().filter(|(_, times)| *times > 0)
    }

    pub(crate) fn is_held_by(&self, worker: WorkerId) -> bool {
        self.holders().any(|(holder, _)| holder == worker)
    }

    /// A worker holds it once more. Says whether it did not hold it before.
    #[inline]
    pub(crate) fn hold(&mut self, worker: WorkerId) -> bool {
        if self.holder.1 == 0 && self.more.as_ref().is_none_or(|more| more.holders.is_empty()) {
            self.holder = (worker, 1);
            return true;
        }
        if self.holder.0 == worker && self.holder.1 > 0 {
            self.holder.1 = self.holder.1.saturating_add(1);
            return false;
        }
        add(&mut self.more().holders, worker)
    }

    /// A worker holds it so many times less. Says whether it held it before and does not any more.
    #[inline]
    pub(crate) fn release(&mut self, worker: WorkerId, times: u32) -> bool {
        if self.holder.0 == worker && self.holder.1 > 0 {
            self.holder.1 = self.holder.1.saturating_sub(times);
            return self.holder.1 == 0;
        }
        let Some(more) = &mut self.more else { return false };
        let Some(at) = more.holders.iter().position(|(holder, _)| *holder == worker) else { return false };
        more.holders[at].1 = more.holders[at].1.saturating_sub(times);
        let is_last = more.holders[at].1 == 0;
        if is_last {
            more.holders.swap_remove(at);
        }
        is_last
    }

    /// How often a worker waits for it.
    pub(crate) fn waits_of(&self, worker: WorkerId) -> u32 {
        let more = self.more.iter().flat_map(|more| more.waiters.iter());
        let mut all = std::iter::once(&self.waiter).chain(more);
        all.find(|(waiter, times)| *waiter == worker && *times > 0).map_or(0, |(_, times)| *times)
    }

    /// A worker waits for it once more.
    pub(crate) fn wait(&mut self, worker: WorkerId) {
        if self.waiter.1 == 0 {
            self.waiter = (worker, 1);
        } else if self.waiter.0 == worker {
            self.waiter.1 += 1;
        } else {
            add(&mut self.more().waiters, worker);
        }
    }

    /// A task of another job than the object's waits in this worker, which is counted among the waiters.
    pub(crate) fn visit(&mut self, worker: WorkerId, job: JobId) {
        self.more().visitors.push((worker, job));
    }

    /// The waits of tasks of other jobs.
    pub(crate) fn take_visitors(&mut self) -> Vec<(WorkerId, JobId)> {
        self.more.as_mut().map(|more| std::mem::take(&mut more.visitors)).unwrap_or_default()
    }

    /// Whether some worker waits for it.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiter.1 > 0
    }

    /// Who waited for it, and how often.
    pub(crate) fn take_waiters(&mut self) -> impl Iterator<Item = (WorkerId, u32)> + use<V> {
        let more = self.more.as_mut().map(|more| std::mem::take(&mut more.waiters)).unwrap_or_default();
        let first = std::mem::replace(&mut self.waiter, NOBODY);
        std::iter::once(first).chain(more).filter(|(_, times)| *times > 0)
    }

    /// A task waits for it. Those that are gone are forgotten before there is more room made.
    pub(crate) fn depend(&mut self, task: TaskAt, number: u64, is_waiting: impl Fn(TaskAt, u64) -> bool) {
        let dependents = &mut self.more().dependents;
        if dependents.len() == dependents.capacity() {
            dependents.retain(|(task, number)| is_waiting(*task, *number));
        }
        dependents.push((task, number));
    }

    /// Tasks that waited for it, and some that are gone.
    pub(crate) fn take_dependents(&mut self) -> Vec<(TaskAt, u64)> {
        self.more.as_mut().map(|more| std::mem::take(&mut more.dependents)).unwrap_or_default()
    }

    pub(crate) fn contents(&self) -> &[ObjectAt] {
        self.more.as_ref().map_or(&[], |more| &more.contents)
    }

    pub(crate) fn set_contents(&mut self, contents: Vec<ObjectAt>) {
        if !contents.is_empty() {
            self.more().contents = contents.into();
        }
    }

    pub(crate) fn take_contents(&mut self) -> Box<[ObjectAt]> {
        self.more.as_mut().map(|more| std::mem::take(&mut more.contents)).unwrap_or_default()
    }
}

/// Counts a worker once more. Says whether it was not counted before.
fn add(counts: &mut Vec<(WorkerId, u32)>, worker: WorkerId) -> bool {
    match counts.iter_mut().find(|(other, _)| *other == worker) {
        Some((_, times)) => {
            *times = times.saturating_add(1);
            false
        }
        None => {
            counts.push((worker, 1));
            true
        }
    }
}
