//! Options and results of predictions.

use std::path::PathBuf;

use sandbar_core::Limits;
use serde::Serialize;

use crate::error::TrainError;
use crate::metadata::JobMetadata;

/// What to predict.
#[derive(Debug, Clone)]
pub struct PredictSpec {
    /// The output of a job.
    pub models: PathBuf,
    /// Files, folders, globs and URLs.
    pub input: Vec<String>,
    /// A file, whose extension says its format.
    pub output: PathBuf,
    /// The label of the models to use; by default the best of each group.
    pub model: Option<String>,
    /// For jobs with `per_file`: the training file whose models to use; by
    /// default the one that is called as the input file.
    pub file: Option<String>,
    /// JobFunctions of the models, or folders of their crates, beside those in the cache: nothing else is looked for, whatever
    /// the models' file says.
    pub components: Vec<PathBuf>,
}

/// What came of a prediction.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PredictSummary {
    /// Rows read.
    pub rows: u64,
    /// Rows behind the transforms, which were written.
    pub rows_written: u64,
    /// Rows that transforms left out.
    pub rows_dropped: u64,
    /// Files written.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Rows whose group has no model; their prediction is null.
    pub without_model: u64,
    /// Rows whose prediction failed; it is null.
    pub failed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Most memory of all processes together, each at its peak.
    pub peak_memory_bytes: u64,
    /// The file with the predictions.
    pub output: String,
    /// What failed, the first of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl PredictSpec {
    /// The limits of the job that made the models: a node that is to predict with them needs as much.
    ///
    /// # Errors
    /// When the models can't be read, or are no output of a job.
    pub fn limits(&self) -> Result<Limits, TrainError> {
        Ok(JobMetadata::read(&self.models)?.job.limits)
    }
}
