//! Descendants of tasks.

use crate::records::keys::TaskKey;
use crate::records::tasks::{Task, Tasks};

impl<C> Tasks<C> {
    /// Returns the children in a list (from its most recent one) and their descendants, as far as they are `is_selected`, in
    /// an arbitrary order.
    pub(crate) fn descendants(&self, last: Option<TaskKey>, is_selected: impl Fn(&Task<C>) -> bool) -> Vec<TaskKey> {
        let mut found = Vec::new();
        let mut next = last;
        let mut looked = 0;
        loop {
            while let Some(child) = next {
                let task = &self[child];
                if is_selected(task) {
                    found.push(child);
                }
                next = task.previous_sibling;
            }
            let Some(task) = found.get(looked) else { return found };
            next = self[*task].child;
            looked += 1;
        }
    }

    /// Marks the current children of a task as submitted by a successful attempt.
    pub(crate) fn commit_children(&mut self, at: TaskKey) {
        let mut next = self[at].child;
        while let Some(child) = next {
            let child = &mut self[child];
            child.is_committed = true;
            next = child.previous_sibling;
        }
    }

    /// Whether the current attempt of a task has submitted a task that still has a record.
    pub(crate) fn has_submitted(&self, at: TaskKey) -> bool {
        let previous_sibling = |child: &TaskKey| self[*child].previous_sibling;
        let mut children = std::iter::successors(self[at].child, previous_sibling);
        children.any(|child| !self[child].is_committed)
    }
}
