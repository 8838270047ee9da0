//! The runner of job files.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;
use sandbar_core::{Code, ComponentId, Fault};
use sandbar_dataset::{DatasetError, Scan, ScanOptions};
use sandbar_dense::DeviceChoice;
use sandbar_functions::{FunctionLoader, FunctionOrigin, JobFunctions};
use sandbar_jobs::{JobProgress, Phase};
use sandbar_machine::{morsels_at_once, names_beside, relative_to};
use sandbar_worker::{GpuMachine, Pool};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::job::{Job, with_hint};
use crate::rows::RowsSummary;
use crate::train::Summary;
use crate::transform::{Needed, Steps, Transform};
use crate::units::RemoteTrainers;

/// Key of [`JobMetadata`] in the metadata of the output file.
pub(crate) const METADATA_KEY: &str = "sandbar";

/// Options of a [`JobRunner`].
#[derive(Debug, Clone)]
pub struct JobRunnerOptions {
    /// Folder for rows that exceed the memory.
    pub spill: PathBuf,
    /// Memory for grouped rows before they spill, in bytes.
    pub memory_bytes_max: u64,
    /// GPUs that jobs may use.
    pub gpus: Option<Arc<GpuMachine>>,
    /// Other nodes that train units.
    pub remote: Option<Arc<dyn RemoteTrainers>>,
}

/// Runs job files and predictions.
#[derive(Debug, Clone)]
pub struct JobRunner {
    pub(crate) pool: Arc<Pool>,
    pub(crate) functions: FunctionLoader,
    pub(crate) progress: Arc<JobProgress>,
    pub(crate) options: Arc<JobRunnerOptions>,
}

/// Summary of a job.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// The job trained models.
    Models(Summary),
    /// The job wrote rows.
    Rows(RowsSummary),
}

/// What a file of models stores about its job. It is untrusted data: its paths are for messages only.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobMetadata {
    pub job: Job,
    /// Origin of each model's trainer, by the model's label.
    pub trainers: BTreeMap<String, FunctionOrigin>,
    /// Origins of the job's transforms. Files of older versions lack them.
    #[serde(default)]
    pub transforms: Vec<FunctionOrigin>,
}

impl JobMetadata {
    /// Opens the cached components of the trainers.
    pub(crate) fn open_components(&self, functions: &FunctionLoader) -> Result<Vec<(ComponentId, File)>, TrainError> {
        let components = self.trainers.values().map(|origin| {
            let path = functions.cached_component(origin.component);
            Ok((origin.component, File::open(&path).map_err(TrainError::file(&path))?))
        });
        components.collect()
    }
}

impl JobRunner {
    /// Creates a runner on the workers of `pool`.
    pub fn new(
        pool: Arc<Pool>,
        functions: FunctionLoader,
        progress: Arc<JobProgress>,
        options: JobRunnerOptions,
    ) -> JobRunner {
        JobRunner { pool, functions, progress, options: Arc::new(options) }
    }

    /// Runs a job.
    ///
    /// # Errors
    /// Fails if the whole job fails; failures of single groups are in its summary.
    pub async fn run(&self, job: &Job) -> Result<Outcome, TrainError> {
        let (start, built_before) = (Instant::now(), self.progress.build_time());
        self.check_device(job).await?;
        self.progress.enter(Phase::Preparing, 0);
        let mut functions = JobFunctions::new(self.functions.clone(), job.limits);
        let mut transforms = Vec::new();
        for (i, spec) in job.transform.iter().enumerate() {
            let key = job.key(&format!("transform[{i}].udf"));
            transforms.push(Transform::bind(self, &mut functions, &key, spec).await?);
        }
        let mut outcome = match &job.train {
            Some(train) => Outcome::Models(self.run_training(job, train, functions, transforms).await?),
            None => Outcome::Rows(self.write_rows(job, transforms).await?),
        };
        let building = self.progress.build_time() - built_before;
        let (build_seconds, seconds, peak_memory_bytes) = match &mut outcome {
            Outcome::Models(of) => (&mut of.build_seconds, &mut of.seconds, &mut of.peak_memory_bytes),
            Outcome::Rows(of) => (&mut of.build_seconds, &mut of.seconds, &mut of.peak_memory_bytes),
        };
        *build_seconds = building.as_secs_f64();
        *seconds = start.elapsed().saturating_sub(building).as_secs_f64();
        *peak_memory_bytes = self.peak_memory_bytes();
        Ok(outcome)
    }

