//! The record of an object: its value, references and waiters. The record has room for one holder and one waiter, the
//! usual case; others are in `RareState`.

use std::sync::Arc;

use sandbar_core::{JobId, ObjectId, TaskError, WorkerId};

use crate::records::keys::{JobKey, NumberedTask, ObjectKey};
use crate::records::streams::Stream;

/// An object.
#[derive(Debug)]
pub(crate) struct Object<V> {
    pub(crate) id: ObjectId,
    pub(crate) value: ObjectOutcome<V>,
    rare: Option<Box<RareState>>,
    pub(crate) job: JobKey,
    /// Index among the returns of its task; `None` for objects that were put or promised.
    pub(crate) index: Option<u32>,
    /// Linked list through the objects of its job.
    pub(crate) before: Option<ObjectKey>,
    pub(crate) after: Option<ObjectKey>,
    /// Number of references from tasks and values.
    pub(crate) pins: u32,
    holder: WorkerCount,
    waiter: WorkerCount,
}

/// A worker, and how many times it holds or awaits the object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerCount {
    pub(crate) worker: WorkerId,
    pub(crate) times: u32,
}

/// Value of an object, or its error.
#[derive(Debug)]
pub(crate) enum ObjectOutcome<V> {
    Pending,
    Ready(V),
    Failed(Arc<TaskError>),
}

/// State that few objects have.
#[derive(Debug, Default)]
struct RareState {
    holders: Vec<WorkerCount>,
    waiters: Vec<WorkerCount>,
    /// Those waits, counted in `waiters` or `waiter`, that are for tasks of other jobs.
    foreign_waiters: Vec<(WorkerId, JobId)>,
    /// Tasks that wait for it, and tasks that did.
    dependents: Vec<NumberedTask>,
    /// Objects that its value contains.
    contents: Box<[ObjectKey]>,
    /// State of the stream, if the object is the return of a generator.
    stream: Option<Box<Stream>>,
    /// `Some` for a borrowed object: whether the value was requested from its owner.
    borrowed: Option<bool>,
}

/// An unused holder or waiter.
const NO_WORKER: WorkerCount = WorkerCount { worker: WorkerId(0), times: 0 };

