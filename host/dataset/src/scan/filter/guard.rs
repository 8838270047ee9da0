//! A predicate whose failures are told from those of a file's reader.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use super::super::stream::reason_of;

/// A filter that could not be computed for some row.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in super::super) struct FilterFailure(String);

/// A predicate that fails with a [`FilterFailure`].
#[derive(Debug, Eq)]
pub(in super::super) struct Guarded(Arc<dyn PhysicalExpr>);

impl Guarded {
    pub(super) fn new(predicate: Arc<dyn PhysicalExpr>) -> Guarded {
        Guarded(predicate)
    }
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
        self.0.evaluate(batch).map_err(|e| DataFusionError::External(Box::new(FilterFailure(reason_of(&e)))))
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
