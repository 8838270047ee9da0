//! Which task submitted which. What has ended is kept while something that it submitted is, or what that submitted: so that
//! this can be cancelled, and errors name it. Where these would be more than a job may have tasks, only those are kept that
//! tie two or more together, of which there are fewer than of what they tie.

use sandbar_core::TaskId;

use crate::places::TaskAt;
use crate::scheduler::Scheduler;
use crate::tasks::Task;

impl<C, V> Scheduler<C, V> {
    /// Ties a task to its parent, or else to its job.
    pub(crate) fn tie(&mut self, at: TaskAt) {
        let last = match self.tasks[at].parent {
            Some(parent) => &mut self.tasks[parent].child,
            None => &mut self.jobs[self.tasks[at].job].child,
        };
        let older = last.replace(at);
        self.tasks[at].older = older;
        if let Some(older) = older {
            self.tasks[older].younger = Some(at);
        }
    }

    /// The last child of a task or a job, those before it, and what these submitted, of those that are `wanted`, in no order
    /// that means anything.
    pub(crate) fn descendants(&self, last: Option<TaskAt>, wanted: impl Fn(&Task<C>) -> bool) -> Vec<TaskAt> {
        let mut found = Vec::new();
        let mut next = last;
        let mut looked = 0;
        loop {
            while let Some(child) = next {
                let task = &self.tasks[child];
                if wanted(task) {
                    found.push(child);
                }
                next = task.older;
            }
            let Some(task) = found.get(looked) else { return found };
            next = self.tasks[*task].child;
            looked += 1;
        }
    }

    /// What a task has submitted until now is none of the next attempt's.
    pub(crate) fn settle_children(&mut self, at: TaskAt) {
        let mut next = self.tasks[at].child;
        while let Some(child) = next {
            let child = &mut self.tasks[child];
            child.is_settled = true;
            next = child.older;
        }
    }

    /// Whether the attempt at hand of a task has submitted something, of what is kept.
    pub(crate) fn has_submitted(&self, at: TaskAt) -> bool {
        let older = |child: &TaskAt| self.tasks[*child].older;
        let mut children = std::iter::successors(self.tasks[at].child, older);
        children.any(|child| !self.tasks[child].is_settled)
    }

    /// Forgets tasks that had ended by the end of the step before, as far as they tie nothing together.
    pub(crate) fn forget_ended(&mut self) {
        while let Some((at, id)) = self.ended.pop() {
            self.forget_task(at, id);
        }
    }

    fn forget_task(&mut self, at: TaskAt, id: TaskId) {
        let mut next = self.tasks.get(at).filter(|task| task.id == id).map(|_| at);
        while let Some(at) = next {
            let task = &self.tasks[at];
            let only = task.child.filter(|child| self.tasks[*child].older.is_none());
            let job = &self.jobs[task.job];
            let ties = job.records - job.tasks - job.lineage.tasks.len() as u64;
            let is_tie = task.child.is_some() && (only.is_none() || ties <= job.limits.tasks_max);
            if !task.has_ended() || is_tie || task.lineage.is_some() {
                return;
            }
            next = task.parent;
            self.untie(at, only);
            self.remove_task(at);
        }
    }

    /// Takes a task out of the tree. Its only child, if there is one, takes its place.
    fn untie(&mut self, at: TaskAt, heir: Option<TaskAt>) {
        let task = &self.tasks[at];
        let (parent, older, younger, job) = (task.parent, task.older, task.younger, task.job);
        let is_settled = task.is_settled;
        if let Some(heir) = heir {
            let heir = &mut self.tasks[heir];
            heir.is_settled = is_settled;
            (heir.parent, heir.older, heir.younger) = (parent, older, younger);
        }
        if let Some(older) = older {
            self.tasks[older].younger = heir.or(younger);
        }
        match (younger, parent) {
            (Some(younger), _) => self.tasks[younger].older = heir.or(older),
            (None, Some(parent)) => self.tasks[parent].child = heir.or(older),
            (None, None) => self.jobs[job].child = heir.or(older),
        }
        if self.jobs[job].first == Some(at) {
            self.jobs[job].first = None;
        }
    }

    /// Removes the record of a task that is in no tree, line or worker.
    pub(crate) fn remove_task(&mut self, at: TaskAt) {
        if let Some(task) = self.tasks.remove(at) {
            self.classes.leave(task.class);
            self.jobs[task.job].records -= 1;
            self.forget_id(task.id.0, |entry| entry.task = None);
        }
    }
}
