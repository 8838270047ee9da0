//! A predicate whose failures are told from those of a file's reader.

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

use super::super::stream::reason_of;

/// Columns of a row that an error shows, and characters of each value.
const SHOWN_COLUMNS_MAX: usize = 4;
const SHOWN_CHARS_MAX: usize = 40;

/// A filter that could not be computed for some row.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(in super::super) struct FilterFailure {
    /// Why not.
    reason: String,
    /// The row's values of the filter's columns: `a=1, b=null`. Empty if no single row fails.
    pub(in super::super) row: String,
}

/// A predicate that fails with a [`FilterFailure`].
#[derive(Debug, Eq)]
pub(in super::super) struct Guarded(Arc<dyn PhysicalExpr>);

impl Guarded {
    pub(super) fn new(predicate: Arc<dyn PhysicalExpr>) -> Guarded {
        Guarded(predicate)
    }

    /// Formats the values of the predicate's columns in a batch of one row.
    fn shown(&self, row: &RecordBatch) -> String {
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

/// Returns the first row for which `predicate` fails, as a batch of one row, and its error.
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

impl PartialEq for Guarded {
    fn eq(&self, other: &Guarded) -> bool {
        self.0.eq(&other.0)
    }
}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PhysicalExpr for Guarded {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.0.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.0.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.0.evaluate(batch).map_err(|error| {
            let failure = match first_failing(&self.0, batch) {
                Some((row, error)) => FilterFailure { reason: reason_of(&error), row: self.shown(&row) },
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
            Some(predicate) => Ok(Arc::new(Guarded(predicate))),
            None => Ok(self),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}
