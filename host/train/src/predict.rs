//! Stored models over new rows: each row goes to the model of its group, and
//! comes back in its place with a prediction.

mod models;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::Float64Builder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, UInt32Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, ListArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, ScalarBuffer};
use arrow_cast::cast;
use arrow_ord::cmp::not_distinct;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use futures::{StreamExt as _, stream};
use sandbar_core::{Blame, Code, Fault, Limits};
use sandbar_dataset::{RowTarget, Scan, ScanOptions, ScanSource};
use sandbar_functions::log_lines;
use sandbar_jobs::{JobProgress, Phase};
use sandbar_worker::{CallRequest, CallWork, Pool};
use serde::Serialize;

use crate::error::TrainError;
use crate::failing_row::{FailingRowFinder, Unusable};
use crate::job::OutputSpec;
use crate::ordered::{Items, Ordered};
use crate::runner::{JobRunner, missing_input};
use crate::transform::{Chunk, Steps};
use crate::{input, output};
use models::Models;

/// Stored models that go along with one call.
const MODEL_BYTES_MAX: usize = 64 << 20;
const PREDICTION: &str = "prediction";

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
pub struct Predicted {
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
        Ok(models::read_job_metadata(self)?.job.limits)
    }
}

impl JobRunner {
    /// Predicts with stored models. The job's transforms are applied to the rows
    /// first; what they make is written, with one more column.
    pub async fn predict(&self, spec: &PredictSpec) -> Result<Predicted, TrainError> {
        let start = Instant::now();
        self.progress.enter(Phase::Preparing, 0);
        let models_name = spec.models.to_string_lossy();
        let to = OutputSpec { path: spec.output.to_string_lossy().into(), format: None, partition_by: Vec::new() };
        output::check(&to, false).map_err(|e| TrainError::Invalid(e.to_string()))?;
        let (models, transforms, text) = Models::open(self, models::read_job_metadata(spec)?, spec).await?;
        let columns = transforms.first().and_then(|first| first.needs(None));
        let source = ScanSource { paths: spec.input.clone(), columns, text, ..ScanSource::default() };
        let scan = Scan::open(source.clone(), ScanOptions::default()).await;
        let scan = scan.map_err(|error| missing_input(error, &spec.input, |_| "`--input`".to_owned()))?;
        let read = scan.files().iter().map(String::as_str).chain([&*models_name]);
        let target = output::rows_target(&to, read)?;
        let run = Arc::new(Run {
            steps: Arc::new(Steps { transforms, pool: self.pool.clone(), behind: None }),
            models,
            scan,
            pool: self.pool.clone(),
            progress: self.progress.clone(),
        });
        let finder = FailingRowFinder::of(source, self.options.spill.clone(), 0);
        let mut predicted = self.predict_all(&run, &target, &finder).await?;
        predicted.seconds = start.elapsed().as_secs_f64();
        predicted.peak_memory_bytes = self.peak_memory_bytes();
        predicted.output = spec.output.display().to_string();
        Ok(predicted)
    }

    async fn predict_all(
        &self,
        run: &Arc<Run>,
        target: &RowTarget,
        finder: &FailingRowFinder,
    ) -> Result<Predicted, TrainError> {
        let morsels = run.scan.morsels().len();
        self.progress.enter(Phase::Training, morsels as u64);
        let made = run.steps.schema(run.scan.schema(), 0).await?;
        let schema = with_prediction(&made);
        let mut output = target.create(&schema)?;
        let mut predicted = Predicted::default();
        // The morsel of the first row whose features can't be used, if that is what failed first.
        let mut unusable = None;
        let make = {
            let run = run.clone();
            move |morsel| run.clone().morsel(morsel)
        };
        let mut made = Ordered::new(morsels, self.morsels_at_once(&run.scan), self.progress.clone(), make);
        while let Some((morsel, item)) = made.next().await {
            let (batch, part) = match item {
                Ok(item) => item,
                Err(error) => return Err(finder.explain(&run.steps, &run.scan, morsel, error).await),
            };
            predicted.rows += part.rows;
            predicted.without_model += part.without_model;
            predicted.failed += part.failed;
            if predicted.failure.is_none() && part.failure.as_deref() == Some(UNUSABLE) {
                unusable = Some(morsel);
            }
            predicted.failure = predicted.failure.or(part.failure);
            output.write(&batch)?;
            self.progress.add_rows(part.rows);
        }
        let written = output.finish()?;
        (predicted.rows_written, predicted.files, predicted.bytes) = (written.rows, written.files, written.bytes);
        predicted.rows_dropped = predicted.rows.saturating_sub(written.rows);
        if let Some(morsel) = unusable {
            let wanted = Unusable { columns: &run.models.train.features, group: None };
            let place = finder.unusable(&run.steps, &run.scan, morsel, wanted).await;
            predicted.failure = place.map(|place| format!("{place}: {UNUSABLE}")).or(predicted.failure);
        }
        if written.rows > 0 && predicted.without_model == written.rows {
            run.models.advice().into_iter().for_each(|advice| self.progress.warn(advice));
        }
        Ok(predicted)
    }
}

