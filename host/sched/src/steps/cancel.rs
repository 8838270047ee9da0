//! Cancellation of tasks.

use sandbar_core::TaskId;

use crate::event::Action;
use crate::records::keys::TaskKey;
use crate::records::step_work::WorkItem;
use crate::records::tasks::{Cancellation, Task, TaskPhase};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn cancel(&mut self, id: TaskId, recursive: bool) {
        let Some(at) = self.ids.find_task(id) else { return };
        if !recursive {
            self.cancel_task(at, Cancellation::Task);
        } else if self.tasks[at].cancellation != Cancellation::Subtree {
            self.cancel_task(at, Cancellation::Subtree);
            for task in self.tasks.descendants(self.tasks[at].child, |task| task.cancellation != Cancellation::Subtree)
            {
                self.cancel_task(task, Cancellation::Subtree);
            }
        }
    }

    /// Cancels the descendants that the current attempt of a task submitted. Subtrees that were cancelled before are
    /// skipped.
    pub(crate) fn cancel_descendants(&mut self, at: TaskKey) {
        let is_of_another = |task: &Task<C>| task.is_committed && task.parent == Some(at);
        let is_selected = |task: &Task<C>| task.cancellation != Cancellation::Subtree && !is_of_another(task);
        for task in self.tasks.descendants(self.tasks[at].child, is_selected) {
            self.cancel_task(task, Cancellation::Subtree);
        }
    }

    /// Cancels a task. It fails by the end of the step, or when its worker has released it.
    pub(crate) fn cancel_task(&mut self, at: TaskKey, cancellation: Cancellation) {
        let task = &mut self.tasks[at];
        match task.state {
            TaskPhase::Waiting | TaskPhase::Queued => {
                let error = self.error(at, self.cancellation_fault(at));
                self.work.add(WorkItem::Fail(at, error));
            }
            TaskPhase::Assigned | TaskPhase::Blocked | TaskPhase::HostsActor => {
                if task.cancellation == Cancellation::None
                    && let Some(worker) = task.worker
                {
                    let (worker, task, attempt) = (self.cluster.workers[worker].id, task.id, task.attempt);
                    self.work.act(match self.is_method(at) {
                        true => Action::Withdraw { worker, task, attempt },
                        false => Action::Interrupt { worker, task, attempt },
                    });
                }
            }
            // Its returns are not reconstructed any more.
            TaskPhase::Finished(_) => self.drop_lineage(at),
        }
        let task = &mut self.tasks[at];
        task.cancellation = task.cancellation.max(cancellation);
    }
}
