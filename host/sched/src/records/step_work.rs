//! The current step: remaining work, and the actions so far.

use std::sync::Arc;

use sandbar_core::TaskError;

use crate::event::Action;
use crate::records::keys::{ObjectKey, TaskKey, WorkerKey};
use crate::records::level::Level;

/// Work that is left in the current step, and the step's actions.
#[derive(Debug)]
pub(crate) struct StepWork<V> {
    failing: Vec<(TaskKey, Arc<TaskError>)>,
    unreferenced: Vec<ObjectKey>,
    unused_lineage: Vec<TaskKey>,
    lost: Vec<TaskKey>,
    /// Objects that got a value or an error while workers wait for them.
    pub(crate) awaited: Vec<ObjectKey>,
    /// The worker whose assigned tasks have changed.
    pub(crate) changed_worker: Option<WorkerKey>,
    /// The first task, in dispatch order, that became ready in this step.
    newest: Option<(Level, TaskKey)>,
    /// Whether a task may find room that found none before.
    pub(crate) needs_dispatch: bool,
    actions: Vec<Action<V>>,
}

/// A consequence of the event, which the step handles before it ends.
#[derive(Debug)]
pub(crate) enum WorkItem {
    /// Fail a task with an error.
    Fail(TaskKey, Arc<TaskError>),
    /// Remove an object, if still nothing refers to it.
    DropObject(ObjectKey),
    /// Drop the lineage of a task, if it is still unused.
    DropLineage(TaskKey),
    /// Run a task again for a lost return.
    Reconstruct(TaskKey),
}

impl<V> StepWork<V> {
    pub(crate) fn new() -> StepWork<V> {
        StepWork {
            failing: Vec::new(),
            unreferenced: Vec::new(),
            unused_lineage: Vec::new(),
            lost: Vec::new(),
            awaited: Vec::new(),
            changed_worker: None,
            newest: None,
            needs_dispatch: false,
            actions: Vec::new(),
        }
    }

    /// Appends an action of the step.
    #[inline]
    pub(crate) fn act(&mut self, action: Action<V>) {
        self.actions.push(action);
    }

    /// Exchanges the list to which actions are appended.
    pub(crate) fn swap_actions(&mut self, actions: &mut Vec<Action<V>>) {
        std::mem::swap(&mut self.actions, actions);
    }

    #[inline]
    pub(crate) fn add(&mut self, item: WorkItem) {
        match item {
            WorkItem::Fail(task, error) => self.failing.push((task, error)),
            WorkItem::DropObject(object) => self.unreferenced.push(object),
            WorkItem::DropLineage(task) => self.unused_lineage.push(task),
            WorkItem::Reconstruct(task) => self.lost.push(task),
        }
    }

    /// Takes the next item. A later kind is due when no item of an earlier kind is left.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<WorkItem> {
        if let Some((task, error)) = self.failing.pop() {
            Some(WorkItem::Fail(task, error))
        } else if let Some(object) = self.unreferenced.pop() {
            Some(WorkItem::DropObject(object))
        } else if let Some(task) = self.unused_lineage.pop() {
            Some(WorkItem::DropLineage(task))
        } else {
            self.lost.pop().map(WorkItem::Reconstruct)
        }
    }

    /// Whether no item is left.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.failing.is_empty()
            && self.unreferenced.is_empty()
            && self.unused_lineage.is_empty()
            && self.lost.is_empty()
    }

    /// Records that a task became ready.
    pub(crate) fn add_ready(&mut self, level: Level, task: TaskKey) {
        if self.newest.is_none_or(|(newest, _)| level < newest) {
            self.newest = Some((level, task));
        }
    }

    /// Takes the first task, in dispatch order, that became ready in this step.
    pub(crate) fn take_newest(&mut self) -> Option<(Level, TaskKey)> {
        self.newest.take()
    }
}
