//! The job file.

use std::collections::BTreeMap;

use arrow_schema::Schema;
use sandbar_core::Limits;
use sandbar_dataset::{TextOptions, TextSpec};
use sandbar_dense::Choice;
use serde::{Deserialize, Serialize};

use crate::{NodeError, output, results};

/// A job: what is read, what is done to it, what is trained, where it goes.
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
    /// What is trained.
    pub train: TrainSpec,
    /// Where the models go.
    pub output: OutputSpec,
    /// Where functions have dense algebra done, and trainers that can leave it to the host do: on the processor, a GPU, or
    /// where it is done soonest. Otherwise trainers do it themselves.
    #[serde(default)]
    pub device: Option<Choice>,
    /// What each call may use.
    #[serde(default)]
    pub limits: Limits,
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
    pub fn text(&self) -> Result<TextOptions, String> {
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

/// Where the models go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// A Parquet file.
    pub path: String,
}

impl Job {
    /// Parses a job file after `overrides` (`dotted.key=VALUE`, see [`set`]).
    pub fn parse(text: &str, overrides: &[String]) -> Result<Job, NodeError> {
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| NodeError::Job(e.to_string()))?;
        for assignment in overrides {
            set(&mut table, assignment).map_err(NodeError::Job)?;
        }
        let job: Job = toml::Value::Table(table)
            .try_into()
            .map_err(|e: toml::de::Error| NodeError::Job(e.to_string().trim().to_owned()))?;
        job.check().and_then(|()| output::check_name(&job.output.path)).map_err(NodeError::Job)?;
        Ok(job)
    }

    /// Whether it is one that can be run; says what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.input.paths.is_empty() {
            return Err("`input.paths` is empty: name a file, a folder, a glob or a URL".into());
        }
        self.input.text()?;
        if self.train.features.is_empty() {
            return Err("`train.features` is empty: name the columns to learn from".into());
        }
        if self.train.models.is_empty() {
            return Err(
                "`train.models` is empty: name at least one trainer, such as { udf = \"udfs/models#linear\" }".into()
            );
        }
        if !(0.0..1.0).contains(&self.train.test) {
            return Err(format!("`train.test` is {}, not a share of the rows from 0 to below 1", self.train.test));
        }
        if self.train.features.contains(&self.train.target) {
            return Err(format!("`{}` is both a feature and the target", self.train.target));
        }
        let columns = results::output_schema(&Schema::empty());
        if let Some(key) = self.train.group_by.iter().find(|key| columns.field_with_name(key).is_ok()) {
            return Err(format!(
                "a key can't be named `{key}`, as a column of the output is; rename it in a transform"
            ));
        }
        self.limits.check()?;
        let names: Vec<&str> = self.train.models.iter().map(ModelSpec::label).collect();
        if let Some(twice) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
            return Err(format!("two models are called `{twice}`: give one of them a `name`"));
        }
        Ok(())
    }
}

impl ModelSpec {
    /// What it is called in the output.
    pub fn label(&self) -> &str {
        let function = self.udf.rsplit_once('#').map_or(self.udf.as_str(), |(_, function)| function);
        self.name.as_deref().unwrap_or(function)
    }
}

/// Sets `dotted.key` of `table` to a TOML value: `train.seed=7`,
/// `input.paths=["a", "b"]`, `train.models.0.params.max_depth=5`.
pub fn set(table: &mut toml::Table, assignment: &str) -> Result<(), String> {
    let Some((path, text)) = assignment.split_once('=') else {
        return Err(format!("`{assignment}` is not KEY=VALUE"));
    };
    let parsed: toml::Table = format!("value = {}", text.trim()).parse().map_err(|_| {
        format!("`{}` is not a TOML value; text needs quotes: --set '{path}=\"{}\"'", text.trim(), text.trim())
    })?;
    let value = parsed.get("value").cloned().ok_or_else(|| format!("`{assignment}` has no value"))?;
    let keys: Vec<&str> = path.trim().split('.').collect();
    let (last, parents) = keys.split_last().ok_or("the key is empty")?;
    let mut at = toml::Value::Table(std::mem::take(table));
    let result = place(&mut at, parents, last, value, path);
    if let toml::Value::Table(changed) = at {
        *table = changed;
    }
    result
}

