//! Job files: the settings of a job.

mod error;
mod parse;
mod validate;

use std::collections::BTreeMap;

use sandbar_core::Limits;
use sandbar_dataset::{OutputFormat, ScanSource, TextOptionError, TextOptions, TextSpec};
use sandbar_dense::DeviceChoice;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::sources::JobSources;

pub use error::JobFileError;
pub(crate) use error::{ValidationError, with_hint};
pub use parse::Override;

/// A job: its input, transforms, training if any, and output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Name, for messages.
    #[serde(default)]
    pub name: String,
    /// Input rows.
    pub input: InputSpec,
    /// Transforms of the rows, in order.
    #[serde(default)]
    pub transform: Vec<TransformSpec>,
    /// Training. Without it the rows themselves are the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TrainSpec>,
    /// Destination of the models or rows.
    pub output: OutputSpec,
    /// Device of the host's dense algebra, for functions that call it and trainers that can delegate to it: the CPU, a
    /// GPU, or the faster of both. Without it trainers compute in their sandbox.
    #[serde(default)]
    pub device: Option<DeviceChoice>,
    /// Limits of each call.
    #[serde(default)]
    pub limits: Limits,
    /// Keys that command-line flags have set, for messages.
    #[serde(skip)]
    pub(crate) flags: Vec<KeyFlag>,
}

/// A key that a command-line flag has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFlag {
    /// Dotted key: `train.models.0.udf`.
    key: String,
    /// The flag as messages show it: `--set train.models.0.udf=…`, `--output`.
    label: String,
}

/// The input of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Files, folders, globs and URLs.
    pub paths: Vec<String>,
    /// SQL expression; rows for which it is not true are dropped.
    #[serde(default)]
    pub filter: Option<String>,
    /// Arrow types of text columns, by column.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, String>,
    /// Text values that stand for null; by default the empty value of CSV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null_values: Option<Vec<String>>,
    /// Delimiter of CSV files; by default a comma, or a tab for `.tsv` files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Whether the first line of CSV files names the columns; by default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Quote character of CSV files; by default `"`. Empty disables quoting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// First character of comment lines in CSV files, which are skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Text encoding: `utf-8` (the default), `latin-1` or `utf-16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

impl InputSpec {
    /// Returns the options of text files.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn text_options(&self) -> Result<TextOptions, TextOptionError> {
        TextOptions::new(&TextSpec {
            types: self.types.clone(),
            null_values: self.null_values.clone(),
            delimiter: self.delimiter.clone(),
            header: self.header,
            quote: self.quote.clone(),
            comment: self.comment.clone(),
            encoding: self.encoding.clone(),
        })
    }
}

/// A function that transforms the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformSpec {
    /// `PATH#function`; PATH is a component, a crate folder, or the name of a shipped component.
    pub udf: String,
    /// Columns for the arguments, if the function declares none or their names differ: `["a", "b"]`, or
    /// `{ argument = "column" }`.
    #[serde(default)]
    pub columns: Option<Columns>,
    /// Name of a scalar function's output column; by default the function's name.
    #[serde(default)]
    pub output: Option<String>,
    /// Parameters of the function.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// Input columns for the arguments of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Columns {
    /// Columns in the order of the arguments, or, if the function declares none, under their own names.
    Names(Vec<String>),
    /// Column by argument.
    ByArgument(BTreeMap<String, String>),
}

/// The training of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// Columns whose values identify a group; without any, all rows are one group.
    #[serde(default)]
    pub group_by: Vec<String>,
    /// Whether rows of different files belong to different groups.
    #[serde(default)]
    pub per_file: bool,
    /// Feature columns.
    pub features: Vec<String>,
    /// Target column.
    pub target: String,
    /// Fraction of each group's rows that is held out for testing.
    #[serde(default = "default_test")]
    pub test: f64,
    /// Seed of the train-test split and of the trainers.
    #[serde(default)]
    pub seed: u64,
    /// Minimum rows of a group; smaller groups are skipped.
    #[serde(default = "default_min_rows")]
    pub min_rows: u32,
    /// Metric that ranks the models of a group.
    #[serde(default)]
    pub metric: Metric,
    /// Models to train for each group.
    pub models: Vec<ModelSpec>,
}

fn default_test() -> f64 {
    0.25
}

fn default_min_rows() -> u32 {
    4
}

/// A metric that ranks models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Mean absolute error; lower is better.
    #[default]
    Mae,
    /// Mean squared error; lower is better.
    Mse,
    /// Root mean squared error; lower is better.
    Rmse,
    /// Coefficient of determination; higher is better.
    R2,
}

/// A model to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// `PATH#trainer`; PATH is a component, a crate folder, or the name of a shipped component.
    pub udf: String,
    /// Label in the output; by default the trainer's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Parameters of the function.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// The output of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// File, whose extension determines the format; with `partition_by` a folder.
    pub path: String,
    /// Format of rows, if the extension does not determine it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// Partition columns, whose values name the folders of rows (`year=2019/`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partition_by: Vec<String>,
}

impl Job {
    /// Checks a job that was not parsed from a job file.
    ///
    /// # Errors
    /// Why the job is invalid.
    pub fn validate(&self) -> Result<(), String> {
        self.check().map_err(|e| e.to_string())
    }

    /// Returns the paths of the components of the job's functions, which may be equal.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.functions().filter_map(|(_, udf)| udf.rsplit_once('#').map(|(path, _)| path))
    }

    /// Returns the job's functions, with their keys.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (String, &str)> {
        let transforms = self.transform.iter().enumerate();
        let transforms = transforms.map(|(i, transform)| (format!("transform[{i}].udf"), transform.udf.as_str()));
        let models = self.train.iter().flat_map(|train| &train.models).enumerate();
        transforms.chain(models.map(|(i, model)| (format!("train.models[{i}].udf"), model.udf.as_str())))
    }

    /// Returns the source of the scan, with these columns; `None` reads all. `sources` replace the job's paths.
    ///
    /// # Errors
    /// An option of text files is invalid, which a validated job's are not.
    pub(crate) fn scan_source(
        &self,
        columns: Option<Vec<String>>,
        sources: Option<&JobSources>,
    ) -> Result<ScanSource, TrainError> {
        let text = self.input.text_options().map_err(|e| TrainError::Invalid(e.message))?;
        let named = sources.map(|sources| sources.inputs.clone());
        Ok(ScanSource { paths: self.input.paths.clone(), named, filter: self.input.filter.clone(), columns, text })
    }

    /// Returns how messages name a key: by the flag that has set it, or as in the job file.
    pub(crate) fn key_label(&self, key: &str) -> String {
        let dotted = key.replace('[', ".").replace(']', "");
        let is_of = |flag: &&KeyFlag| {
            dotted.strip_prefix(&flag.key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.flags.iter().rev().find(is_of).map_or_else(|| format!("`{key}`"), |flag| format!("`{}`", flag.label))
    }
}

impl ModelSpec {
    /// Returns the label in the output.
    pub fn label(&self) -> &str {
        let function = self.udf.rsplit_once('#').map_or(self.udf.as_str(), |(_, function)| function);
        self.name.as_deref().unwrap_or(function)
    }
}
