//! Transforms: functions of a job bound to columns of their input.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema};
use sandbar_core::{Code, Fault, FunctionKind};
use sandbar_functions::{BoundFunction, JobFunctions, decode_schema};
use sandbar_jobs::JobProgress;

use crate::error::TrainError;
use crate::job::{Columns, TransformSpec};
use crate::stored_rows::{RowGroupReadSpec, StoredColumn};

/// Kinds of functions that can be transforms.
pub(crate) const TRANSFORM_KINDS: [FunctionKind; 2] = [FunctionKind::Scalar, FunctionKind::Batch];

/// A transform, ready to run.
#[derive(Clone)]
pub(crate) struct Transform {
    pub bound: BoundFunction,
    /// Input column of each argument; `None` passes all columns unchanged.
    columns: Option<Vec<ArgumentColumn>>,
    /// Types of a scalar function's arguments.
    types: Vec<DataType>,
    /// Output column of a scalar function.
    pub output: Option<String>,
    /// Name in errors and log lines.
    pub udf: String,
    /// Receiver of log lines.
    pub progress: Arc<JobProgress>,
}

/// An argument of a function, and the column that it receives.
#[derive(Debug, Clone)]
struct ArgumentColumn {
    argument: String,
    column: String,
}

impl ArgumentColumn {
    /// Maps an argument to the column of the same name.
    fn same(name: &str) -> ArgumentColumn {
        ArgumentColumn { argument: name.to_owned(), column: name.to_owned() }
    }
}

/// Columns that later steps need; `None` means all.
pub(crate) type NeededColumns = Option<Vec<String>>;

impl Transform {
    /// Binds a transform of a job. `key` names the job file's key of its function, for errors.
    pub(crate) async fn bind(
        functions: &mut JobFunctions,
        key: &str,
        spec: &TransformSpec,
        progress: &Arc<JobProgress>,
    ) -> Result<Transform, TrainError> {
        let bound = functions.bind(key, &spec.udf, &TRANSFORM_KINDS, &spec.params).await?;
        Transform::new(bound, spec, progress.clone())
    }

    /// Creates a transform from its bound function.
    pub(crate) fn new(
        bound: BoundFunction,
        spec: &TransformSpec,
        progress: Arc<JobProgress>,
    ) -> Result<Transform, TrainError> {
        let udf = bound.binding.name.clone();
        let arguments = decode_schema(&bound.function.arguments).map_err(|f| f.in_function(&udf))?;
        let is_scalar = bound.function.kind == FunctionKind::Scalar;
        let columns = map_arguments(spec, &udf, &arguments, is_scalar)?;
        let types = arguments.fields().iter().map(|f| f.data_type().clone()).collect();
        let output = is_scalar.then(|| spec.output.clone().unwrap_or_else(|| bound.function.name.clone()));
        Ok(Transform { bound, columns, types, output, udf, progress })
    }

    /// Returns the transform without log output.
    pub(crate) fn without_logs(&self) -> Transform {
        Transform { progress: Arc::default(), ..self.clone() }
    }

    /// Returns the input columns that this transform and later steps need, given those that the later steps need.
    pub(crate) fn needed_columns(&self, downstream: NeededColumns) -> NeededColumns {
        let own = self.columns.as_ref().map(|c| c.iter().map(|mapped| mapped.column.clone()).collect::<Vec<_>>());
        match &self.output {
            None => own,
            Some(output) => {
                let mut all: Vec<String> = downstream?.into_iter().filter(|c| c != output).collect();
                all.extend(own?);
                all.sort();
                all.dedup();
                Some(all)
            }
        }
    }

    /// Returns how a worker reads row groups of `schema` for this transform, if no cast is needed. `collected` are the
    /// columns of the output that a collector needs.
    pub(crate) fn read_spec(&self, schema: &Schema, collected: &[String]) -> Option<RowGroupReadSpec> {
        let companions = match &self.output {
            None => None,
            Some(output) => {
                let indices = companion_columns(schema, collected, output)?;
                Some(indices.into_iter().map(|index| index as u32).collect())
            }
        };
        let column =
            |index: usize, name: &String, nullable| StoredColumn { index: index as u32, name: name.clone(), nullable };
        let Some(arguments) = &self.columns else {
            let all = schema.fields().iter().enumerate();
            let columns = all.map(|(index, field)| column(index, field.name(), field.is_nullable())).collect();
            return Some(RowGroupReadSpec { columns, companions });
        };
        let mut columns = Vec::with_capacity(arguments.len());
        for (i, mapped) in arguments.iter().enumerate() {
            let (index, field) = schema.column_with_name(&mapped.column)?;
            // The node casts the arguments of scalar functions.
            if self.output.is_some() && self.types.get(i).is_some_and(|expected| expected != field.data_type()) {
                return None;
            }
            columns.push(column(index, &mapped.argument, true));
        }
        Some(RowGroupReadSpec { columns, companions })
    }