fn place(mut at: &mut toml::Value, parents: &[&str], last: &str, value: toml::Value, path: &str) -> Result<(), String> {
    let wrong = |key: &str| format!("`{path}` can't be set: `{key}` is neither a table nor an element of a list");
    for key in parents {
        at = match at {
            toml::Value::Table(table) => table.entry(*key).or_insert_with(|| toml::Value::Table(toml::Table::new())),
            toml::Value::Array(list) => {
                key.parse::<usize>().ok().and_then(|i| list.get_mut(i)).ok_or_else(|| wrong(key))?
            }
            _ => return Err(wrong(key)),
        };
    }
    match at {
        toml::Value::Table(table) => {
            table.insert(last.to_owned(), value);
            Ok(())
        }
        toml::Value::Array(list) => {
            let slot = last.parse::<usize>().ok().and_then(|i| list.get_mut(i)).ok_or_else(|| wrong(last))?;
            *slot = value;
            Ok(())
        }
        _ => Err(wrong(last)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const JOB: &str = r#"
        [input]
        paths = ["data"]
        [train]
        features = ["x"]
        target = "y"
        models = [{ udf = "m#linear" }, { udf = "m#tree", params = { max_depth = 3 } }]
        [output]
        path = "out.parquet"
    "#;

    fn check(overrides: &[&str], expect: Result<fn(&Job) -> bool, &str>) {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        match (Job::parse(JOB, &overrides), expect) {
            (Ok(job), Ok(holds)) => assert!(holds(&job), "{overrides:?}: {job:?}"),
            (Err(e), Err(words)) => assert!(e.to_string().contains(words), "{overrides:?}: {e}"),
            (got, _) => panic!("{overrides:?}: {got:?}"),
        }
    }

    #[test]
    fn anything_can_be_set() {
        check(&[], Ok(|j| j.train.test == 0.25 && j.train.min_rows == 4 && j.train.models[1].label() == "tree"));
        check(&["train.seed=7"], Ok(|j| j.train.seed == 7));
        check(&["input.paths=[\"a\", \"b\"]"], Ok(|j| j.input.paths == ["a", "b"]));
        check(&["input.types.zip=\"utf8\"", "input.header=false"], Ok(|j| j.input.types["zip"] == "utf8"));
        check(&["train.models.1.params.max_depth=5"], Ok(|j| j.train.models[1].params["max_depth"] == 5));
        check(&["limits.time_ms_max=5"], Ok(|j| j.limits.time_ms_max == 5));
        check(&["train.metric=\"r2\""], Ok(|j| j.train.metric == Metric::R2));
        check(&["transform=[{udf=\"t#f\", columns={a=\"b\"}}]"], Ok(|j| j.transform.len() == 1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        check(&["train.seed"], Err("not KEY=VALUE"));
        check(&["train.target=y"], Err("text needs quotes"));
        check(&["train.colour=1"], Err("colour"));
        check(&["train.models.9.udf=\"x\""], Err("models.9"));
        check(&["train.test=1.5"], Err("train.test"));
        check(&["train.features=[\"y\"]"], Err("both a feature and the target"));
        check(&["train.models=[{udf=\"a#f\"},{udf=\"b#f\"}]"], Err("two models are called `f`"));
        check(&["train.models=[]"], Err("train.models"));
        check(&["limits.instances_max=4000000000"], Err("`limits.instances_max` is 4000000000, not from 1 to 1000"));
        check(&["limits.time_ms_max=0"], Err("`limits.time_ms_max` is 0, less than 1"));
        check(&["limits.memory_bytes_max=8589934592"], Err("not from 65536 to 4294967296"));
        check(&["input.paths=[]"], Err("input.paths"));
        check(
            &["input.types={ zip = \"utf9\" }"],
            Err("`input.types` of column `zip`: `utf9` is not the name of a type"),
        );
        check(&["input.delimiter=\";;\""], Err("`input.delimiter` is \";;\""));
        check(&["input.quote=\",\""], Err("`input.delimiter` and `input.quote`"));
        check(&["input.encoding=\"koi8-r\""], Err("`input.encoding` is `koi8-r`"));
        check(&["input.separator=\";\""], Err("unknown field `separator`"));
        for key in ["model", "rank", "mae", "mse", "rmse", "r2", "rows_train", "rows_test", "params", "model_bytes"] {
            check(&[&format!("train.group_by=[\"k\", \"{key}\"]")], Err("a column of the output"));
        }
        for (path, words) in [
            ("", "is no file"),
            ("out/", "is no file"),
            ("out/noext", "does not end in .parquet"),
            ("out/x.csv", "does not end in .parquet"),
            ("s3://bucket/x.parquet", "is a URL"),
        ] {
            check(&[&format!("output.path=\"{path}\"")], Err(words));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_job_or_an_error(
            text in "[a-z.= \\[\\]{}\"0-9\n]{0,60}",
            key in "(train|input|transform|limits|x)?(\\.(models|params|seed|[0-9]|paths|)){0,4}",
            value in "[-0-9a-z\"\\[\\]{},. =]{0,12}",
            cut in any::<u16>(),
        ) {
            let _ = Job::parse(&text, &[]);
            let _ = Job::parse(&JOB[..usize::from(cut) % JOB.len()], &[]);
            if let Ok(job) = Job::parse(JOB, &[format!("{key}={value}")]) {
                prop_assert!(job.check().is_ok());
            }
        }
    }
}
