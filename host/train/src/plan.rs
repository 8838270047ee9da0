//! Dry runs: the steps of a job before its first row, and a plan of the rest.
//!
//! The checks are those of the run itself, so that errors have the same words. A worker runs a function, without rows, only
//! for the columns that a transform returns and for parameters that the job gives a trainer.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use sandbar_core::FunctionKind;
use sandbar_dataset::{Grouper, MemoryBudget, OutputFormat, Scan};
use sandbar_dense::DeviceChoice;
use sandbar_functions::{BoundFunction, JobFunctions};
use serde::Serialize;

use crate::error::TrainError;
use crate::job::{Job, Metric, ModelSpec, OutputSpec, TrainSpec};
use crate::output;
use crate::pipeline::{Pipeline, chunk_seed, transformed_schema};
use crate::runner::JobRunner;
use crate::train::{grouping_spec, training_columns};
use crate::transform::{TRANSFORM_KINDS, Transform};

/// Files of the input that a plan names; all are counted.
const FILES_LISTED_MAX: usize = 1000;

/// The plan of a job.
#[derive(Debug, Clone, Serialize)]
pub struct JobPlan {
    /// The job's name.
    pub name: String,
    /// The files and columns to read.
    pub input: InputPlan,
    /// The transforms, in order.
    pub transforms: Vec<FunctionPlan>,
    /// The columns behind the transforms; unknown while the crate of one has to be built.
    pub columns: Option<Vec<ColumnPlan>>,
    /// The training; `None` for a job that writes rows.
    pub train: Option<TrainPlan>,
    /// The file or folder to write.
    pub output: OutputPlan,
    /// The device for dense algebra, if the job names one.
    pub device: Option<DeviceChoice>,
    /// Worker processes.
    pub workers: usize,
    /// Memory for grouped rows before they go to disk, in bytes.
    pub memory_bytes_max: u64,
    /// Checks that were left out, each with the reason.
    pub unchecked: Vec<String>,
}

/// The input of a job.
#[derive(Debug, Clone, Serialize)]
pub struct InputPlan {
    /// Number of files.
    pub files: u64,
    /// Names of the first 1,000 files.
    pub paths: Vec<String>,
    /// Bytes of all files, as they are stored.
    pub bytes: u64,
    /// Rows of all files, those that the filter leaves out too; known where the files say so.
    pub rows: Option<u64>,
    /// Number of byte ranges that are read independently.
    pub morsels: u64,
    /// The columns to read, without those that only the filter needs.
    pub columns: Vec<ColumnPlan>,
    /// The filter.
    pub filter: Option<String>,
}

/// A column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnPlan {
    /// Its name.
    pub name: String,
    /// Arrow's name of its type.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// A function of the job.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionPlan {
    /// `PATH#function`, as the job has it.
    pub udf: String,
    /// The crate that has to be built first; none where the function is ready.
    pub to_build: Option<String>,
    /// The SHA-256 of its component; unknown before that is built.
    pub component: Option<String>,
    /// `scalar`, `batch` or `trainer`.
    pub kind: Option<FunctionKind>,
    /// Its parameters.
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// The training of a job.
#[derive(Debug, Clone, Serialize)]
pub struct TrainPlan {
    /// Columns whose values make a group.
    pub group_by: Vec<String>,
    /// Whether the rows of different files are different groups.
    pub per_file: bool,
    /// Columns to learn from.
    pub features: Vec<String>,
    /// Column to learn.
    pub target: String,
    /// Share of each group's rows to test on.
    pub test: f64,
    /// Groups of fewer rows are skipped.
    pub min_rows: u32,
    /// What ranks the models of a group.
    pub metric: Metric,
    /// The models of each group.
    pub models: Vec<ModelPlan>,
}

/// A model of each group.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPlan {
    /// What it is called in the output.
    pub name: String,
    /// Its trainer.
    #[serde(flatten)]
    pub function: FunctionPlan,
}

