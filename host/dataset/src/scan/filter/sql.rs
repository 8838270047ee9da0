//! Expressions as SQL, for messages.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::Cast;

/// Removes the casts around an expression that type coercion added.
pub(super) fn as_written(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(Cast { expr, .. }) if !matches!(**expr, Expr::Literal(..)) => as_written(expr),
        other => other,
    }
}

/// Formats an expression as SQL, for messages.
pub(super) fn display_sql(expr: &Expr) -> String {
    match expr {
        Expr::Cast(Cast { expr, field }) => format!("CAST({} AS {})", display_sql(expr), field.data_type()),
        Expr::Literal(ScalarValue::Utf8(Some(text)), _) => format!("'{text}'"),
        other => other.human_display().to_string(),
    }
}
