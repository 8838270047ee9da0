//! Prediction of new rows with stored models: each row is predicted by the model of its group.

mod keys;
mod models;
mod spec;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::Float64Builder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt32Type};
use arrow_array::{Array, ArrayRef, Float64Array, ListArray, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field, Schema};
use futures::{StreamExt as _, stream};
use sandbar_core::{Blame, Code, Fault};
use sandbar_dataset::{RowTarget, Scan, ScanOptions, ScanSource};
use sandbar_functions::log_lines;
use sandbar_jobs::{JobProgress, Phase};
use sandbar_worker::{CallRequest, CallWork, JobCalls};

use crate::call_input::{PredictionGroup, prediction_input};
use crate::error::TrainError;
use crate::execution::{JobExecution, missing_input};
use crate::failing_row::{FailingRowFinder, UnusableRows};
use crate::job::OutputSpec;
use crate::metadata::JobMetadata;
use crate::ordered_morsels::{MorselItems, OrderedMorsels};
use crate::output;
use crate::pipeline::{Chunk, Pipeline};
use models::{ModelCall, ModelRows, ModelSet, RowAssignment, StoredModels};

pub use spec::{PredictSpec, PredictSummary};

/// Maximum bytes of the stored models of one call, unless a single model is larger.
const MODEL_BYTES_MAX: usize = 64 << 20;
/// Name of the column with the predictions.
const PREDICTION: &str = "prediction";

impl JobExecution {
    /// Predicts with the stored models in the file `models`.
    ///
    /// # Errors
    /// Fails if the models or the input are unusable.
    pub(crate) async fn predict(&self, spec: &PredictSpec, models: &Path) -> Result<PredictSummary, TrainError> {
        let start = Instant::now();
        self.progress.enter(Phase::Preparing, 0);
        let models_name = spec.models.to_string_lossy();
        let sources = self.sources.as_deref();
        let to = OutputSpec { path: spec.output.to_string_lossy().into(), format: None, partition_by: Vec::new() };
        output::check(&to, false).map_err(|e| TrainError::Invalid(e.to_string()))?;
        let StoredModels { models, transforms, text } =
            ModelSet::open(self, JobMetadata::read(models, &spec.models)?, spec, models).await?;
        let columns = transforms.first().and_then(|first| first.needed_columns(None));
        let named = sources.map(|sources| sources.inputs.clone());
        let source = ScanSource { paths: spec.input.clone(), named, columns, text, ..ScanSource::default() };
        let scan = Scan::open(source.clone(), ScanOptions::default()).await;
        let scan = scan.map_err(|error| match sources {
            Some(_) => error,
            None => missing_input(error, &spec.input, |_| "`--input`".to_owned()),
        })?;
        let target = match sources {
            Some(sources) => output::row_target_at(&to, &sources.output)?,
            None => {
                let inputs = scan.files().iter().map(String::as_str).chain([&*models_name]);
                output::writable_row_target(&to, inputs)?
            }
        };
        let context = Arc::new(PredictionContext {
            pipeline: Pipeline::new(transforms, self.calls.clone(), None),
            models,
            scan,
            calls: self.calls.clone(),
            progress: self.progress.clone(),
        });
        let finder = FailingRowFinder::new(source, self.options.spill.clone(), 0);
        let mut summary = self.predict_all(&context, &target, &finder).await?;
        summary.seconds = start.elapsed().as_secs_f64();
        summary.peak_memory_bytes = self.peak_memory_bytes();
        summary.output = spec.output.display().to_string();
        Ok(summary)
    }

    async fn predict_all(
        &self,
        context: &Arc<PredictionContext>,
        target: &RowTarget,
        finder: &FailingRowFinder,
    ) -> Result<PredictSummary, TrainError> {
        let morsels = context.scan.morsels().len();
        self.progress.enter(Phase::Training, morsels as u64);
        let transformed = context.pipeline.output_schema(context.scan.schema(), 0).await?;
        let mut output = target.create(&with_prediction(&transformed))?;
        let mut summary = PredictSummary::default();
        // Morsel of the first failed row, if its features are unusable.
        let mut unusable = None;
        let predict = {
            let context = context.clone();
            move |morsel| context.clone().predict_morsel(morsel)
        };
        let concurrency = self.morsels_at_once(&context.scan);
        let mut chunks = OrderedMorsels::new(morsels, concurrency, self.progress.clone(), predict);
        while let Some((morsel, item)) = chunks.next().await {
            let PredictedChunk { batch, rows, without_model, failed, failure } = match item {
                Ok(chunk) => chunk,
                Err(error) => return Err(finder.explain(&context.pipeline, &context.scan, morsel, error).await),
            };
            summary.rows += rows;
            summary.without_model += without_model;
            summary.failed += failed;
            if summary.failure.is_none() && failure.as_deref() == Some(UNUSABLE_FEATURE) {
                unusable = Some(morsel);
            }
            summary.failure = summary.failure.or(failure);
            output.write(&batch)?;
            self.progress.add_rows(rows);
        }
        let written = output.finish()?;
        (summary.rows_written, summary.files, summary.bytes) = (written.rows, written.files, written.bytes);
        summary.rows_dropped = summary.rows.saturating_sub(written.rows);
        if let Some(morsel) = unusable {
            let rows = UnusableRows { columns: &context.models.train.features, group: None };
            let row = finder.locate_unusable(&context.pipeline, &context.scan, morsel, rows).await;
            summary.failure = row.map(|row| format!("{row}: {UNUSABLE_FEATURE}")).or(summary.failure);
        }
        if written.rows > 0 && summary.without_model == written.rows {
            context.models.missing_models_advice().into_iter().for_each(|advice| self.progress.warn(advice));
        }
        Ok(summary)
    }
}

