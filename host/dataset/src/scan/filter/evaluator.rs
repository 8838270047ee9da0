//! Evaluation of parts of an expression while it is rewritten.

use arrow_schema::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Expr;

/// Types and values of expressions over the columns of a filter.
pub(super) trait Evaluator {
    /// Returns the type of an expression, if it has one.
    fn type_of(&self, expr: &Expr) -> Option<DataType>;

    /// Evaluates an expression without columns.
    fn value_of(&self, expr: &Expr) -> Result<ScalarValue>;
}
