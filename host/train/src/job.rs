//! The job file.

mod error;
mod parse;
mod validate;

use std::collections::BTreeMap;

use sandbar_core::Limits;
use sandbar_dataset::{OutputFormat, ScanSource, TextOptions, TextSpec};
use sandbar_dense::DeviceChoice;
use serde::{Deserialize, Serialize};

pub use error::JobFileError;
pub(crate) use error::{ValidationError, with_hint};
pub use parse::Override;

/// A job: what is read, what is done to it, what is trained, if anything is, and where it goes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What people call it.
    #[serde(default)]
    pub name: String,
    /// What is read.
    pub input: InputSpec,
    /// What is done to the rows, in order.
    #[serde(default)]
    pub transform: Vec<TransformSpec>,
    /// What is trained. Without it the rows themselves are the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TrainSpec>,
    /// Where models or rows go.
    pub output: OutputSpec,
    /// Where functions have dense algebra done, and trainers that can leave it to the host do: on the processor, a GPU, or
    /// where it is done soonest. Otherwise trainers do it themselves.
    #[serde(default)]
    pub device: Option<DeviceChoice>,
    /// What each call may use.
    #[serde(default)]
    pub limits: Limits,
    /// Which keys flags of the command line have set, for messages.
    #[serde(skip)]
    pub(crate) flags: Vec<KeyFlag>,
}

/// A key that a flag of the command line has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFlag {
    /// Dotted: `train.models.0.udf`.
    key: String,
    /// The flag in words: `--set train.models.0.udf=…`, `--output`.
    label: String,
}

/// What is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Files, folders, globs and URLs.
    pub paths: Vec<String>,
    /// An SQL expression; rows for which it is not true are left out.
    #[serde(default)]
    pub filter: Option<String>,
    /// Types of columns of text, by Arrow's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, String>,
    /// Values of text that stand for null; by default the empty value of CSV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null_values: Option<Vec<String>>,
    /// The character between values of CSV files; by default a comma, and a tab in `.tsv` files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Whether the first line of CSV files names the columns, as it does by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// The character around values of CSV files; by default `"`, and none if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// The character that begins lines of CSV files which are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// How text is encoded: `utf-8` (the default), `latin-1` or `utf-16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

impl InputSpec {
    /// What it says of files of text.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn text_options(&self) -> Result<TextOptions, String> {
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

/// A function over the rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformSpec {
    /// `PATH#function`; PATH is a component or the folder of a crate.
    pub udf: String,
    /// The columns it gets, when its own declaration does not say or the file
    /// names them otherwise: `["a", "b"]`, or `{ argument = "column" }`.
    #[serde(default)]
    pub columns: Option<Columns>,
    /// Name of a scalar function's column; by default the function's own.
    #[serde(default)]
    pub output: Option<String>,
    /// Its parameters.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// Columns of the input for the arguments of a function.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Columns {
    /// In the order of the arguments, or by the names the function expects.
    Names(Vec<String>),
    /// Column by argument.
    ByArgument(BTreeMap<String, String>),
}

/// What is trained.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// Columns whose values make a group; none makes one group of all rows.
    #[serde(default)]
    pub group_by: Vec<String>,
    /// Whether the rows of different files are different groups.
    #[serde(default)]
    pub per_file: bool,
    /// Columns to learn from.
    pub features: Vec<String>,
    /// Column to learn.
    pub target: String,
    /// Share of each group's rows to test on.
    #[serde(default = "default_test")]
    pub test: f64,
    /// Seed of the split and of the trainers.
    #[serde(default)]
    pub seed: u64,
    /// Groups of fewer rows are skipped.
    #[serde(default = "default_min_rows")]
    pub min_rows: u32,
    /// What ranks the models of a group.
    #[serde(default)]
    pub metric: Metric,
    /// The models that are trained for each group.
    pub models: Vec<ModelSpec>,
}

fn default_test() -> f64 {
    0.25
}

fn default_min_rows() -> u32 {
    4
}

/// What ranks models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Mean absolute error: less is better.
    #[default]
    Mae,
    /// Mean squared error: less is better.
    Mse,
    /// Its root: less is better.
    Rmse,
    /// Coefficient of determination: more is better.
    R2,
}

/// A model to train.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// `PATH#trainer`; PATH is a component or the folder of a crate.
    pub udf: String,
    /// What it is called in the output; by default the trainer's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Its parameters.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// Where models or rows go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// A file, whose extension says its format; with `partition_by` a folder.
    pub path: String,
    /// The format of rows, where the extension does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// Columns whose values name folders that rows go to (`year=2019/`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partition_by: Vec<String>,
}

impl Job {
    /// What is read, of it the columns that a later step needs.
    pub(crate) fn scan_source(&self, columns: Option<Vec<String>>) -> ScanSource {
        // Of a job that was checked it is an option.
        let text = self.input.text_options().unwrap_or_default();
        ScanSource { paths: self.input.paths.clone(), filter: self.input.filter.clone(), columns, text }
    }

    /// A key as messages name it: with the flag that has set it, or as the job file has it.
    pub(crate) fn key_label(&self, key: &str) -> String {
        let dotted = key.replace('[', ".").replace(']', "");
        let is_of = |flag: &&KeyFlag| {
            dotted.strip_prefix(&flag.key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.flags.iter().rev().find(is_of).map_or_else(|| format!("`{key}`"), |flag| format!("`{}`", flag.label))
    }
}

impl ModelSpec {
    /// What it is called in the output.
    pub fn label(&self) -> &str {
        let function = self.udf.rsplit_once('#').map_or(self.udf.as_str(), |(_, function)| function);
        self.name.as_deref().unwrap_or(function)
    }
}