/// The output of a job.
#[derive(Debug, Clone, Serialize)]
pub struct OutputPlan {
    /// A file, or a folder of folders.
    pub path: String,
    /// `parquet`, `csv`, `tsv`, `json` or `arrow`.
    pub format: OutputFormat,
    /// Columns whose values name folders.
    pub partition_by: Vec<String>,
    /// Whether a file is there that it would replace.
    pub replaces: bool,
}

/// A function of the job; `bound` is `None` while its crate has to be built.
struct ResolvedFunction {
    plan: FunctionPlan,
    bound: Option<BoundFunction>,
}

impl JobRunner {
    /// Plans a job, by the checks of [`Node::submit`]. Builds no crate, and writes nothing but compiled components, which
    /// the cache keeps.
    ///
    /// # Errors
    /// Those of [`Node::submit`] before it reads rows.
    pub async fn plan(&self, job: &Job) -> Result<JobPlan, TrainError> {
        self.check_device(job).await?;
        let mut functions = JobFunctions::new(self.functions.clone(), job.limits);
        let (mut plans, mut transforms, mut unchecked) = (Vec::new(), Vec::new(), Vec::new());
        for (i, spec) in job.transform.iter().enumerate() {
            let key = job.key_label(&format!("transform[{i}].udf"));
            let resolved = self.resolve(&mut functions, &key, &spec.udf, &TRANSFORM_KINDS, &spec.params).await?;
            // The input of a transform behind a stale one is unknown.
            if let Some(bound) = resolved.bound.filter(|_| transforms.len() == i) {
                transforms.push(Transform::new(bound, spec, self.progress.clone())?);
            }
            plans.push(resolved.plan);
        }
        let mut trainers = Vec::new();
        for (i, spec) in job.train.iter().flat_map(|train| &train.models).enumerate() {
            let key = job.key_label(&format!("train.models[{i}].udf"));
            trainers.push(self.resolve(&mut functions, &key, &spec.udf, &[FunctionKind::Trainer], &spec.params).await?);
        }
        let is_complete = transforms.len() == plans.len();
        let pipeline = Pipeline::new(transforms, self.pool.clone(), None);
        let needed = job.train.as_ref().filter(|_| is_complete).map(training_columns);
        let scan = self.open_scan(job, &pipeline, needed).await?;
        self.check_output(job, &scan, None)?;
        let columns = if is_complete {
            let seed = chunk_seed(transform_seed(job), 0, 0);
            let schema = transformed_schema(job, &pipeline, scan.schema(), seed).await?;
            self.check_columns(job, &schema, &scan).await?;
            Some(column_plans(&schema))
        } else {
            unchecked.push(format!("{}: the columns behind its transforms", describe_stale(&plans)));
            None
        };
        if let Some(train) = &job.train {
            self.check_trainers(job, train, &trainers, &mut unchecked).await?;
        }
        Ok(JobPlan {
            name: job.name.clone(),
            input: input_plan(job, &scan),
            transforms: plans,
            columns,
            train: job.train.as_ref().map(|train| train_plan(train, trainers)),
            output: output_plan(&job.output, job.train.is_some()),
            device: job.device,
            workers: self.pool.workers(),
            memory_bytes_max: self.options.memory_bytes_max,
            unchecked,
        })
    }