    /// Returns the arguments of the function for the rows of `batch`.
    pub(crate) fn project(&self, batch: &RecordBatch) -> Result<RecordBatch, Fault> {
        let Some(columns) = &self.columns else { return Ok(batch.clone()) };
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrays = Vec::with_capacity(columns.len());
        for (i, mapped) in columns.iter().enumerate() {
            let Some(array) = batch.column_by_name(&mapped.column) else {
                let names: Vec<_> = batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
                let message = format!("it needs column `{}`; there are {}", mapped.column, names.join(", "));
                return Err(Fault::new(Code::Columns, message));
            };
            let array = match self.types.get(i).filter(|_| self.output.is_some()) {
                Some(expected) if expected != array.data_type() => cast_argument(array, expected, mapped)?,
                _ => array.clone(),
            };
            fields.push(Field::new(&mapped.argument, array.data_type().clone(), true));
            arrays.push(array);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))
    }
}

/// Casts a column to the type of a scalar function's argument.
fn cast_argument(array: &ArrayRef, expected: &DataType, mapped: &ArgumentColumn) -> Result<ArrayRef, Fault> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, expected, &options).map_err(|e| {
        let (ArgumentColumn { argument, column }, actual) = (mapped, array.data_type());
        let message = format!("column `{column}` has type {actual}, its argument `{argument}` is {expected}: {e}");
        Fault::new(Code::Columns, message)
    })
}

/// Returns the companion columns of a scalar function that produces `output`: the columns of `schema` that are in
/// `collected` and not produced. `None` if one of them has no fixed width of at most eight bytes, which a block needs.
pub(crate) fn companion_columns(schema: &Schema, collected: &[String], output: &String) -> Option<Vec<usize>> {
    let is_word = |t: &DataType| t.primitive_width().is_some_and(|bytes| bytes <= size_of::<u64>());
    let index = |name: &String| {
        let (index, field) = schema.column_with_name(name)?;
        (is_word(field.data_type()) || *field.data_type() == DataType::Boolean).then_some(index)
    };
    collected.iter().filter(|name| *name != output).map(index).collect()
}

/// Maps the arguments of a function to columns. `None` if it takes all columns.
fn map_arguments(
    spec: &TransformSpec,
    udf: &str,
    arguments: &Schema,
    is_scalar: bool,
) -> Result<Option<Vec<ArgumentColumn>>, TrainError> {
    let invalid = |reason: String| Err(TrainError::Invalid(format!("`{udf}`: {reason}")));
    let names: Vec<String> = arguments.fields().iter().map(|f| f.name().clone()).collect();
    match &spec.columns {
        None if names.is_empty() => Ok(None),
        None => Ok(Some(names.iter().map(|name| ArgumentColumn::same(name)).collect())),
        Some(Columns::Names(columns)) if is_scalar || columns.len() == names.len() => {
            if columns.len() != names.len() {
                return invalid(format!(
                    "it takes {} columns ({}), `columns` names {}",
                    names.len(),
                    names.join(", "),
                    columns.len()
                ));
            }
            let pairs = names.into_iter().zip(columns.iter().cloned());
            Ok(Some(pairs.map(|(argument, column)| ArgumentColumn { argument, column }).collect()))
        }
        Some(Columns::Names(columns)) => Ok(Some(columns.iter().map(|name| ArgumentColumn::same(name)).collect())),
        Some(Columns::ByArgument(map)) => {
            if let Some(unknown) = map.keys().find(|k| !names.is_empty() && !names.contains(k)) {
                return invalid(format!("it has no argument `{unknown}`; its arguments are {}", names.join(", ")));
            }
            let names = if names.is_empty() { map.keys().cloned().collect() } else { names };
            let mapped = |argument: String| {
                let column = map.get(&argument).unwrap_or(&argument).clone();
                ArgumentColumn { argument, column }
            };
            Ok(Some(names.into_iter().map(mapped).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companion_columns_fit_a_block() {
        let types = [DataType::Int64, DataType::Boolean, DataType::Utf8, DataType::Decimal128(20, 2), DataType::Date32];
        let field = |(i, t): (usize, DataType)| Field::new(i.to_string(), t, true);
        let schema = Schema::new(types.into_iter().enumerate().map(field).collect::<Vec<_>>());
        for (collected, output, indices) in [
            (&["0", "1", "4"][..], "y", Some(vec![0, 1, 4])),
            (&["4", "0"], "0", Some(vec![4])),
            (&["y"], "y", Some(vec![])),
            (&["0", "2"], "2", Some(vec![0])),
            (&["0", "2"], "y", None),
            (&["0", "3"], "y", None),
            (&["0", "unknown"], "y", None),
        ] {
            let names: Vec<String> = collected.iter().map(|name| (*name).to_owned()).collect();
            let found = companion_columns(&schema, &names, &output.to_owned());
            assert_eq!(found, indices, "{collected:?} of the output {output}");
        }
    }
}