/// Failure of a row whose features are unusable.
const UNUSABLE_FEATURE: &str = "a feature is null, NaN or infinite; fill it in a transform";

/// Returns the schema with the column of predictions as the last one.
fn with_prediction(schema: &Schema) -> Arc<Schema> {
    let kept = schema.fields().iter().filter(|f| f.name() != PREDICTION).cloned();
    let prediction = Arc::new(Field::new(PREDICTION, DataType::Float64, true));
    Arc::new(Schema::new(kept.chain([prediction]).collect::<Vec<_>>()))
}

/// Context of a prediction, shared by its morsels.
struct PredictionContext {
    models: ModelSet,
    pipeline: Arc<Pipeline>,
    scan: Scan,
    calls: JobCalls,
    progress: Arc<JobProgress>,
}

/// Rows of a chunk with their predictions.
struct PredictedChunk {
    batch: RecordBatch,
    /// Number of input rows.
    rows: u64,
    /// Rows whose group has no model.
    without_model: u64,
    /// Rows whose prediction failed.
    failed: u64,
    /// First failure.
    failure: Option<String>,
}

/// Predictions of a chunk so far.
#[derive(Default)]
struct Predictions {
    /// Prediction of each row.
    values: Vec<Option<f64>>,
    /// Rows whose prediction failed.
    failed: u64,
    /// First failure.
    failure: Option<String>,
}

impl Predictions {
    fn fail(&mut self, failure: impl FnOnce() -> String) {
        self.failure.get_or_insert_with(failure);
    }
}

impl PredictionContext {
    /// Predicts a morsel, chunk by chunk.
    fn predict_morsel(self: Arc<PredictionContext>, morsel: usize) -> MorselItems<PredictedChunk> {
        let batches = match self.scan.read(morsel) {
            Ok(batches) => batches,
            Err(e) => return stream::iter([Err(e.into())]).boxed(),
        };
        let predictions = self.pipeline.chunks(batches).map(move |chunk| {
            let context = self.clone();
            async move { context.predict_chunk(chunk?, morsel).await }
        });
        // One call predicts while the batches of the next are decoded.
        predictions.buffered(2).boxed()
    }

    async fn predict_chunk(&self, chunk: Chunk, morsel: usize) -> Result<PredictedChunk, TrainError> {
        let rows = chunk.rows() as u64;
        let batches = chunk.run(0).await?;
        let batch = arrow_select::concat::concat_batches(batches[0].schema_ref(), &batches)
            .map_err(|e| Fault::new(Code::Host, e.to_string()))?;
        let mut predictions = Predictions { values: vec![None; batch.num_rows()], ..Predictions::default() };
        let mut without_model = 0;
        let file = &self.scan.files()[self.scan.morsels()[morsel].file];
        let features = self.features(&batch)?;
        let is_usable = |row: &u32| features.iter().all(|f| f[*row as usize].is_finite());
        let mut by_model: Vec<ModelRows> = Vec::new();
        for RowAssignment { model, rows } in self.models.assign(&batch, file)? {
            let Some(model) = model else {
                without_model += rows.len() as u64;
                continue;
            };
            let all = rows.len();
            let rows: Vec<u32> = rows.into_iter().filter(is_usable).collect();
            if rows.len() < all {
                predictions.failed += (all - rows.len()) as u64;
                predictions.fail(|| UNUSABLE_FEATURE.to_owned());
            }
            by_model.push(ModelRows { model, rows });
        }
        for call in self.models.calls(by_model, MODEL_BYTES_MAX) {
            self.call(&features, &call, &mut predictions).await?;
        }
        let Predictions { values, failed, failure } = predictions;
        Ok(PredictedChunk { batch: add_prediction(&batch, values)?, rows, without_model, failed, failure })
    }

