//! Filters: SQL expressions that are evaluated per row.
//!
//! [`Filter::parse`] prepares an expression for DataFusion: it rejects constructs that concern more than one row by
//! name, makes comparisons of times exact (`times`), translates `SIMILAR TO` to a regular expression (`patterns`),
//! replaces functions that are shorthands, and evaluates constants once, so that errors in them are reported before a
//! file is read. Other rules of DataFusion's simplifier are not applied: it removes casts of columns (`CAST(d AS INT) =
//! 3` becomes `d = 3`), which changes the result.

mod chain;
mod evaluator;
mod guard;
mod patterns;
mod sql;
mod syntax;
mod times;

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, DataFusionError, Result as EngineResult, ScalarValue};
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sqlparser::ast::{BinaryOperator, Expr as SqlExpr, ExprWithAlias};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{ColumnarValue, Expr, ExprSchemable as _, Operator, Volatility};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr as Arithmetic;

use chain::balanced;
use evaluator::Evaluator;
use guard::GuardedPredicate;
use sql::{as_written, display_sql};

use super::reason::{message_of_panic, reason_of};
use crate::DatasetError;

pub(super) use guard::FilterFailure;

/// Maximum bytes of a filter.
const FILTER_BYTES_MAX: usize = 4096;

/// Maximum depth of the expression that DataFusion evaluates, by recursion, on threads with 2 MiB of stack.
const DEPTH_MAX: usize = 300;

/// Stack size of the parser thread: enough for any nesting in [`FILTER_BYTES_MAX`] bytes.
const STACK_BYTES: usize = 256 << 20;

/// Maximum rounds of replacing functions, whose replacement may contain functions.
const REPLACE_ROUNDS_MAX: usize = 8;

/// Checked and prepared filter.
pub(super) struct Filter {
    /// Expression over the types that all files agree on.
    pub(super) expr: Expr,
    /// Columns that the expression reads.
    pub(super) columns: HashSet<String>,
}

impl Filter {
    /// Parses `text` as an SQL expression over columns.
    ///
    /// # Errors
    /// [`DatasetError::Filter`] with the invalid part, the rule and the remedy; [`DatasetError::LimitExceeded`] if the
    /// filter is too long.
    pub(super) fn parse(state: &SessionState, text: &str, fields: Vec<FieldRef>) -> Result<Filter, DatasetError> {
        if text.len() > FILTER_BYTES_MAX {
            let quantity = "length of the filter in bytes".to_owned();
            return Err(DatasetError::LimitExceeded {
                quantity,
                value: text.len() as u64,
                bound: FILTER_BYTES_MAX as u64,
            });
        }
        let parsed = on_deep_stack(|| {
            let schema = DFSchema::try_from(Schema::new(fields)).map_err(|e| reason_of(&e))?;
            Planner::new(state, Arc::new(schema)).filter(syntax::parse(state, text)?, text)
        });
        parsed.map_err(|reason| DatasetError::Filter { filter: text.to_owned(), reason })
    }

    /// Removes the conjuncts for which `is_decided` returns true. Returns `None` if none is left.
    pub(super) fn without(self, is_decided: impl Fn(&Expr) -> bool) -> Option<Filter> {
        let left = split_conjunction_owned(self.expr).into_iter().filter(|part| !is_decided(part));
        let expr = conjunction(left)?;
        let columns = expr.column_refs().into_iter().map(|column| column.name.clone()).collect();
        Some(Filter { expr, columns })
    }
}

/// Returns the conjuncts of a filter that read only columns of `schema`; none for a filter that [`Filter::parse`]
/// rejects.
pub(super) fn conditions_on(state: &SessionState, text: &str, schema: DFSchema) -> Vec<Expr> {
    if text.len() > FILTER_BYTES_MAX {
        return Vec::new();
    }
    let conditions = on_deep_stack(|| {
        let planner = Planner::new(state, Arc::new(schema));
        let mut parts = Vec::new();
        split(syntax::parse(state, text)?.expr, &mut parts);
        let part = |expr| planner.filter(ExprWithAlias { expr, alias: None }, text);
        Ok(parts.into_iter().filter_map(|expr| part(expr).ok()).map(|filter| filter.expr).collect())
    });
    conditions.unwrap_or_default()
}

