//! Plans of jobs, for dry runs.
//!
//! Planning performs the same checks as a run before its first row, with the same error messages. Workers run functions
//! on no rows only, to learn the output columns of transforms and to check parameters of trainers.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use sandbar_core::FunctionKind;
use sandbar_dataset::{Grouper, MemoryBudget, OutputFormat, Scan};
use sandbar_dense::DeviceChoice;
use sandbar_functions::{BoundFunction, JobFunctions};
use serde::Serialize;

use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::{Job, Metric, ModelSpec, OutputSpec, TrainSpec};
use crate::output;
use crate::pipeline::{Pipeline, chunk_seed, transformed_schema};
use crate::train::{grouping_spec, training_columns};
use crate::transform::{TRANSFORM_KINDS, Transform};

/// Maximum input files that a plan lists; all are counted.
const FILES_LISTED_MAX: usize = 1000;

/// The plan of a job.
#[derive(Debug, Clone, Serialize)]
pub struct JobPlan {
    /// Name of the job.
    pub name: String,
    /// Input files and columns.
    pub input: InputPlan,
    /// Transforms in order.
    pub transforms: Vec<FunctionPlan>,
    /// Columns after the transforms; `None` if the crate of a transform must be built first.
    pub columns: Option<Vec<ColumnPlan>>,
    /// Training; `None` for a job that writes rows.
    pub train: Option<TrainPlan>,
    /// Output file or folder.
    pub output: OutputPlan,
    /// Device for dense algebra, if the job names one.
    pub device: Option<DeviceChoice>,
    /// Number of worker processes.
    pub workers: usize,
    /// Memory for grouped rows before they spill, in bytes.
    pub memory_bytes_max: u64,
    /// Checks that were skipped, each with the reason.
    pub unchecked: Vec<String>,
}

/// The input of a job.
#[derive(Debug, Clone, Serialize)]
pub struct InputPlan {
    /// Number of files.
    pub files: u64,
    /// Names of the first 1,000 files.
    pub paths: Vec<String>,
    /// Stored bytes of all files.
    pub bytes: u64,
    /// Rows of all files before the filter, if the files store their number.
    pub rows: Option<u64>,
    /// Number of morsels: byte ranges that are read independently.
    pub morsels: u64,
    /// Columns to read, without those that only the filter needs.
    pub columns: Vec<ColumnPlan>,
    /// Filter as an SQL expression.
    pub filter: Option<String>,
}

/// A column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnPlan {
    /// Name of the column.
    pub name: String,
    /// Arrow type.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// A function of the job.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionPlan {
    /// `PATH#function` as in the job.
    pub udf: String,
    /// Crate to build first, if its component is stale.
    pub to_build: Option<String>,
    /// SHA-256 of the component; `None` until it is built.
    pub component: Option<String>,
    /// Kind: `scalar`, `batch` or `trainer`.
    pub kind: Option<FunctionKind>,
    /// Parameters of the function.
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// The training of a job.
#[derive(Debug, Clone, Serialize)]
pub struct TrainPlan {
    /// Columns whose values identify a group.
    pub group_by: Vec<String>,
    /// Whether rows of different files belong to different groups.
    pub per_file: bool,
    /// Feature columns.
    pub features: Vec<String>,
    /// Target column.
    pub target: String,
    /// Fraction of each group's rows that is held out for testing.
    pub test: f64,
    /// Minimum rows of a group; smaller groups are skipped.
    pub min_rows: u32,
    /// Metric that ranks the models of a group.
    pub metric: Metric,
    /// Models to train for each group.
    pub models: Vec<ModelPlan>,
}

/// A model to train for each group.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPlan {
    /// Label in the output.
    pub name: String,
    /// Trainer of the model.
    #[serde(flatten)]
    pub function: FunctionPlan,
}

