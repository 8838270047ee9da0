//! Jobs, from the command that starts one to what its first task returned.

use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, ObjectId, TaskError, TaskId, TenantId};
use sandbar_jobs::{RecordLimits, TaskRecords};
use sandbar_sched::{Event, Submission, WorkerKind};
use sandbar_worker::program::monotonic_nanos;
use tokio::sync::oneshot;

use super::{Counts, First, Job, JobResult, Lasting, NewJob, State, Stored};
use crate::calls::Call;

/// Bytes of what a job returns.
const RESULT_BYTES_MAX: u64 = 64 << 20;

impl State {
    pub(super) fn start_job(&mut self, job: JobId, new: NewJob, done: oneshot::Sender<JobResult>) {
        let NewJob { program, first, seed, lasting, given, bars, log, left } = new;
        self.clock = monotonic_nanos();
        let Some(id) = self.ids.take(1).map(TaskId) else { return };
        self.step(Event::JobStarted { job, tenant: TenantId::DEFAULT, limits: self.options.job_limits });
        self.replace_missing();
        let (driver, name, function, arguments) = match first {
            First::Function(function, arguments) => {
                let name = program.tasks.get(function as usize).map(|task| task.name.clone());
                (self.start_worker(WorkerKind::Driver(job)), name.unwrap_or_else(|| "main".into()), function, arguments)
            }
            // No function of the program is called.
            First::Client(name, seat) => {
                (self.seat(WorkerKind::Driver(job), seat), name.into(), u32::MAX, Box::default())
            }
        };
        let Some(driver) = driver else {
            self.step(Event::JobEnded { job });
            let fault = Fault::new(Code::Host, "a worker for the job can't be started");
            let result = Err(Arc::new(TaskError { fault, chain: Vec::new() }));
            // Who submitted it may be gone, here and below.
            let _ = done.send(JobResult { result, counts: Counts::default() });
            return;
        };
        let records = TaskRecords::new(RecordLimits::default(), self.clock);
        let (done, counts, moved_before) = (Some(done), Counts::default(), self.moved_bytes());
        let lasting = lasting.and_then(|(name, remnants)| Lasting::of(&program, name, remnants));
        let new = Job { first: id, driver, done, lasting, log, records, left, given, bars, counts, moved_before };
        self.jobs.insert(job, new);
        let task = Submission::bare(id, job, name, Call::of(program, function, seed, arguments, self.clock));
        self.step(Event::Submitted { task });
        self.take_over(job);
    }

    pub(super) fn end_jobs(&mut self) {
        while let Some((job, result)) = self.done.pop() {
            self.job_done(job, result);
        }
    }

    fn job_done(&mut self, job: JobId, result: Result<(), Arc<TaskError>>) {
        let Some(mut ended) = self.jobs.remove(&job) else { return };
        let returned = self.result(ended.first.returns(0));
        let result = result.and(returned);
        let (done, driver) = (ended.done.take(), ended.driver);
        let counts = self.leave(job, ended);
        if let Some(done) = done {
            let _ = done.send(JobResult { result, counts });
        }
        self.events.push_back(Event::JobEnded { job });
        self.tell_job_ended(job, self.root(job));
        self.forget_remains(job);
        if let Some(mut member) = self.members.remove(&driver) {
            member.link.kill();
            self.forget_worker(driver);
            self.events.push_back(Event::WorkerLost { worker: driver, started: Vec::new() });
        }
    }

    /// Ends a job that nobody wants any more, if it has not ended.
    pub(super) fn stop_job(&mut self, job: JobId) {
        let fault = Fault::new(Code::Cancelled, "its job was stopped");
        self.done.push((job, Err(Arc::new(TaskError { fault, chain: Vec::new() }))));
        self.end_done();
    }

    /// Ends jobs outside of a step, with all that comes of that.
    fn end_done(&mut self) {
        self.end_jobs();
        while let Some(event) = self.events.pop_front() {
            self.step(event);
        }
    }

    /// An attempt of a job's task has failed.
    pub(super) fn count_failed(&mut self, job: Option<JobId>) {
        if let Some(job) = job.and_then(|job| self.jobs.get_mut(&job)) {
            job.counts.failed += 1;
        }
    }

    /// What the first task of a job returned.
    fn result(&mut self, object: ObjectId) -> Result<Vec<u8>, Arc<TaskError>> {
        match self.results.remove(&object) {
            Some(Stored::Inline(bytes)) => Ok(bytes.into_vec()),
            Some(Stored::Kept(key, _)) => {
                let bytes = self.store.values.bytes(key, RESULT_BYTES_MAX);
                self.store.values.drop_value(key);
                let fault = |e| Fault::new(Code::Host, format!("what the job returned can't be read: {e}"));
                bytes.map_err(|e| Arc::new(TaskError { fault: fault(e), chain: Vec::new() }))
            }
            // What a job's first task returns was made here.
            Some(Stored::Away(_)) | None => Ok(Vec::new()),
        }
    }

    /// Ends all jobs: workers end before they have begun anything, again and again.
    pub(super) fn give_up(&mut self, why: &str) {
        let fault = Fault::new(Code::Host, format!("workers can't be started: {why}"));
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        self.done.extend(jobs.into_iter().map(|job| (job, Err(error.clone()))));
        self.failed_starts = 0;
        self.end_done();
    }
}
