//! What is kept of the tasks of a job: noted as they end, and left to others when the job does.

use std::collections::HashMap;
use std::sync::Arc;

use sandbar_core::{Code, JobId, TaskError, TaskId, WorkerId};
use sandbar_jobs::{AttemptRecord, RunState, TaskRecord};
use sandbar_sched::TaskState;
use sandbar_worker::program::{AttemptUsage, ReturnedValues, SentValue};

use super::{Counts, Job, Left, State};
use crate::calls::Call;

/// Of tasks that a job leaves behind in workers, so many have a record.
const LEFT_MAX: usize = 1000;

impl State {
    /// What is to be kept of an attempt, of which the scheduler is told next.
    pub(super) fn ran(
        &self,
        worker: WorkerId,
        task: TaskId,
        call: Option<&Call>,
        took: &AttemptUsage,
        returned: &Result<ReturnedValues<'_>, Box<TaskError>>,
    ) -> AttemptRecord {
        // A worker may say what it likes. Of what it ran by itself it says so late.
        let begun = took.started.min(self.clock);
        let submitted = call.map_or(begun, |call| call.submitted.min(begun));
        let ended = begun.saturating_add(took.nanos).saturating_add(took.waited_nanos).min(self.clock);
        let values = returned.iter().flatten();
        AttemptRecord {
            task,
            worker,
            submitted_ns: submitted,
            started_ns: begun,
            finished_ns: ended,
            compute_ns: took.nanos,
            gpu_ns: took.gpu_nanos,
            memory_bytes: took.memory_bytes,
            bytes_in: call.map_or(0, |call| self.bytes_of(call)),
            bytes_out: values
                .map(|(value, _)| match value {
                    SentValue::Inline(bytes) => bytes.len() as u64,
                    SentValue::File(bytes, _) => *bytes,
                })
                .sum(),
        }
    }

    /// Bytes of the arguments of a call, and of the objects among them.
    pub(super) fn bytes_of(&self, call: &Call) -> u64 {
        let needed = call.needs.iter().map(|object| self.whereabouts(*object).map_or(0, |(_, bytes)| bytes));
        call.arguments.len() as u64 + needed.sum::<u64>()
    }

    /// A task has ended, for the first time or again.
    pub(super) fn keep(&mut self, task: TaskId, job: JobId, error: Option<Arc<TaskError>>, again: bool) {
        if let Some(job) = self.jobs.get(&job) {
            job.bars.finish_task(task);
        }
        let (Some(view), Some(job)) = (self.sched.task(task), self.jobs.get_mut(&job)) else { return };
        let state = match view.state {
            TaskState::Succeeded => RunState::Succeeded,
            TaskState::Failed => RunState::Failed,
            _ => RunState::Stopped,
        };
        let last_attempt = self.ran.filter(|attempt| attempt.task == task);
        let is_lost = error.as_ref().is_some_and(|error| error.fault.code == Code::WorkerLost);
        let attempts = view.attempt.0 + u32::from(last_attempt.is_some() || view.attempt.0 > 0 || is_lost);
        let record = TaskRecord { id: task, parent: view.parent, state, attempts, last_attempt, error };
        if again { job.records.replace(view.name, record) } else { job.records.add(view.name, record) }
    }

    /// Leaves to others what was kept of a job: it has ended, whatever its tasks were doing.
    pub(super) fn leave(&self, id: JobId, job: Job) -> Counts {
        let Job { mut records, left, counts, moved_before, .. } = job;
        let [spilled, restored] = self.moved_bytes();
        let counts =
            Counts { spilled_bytes: spilled - moved_before[0], restored_bytes: restored - moved_before[1], ..counts };
        let mut live: HashMap<&Arc<str>, u64> = HashMap::new();
        for class in self.sched.classes().filter(|class| class.job == id) {
            *live.entry(class.name).or_default() += class.live;
        }
        for view in self.tasks_in_workers(id).take(LEFT_MAX) {
            if let Some(live) = live.get_mut(view.name).filter(|live| **live > 0) {
                *live -= 1;
                let (state, attempts) = (RunState::Stopped, view.attempt.0 + 1);
                let record =
                    TaskRecord { id: view.id, parent: view.parent, state, attempts, last_attempt: None, error: None };
                records.add(view.name, record);
            }
        }
        live.into_iter().for_each(|(name, count)| records.add_stopped(name, count));
        // There is one job to a place.
        let _ = left.set(Left { records, counts });
        counts
    }
}