/// Why a row has no prediction whose group has a model.
const UNUSABLE: &str = "a feature is null, NaN or infinite; fill it in a transform";

fn with_prediction(schema: &Schema) -> Arc<Schema> {
    let kept = schema.fields().iter().filter(|f| f.name() != PREDICTION).cloned();
    let prediction = Arc::new(Field::new(PREDICTION, DataType::Float64, true));
    Arc::new(Schema::new(kept.chain([prediction]).collect::<Vec<_>>()))
}

struct Run {
    models: Models,
    steps: Arc<Steps>,
    scan: Scan,
    pool: Arc<Pool>,
    progress: Arc<JobProgress>,
}

/// Rows of one model: its number, and the rows in their order.
struct Rows {
    model: u32,
    rows: Vec<u32>,
}

impl Run {
    /// The predictions of a morsel, chunk by chunk.
    fn morsel(self: Arc<Run>, morsel: usize) -> Items<(RecordBatch, Predicted)> {
        let batches = match self.scan.read(morsel) {
            Ok(batches) => batches,
            Err(e) => return stream::iter([Err(e.into())]).boxed(),
        };
        let predictions = self.steps.chunks(batches).map(move |chunk| {
            let run = self.clone();
            async move { run.predict(chunk?, morsel).await }
        });
        // Two calls at a time: one predicts while batches for the next are decoded.
        predictions.buffered(2).boxed()
    }

    async fn predict(&self, chunk: Chunk, morsel: usize) -> Result<(RecordBatch, Predicted), TrainError> {
        let rows = chunk.rows() as u64;
        let batches = chunk.run(0).await?;
        let batch = arrow_select::concat::concat_batches(batches[0].schema_ref(), &batches)
            .map_err(|e| Fault::new(Code::Host, e.to_string()))?;
        let mut part = Predicted { rows, ..Predicted::default() };
        let file = &self.scan.files()[self.scan.morsels()[morsel].file];
        let features = self.features(&batch)?;
        let usable = |row: &u32| features.iter().all(|f| f[*row as usize].is_finite());
        let mut by_model: Vec<Rows> = Vec::new();
        for (model, rows) in self.models.assign(&batch, file)? {
            let Some(model) = model else {
                part.without_model += rows.len() as u64;
                continue;
            };
            let all = rows.len();
            let rows: Vec<u32> = rows.into_iter().filter(usable).collect();
            if rows.len() < all {
                part.failed += (all - rows.len()) as u64;
                part.failure.get_or_insert_with(|| UNUSABLE.to_owned());
            }
            by_model.push(Rows { model, rows });
        }
        let mut values = vec![None; batch.num_rows()];
        for call in self.models.calls(by_model, MODEL_BYTES_MAX) {
            self.call(&features, &call, &mut values, &mut part).await?;
        }
        let mut column = Float64Builder::with_capacity(values.len());
        values.into_iter().for_each(|value| column.append_option(value));
        let kept = (0..batch.num_columns()).filter(|c| batch.schema_ref().field(*c).name() != PREDICTION);
        let columns: Vec<ArrayRef> =
            kept.map(|c| batch.column(c).clone()).chain([Arc::new(column.finish()) as ArrayRef]).collect();
        let schema = with_prediction(batch.schema_ref());
        let batch = RecordBatch::try_new(schema, columns).map_err(|e| Fault::new(Code::Host, e.to_string()))?;
        Ok((batch, part))
    }

    fn features(&self, batch: &RecordBatch) -> Result<Vec<ScalarBuffer<f64>>, TrainError> {
        let feature = |name: &String| {
            let missing = || {
                Fault::new(Code::Columns, format!("the models were trained on `{name}`, which the input does not have"))
            };
            let column = batch.column_by_name(name).ok_or_else(missing)?;
            Ok(sandbar_dataset::to_float64(column)?)
        };
        self.models.train.features.iter().map(feature).collect()
    }

    /// Predicts the rows of some models, which are all of one trainer.
    async fn call(
        &self,
        features: &[ScalarBuffer<f64>],
        call: &models::Call,
        values: &mut [Option<f64>],
        part: &mut Predicted,
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
        let mut first = 0;
        let mut table = Vec::with_capacity(call.groups.len());
        for group in &call.groups {
            table.push((first, group.rows.len() as u32));
            first += group.rows.len() as u32;
        }
        let stored: Vec<&[u8]> = call.groups.iter().map(|g| self.models.stored(g.model)).collect();
        let (payload, groups) = input::of_models(&self.pool, &batch, &table, &stored)?;
        let binding = self.models.binding(call.trainer).clone();
        let work = CallWork::Predict(payload, groups.into());
        let request = CallRequest { binding, seed: self.models.train.seed, work };
        let before = part.failed;
        let all: u64 = call.groups.iter().map(|g| g.rows.len() as u64).sum();
        let mut settled = 0;
        let called = self.pool.call(request).await;
        log_lines(&self.progress, &self.models.binding(call.trainer).name, &called.log);
        match called.result {
            Err(fault) if fault.code.blame() == Blame::Host => return Err(fault.into()),
            Err(fault) => {
                part.failure.get_or_insert_with(|| fault.to_string());
            }
            Ok(completed) => {
                if let Some((_, fault)) = completed.lost_groups.first() {
                    part.failure.get_or_insert_with(|| fault.to_string());
                }
                for batch in completed.product.into_batches()? {
                    settled += scatter(&batch, call, values, part)?;
                }
            }
        }
        part.failed = before + all - settled;
        Ok(())
    }
}