    /// Returns the values of the feature columns.
    fn features(&self, batch: &RecordBatch) -> Result<Vec<ScalarBuffer<f64>>, TrainError> {
        let feature = |name: &String| {
            let missing =
                || Fault::new(Code::Columns, format!("the models need the feature `{name}`, which the input lacks"));
            let column = batch.column_by_name(name).ok_or_else(missing)?;
            Ok(sandbar_dataset::to_float64(column)?)
        };
        self.models.train.features.iter().map(feature).collect()
    }

    /// Predicts the rows of models of one trainer.
    async fn call(
        &self,
        features: &[ScalarBuffer<f64>],
        call: &ModelCall,
        predictions: &mut Predictions,
    ) -> Result<(), TrainError> {
        let gather = |feature: &ScalarBuffer<f64>| {
            let rows = call.groups.iter().flat_map(|g| &g.rows);
            Arc::new(Float64Array::from_iter_values(rows.map(|row| feature[*row as usize]))) as ArrayRef
        };
        let columns = features.iter().map(gather).collect();
        let fields: Vec<Field> =
            self.models.train.features.iter().map(|name| Field::new(name, DataType::Float64, false)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
            .map_err(|e| Fault::new(Code::Host, e.to_string()))?;
        let mut end = 0;
        let groups: Vec<PredictionGroup<'_>> = call
            .groups
            .iter()
            .map(|group| {
                let (first_row, rows) = (end, group.rows.len() as u32);
                end += rows;
                PredictionGroup { first_row, rows, model: self.models.stored(group.model) }
            })
            .collect();
        let (payload, groups) = prediction_input(&self.calls, &batch, &groups)?;
        let binding = self.models.binding(call.trainer).clone();
        let work = CallWork::Predict(payload, groups.into());
        let request = CallRequest { binding, seed: self.models.train.seed, work };
        let rows: u64 = call.groups.iter().map(|g| g.rows.len() as u64).sum();
        let mut predicted = 0;
        let response = self.calls.call(request).await;
        log_lines(&self.progress, &self.models.binding(call.trainer).name, &response.log);
        match response.result {
            Err(fault) if fault.code.blame() == Blame::Host => return Err(fault.into()),
            Err(fault) => predictions.fail(|| fault.to_string()),
            Ok(completed) => {
                if let Some((_, fault)) = completed.lost_groups.first() {
                    predictions.fail(|| fault.to_string());
                }
                for batch in completed.product.into_batches()? {
                    predicted += scatter(&batch, call, predictions)?;
                }
            }
        }
        predictions.failed = (predictions.failed + rows).saturating_sub(predicted);
        Ok(())
    }
}

/// Writes the results of a call to the rows. Returns the number of predicted rows.
fn scatter(batch: &RecordBatch, call: &ModelCall, predictions: &mut Predictions) -> Result<u64, Fault> {
    let malformed = || Fault::new(Code::BadOutput, "the predictions are malformed");
    let column = |name: &str| batch.column_by_name(name).ok_or_else(malformed);
    let groups = column("group")?.as_primitive_opt::<UInt32Type>().ok_or_else(malformed)?;
    let codes = column("code")?.as_string_opt::<i32>().ok_or_else(malformed)?;
    let errors = column("error")?.as_string_opt::<i32>().ok_or_else(malformed)?;
    let lists: &ListArray = column("predictions")?.as_list_opt::<i32>().ok_or_else(malformed)?;
    let mut count = 0;
    for row in 0..batch.num_rows() {
        let group = call.groups.get(groups.value(row) as usize).ok_or_else(malformed)?;
        if errors.is_valid(row) {
            predictions.fail(|| format!("{} [{}]", errors.value(row), codes.value(row)));
            continue;
        }
        let list = lists.value(row);
        let numbers =
            list.as_primitive_opt::<Float64Type>().filter(|n| n.len() == group.rows.len()).ok_or_else(malformed)?;
        for (row, value) in group.rows.iter().zip(numbers.values()) {
            predictions.values[*row as usize] = Some(*value);
        }
        count += group.rows.len() as u64;
    }
    Ok(count)
}

/// Appends the column of predictions. Drops an older column of that name.
fn add_prediction(batch: &RecordBatch, values: Vec<Option<f64>>) -> Result<RecordBatch, Fault> {
    let mut column = Float64Builder::with_capacity(values.len());
    values.into_iter().for_each(|value| column.append_option(value));
    let kept = (0..batch.num_columns()).filter(|c| batch.schema_ref().field(*c).name() != PREDICTION);
    let columns: Vec<ArrayRef> =
        kept.map(|c| batch.column(c).clone()).chain([Arc::new(column.finish()) as ArrayRef]).collect();
    let schema = with_prediction(batch.schema_ref());
    RecordBatch::try_new(schema, columns).map_err(|e| Fault::new(Code::Host, e.to_string()))
}