/// Appends the conjuncts of `expr` to `parts`.
fn split(expr: SqlExpr, parts: &mut Vec<SqlExpr>) {
    match expr {
        SqlExpr::BinaryOp { left, op: BinaryOperator::And, right } => {
            split(*left, parts);
            split(*right, parts);
        }
        SqlExpr::Nested(inner) => split(*inner, parts),
        other => parts.push(other),
    }
}

/// Runs `parse` on a thread whose stack suffices for the nesting of any filter.
fn on_deep_stack<T: Send>(parse: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parse);
        match thread.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(panic)) => Err(format!("it can't be computed: {}", message_of_panic(&*panic))),
            Err(error) => Err(format!("can't start a thread to parse it: {error}")),
        }
    })
}

/// Translates SQL syntax to expressions.
struct Planner<'a> {
    state: &'a SessionState,
    schema: DFSchemaRef,
    context: SimplifyContext,
}

impl<'a> Planner<'a> {
    fn new(state: &'a SessionState, schema: DFSchemaRef) -> Planner<'a> {
        let context = SimplifyContext::builder()
            .with_schema(Arc::clone(&schema))
            .with_config_options(Arc::clone(state.config_options()))
            .build();
        Planner { state, schema, context }
    }

    /// Translates and checks `syntax`, which is a part of `text`.
    fn filter(&self, syntax: ExprWithAlias, text: &str) -> Result<Filter, String> {
        let expr = self.state.create_logical_expr_from_sql_expr(syntax, &self.schema);
        let expr = expr.map_err(|e| syntax::reason(&e, text, &self.schema))?;
        if let Some(function) = first_unrepeatable(&expr) {
            return Err(format!(
                "a filter may depend on the row alone, but `{function}` returns another value each time"
            ));
        }
        let columns = expr.column_refs().into_iter().map(|column| column.name.clone()).collect();
        let expr = self.resolve(expr).and_then(|expr| self.fold(expr)).map_err(|e| reason_of(&e))?;
        let expr = balanced(expr).map_err(|e| reason_of(&e))?;
        if depth(&expr) > DEPTH_MAX {
            return Err(format!(
                "it nests deeper than {DEPTH_MAX} levels; split it, or compute part of it in a transform"
            ));
        }
        Ok(Filter { expr: self.check(expr)?, columns })
    }

    /// Coerces types, and replaces functions that are shorthands.
    fn resolve(&self, expr: Expr) -> EngineResult<Expr> {
        let expr = times::compare_exactly(self, expr)?;
        let expr = patterns::as_regex(self, expr)?;
        let expr = patterns::with_backslash(self, expr)?;
        // DataFusion would coerce the arguments to a common type, which they don't need.
        let mut expr = self.replace(expr, |name| name == "nvl2")?.data;
        let types = ExprSimplifier::new(self.context.clone());
        for _ in 0..REPLACE_ROUNDS_MAX {
            let replaced = self.replace(types.coerce(expr, &self.schema)?, |_| true)?;
            expr = replaced.data;
            if !replaced.transformed {
                return Ok(expr);
            }
        }
        Ok(expr)
    }

    /// Replaces functions that are shorthands for an expression: `coalesce`, `nvl`, `arrow_cast`.
    fn replace(&self, expr: Expr, is_meant: impl Fn(&str) -> bool) -> EngineResult<Transformed<Expr>> {
        expr.transform_up(|part| match part {
            Expr::ScalarFunction(ScalarFunction { func, args }) if is_meant(func.name()) => {
                Ok(match func.simplify(args, &self.context)? {
                    ExprSimplifyResult::Original(args) => {
                        Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))
                    }
                    ExprSimplifyResult::Simplified(expr) => Transformed::yes(expr),
                })
            }
            other => Ok(Transformed::no(other)),
        })
    }

    /// Evaluates subexpressions without columns.
    fn fold(&self, expr: Expr) -> EngineResult<Expr> {
        let folded = expr.transform_down(|part| {
            if matches!(part, Expr::Literal(..)) || part.any_column_refs() {
                return Ok(Transformed::no(part));
            }
            let value = self.value_of(&part).map_err(|e| {
                let part = display_sql(as_written(&part));
                DataFusionError::Plan(format!("`{part}` can't be evaluated: {}", reason_of(&e)))
            })?;
            Ok(Transformed::new(Expr::Literal(value, None), true, TreeNodeRecursion::Jump))
        });
        folded.data()
    }

    /// Rejects expressions that are not boolean or that DataFusion can't evaluate.
    fn check(&self, expr: Expr) -> Result<Expr, String> {
        let types = self.schema.as_arrow();
        let physical = self.state.create_physical_expr(expr.clone(), &self.schema).map_err(|e| reason_of(&e))?;
        match physical.data_type(types).or_else(|_| expr.get_type(&self.schema)).map_err(|e| reason_of(&e))? {
            DataType::Boolean => {}
            DataType::Null => return Ok(Expr::Literal(ScalarValue::Boolean(None), None)),
            other => return Err(format!("it has type {other}, but must be boolean")),
        }
        let no_rows = RecordBatch::new_empty(Arc::new(types.clone()));
        physical.evaluate(&no_rows).map_err(|e| without_regex_picture(&reason_of(&e)))?;
        Ok(expr)
    }
}