impl<V> Object<V> {
    pub(crate) fn new(id: ObjectId, job: JobKey, index: Option<u32>, value: ObjectOutcome<V>) -> Object<V> {
        Object {
            id,
            value,
            rare: None,
            job,
            index,
            before: None,
            after: None,
            pins: 0,
            holder: NO_WORKER,
            waiter: NO_WORKER,
        }
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.value, ObjectOutcome::Pending)
    }

    /// Whether nothing refers to it.
    #[inline]
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.pins == 0 && self.holder.times == 0 && self.rare.as_ref().is_none_or(|rare| rare.holders.is_empty())
    }

    /// Whether it is unreferenced and may be removed now. A pending object of a task waits for its value; a stream and
    /// a borrowed object do not.
    #[inline]
    pub(crate) fn is_droppable(&self) -> bool {
        self.is_unreferenced() && (!self.is_pending() || self.stream().is_some() || self.is_borrowed())
    }

    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.rare.as_ref()?.stream.as_deref()
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        self.rare.as_mut()?.stream.as_deref_mut()
    }

    pub(crate) fn set_stream(&mut self, stream: Stream) {
        self.rare().stream = Some(Box::new(stream));
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.borrowed.is_some())
    }

    pub(crate) fn set_borrowed(&mut self) {
        self.rare().borrowed = Some(false);
    }

    /// Sets whether the value was requested from the owner. Returns the previous state, or `None` if the object is not
    /// borrowed.
    pub(crate) fn set_fetching(&mut self, is_fetching: bool) -> Option<bool> {
        self.rare.as_mut()?.borrowed.as_mut().map(|fetching| std::mem::replace(fetching, is_fetching))
    }

    /// Iterates over the workers that hold it, with their reference counts.
    pub(crate) fn holders(&self) -> impl Iterator<Item = WorkerCount> {
        let rare = self.rare.iter().flat_map(|rare| rare.holders.iter());
        std::iter::once(&self.holder).chain(rare).copied().filter(|holder| holder.times > 0)
    }

    pub(crate) fn is_held_by(&self, worker: WorkerId) -> bool {
        self.holders().any(|holder| holder.worker == worker)
    }

    /// Adds a reference of a worker. Returns whether it is the worker's first one.
    #[inline]
    pub(crate) fn hold(&mut self, worker: WorkerId) -> bool {
        if self.holder.times == 0 && self.rare.as_ref().is_none_or(|rare| rare.holders.is_empty()) {
            self.holder = WorkerCount { worker, times: 1 };
            return true;
        }
        if self.holder.worker == worker && self.holder.times > 0 {
            self.holder.times = self.holder.times.saturating_add(1);
            return false;
        }
        add(&mut self.rare().holders, worker)
    }

    /// Releases references of a worker. Returns whether the last one was released.
    #[inline]
    pub(crate) fn release(&mut self, worker: WorkerId, times: u32) -> bool {
        if self.holder.worker == worker && self.holder.times > 0 {
            self.holder.times = self.holder.times.saturating_sub(times);
            return self.holder.times == 0;
        }
        let Some(rare) = &mut self.rare else { return false };
        let Some(at) = rare.holders.iter().position(|holder| holder.worker == worker) else { return false };
        rare.holders[at].times = rare.holders[at].times.saturating_sub(times);
        let is_last = rare.holders[at].times == 0;
        if is_last {
            rare.holders.swap_remove(at);
        }
        is_last
    }

    /// Returns the number of waits of a worker for the object.
    pub(crate) fn wait_count(&self, worker: WorkerId) -> u32 {
        let rare = self.rare.iter().flat_map(|rare| rare.waiters.iter());
        let mut all = std::iter::once(&self.waiter).chain(rare);
        all.find(|waiter| waiter.worker == worker && waiter.times > 0).map_or(0, |waiter| waiter.times)
    }

    /// Adds a wait of a worker.
    pub(crate) fn wait(&mut self, worker: WorkerId) {
        if self.waiter.times == 0 {
            self.waiter = WorkerCount { worker, times: 1 };
        } else if self.waiter.worker == worker {
            self.waiter.times += 1;
        } else {
            add(&mut self.rare().waiters, worker);
        }
    }

    /// Records that one of the worker's waits is for a task of another job.
    pub(crate) fn add_foreign_waiter(&mut self, worker: WorkerId, job: JobId) {
        self.rare().foreign_waiters.push((worker, job));
    }

    /// Takes the waits for tasks of other jobs.
    pub(crate) fn take_foreign_waiters(&mut self) -> Vec<(WorkerId, JobId)> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.foreign_waiters)).unwrap_or_default()
    }

    /// Whether some worker waits for it.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiter.times > 0
    }

    /// Takes the waiting workers, with their wait counts.
    pub(crate) fn take_waiters(&mut self) -> impl Iterator<Item = WorkerCount> + use<V> {
        let rare = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.waiters)).unwrap_or_default();
        let first = std::mem::replace(&mut self.waiter, NO_WORKER);
        std::iter::once(first).chain(rare).filter(|waiter| waiter.times > 0)
    }

    /// Adds a task that waits for it. Removes stale entries before the vector grows.
    pub(crate) fn add_dependent(&mut self, task: NumberedTask, is_waiting: impl Fn(NumberedTask) -> bool) {
        let dependents = &mut self.rare().dependents;
        if dependents.len() == dependents.capacity() {
            dependents.retain(|task| is_waiting(*task));
        }
        dependents.push(task);
    }

    /// Takes the waiting tasks, including stale entries.
    pub(crate) fn take_dependents(&mut self) -> Vec<NumberedTask> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.dependents)).unwrap_or_default()
    }

    pub(crate) fn contents(&self) -> &[ObjectKey] {
        self.rare.as_ref().map_or(&[], |rare| &rare.contents)
    }

    pub(crate) fn set_contents(&mut self, contents: Vec<ObjectKey>) {
        if !contents.is_empty() {
            self.rare().contents = contents.into();
        }
    }

    pub(crate) fn take_contents(&mut self) -> Box<[ObjectKey]> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.contents)).unwrap_or_default()
    }
}

/// Increments the count of a worker. Returns whether it was not counted before.
fn add(counts: &mut Vec<WorkerCount>, worker: WorkerId) -> bool {
    match counts.iter_mut().find(|other| other.worker == worker) {
        Some(count) => {
            count.times = count.times.saturating_add(1);
            false
        }
        None => {
            counts.push(WorkerCount { worker, times: 1 });
            true
        }
    }
}