    /// Resolves a function, unless its crate has to be built first.
    async fn resolve(
        &self,
        functions: &mut JobFunctions,
        key: &str,
        udf: &str,
        kinds: &[FunctionKind],
        params: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<ResolvedFunction, TrainError> {
        let plan = |to_build, component, kind| FunctionPlan {
            udf: udf.to_owned(),
            to_build,
            component,
            kind,
            params: params.clone(),
        };
        if let Some(folder) = functions.stale_crate(key, udf)? {
            return Ok(ResolvedFunction { plan: plan(Some(folder.display().to_string()), None, None), bound: None });
        }
        let bound = functions.bind(key, udf, kinds, params).await?;
        let component = bound.component.compiled.id().to_string();
        Ok(ResolvedFunction { plan: plan(None, Some(component), Some(bound.function.kind)), bound: Some(bound) })
    }

    /// Checks that the output can be written, and, if they are known, that its format can have the columns.
    fn check_output(&self, job: &Job, scan: &Scan, columns: Option<&SchemaRef>) -> Result<(), TrainError> {
        let inputs = scan.files().iter().map(String::as_str);
        if job.train.is_some() {
            return output::check_writable_models(job, inputs);
        }
        let target = output::writable_row_target(&job.output, inputs)?;
        Ok(columns.map_or(Ok(()), |columns| target.check(columns))?)
    }

    /// Checks the columns behind the transforms against those that training or the output needs.
    async fn check_columns(&self, job: &Job, schema: &SchemaRef, scan: &Scan) -> Result<(), TrainError> {
        match &job.train {
            Some(train) => {
                let budget = MemoryBudget { spill_dir: self.options.spill.clone(), ..MemoryBudget::default() };
                match Grouper::new(grouping_spec(train), schema, scan.files().to_vec(), budget) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(scan.explain(error).await.into()),
                }
            }
            None => self.check_output(job, scan, Some(schema)),
        }
    }

    /// Has each trainer with given or required parameters read these.
    async fn check_trainers(
        &self,
        job: &Job,
        train: &TrainSpec,
        trainers: &[ResolvedFunction],
        unchecked: &mut Vec<String>,
    ) -> Result<(), TrainError> {
        for (i, resolved) in trainers.iter().enumerate() {
            let Some(BoundFunction { binding, function, .. }) = &resolved.bound else {
                unchecked.push(format!("{}: its parameters", describe_stale(std::slice::from_ref(&resolved.plan))));
                continue;
            };
            let has_params = !train.models[i].params.is_empty();
            if has_params || function.parameters.iter().any(|parameter| parameter.required) {
                self.check_model_params(job, train, i, binding).await?;
            }
        }
        Ok(())
    }
}

/// The reason for what is unchecked: the first function whose crate has to be built.
fn describe_stale(functions: &[FunctionPlan]) -> String {
    let stale = functions.iter().find_map(|function| Some((&function.udf, function.to_build.as_ref()?)));
    stale.map_or_else(String::new, |(udf, folder)| {
        format!("`{udf}` is of the crate {folder}, which has to be built first")
    })
}

/// The seed of a job's transforms.
fn transform_seed(job: &Job) -> u64 {
    job.train.as_ref().map_or(0, |train| train.seed)
}

fn column_plans(schema: &Schema) -> Vec<ColumnPlan> {
    let column = |field: &Arc<arrow_schema::Field>| ColumnPlan {
        name: field.name().clone(),
        type_name: field.data_type().to_string(),
    };
    schema.fields().iter().map(column).collect()
}

fn input_plan(job: &Job, scan: &Scan) -> InputPlan {
    InputPlan {
        files: scan.files().len() as u64,
        paths: scan.files().iter().take(FILES_LISTED_MAX).cloned().collect(),
        bytes: scan.bytes(),
        rows: scan.rows(),
        morsels: scan.morsels().len() as u64,
        columns: column_plans(scan.schema()),
        filter: job.input.filter.clone(),
    }
}

fn train_plan(train: &TrainSpec, trainers: Vec<ResolvedFunction>) -> TrainPlan {
    let model = |(spec, resolved): (&ModelSpec, ResolvedFunction)| ModelPlan {
        name: spec.label().to_owned(),
        function: resolved.plan,
    };
    TrainPlan {
        group_by: train.group_by.clone(),
        per_file: train.per_file,
        features: train.features.clone(),
        target: train.target.clone(),
        test: train.test,
        min_rows: train.min_rows,
        metric: train.metric,
        models: train.models.iter().zip(trainers).map(model).collect(),
    }
}

fn output_plan(output: &OutputSpec, is_of_models: bool) -> OutputPlan {
    let path = Path::new(&output.path);
    let by_extension = if is_of_models { None } else { output.format.or_else(|| OutputFormat::of(path)) };
    OutputPlan {
        path: output.path.clone(),
        format: by_extension.unwrap_or(OutputFormat::Parquet),
        partition_by: output.partition_by.clone(),
        replaces: path.is_file(),
    }
}
