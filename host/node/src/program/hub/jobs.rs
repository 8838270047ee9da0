//! Jobs, from the command that starts one to what its first task returned.

use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, TaskError, TaskId, TenantId};
use sandbar_sched::{Demand, Event, Role, Submission, Work};

use super::{Job, JobResult, NewJob, State, Stored};
use crate::program::calls::Call;

impl State {
    pub(super) fn start_job(&mut self, new: NewJob) {
        let job = JobId(self.next_job);
        self.next_job += 1;
        let NewJob { program, function, seed, arguments, done, log } = new;
        let Some(id) = self.ids.take(1).map(TaskId) else { return };
        self.step(Event::JobStarted { job, tenant: TenantId::DEFAULT, limits: self.options.job_limits });
        let Some(driver) = self.start_worker(Role::Driver(job)) else {
            let fault = Fault::new(Code::Host, "a worker for the job can't be started");
            let result = Err(Arc::new(TaskError { fault, chain: Vec::new() }));
            let _ = done.send(JobResult { result, counts: self.count });
            return;
        };
        let name = program.tasks.get(function as usize).map_or_else(|| "main".into(), |task| task.name.clone());
        self.jobs.insert(job, Job { first: id, driver, done: Some(done), log });
        let task = Submission {
            id,
            job,
            parent: None,
            name,
            returns: 1,
            demand: Demand::default(),
            priority: 0,
            retries_max: 0,
            retry_failures: false,
            needs: Vec::new(),
            refs: Vec::new(),
            work: Work::Task,
            call: Call { program, function, seed, arguments, needs: Box::new([]), make: None },
        };
        self.step(Event::Submitted { task });
    }

    pub(super) fn end_jobs(&mut self) {
        while let Some((job, result)) = self.done.pop() {
            self.job_done(job, result);
        }
    }

    fn job_done(&mut self, job: JobId, result: Result<(), Arc<TaskError>>) {
        let Some(mut ended) = self.jobs.remove(&job) else { return };
        let value = self.results.remove(&ended.first.returns(0));
        let result = result.map(|()| match value {
            Some(Stored::Inline(bytes)) => bytes.into_vec(),
            _ => Vec::new(),
        });
        if let Some(done) = ended.done.take() {
            let _ = done.send(JobResult { result, counts: self.count });
        }
        self.events.push_back(Event::JobEnded { job });
        if let Some(mut member) = self.members.remove(&ended.driver) {
            member.crew.kill();
            self.events.push_back(Event::WorkerLost { worker: ended.driver, begun: Vec::new() });
        }
    }

    /// Ends all jobs: workers end before they have begun anything, again and again.
    pub(super) fn give_up(&mut self, why: &str) {
        let fault = Fault::new(Code::Host, format!("workers can't be started: {why}"));
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        self.done.extend(jobs.into_iter().map(|job| (job, Err(error.clone()))));
        self.failed_starts = 0;
        self.end_jobs();
        while let Some(event) = self.events.pop_front() {
            self.step(event);
        }
    }
}