impl Evaluator for Planner<'_> {
    fn type_of(&self, expr: &Expr) -> Option<DataType> {
        expr.get_type(&self.schema).ok()
    }

    fn value_of(&self, expr: &Expr) -> EngineResult<ScalarValue> {
        let none = Planner::new(self.state, Arc::new(DFSchema::empty()));
        let physical = self.state.create_physical_expr(none.resolve(expr.clone())?, &none.schema)?;
        let physical = without_wrapping(physical)?;
        let one = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &one)?;
        match physical.evaluate(&row)? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
        }
    }
}

/// Returns the depth of an expression.
fn depth(expr: &Expr) -> usize {
    let mut deepest = 0;
    let visited = expr.apply_children(|child| {
        deepest = deepest.max(depth(child));
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(visited.is_ok());
    deepest + 1
}

/// Returns the name of a function in `expr` whose result depends on more than its arguments, such as chance or the
/// clock.
fn first_unrepeatable(expr: &Expr) -> Option<String> {
    let mut found = None;
    let visited = expr.apply(|part| match part {
        Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => {
            found = Some(call.name().to_owned());
            Ok(TreeNodeRecursion::Stop)
        }
        _ => Ok(TreeNodeRecursion::Continue),
    });
    visited.ok().and(found)
}

/// Removes the diagram of several lines from the error of an invalid regular expression.
fn without_regex_picture(reason: &str) -> String {
    let wrong = reason.split_once("regex parse error").and_then(|(_, picture)| picture.rsplit_once("error: "));
    match wrong {
        Some((_, wrong)) => {
            format!("a regular expression does not compile: {}", wrong.trim_end_matches(|c: char| " ~).".contains(c)))
        }
        None => reason.to_owned(),
    }
}

/// Wraps a predicate for a plan, so that its errors are reported as those of the filter.
pub(super) fn guarded(predicate: Arc<dyn PhysicalExpr>) -> EngineResult<Arc<dyn PhysicalExpr>> {
    Ok(Arc::new(GuardedPredicate::new(without_wrapping(predicate)?)))
}

/// Makes overflow of integer sums, differences and products an error instead of wrapping.
fn without_wrapping(expr: Arc<dyn PhysicalExpr>) -> EngineResult<Arc<dyn PhysicalExpr>> {
    let checked = expr.transform_up(|part| match part.downcast_ref::<Arithmetic>() {
        Some(binary) if matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply) => {
            let checked = Arithmetic::new(Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right()));
            Ok(Transformed::yes(Arc::new(checked.with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>))
        }
        _ => Ok(Transformed::no(part)),
    });
    checked.data()
}
