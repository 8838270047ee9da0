//! Chains of AND and of OR.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, lit};

/// Minimum length of a chain of AND or OR that is rebuilt as a balanced tree.
const CHAIN_MIN: usize = 16;

/// Rebuilds long chains of AND and of OR as balanced trees.
pub(super) fn balanced(expr: Expr) -> Result<Expr> {
    let balanced = expr.transform_down(|part| match part {
        Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => {
            let mut parts = Vec::new();
            unchain(part, op, &mut parts);
            let is_long = parts.len() >= CHAIN_MIN;
            let chain = if is_long { join(parts, op) } else { parts.into_iter().reduce(|a, b| joined(a, op, b)) };
            let chain = chain.unwrap_or_else(|| lit(op == Operator::And));
            Ok(if is_long { Transformed::yes(chain) } else { Transformed::no(chain) })
        }
        other => Ok(Transformed::no(other)),
    });
    balanced.data()
}

/// Appends the parts of a chain in order.
fn unchain(expr: Expr, chained: Operator, parts: &mut Vec<Expr>) {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op == chained => {
            unchain(*left, chained, parts);
            unchain(*right, chained, parts);
        }
        other => parts.push(other),
    }
}

/// Joins expressions with an operator, as a balanced tree; `None` if there are none.
pub(super) fn join(mut parts: Vec<Expr>, op: Operator) -> Option<Expr> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let second = parts.split_off(parts.len() / 2);
    Some(joined(join(parts, op)?, op, join(second, op)?))
}

fn joined(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}
