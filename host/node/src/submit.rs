//! A job, from its file to its output: what it needs is made ready, and then it trains or writes rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;
use sandbar_core::{Code, ComponentId, Fault};
use sandbar_dataset::{DatasetError, Scan, ScanOptions};
use sandbar_dense::DeviceChoice;
use sandbar_jobs::Phase;
use sandbar_machine::{morsels_at_once, names_beside, relative_to};
use serde::{Deserialize, Serialize};

use crate::function::Components;
use crate::job::with_hint;
use crate::rows::RowsSummary;
use crate::train::Summary;
use crate::transform::{Needed, Steps, Transform};
use crate::{Job, Node, NodeError};

/// Key of the output's metadata under which predictions find what they need.
pub(crate) const METADATA_KEY: &str = "sandbar";

/// What came of a job.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It trained models.
    Models(Summary),
    /// It wrote rows.
    Rows(RowsSummary),
}

/// What the output remembers of its job. Read from a file, it is data: its paths are for people.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Remembered {
    pub job: Job,
    /// For each model's label, the component and the function that made it.
    pub trainers: BTreeMap<String, Origin>,
    /// The same for each of the job's transforms. Files of older versions don't say.
    #[serde(default)]
    pub transforms: Vec<Origin>,
}

impl Remembered {
    /// The components of the trainers, as they are kept.
    pub(crate) fn components(&self, node: &Node) -> Result<Vec<(ComponentId, File)>, NodeError> {
        let components = self.trainers.values().map(|origin| {
            let path = node.component_path(origin.component);
            Ok((origin.component, File::open(&path).map_err(NodeError::file(&path))?))
        });
        components.collect()
    }
}

/// Where a function came from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    #[serde(with = "crate::components::as_text")]
    pub component: ComponentId,
    pub function: String,
    pub params: String,
    /// Where it was then: for people. Nothing is opened there.
    pub path: PathBuf,
}

impl Node {
    /// Runs a job to its end.
    ///
    /// # Errors
    /// When it can't be run as a whole; what happens to single groups is in its outcome.
    pub async fn submit(&self, job: &Job) -> Result<Outcome, NodeError> {
        let (start, built_before) = (Instant::now(), self.progress.build_time());
        self.check_device(job).await?;
        self.progress.enter(Phase::Preparing, 0);
        let mut components = Components::new(job.limits);
        let mut transforms = Vec::new();
        for (i, spec) in job.transform.iter().enumerate() {
            let key = job.key(&format!("transform[{i}].udf"));
            transforms.push(Transform::new(self, &mut components, &key, spec).await?);
        }
        let mut outcome = match &job.train {
            Some(train) => Outcome::Models(self.run_training(job, train, components, transforms).await?),
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

    /// Most memory of this process and its workers.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        sandbar_worker::peak_memory_bytes(std::process::id()) + self.pool.peak_memory_bytes()
    }

    /// Whether what the job says of GPUs can be.
    pub(crate) async fn check_device(&self, job: &Job) -> Result<(), NodeError> {
        let has_gpu = match &self.options.gpus {
            Some(gpus) if job.device == Some(DeviceChoice::Gpu) => !gpus.usable().await.is_empty(),
            _ => false,
        };
        if job.device == Some(DeviceChoice::Gpu) && !has_gpu {
            let why = "`device` is \"gpu\", and this node has no GPU that can be used (see `host gpu list`); \
                       \"auto\" takes the processor where there is none";
            return Err(NodeError::Job(why.to_owned()));
        }
        Ok(())
    }

    /// The rows that a job reads, with the columns that its steps need, and those that are needed `behind` them.
    pub(crate) async fn open_scan(&self, job: &Job, steps: &Steps, behind: Needed) -> Result<Scan, NodeError> {
        let mut needed = behind;
        for transform in steps.transforms.iter().rev() {
            needed = transform.needs(needed);
        }
        let scan = Scan::open(job.source(needed), ScanOptions::default()).await;
        Ok(scan.map_err(|error| missing_input(error, &job.input.paths, |i| job.key(&format!("input.paths[{i}]"))))?)
    }

    /// How many morsels of a scan are read at once.
    pub(crate) fn morsels_at_once(&self, scan: &Scan) -> usize {
        morsels_at_once(self.pool.workers(), scan.morsel_bytes_max())
    }
}

/// An error of reading, with what names the input that is not there, and what is there instead.
pub(crate) fn missing_input(error: DatasetError, paths: &[String], key: impl Fn(usize) -> String) -> DatasetError {
    let DatasetError::Input { path, reason } = &error else { return error };
    let is_plain = !path.contains("://") && !Path::new(path).exists();
    let Some(at) = paths.iter().position(|given| given == path).filter(|_| is_plain) else { return error };
    let hint = sandbar_core::hint(path, &names_beside(Path::new(path)));
    let reason = format!("{} names it: {reason} {}{hint}", key(at), relative_to(Path::new(path)));
    DatasetError::Input { path: path.clone(), reason }
}

/// The columns behind the transforms of a job. Of parameters that one of them refuses is said which they are.
pub(crate) async fn made_schema(job: &Job, steps: &Arc<Steps>, scan: &Scan, seed: u64) -> Result<SchemaRef, NodeError> {
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