/// The output of a job.
#[derive(Debug, Clone, Serialize)]
pub struct OutputPlan {
    /// File, or root folder of a partitioned output.
    pub path: String,
    /// Format: `parquet`, `csv`, `tsv`, `json` or `arrow`.
    pub format: OutputFormat,
    /// Partition columns.
    pub partition_by: Vec<String>,
    /// Whether the output replaces an existing file.
    pub replaces: bool,
}

/// A function of the job; `bound` is `None` if its crate must be built first.
struct ResolvedFunction {
    plan: FunctionPlan,
    bound: Option<BoundFunction>,
}

impl JobExecution {
    /// Plans a job. Builds no crate, and writes nothing except compiled components to the cache.
    ///
    /// # Errors
    /// Fails where [`JobExecution::run`] would before it reads rows.
    pub(crate) async fn plan(&self, job: &Job) -> Result<JobPlan, TrainError> {
        self.check_device(job).await?;
        let mut functions = self.job_functions(job);
        let (mut plans, mut transforms, mut unchecked) = (Vec::new(), Vec::new(), Vec::new());
        for (i, spec) in job.transform.iter().enumerate() {
            let key = job.key_label(&format!("transform[{i}].udf"));
            let resolved = self.resolve(&mut functions, &key, &spec.udf, &TRANSFORM_KINDS, &spec.params).await?;
            // The input of a transform after a stale one is unknown.
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
        let pipeline = Pipeline::new(transforms, self.calls.clone(), None);
        let needed = job.train.as_ref().filter(|_| is_complete).map(training_columns);
        let scan = self.open_scan(job, &pipeline, needed).await?;
        self.check_output(job, &scan, None)?;
        let columns = if is_complete {
            let seed = chunk_seed(transform_seed(job), 0, 0);
            let schema = transformed_schema(job, &pipeline, scan.schema(), seed).await?;
            self.check_columns(job, &schema, &scan).await?;
            Some(column_plans(&schema))
        } else {
            unchecked.push(format!("{}: the columns after the transforms", describe_stale(&plans)));
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
            workers: self.calls.pool().workers(),
            memory_bytes_max: self.options.memory_bytes_max,
            unchecked,
        })
    }

    /// Resolves a function. Does not bind it if its crate must be built first.
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

    /// Checks that the output is writable, and that its format supports the columns, if they are known.
    fn check_output(&self, job: &Job, scan: &Scan, columns: Option<&SchemaRef>) -> Result<(), TrainError> {
        let inputs = scan.files().iter().map(String::as_str);
        if job.train.is_some() {
            return output::check_writable_models(job, inputs);
        }
        let target = output::writable_row_target(&job.output, inputs)?;
        Ok(columns.map_or(Ok(()), |columns| target.check(columns))?)
    }

    /// Checks the columns after the transforms against those that the training or the output needs.
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

    /// Checks the parameters of trainers that have any in the job or require any.
    async fn check_trainers(
        &self,
        job: &Job,
        train: &TrainSpec,
        trainers: &[ResolvedFunction],
        unchecked: &mut Vec<String>,
    ) -> Result<(), TrainError> {
        for (i, resolved) in trainers.iter().enumerate() {
            let Some(BoundFunction { binding, function, .. }) = &resolved.bound else {
                unchecked.push(format!("{}: the parameters", describe_stale(std::slice::from_ref(&resolved.plan))));
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

/// Returns the reason for a skipped check: the first function whose crate must be built.
fn describe_stale(functions: &[FunctionPlan]) -> String {
    let stale = functions.iter().find_map(|function| Some((&function.udf, function.to_build.as_ref()?)));
    stale.map_or_else(String::new, |(udf, folder)| {
        format!("`{udf}` is in the crate {folder}, which must be built first")
    })
}

/// Returns the seed of a job's transforms.
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
    let by_extension = if is_of_models { None } else { output.format.or_else(|| OutputFormat::from_path(path)) };
    OutputPlan {
        path: output.path.clone(),
        format: by_extension.unwrap_or(OutputFormat::Parquet),
        partition_by: output.partition_by.clone(),
        replaces: path.is_file(),
    }
}
