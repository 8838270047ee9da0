//! Results of trainers, and the rows of the output.

use std::sync::Arc;

use arrow_array::builder::{Float64Builder, StringBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, new_null_array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_ord::sort::{SortColumn, lexsort_to_indices};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave;
use arrow_select::take::{take, take_record_batch};
use sandbar_core::{Code, Fault};
use sandbar_dataset::{FailedGroup, WorkUnit, describe_key};
use serde::Serialize;

use crate::job::Metric;

/// A group, or a model of a group, that failed.
#[derive(Debug, Clone, Serialize)]
pub struct GroupFailure {
    /// Description of the group.
    pub group: String,
    /// Label of the model, if a single model failed.
    pub model: Option<String>,
    /// Stable error code.
    pub code: &'static str,
    /// Error message.
    pub message: String,
    /// Morsel of the first failing row, if the failure is about rows.
    #[serde(skip)]
    pub(crate) morsel: Option<u64>,
}

impl GroupFailure {
    pub(crate) fn new(group: String, model: Option<&str>, code: Code, message: impl Into<String>) -> GroupFailure {
        GroupFailure {
            group,
            model: model.map(str::to_owned),
            code: code.as_str(),
            message: message.into(),
            morsel: None,
        }
    }
}

/// Results of one model for a unit: fitted models and faults, by group.
#[derive(Default)]
pub struct FittedModels {
    batches: Vec<FitBatch>,
    /// Batch and row of each fitted group.
    rows: Vec<Option<(usize, usize)>>,
    /// Faults of groups, by their index in the unit.
    pub faults: Vec<(u32, Fault)>,
}

/// Columns of a batch of fitted groups.
struct FitBatch {
    mae: ArrayRef,
    mse: ArrayRef,
    r2: ArrayRef,
    params: ArrayRef,
    model: ArrayRef,
}

fn malformed(reason: impl std::fmt::Display) -> Fault {
    Fault::new(Code::BadOutput, format!("the results of the groups are malformed: {reason}"))
}

fn column(batch: &RecordBatch, name: &str, data_type: &DataType) -> Result<ArrayRef, Fault> {
    let column = batch.column_by_name(name).filter(|c| c.data_type() == data_type);
    column.cloned().ok_or_else(|| malformed(format!("there is no column `{name}` of {data_type}")))
}

impl FittedModels {
    /// Creates an empty result for a unit of `groups` groups.
    pub fn new(groups: usize) -> FittedModels {
        FittedModels { rows: vec![None; groups], ..FittedModels::default() }
    }

    /// Adds the results of a call. Returns the groups that it settled: fitted or failed ones.
    ///
    /// # Errors
    /// Fails if a batch is malformed.
    pub fn add(&mut self, batches: &[RecordBatch]) -> Result<Vec<u32>, Fault> {
        let mut settled = Vec::new();
        for batch in batches {
            let group = column(batch, "group", &DataType::UInt32)?;
            let code = column(batch, "code", &DataType::Utf8)?;
            let error = column(batch, "error", &DataType::Utf8)?;
            let (group, code, error) =
                (group.as_primitive::<UInt32Type>(), code.as_string::<i32>(), error.as_string::<i32>());
            for row in 0..batch.num_rows() {
                let group = group.value(row);
                let slot =
                    self.rows.get_mut(group as usize).ok_or_else(|| malformed(format!("there is no group {group}")))?;
                settled.push(group);
                if code.is_null(row) {
                    *slot = Some((self.batches.len(), row));
                } else {
                    let known = Code::ALL.iter().find(|c| c.as_str() == code.value(row)).copied();
                    self.faults.push((group, Fault::new(known.unwrap_or(Code::Refused), error.value(row))));
                }
            }
            self.batches.push(FitBatch {
                mae: column(batch, "mae", &DataType::Float64)?,
                mse: column(batch, "mse", &DataType::Float64)?,
                r2: column(batch, "r2", &DataType::Float64)?,
                params: column(batch, "params", &DataType::Utf8)?,
                model: column(batch, "model", &DataType::Binary)?,
            });
        }
        Ok(settled)
    }

    /// Returns the fitted models as batches for [`FittedModels::add`]. Faults are not included.
    ///
    /// # Errors
    /// Fails if a column is malformed.
    pub fn to_batches(&self) -> Result<Vec<RecordBatch>, Fault> {
        let mut groups: Vec<(Vec<u32>, Vec<u32>)> = vec![Default::default(); self.batches.len()];
        for (group, location) in (0..).zip(&self.rows) {
            if let Some((batch, row)) = location {
                groups[*batch].0.push(group);
                groups[*batch].1.push(*row as u32);
            }
        }
        let encode = |(batch, (groups, rows)): (&FitBatch, (Vec<u32>, Vec<u32>))| {
            let (count, rows) = (rows.len(), UInt32Array::from(rows));
            let nulls = || new_null_array(&DataType::Utf8, count);
            let rows_of = |column: &ArrayRef| take(column, &rows, None).map_err(malformed);
            let columns = [
                ("group", Arc::new(UInt32Array::from(groups)) as ArrayRef),
                ("code", nulls()),
                ("error", nulls()),
                ("mae", rows_of(&batch.mae)?),
                ("mse", rows_of(&batch.mse)?),
                ("r2", rows_of(&batch.r2)?),
                ("params", rows_of(&batch.params)?),
                ("model", rows_of(&batch.model)?),
            ];
            let columns = columns.map(|(name, column)| (name, column, true));
            RecordBatch::try_from_iter_with_nullable(columns).map_err(malformed)
        };
        self.batches.iter().zip(groups).map(encode).collect()
    }

    /// Returns the number of fitted models.
    pub fn models(&self) -> u64 {
        self.rows.iter().flatten().count() as u64
    }

    /// Adds the results of other groups.
    pub(crate) fn merge(&mut self, other: FittedModels) {
        let offset = self.batches.len();
        self.batches.extend(other.batches);
        for (own, row) in self.rows.iter_mut().zip(other.rows) {
            *own = row.map(|(batch, row)| (offset + batch, row)).or(*own);
        }
        self.faults.extend(other.faults);
    }

    /// Returns the score of a group's model, where lower is better; `None` if the group has no model.
    fn score(&self, group: usize, metric: Metric) -> Option<f64> {
        let (batch, row) = self.rows[group]?;
        let batch = &self.batches[batch];
        let (values, sign) = match metric {
            Metric::Mae => (&batch.mae, 1.0),
            Metric::Mse | Metric::Rmse => (&batch.mse, 1.0),
            Metric::R2 => (&batch.r2, -1.0),
        };
        let values = values.as_primitive::<Float64Type>();
        // Models without test rows have no score, and rank in the order of the job.
        Some(if values.is_null(row) { f64::INFINITY } else { sign * values.value(row) })
    }
}

/// Returns the schema of the output for groups with these key columns.
pub(crate) fn output_schema(keys: &Schema) -> Schema {
    let mut fields: Vec<Arc<Field>> = keys.fields().iter().cloned().collect();
    for (name, data_type, nullable) in [
        ("model", DataType::Utf8, false),
        ("rank", DataType::UInt32, false),
        ("mae", DataType::Float64, true),
        ("mse", DataType::Float64, true),
        ("rmse", DataType::Float64, true),
        ("r2", DataType::Float64, true),
        ("rows_train", DataType::UInt32, false),
        ("rows_test", DataType::UInt32, false),
        ("params", DataType::Utf8, true),
        ("model_bytes", DataType::Binary, true),
    ] {
        fields.push(Arc::new(Field::new(name, data_type, nullable)));
    }
    Schema::new(fields)
}

/// A fitted model, with its rank among those of its group.
struct RankedModel {
    /// Index in the unit.
    group: usize,
    /// Index among the models of the job.
    model: usize,
    /// Rank from 1.
    rank: u32,
}

/// Ranks the fitted models of each group, best first.
fn rank_models(groups: usize, fitted: &[FittedModels], metric: Metric) -> Vec<RankedModel> {
    let mut all = Vec::with_capacity(groups * fitted.len());
    let mut scored: Vec<(f64, usize)> = Vec::with_capacity(fitted.len());
    for group in 0..groups {
        scored.clear();
        scored.extend(fitted.iter().enumerate().filter_map(|(m, f)| Some((f.score(group, metric)?, m))));
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.extend((1..).zip(&scored).map(|(rank, (_, model))| RankedModel { group, model: *model, rank }));
    }
    all
}

/// Returns the output rows of a unit: the fitted models of each group, best first.
pub(crate) fn output_rows(
    unit: &WorkUnit<()>,
    labels: &[String],
    fitted: &[FittedModels],
    metric: Metric,
) -> Result<RecordBatch, Fault> {
    let ranked = rank_models(unit.groups.len(), fitted, metric);
    let groups = UInt32Array::from_iter_values(ranked.iter().map(|ranked| ranked.group as u32));
    let mut columns = Vec::with_capacity(unit.keys.num_columns() + 10);
    for key in unit.keys.columns() {
        columns.push(take(key, &groups, None).map_err(malformed)?);
    }
    let mut names = StringBuilder::new();
    ranked.iter().for_each(|ranked| names.append_value(&labels[ranked.model]));
    columns.push(Arc::new(names.finish()) as ArrayRef);
    columns.push(Arc::new(UInt32Array::from_iter_values(ranked.iter().map(|ranked| ranked.rank))));
    let sources = SourceRows::new(&ranked, fitted);
    let mse = sources.gather(fitted, |b| &b.mse)?;
    let mut rmse = Float64Builder::with_capacity(mse.len());
    mse.as_primitive::<Float64Type>().iter().for_each(|v| rmse.append_option(v.map(f64::sqrt)));
    columns.push(sources.gather(fitted, |b| &b.mae)?);
    columns.push(mse);
    columns.push(Arc::new(rmse.finish()));
    columns.push(sources.gather(fitted, |b| &b.r2)?);
    let (mut train, mut test) = (UInt32Builder::new(), UInt32Builder::new());
    for ranked in &ranked {
        train.append_value(unit.groups[ranked.group].train_rows);
        test.append_value(unit.groups[ranked.group].test_rows);
    }
    columns.push(Arc::new(train.finish()));
    columns.push(Arc::new(test.finish()));
    columns.push(sources.gather(fitted, |b| &b.params)?);
    columns.push(sources.gather(fitted, |b| &b.model)?);
    RecordBatch::try_new(Arc::new(output_schema(unit.keys.schema_ref())), columns).map_err(malformed)
}

/// Batch, among those of all models, and row that each output row is taken from.
struct SourceRows(Vec<(usize, usize)>);

impl SourceRows {
    fn new(ranked: &[RankedModel], fitted: &[FittedModels]) -> SourceRows {
        let mut first_batch = Vec::with_capacity(fitted.len());
        let mut batches = 0;
        for model in fitted {
            first_batch.push(batches);
            batches += model.batches.len();
        }
        let source = |RankedModel { group, model, .. }: &RankedModel| {
            fitted[*model].rows[*group].map(|(batch, row)| (first_batch[*model] + batch, row))
        };
        SourceRows(ranked.iter().filter_map(source).collect())
    }

    fn gather(&self, fitted: &[FittedModels], column: impl Fn(&FitBatch) -> &ArrayRef) -> Result<ArrayRef, Fault> {
        let arrays: Vec<&dyn Array> = fitted.iter().flat_map(|f| &f.batches).map(|b| column(b).as_ref()).collect();
        if arrays.is_empty() {
            return Err(malformed("there are none"));
        }
        interleave(&arrays, &self.0).map_err(malformed)
    }
}

/// Returns the number of groups in rows of the output. Each group has one best model.
pub(crate) fn count_groups(rows: &RecordBatch) -> u64 {
    let ranks = rows.column_by_name("rank").and_then(|ranks| ranks.as_primitive_opt::<UInt32Type>());
    ranks.map_or(0, |ranks| ranks.values().iter().filter(|rank| **rank == 1).count() as u64)
}

/// Concatenates `batches`, and sorts the rows by the columns `by`.
pub(crate) fn sort_rows(batches: &[RecordBatch], by: impl Iterator<Item = usize>) -> Result<RecordBatch, Fault> {
    let schema = batches.first().ok_or_else(|| malformed("there are none"))?.schema();
    let all = concat_batches(&schema, batches).map_err(malformed)?;
    let columns: Vec<SortColumn> = by.map(|c| SortColumn { values: all.column(c).clone(), options: None }).collect();
    let order = lexsort_to_indices(&columns, None).map_err(malformed)?;
    take_record_batch(&all, &order).map_err(malformed)
}

/// Returns the failures of a unit: unusable groups, and failed models of groups.
pub(crate) fn unit_failures(unit: &WorkUnit<()>, labels: &[String], fitted: &[FittedModels]) -> Vec<GroupFailure> {
    let of_group = |failed: &FailedGroup| GroupFailure {
        morsel: Some(failed.morsel),
        ..GroupFailure::new(failed.group.clone(), None, failed.code, failed.reason.clone())
    };
    let mut failures: Vec<GroupFailure> = unit.failed.iter().map(of_group).collect();
    for (label, model) in labels.iter().zip(fitted) {
        for (group, fault) in &model.faults {
            failures.push(GroupFailure::new(
                describe_key(&unit.keys, *group as usize),
                Some(label),
                fault.code,
                fault.message.clone(),
            ));
        }
    }
    failures
}

/// A table of text for display.
#[derive(Debug, Clone, Default)]
pub struct TextTable {
    /// Names of the columns.
    pub header: Vec<String>,
    /// Cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// Maximum characters of a cell.
const CELL_CHARS_MAX: usize = 60;

/// Formats the rows of the first `groups` groups of an output, without the serialized models. Returns the table and the
/// number of its groups.
pub(crate) fn format_table(rows: &RecordBatch, groups: usize) -> Option<(TextTable, usize)> {
    let options = FormatOptions::default();
    let shown: Vec<usize> =
        (0..rows.num_columns()).filter(|c| rows.schema_ref().field(*c).name() != "model_bytes").collect();
    let format = |c: &usize| ArrayFormatter::try_new(rows.column(*c), &options).ok();
    let formatters = shown.iter().map(format).collect::<Option<Vec<_>>>()?;
    let rank = rows.column_by_name("rank")?.as_primitive_opt::<UInt32Type>()?;
    let mut table = TextTable {
        header: shown.iter().map(|c| rows.schema_ref().field(*c).name().clone()).collect(),
        rows: Vec::new(),
    };
    let mut seen = 0;
    for row in 0..rows.num_rows() {
        if rank.value(row) == 1 && seen == groups {
            break;
        }
        seen += usize::from(rank.value(row) == 1);
        let cell = |(f, c): (&ArrayFormatter<'_>, &usize)| match rows.column(*c).as_primitive_opt::<Float64Type>() {
            Some(numbers) if numbers.is_valid(row) => format!("{:.4}", numbers.value(row)),
            _ => cell_text(f.value(row).to_string()),
        };
        table.rows.push(formatters.iter().zip(&shown).map(cell).collect());
    }
    Some((table, seen))
}

/// Returns the text of a cell: one line, truncated to the maximum length.
fn cell_text(text: String) -> String {
    let text = text.replace(['\n', '\r'], " ");
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
