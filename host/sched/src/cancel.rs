//! Tasks that are not wanted any more.

use crate::event::Action;
use crate::places::TaskAt;
use crate::scheduler::Scheduler;
use crate::tasks::{State, Stop, Task};

use sandbar_core::TaskId;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn cancel(&mut self, id: TaskId, recursive: bool) {
        let Some(at) = self.find_task(id) else { return };
        if !recursive {
            self.stop(at, Stop::Alone);
        } else if self.tasks[at].stop != Stop::WithChildren {
            self.stop(at, Stop::WithChildren);
            for task in self.descendants(self.tasks[at].child, |task| task.stop != Stop::WithChildren) {
                self.stop(task, Stop::WithChildren);
            }
        }
    }

    /// Stops all that an attempt of a task submitted, and what that submitted, but for what that was done to before: nothing
    /// is new there.
    pub(crate) fn stop_descendants(&mut self, at: TaskAt) {
        let is_of_another = |task: &Task<C>| task.is_settled && task.parent == Some(at);
        let wanted = |task: &Task<C>| task.stop != Stop::WithChildren && !is_of_another(task);
        for task in self.descendants(self.tasks[at].child, wanted) {
            self.stop(task, Stop::WithChildren);
        }
    }

    /// A task fails by the end of the step, or once its worker has let go of it.
    pub(crate) fn stop(&mut self, at: TaskAt, how: Stop) {
        let task = &mut self.tasks[at];
        match task.state {
            State::Waiting | State::Queued => {
                let error = self.error(at, self.stopped(at));
                self.failing.push((at, error));
            }
            State::Given | State::Blocked | State::Resident => {
                if task.stop == Stop::No
                    && let Some(worker) = task.worker
                {
                    let (worker, task, attempt) = (self.cluster.workers[worker].id, task.id, task.attempt);
                    self.out.push(match self.is_method(at) {
                        true => Action::Withdraw { worker, task, attempt },
                        false => Action::Interrupt { worker, task, attempt },
                    });
                }
            }
            // What comes of it is not wanted again.
            State::Ended(_) => self.drop_lineage(at),
        }
        let task = &mut self.tasks[at];
        task.stop = task.stop.max(how);
    }
}