/// Puts predictions in their rows; says how many.
fn scatter(
    batch: &RecordBatch,
    call: &models::Call,
    values: &mut [Option<f64>],
    part: &mut Predicted,
) -> Result<u64, Fault> {
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
            part.failure.get_or_insert_with(|| format!("{} [{}]", errors.value(row), codes.value(row)));
            continue;
        }
        let list = lists.value(row);
        let numbers =
            list.as_primitive_opt::<Float64Type>().filter(|n| n.len() == group.rows.len()).ok_or_else(malformed)?;
        for (at, value) in group.rows.iter().zip(numbers.values()) {
            values[*at as usize] = Some(*value);
        }
        count += group.rows.len() as u64;
    }
    Ok(count)
}

/// A key column as the models' keys have it, and the rows whose keys are still the same ones then: text that is no
/// number, or a fraction among whole numbers, is no key of the models.
fn as_key(column: &ArrayRef, data_type: &DataType) -> Result<(ArrayRef, BooleanArray), ArrowError> {
    let column = normalised(column)?;
    let key = normalised(&cast(&column, data_type)?)?;
    // Nothing is cast back to the type of nulls, which are all the same.
    if column.data_type() == data_type || column.data_type().is_null() {
        return Ok((key, BooleanArray::new(BooleanBuffer::new_set(column.len()), None)));
    }
    let back = normalised(&cast(&key, column.data_type())?)?;
    Ok((key, not_distinct(&column, &back)?))
}

/// A key column without -0.0 and with one NaN, as rows are grouped.
fn normalised(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(match column.data_type() {
        DataType::Float64 => Arc::new(
            column
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + 0.0 }),
        ),
        DataType::Float32 => Arc::new(
            column
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + 0.0 }),
        ),
        DataType::Float16 => cast(&normalised(&cast(column, &DataType::Float32)?)?, &DataType::Float16)?,
        _ => column.clone(),
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float32Array, Int64Array, NullArray, StringArray, TimestampMillisecondArray};

    use super::*;

    /// Checks which rows of `column` are found among keys that are `keys`.
    #[track_caller]
    fn check(keys: impl Array + 'static, column: impl Array + 'static, found: &[bool]) {
        let (keys, column): (ArrayRef, ArrayRef) = (Arc::new(keys), Arc::new(column));
        let (key, same) = as_key(&column, keys.data_type()).unwrap();
        let keys = normalised(&keys).unwrap();
        let equal = not_distinct(&key, &keys).unwrap();
        let got: Vec<bool> = (0..column.len()).map(|row| same.value(row) && equal.value(row)).collect();
        assert_eq!(got, found, "{column:?} among {keys:?}");
    }

    #[test]
    fn a_key_is_found_by_the_same_value_alone() {
        let whole = || Int64Array::from(vec![Some(1), Some(2), None]);
        check(whole(), whole(), &[true; 3]);
        check(whole(), StringArray::from(vec![Some("1"), Some("2"), None]), &[true; 3]);
        check(whole(), StringArray::from(vec!["zone-1", "99999999999999999999", "abc"]), &[false; 3]);
        check(whole(), Float64Array::from(vec![Some(1.0), Some(2.0), None]), &[true; 3]);
        check(whole(), Float64Array::from(vec![1.7, 2.9, f64::NAN]), &[false; 3]);
        check(Int64Array::from(vec![None, None]), NullArray::new(2), &[true; 2]);
        check(Int64Array::from(vec![1 << 53]), Float64Array::from(vec![(1u64 << 53) as f64]), &[true]);
        let floats = || Float64Array::from(vec![0.0, f64::NAN, 0.5]);
        check(floats(), Float64Array::from(vec![-0.0, -f64::NAN, 0.5]), &[true; 3]);
        check(floats(), Float32Array::from(vec![-0.0, f32::NAN, 0.5]), &[true; 3]);
        check(Float32Array::from(vec![0.1]), Float64Array::from(vec![0.1]), &[false]);
        let times = || TimestampMillisecondArray::from(vec![5_000, 5_500]);
        let seconds = arrow_array::TimestampSecondArray::from(vec![5, 5]);
        check(times(), seconds, &[true, false]);
    }
}
