//! The tree of submissions. The record of a finished task stays while a descendant has one, for recursive cancellation
//! and for the names in errors. If a job has more such records than its task limit, only those with two or more
//! children stay; they are fewer than their leaves.

use crate::records::keys::TaskKey;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Links a task to its parent, or to its job.
    pub(crate) fn attach(&mut self, at: TaskKey) {
        let last = match self.tasks[at].parent {
            Some(parent) => &mut self.tasks[parent].child,
            None => &mut self.jobs[self.tasks[at].job].child,
        };
        let previous_sibling = last.replace(at);
        self.tasks[at].previous_sibling = previous_sibling;
        if let Some(previous_sibling) = previous_sibling {
            self.tasks[previous_sibling].next_sibling = Some(at);
        }
    }

    /// Removes the records of tasks that had finished by the end of the previous step, if the tree does not need them.
    pub(crate) fn remove_finished(&mut self) {
        while let Some(at) = self.tasks.pop_finished() {
            self.forget_task(at);
        }
    }

    /// Removes the record of a finished task, and those of its ancestors that only it needed.
    fn forget_task(&mut self, at: TaskKey) {
        let mut next = Some(at);
        while let Some(at) = next {
            let task = &self.tasks[at];
            let only = task.child.filter(|child| self.tasks[*child].previous_sibling.is_none());
            let job = &self.jobs[task.job];
            let ties = job.records - job.usage.tasks - job.lineage.tasks.len() as u64;
            let is_tie = task.child.is_some() && (only.is_none() || ties <= job.limits.tasks_max);
            if !task.has_finished() || is_tie || task.lineage.is_some() {
                return;
            }
            next = task.parent;
            self.detach(at, only);
            self.remove_task(at);
        }
    }

    /// Removes a task from the tree. Its only child, if it has one, takes its place.
    fn detach(&mut self, at: TaskKey, heir: Option<TaskKey>) {
        let task = &self.tasks[at];
        let (parent, previous_sibling, next_sibling, job) =
            (task.parent, task.previous_sibling, task.next_sibling, task.job);
        let is_committed = task.is_committed;
        if let Some(heir) = heir {
            let heir = &mut self.tasks[heir];
            heir.is_committed = is_committed;
            (heir.parent, heir.previous_sibling, heir.next_sibling) = (parent, previous_sibling, next_sibling);
        }
        if let Some(previous_sibling) = previous_sibling {
            self.tasks[previous_sibling].next_sibling = heir.or(next_sibling);
        }
        match (next_sibling, parent) {
            (Some(next_sibling), _) => self.tasks[next_sibling].previous_sibling = heir.or(previous_sibling),
            (None, Some(parent)) => self.tasks[parent].child = heir.or(previous_sibling),
            (None, None) => self.jobs[job].child = heir.or(previous_sibling),
        }
        if self.jobs[job].first == Some(at) {
            self.jobs[job].first = None;
        }
    }

    /// Removes the record of a task that is in no tree, queue or worker.
    pub(crate) fn remove_task(&mut self, at: TaskKey) {
        if let Some(task) = self.tasks.remove(at) {
            self.classes.leave(task.class);
            self.jobs[task.job].records -= 1;
            self.ids.remove_task(task.id);
        }
    }
}
