//! A filter: an SQL expression about one row.
//!
//! [`Filter::parse`] makes it one that the engine evaluates: what is no question about one row is refused by name,
//! times are compared exactly (`times`), `SIMILAR TO` becomes a regular expression (`similar`), functions that stand
//! for other expressions are replaced by them, and constants are computed once, so that a mistake in one is told
//! before a file is read. The rest of DataFusion's simplifier is left out: it takes casts off columns (`CAST(d AS INT)
//! = 3` becomes `d = 3`), which changes the rows.

mod guard;
mod patterns;
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
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sqlparser::ast::{BinaryOperator, Expr as SqlExpr, ExprWithAlias};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, ColumnarValue, Expr, ExprSchemable as _, Operator, Volatility, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr as Arithmetic;

pub(super) use guard::FilterFailure;
use guard::GuardedPredicate;

use super::schema::MergedSchema;
use super::stream::{message_of_panic, reason_of};
use crate::DatasetError;

/// Bytes of a filter, at most.
const FILTER_BYTES_MAX: usize = 4096;

/// How deep the expression that the engine evaluates may nest: it does so by recursion, on threads with 2 MiB of stack.
const DEPTH_MAX: usize = 300;

/// The stack of the thread that makes the expression of a text: whatever [`FILTER_BYTES_MAX`] bytes can nest.
const STACK_BYTES: usize = 256 << 20;

/// Conditions joined by AND, or by OR, that are joined pairwise instead of one after another.
const CHAIN_MIN: usize = 16;

/// How often functions are replaced by what they stand for, which may be functions.
const REPLACE_ROUNDS_MAX: usize = 8;

/// A filter that was understood.
pub(super) struct Filter {
    /// The expression, of the types that all files agree on.
    pub(super) expr: Expr,
    /// The columns that it reads.
    pub(super) columns: HashSet<String>,
}

impl Filter {
    /// Understands `text` as an SQL expression over the columns of all files.
    ///
    /// # Errors
    /// [`DatasetError::Filter`] with the part that is wrong, the rule, and what to write instead;
    /// [`DatasetError::LimitExceeded`] for one that is too long.
    pub(super) fn parse(state: &SessionState, text: &str, merged: &MergedSchema) -> Result<Filter, DatasetError> {
        if text.len() > FILTER_BYTES_MAX {
            let what = "length of the filter in bytes".to_owned();
            return Err(DatasetError::LimitExceeded { what, value: text.len() as u64, bound: FILTER_BYTES_MAX as u64 });
        }
        let fields: Vec<FieldRef> = merged.fields().cloned().collect();
        let parsed = on_deep_stack(|| {
            let schema = DFSchema::try_from(Schema::new(fields)).map_err(|e| reason_of(&e))?;
            Planner::new(state, Arc::new(schema)).filter(syntax::parse(state, text)?, text)
        });
        parsed.map_err(|reason| DatasetError::Filter { filter: text.to_owned(), reason })
    }

    /// What is left of it without the conditions, of those that must all be true, that `is_decided` says are: nothing, if
    /// that is all of it.
    pub(super) fn without(self, is_decided: impl Fn(&Expr) -> bool) -> Option<Filter> {
        let left = split_conjunction_owned(self.expr).into_iter().filter(|part| !is_decided(part));
        let expr = conjunction(left)?;
        let columns = expr.column_refs().into_iter().map(|column| column.name.clone()).collect();
        Some(Filter { expr, columns })
    }
}

/// The conditions of a filter, of those that must all be true, that read the columns of `schema` alone. None of a filter
/// that [`Filter::parse`] refuses.
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

/// The conditions that must all be true for `expr` to be.
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

/// Runs `parse` on a thread whose stack holds what the text of a filter can nest.
fn on_deep_stack<T: Send>(parse: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parse);
        match thread.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(panic)) => Err(format!("it can't be computed: {}", message_of_panic(&*panic))),
            Err(error) => Err(format!("there is no thread to read it: {error}")),
        }
    })
}

