//! Options and results of predictions.

use std::path::PathBuf;

use sandbar_core::Limits;
use serde::Serialize;

use crate::error::TrainError;
use crate::metadata::JobMetadata;

/// A prediction: its models, input and output.
#[derive(Debug, Clone)]
pub struct PredictSpec {
    /// Model file: the output of a job.
    pub models: PathBuf,
    /// Files, folders, globs and URLs.
    pub input: Vec<String>,
    /// Output file, whose extension determines the format.
    pub output: PathBuf,
    /// Label of the models to use; by default the best model of each group.
    pub model: Option<String>,
    /// For jobs with `per_file`: training file whose models to use; by default the one with the name of the input file.
    pub file: Option<String>,
    /// Components of the models, or folders of their crates, in addition to those in the cache. Paths in the model file
    /// are never opened.
    pub components: Vec<PathBuf>,
}

/// Summary of a prediction.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PredictSummary {
    /// Number of rows read.
    pub rows: u64,
    /// Rows after the transforms, which were written.
    pub rows_written: u64,
    /// Rows that the transforms dropped.
    pub rows_dropped: u64,
    /// Number of files written.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Rows whose group has no model, with null predictions.
    pub without_model: u64,
    /// Rows whose prediction failed, with null predictions.
    pub failed: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Sum of the peak memory of all processes, in bytes.
    pub peak_memory_bytes: u64,
    /// Output file.
    pub output: String,
    /// First failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl PredictSpec {
    /// Returns the limits of the job that trained the models. A node needs the same limits to predict with them.
    ///
    /// # Errors
    /// Fails if the model file is unreadable or not the output of a job.
    pub fn limits(&self) -> Result<Limits, TrainError> {
        Ok(JobMetadata::read(&self.models, &self.models)?.job.limits)
    }
}
