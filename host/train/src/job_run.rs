//! Runs of whole jobs.

use std::time::Instant;

use sandbar_jobs::Phase;
use serde::Serialize;

use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::Job;
use crate::rows::RowsSummary;
use crate::train::TrainSummary;
use crate::transform::Transform;

/// Summary of a job.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum JobOutcome {
    /// The job trained models.
    Models(TrainSummary),
    /// The job wrote rows.
    Rows(RowsSummary),
}

impl JobExecution {
    /// Runs a job.
    ///
    /// # Errors
    /// Fails if the whole job fails.
    pub(crate) async fn run(&self, job: &Job) -> Result<JobOutcome, TrainError> {
        let (start, built_before) = (Instant::now(), self.progress.build_time());
        self.check_device(job).await?;
        self.progress.enter(Phase::Preparing, 0);
        let mut functions = self.job_functions(job);
        let mut transforms = Vec::new();
        for (i, spec) in job.transform.iter().enumerate() {
            let key = job.key_label(&format!("transform[{i}].udf"));
            transforms.push(Transform::bind(&mut functions, &key, spec, &self.progress).await?);
        }
        let mut outcome = match &job.train {
            Some(train) => JobOutcome::Models(self.run_training(job, train, functions, transforms).await?),
            None => JobOutcome::Rows(self.write_rows(job, transforms).await?),
        };
        let building = self.progress.build_time() - built_before;
        let (tenant, build_seconds, seconds, peak_memory_bytes) = match &mut outcome {
            JobOutcome::Models(summary) => {
                let TrainSummary { tenant, build_seconds, seconds, peak_memory_bytes, .. } = summary;
                (tenant, build_seconds, seconds, peak_memory_bytes)
            }
            JobOutcome::Rows(summary) => {
                let RowsSummary { tenant, build_seconds, seconds, peak_memory_bytes, .. } = summary;
                (tenant, build_seconds, seconds, peak_memory_bytes)
            }
        };
        *tenant = self.calls.tenant();
        *build_seconds = building.as_secs_f64();
        *seconds = start.elapsed().saturating_sub(building).as_secs_f64();
        *peak_memory_bytes = self.peak_memory_bytes();
        Ok(outcome)
    }
}