/// Makes expressions of text.
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

    /// The filter that `syntax`, a part of `text`, stands for.
    fn filter(&self, syntax: ExprWithAlias, text: &str) -> Result<Filter, String> {
        let expr = self.state.create_logical_expr_from_sql_expr(syntax, &self.schema);
        let expr = expr.map_err(|e| syntax::reason(&e, text, &self.schema))?;
        if let Some(function) = first_unrepeatable(&expr) {
            return Err(format!("a filter may depend on the row alone; `{function}` gives something else each time"));
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

    /// The expression with types made to agree, and functions replaced by what they stand for.
    fn resolve(&self, expr: Expr) -> EngineResult<Expr> {
        let expr = times::compare_exactly(self, expr)?;
        let expr = patterns::as_regex(self, expr)?;
        let expr = patterns::with_backslash(self, expr)?;
        // Its arguments need no common type, which the engine would give them.
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

    /// Replaces functions that only stand for an expression: `coalesce`, `nvl`, `arrow_cast`.
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

    /// Computes what depends on no column.
    fn fold(&self, expr: Expr) -> EngineResult<Expr> {
        let folded = expr.transform_down(|part| {
            if matches!(part, Expr::Literal(..)) || part.any_column_refs() {
                return Ok(Transformed::no(part));
            }
            let value = self.value_of(&part).map_err(|e| {
                let part = display_sql(as_written(&part));
                DataFusionError::Plan(format!("`{part}` has no value: {}", reason_of(&e)))
            })?;
            Ok(Transformed::new(Expr::Literal(value, None), true, TreeNodeRecursion::Jump))
        });
        folded.data()
    }

    /// The value of an expression without columns.
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

    /// Refuses what is not true or false of a row, and what the engine can't compute of any.
    fn check(&self, expr: Expr) -> Result<Expr, String> {
        let types = self.schema.as_arrow();
        let physical = self.state.create_physical_expr(expr.clone(), &self.schema).map_err(|e| reason_of(&e))?;
        match physical.data_type(types).or_else(|_| expr.get_type(&self.schema)).map_err(|e| reason_of(&e))? {
            DataType::Boolean => {}
            DataType::Null => return Ok(Expr::Literal(ScalarValue::Boolean(None), None)),
            other => return Err(format!("it is {other}, and has to be true or false")),
        }
        let no_rows = RecordBatch::new_empty(Arc::new(types.clone()));
        physical.evaluate(&no_rows).map_err(|e| without_regex_picture(&reason_of(&e)))?;
        Ok(expr)
    }

    fn type_of(&self, expr: &Expr) -> Option<DataType> {
        expr.get_type(&self.schema).ok()
    }
}

/// The expression with long chains of AND and of OR nested no deeper than need be.
fn balanced(expr: Expr) -> EngineResult<Expr> {
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

/// The parts of a chain, in order.
fn unchain(expr: Expr, chained: Operator, parts: &mut Vec<Expr>) {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op == chained => {
            unchain(*left, chained, parts);
            unchain(*right, chained, parts);
        }
        other => parts.push(other),
    }
}

fn join(mut parts: Vec<Expr>, op: Operator) -> Option<Expr> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let second = parts.split_off(parts.len() / 2);
    Some(joined(join(parts, op)?, op, join(second, op)?))
}

fn joined(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}

/// How deep an expression nests.
fn depth(expr: &Expr) -> usize {
    let mut deepest = 0;
    let visited = expr.apply_children(|child| {
        deepest = deepest.max(depth(child));
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(visited.is_ok());
    deepest + 1
}

/// The name of a function in `expr` whose result depends on more than its arguments: on chance, the clock, the plan.
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

/// A part of a filter without the casts around it that make types agree.
fn as_written(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(Cast { expr, .. }) if !matches!(**expr, Expr::Literal(..)) => as_written(expr),
        other => other,
    }
}

/// A part of a filter as SQL would have it, for messages.
fn display_sql(expr: &Expr) -> String {
    match expr {
        Expr::Cast(Cast { expr, field }) => format!("CAST({} AS {})", display_sql(expr), field.data_type()),
        Expr::Literal(ScalarValue::Utf8(Some(text)), _) => format!("'{text}'"),
        other => other.human_display().to_string(),
    }
}

/// The reason of a regular expression that is none, without the drawing of where it is wrong, which takes several lines.
fn without_regex_picture(reason: &str) -> String {
    let wrong = reason.split_once("regex parse error").and_then(|(_, picture)| picture.rsplit_once("error: "));
    match wrong {
        Some((_, wrong)) => {
            format!("a regular expression does not compile: {}", wrong.trim_end_matches(|c: char| " ~).".contains(c)))
        }
        None => reason.to_owned(),
    }
}

/// The predicate as the engine's plans hold it: its failures say that it is the filter that failed.
pub(super) fn guarded(predicate: Arc<dyn PhysicalExpr>) -> EngineResult<Arc<dyn PhysicalExpr>> {
    Ok(Arc::new(GuardedPredicate::new(without_wrapping(predicate)?)))
}

/// The same, but a sum or product of whole numbers that their type does not hold is an error, not another number.
fn without_wrapping(expr: Arc<dyn PhysicalExpr>) -> EngineResult<Arc<dyn PhysicalExpr>> {
    let checked = expr.transform_up(|part| match part.downcast_ref::<Arithmetic>() {
        Some(of) if matches!(of.op(), Operator::Plus | Operator::Minus | Operator::Multiply) => {
            let checked = Arithmetic::new(Arc::clone(of.left()), *of.op(), Arc::clone(of.right()));
            Ok(Transformed::yes(Arc::new(checked.with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>))
        }
        _ => Ok(Transformed::no(part)),
    });
    checked.data()
}
