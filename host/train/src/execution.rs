//! One run of a job file or a prediction: its calls, and the shared state of its steps.

use std::path::Path;
use std::sync::Arc;

use sandbar_core::Limits;
use sandbar_dataset::{DatasetError, Scan, ScanOptions};
use sandbar_dense::DeviceChoice;
use sandbar_functions::{FunctionLoader, JobFunctions};
use sandbar_jobs::JobProgress;
use sandbar_machine::{morsels_at_once, names_beside, relative_to};
use sandbar_worker::JobCalls;

use crate::error::TrainError;
use crate::failing_row::FailingRowFinder;
use crate::job::Job;
use crate::options::JobRunnerOptions;
use crate::pipeline::Pipeline;
use crate::sources::JobSources;
use crate::transform::NeededColumns;

/// A run of a job file or a prediction.
pub(crate) struct JobExecution {
    /// Its calls, which the node's scheduler grants workers.
    pub(crate) calls: JobCalls,
    pub(crate) functions: FunctionLoader,
    pub(crate) progress: Arc<JobProgress>,
    pub(crate) options: Arc<JobRunnerOptions>,
    /// Files that replace the job's paths, if its paths are names only.
    pub(crate) sources: Option<Arc<JobSources>>,
}

impl JobExecution {
    /// Returns the peak memory of this process and its workers.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        sandbar_worker::peak_memory_bytes(std::process::id()) + self.calls.pool().peak_memory_bytes()
    }

    /// Checks that the job's device exists.
    pub(crate) async fn check_device(&self, job: &Job) -> Result<(), TrainError> {
        let has_gpu = match &self.options.gpus {
            Some(gpus) if job.device == Some(DeviceChoice::Gpu) => !gpus.usable().await.is_empty(),
            _ => false,
        };
        if job.device == Some(DeviceChoice::Gpu) && !has_gpu {
            let reason = "`device` is \"gpu\", and this node has no usable GPU (see `host gpu list`); \
                          \"auto\" falls back to the CPU";
            return Err(TrainError::Invalid(reason.to_owned()));
        }
        Ok(())
    }

    /// Opens the job's input, with the columns that its steps need and the columns `needed` after them.
    pub(crate) async fn open_scan(
        &self,
        job: &Job,
        pipeline: &Pipeline,
        mut needed: NeededColumns,
    ) -> Result<Scan, TrainError> {
        for transform in pipeline.transforms.iter().rev() {
            needed = transform.needed_columns(needed);
        }
        let sources = self.sources.as_deref();
        let scan = Scan::open(job.scan_source(needed, sources)?, ScanOptions::default()).await;
        Ok(scan.map_err(|error| match sources {
            Some(_) => error,
            None => missing_input(error, &job.input.paths, |i| job.key_label(&format!("input.paths[{i}]"))),
        })?)
    }

    /// Returns the functions of a job.
    pub(crate) fn job_functions(&self, job: &Job) -> JobFunctions {
        let components = self.sources.as_ref().map(|sources| sources.components.clone());
        JobFunctions::new(self.functions.clone(), self.limits(job), components)
    }

    /// Returns the limits of a job's calls. This node's limits hold for jobs of other machines.
    pub(crate) fn limits(&self, job: &Job) -> Limits {
        match self.sources {
            Some(_) => job.limits.within(&self.functions.options().limits),
            None => job.limits,
        }
    }

    /// Returns a finder of rows of a job's input.
    pub(crate) fn failing_row_finder(&self, job: &Job, seed: u64) -> Result<FailingRowFinder, TrainError> {
        let source = job.scan_source(None, self.sources.as_deref())?;
        Ok(FailingRowFinder::new(source, self.options.spill.clone(), seed))
    }

    /// Returns the number of morsels of a scan that are read concurrently.
    pub(crate) fn morsels_at_once(&self, scan: &Scan) -> usize {
        morsels_at_once(self.calls.pool().workers(), scan.morsel_bytes_max())
    }
}

/// Adds the key that names a missing input, and similar names, to a read error.
pub(crate) fn missing_input(error: DatasetError, paths: &[String], key: impl Fn(usize) -> String) -> DatasetError {
    let DatasetError::Input { path, reason } = &error else { return error };
    let is_plain = !path.contains("://") && !Path::new(path).exists();
    let Some(index) = paths.iter().position(|input| input == path).filter(|_| is_plain) else { return error };
    let hint = sandbar_core::hint(path, &names_beside(Path::new(path)));
    let reason = format!("{} names it: {reason} {}{hint}", key(index), relative_to(Path::new(path)));
    DatasetError::Input { path: path.clone(), reason }
}
