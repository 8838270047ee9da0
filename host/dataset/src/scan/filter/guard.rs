//! Predicate whose errors are distinguishable from those of a file's reader.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Schema};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;

use super::super::reason::reason_of;

/// Maximum columns of a row in an error, and maximum characters of each value.
const SHOWN_COLUMNS_MAX: usize = 4;
const SHOWN_CHARS_MAX: usize = 40;

/// Failed evaluation of a filter.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(in super::super) struct FilterFailure {
    /// Cause.
    reason: String,
    /// Values of the filter's columns in the failing row: `a=1, b=null`. Empty if no single row fails.
    pub(in super::super) row: String,
}

/// Predicate whose errors are [`FilterFailure`]s.
#[derive(Debug, Eq)]
pub(in super::super) struct GuardedPredicate(Arc<dyn PhysicalExpr>);

impl GuardedPredicate {
    pub(super) fn new(predicate: Arc<dyn PhysicalExpr>) -> GuardedPredicate {
        GuardedPredicate(predicate)
    }

    /// Formats the values of the predicate's columns in a batch of one row.
    fn describe_row(&self, row: &RecordBatch) -> String {
        let mut columns: Vec<_> = collect_columns(&self.0).into_iter().collect();
        columns.sort_by_key(|column| column.index());
        let options = FormatOptions::default().with_null("null");
        let values = columns.iter().take(SHOWN_COLUMNS_MAX).filter_map(|column| {
            let values = row.columns().get(column.index())?;
            let value = ArrayFormatter::try_new(values, &options).ok()?.value(0).try_to_string().ok()?;
            let shown: String = value.chars().take(SHOWN_CHARS_MAX).collect();
            let cut = if shown.len() < value.len() { "…" } else { "" };
            Some(format!("{}={shown}{cut}", column.name()))
        });
        values.collect::<Vec<_>>().join(", ")
    }
}

/// Finds the first row of a batch for which `predicate` fails. Returns the row as a batch, and the error.
fn first_failing(predicate: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Option<(RecordBatch, DataFusionError)> {
    let mut failing = batch.clone();
    while failing.num_rows() > 1 {
        let half = failing.num_rows() / 2;
        let first = failing.slice(0, half);
        failing = match predicate.evaluate(&first) {
            Err(_) => first,
            Ok(_) => failing.slice(half, failing.num_rows() - half),
        };
    }
    let error = predicate.evaluate(&failing).err().filter(|_| failing.num_rows() == 1)?;
    Some((failing, error))
}

impl PartialEq for GuardedPredicate {
    fn eq(&self, other: &GuardedPredicate) -> bool {
        self.0.eq(&other.0)
    }
}

impl Hash for GuardedPredicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for GuardedPredicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PhysicalExpr for GuardedPredicate {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.0.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.0.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.0.evaluate(batch).map_err(|error| {
            let failure = match first_failing(&self.0, batch) {
                Some((row, error)) => FilterFailure { reason: reason_of(&error), row: self.describe_row(&row) },
                None => FilterFailure { reason: reason_of(&error), row: String::new() },
            };
            DataFusionError::External(Box::new(failure))
        })
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        match children.into_iter().next() {
            Some(predicate) => Ok(Arc::new(GuardedPredicate(predicate))),
            None => Ok(self),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}
