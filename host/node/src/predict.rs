//! Stored models over new rows.

use std::path::PathBuf;

use serde::Serialize;

use crate::{Node, NodeError};

/// What to predict.
#[derive(Debug, Clone)]
pub struct PredictSpec {
    /// The output of a job.
    pub models: PathBuf,
    /// Files, folders, globs and URLs.
    pub input: Vec<String>,
    /// A Parquet file.
    pub output: PathBuf,
    /// The label of the models to use; by default the best of each group.
    pub model: Option<String>,
    /// For jobs with `per_file`: the training file whose models to use; by
    /// default the one that is called as the input file.
    pub file: Option<String>,
}

/// What came of a prediction.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Predicted {
    /// Rows read and written.
    pub rows: u64,
    /// Rows whose group has no model; their prediction is null.
    pub without_model: u64,
    /// Rows whose prediction failed; it is null.
    pub failed: u64,
    /// How long it took.
    pub seconds: f64,
    /// The file with the predictions.
    pub output: String,
}

impl Node {
    /// Predicts with stored models.
    pub async fn predict(&self, _spec: &PredictSpec) -> Result<Predicted, NodeError> {
        Err(NodeError::Job("predictions are not here yet".into()))
    }
}
