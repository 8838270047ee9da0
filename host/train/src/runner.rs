//! The runner of job files and predictions.

use std::path::Path;
use std::sync::Arc;

use sandbar_core::{JobRun, TenantId};
use sandbar_functions::FunctionLoader;
use sandbar_jobs::JobProgress;
use sandbar_worker::{CallJob, CallScheduler, CallUsage, JobCalls, Pool};

use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::Job;
use crate::job_run::JobOutcome;
use crate::options::JobRunnerOptions;
use crate::plan::JobPlan;
use crate::predict::{PredictSpec, PredictSummary};
use crate::sources::JobSources;

/// Runs job files and predictions.
#[derive(Debug, Clone)]
pub struct JobRunner {
    pool: Arc<Pool>,
    scheduler: Arc<dyn CallScheduler>,
    functions: FunctionLoader,
    progress: Arc<JobProgress>,
    options: Arc<JobRunnerOptions>,
}

impl JobRunner {
    /// Creates a runner on the workers of `pool`, which `scheduler` grants to jobs.
    pub fn new(
        pool: Arc<Pool>,
        scheduler: Arc<dyn CallScheduler>,
        functions: FunctionLoader,
        progress: Arc<JobProgress>,
        options: JobRunnerOptions,
    ) -> JobRunner {
        JobRunner { pool, scheduler, functions, progress, options: Arc::new(options) }
    }

    /// Runs a job of a tenant.
    ///
    /// # Errors
    /// Fails if the whole job fails; failures of single groups are in its summary.
    pub async fn run(&self, job: &Job, tenant: TenantId) -> Result<JobOutcome, TrainError> {
        self.start("train", tenant, JobRun::first(&job.name))?.run(job).await
    }

    /// Runs a job of a tenant with these files. Opens none of the paths that the job names. `run` is the job's run, in
    /// accounts.
    ///
    /// # Errors
    /// Fails like [`JobRunner::run`].
    pub async fn run_with(
        &self,
        job: &Job,
        tenant: TenantId,
        run: JobRun,
        sources: Arc<JobSources>,
    ) -> Result<JobOutcome, TrainError> {
        JobExecution { sources: Some(sources), ..self.start("train", tenant, run)? }.run(job).await
    }

    /// Plans a job by the checks of [`JobRunner::run`], without reading rows or building crates.
    ///
    /// # Errors
    /// Fails where [`JobRunner::run`] would before it reads rows.
    pub async fn plan(&self, job: &Job, tenant: TenantId) -> Result<JobPlan, TrainError> {
        self.start("plan", tenant, JobRun::first(&job.name))?.plan(job).await
    }

    /// Predicts with stored models. Applies the job's transforms to the rows first, and writes their output with a
    /// column of predictions.
    ///
    /// # Errors
    /// Fails if the models or the input are unusable. Rows without a model, or whose prediction fails, have null
    /// predictions.
    pub async fn predict(&self, spec: &PredictSpec, tenant: TenantId) -> Result<PredictSummary, TrainError> {
        self.start("predict", tenant, JobRun::first("predict"))?.predict(spec, &spec.models).await
    }

    /// Predicts with the stored models in the file `models`, with these files. Opens none of the paths of `spec`. `run`
    /// is the job's run, in accounts.
    ///
    /// # Errors
    /// Fails like [`JobRunner::predict`].
    pub async fn predict_with(
        &self,
        spec: &PredictSpec,
        models: &Path,
        tenant: TenantId,
        run: JobRun,
        sources: Arc<JobSources>,
    ) -> Result<PredictSummary, TrainError> {
        JobExecution { sources: Some(sources), ..self.start("predict", tenant, run)? }.predict(spec, models).await
    }

    fn start(&self, name: &'static str, tenant: TenantId, run: JobRun) -> Result<JobExecution, TrainError> {
        let job = CallJob { name, tenant, origin: None, run, usage: CallUsage::default() };
        let calls = JobCalls::start(&self.pool, &*self.scheduler, job)?;
        let (functions, progress, options) = (self.functions.clone(), self.progress.clone(), self.options.clone());
        Ok(JobExecution { calls, functions, progress, options, sources: None })
    }
}