    /// Returns the peak memory of this process and its workers.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        sandbar_worker::peak_memory_bytes(std::process::id()) + self.pool.peak_memory_bytes()
    }

    /// Checks that the job's device exists.
    pub(crate) async fn check_device(&self, job: &Job) -> Result<(), TrainError> {
        let has_gpu = match &self.options.gpus {
            Some(gpus) if job.device == Some(DeviceChoice::Gpu) => !gpus.usable().await.is_empty(),
            _ => false,
        };
        if job.device == Some(DeviceChoice::Gpu) && !has_gpu {
            let reason = "`device` is \"gpu\", and this node has no GPU that can be used (see `host gpu list`); \
                          \"auto\" takes the processor where there is none";
            return Err(TrainError::Invalid(reason.to_owned()));
        }
        Ok(())
    }

    /// Opens the job's input, with the columns that its steps need and the columns `needed` after them.
    pub(crate) async fn open_scan(&self, job: &Job, steps: &Steps, mut needed: Needed) -> Result<Scan, TrainError> {
        for transform in steps.transforms.iter().rev() {
            needed = transform.needs(needed);
        }
        let scan = Scan::open(job.source(needed), ScanOptions::default()).await;
        Ok(scan.map_err(|error| missing_input(error, &job.input.paths, |i| job.key(&format!("input.paths[{i}]"))))?)
    }

    /// Returns the number of morsels of a scan that are read concurrently.
    pub(crate) fn morsels_at_once(&self, scan: &Scan) -> usize {
        morsels_at_once(self.pool.workers(), scan.morsel_bytes_max())
    }
}

/// Adds the key that names a missing input, and similar names, to a read error.
pub(crate) fn missing_input(error: DatasetError, paths: &[String], key: impl Fn(usize) -> String) -> DatasetError {
    let DatasetError::Input { path, reason } = &error else { return error };
    let is_plain = !path.contains("://") && !Path::new(path).exists();
    let Some(at) = paths.iter().position(|given| given == path).filter(|_| is_plain) else { return error };
    let hint = sandbar_core::hint(path, &names_beside(Path::new(path)));
    let reason = format!("{} names it: {reason} {}{hint}", key(at), relative_to(Path::new(path)));
    DatasetError::Input { path: path.clone(), reason }
}

/// Returns the columns after the job's transforms. If a transform refuses its parameters, the error names the parameter.
pub(crate) async fn transformed_schema(
    job: &Job,
    steps: &Arc<Steps>,
    scan: &Scan,
    seed: u64,
) -> Result<SchemaRef, TrainError> {
    let fault = match steps.schema(scan.schema(), seed).await {
        Ok(schema) => return Ok(schema),
        Err(fault) => fault,
    };
    let has_params = |at: &usize| job.transform.get(*at).is_some_and(|spec| !spec.params.is_empty());
    let refused = match fault.code {
        Code::Refused => steps.refused_parameter(&job.transform, scan.schema(), &fault).await,
        _ => None,
    };
    let Some((at, name)) = refused.filter(|(at, name)| has_params(at) || name.is_some()) else {
        return Err(fault.into());
    };
    let name = name.map_or_else(String::new, |name| format!(".{name}"));
    let key = job.key(&format!("transform[{at}].params{name}"));
    Err(Fault { message: format!("{key}: {}", with_hint(&fault.message)), ..fault }.into())
}
