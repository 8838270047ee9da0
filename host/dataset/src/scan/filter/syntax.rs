//! Parsing of filters, and errors in terms of the filter's text instead of DataFusion's internals.

use std::ops::ControlFlow;

use datafusion::common::{DFSchema, DataFusionError, SchemaError};
use datafusion::execution::context::SessionState;
use datafusion::sql::parser::DFParserBuilder;
use datafusion::sql::sqlparser::ast::{Expr, ExprWithAlias, Function, Value, visit_expressions};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::ParserError;
use sandbar_core::hint;

use super::super::reason::reason_of;
use crate::DatasetError;

/// Maximum depth of nested expressions in the text.
const DEPTH_MAX: usize = 50;

/// Maximum characters of a quoted part of a filter in a message.
const PART_CHARS_MAX: usize = 60;

/// Parses a filter, and rejects constructs that concern more than one row.
pub(super) fn parse(state: &SessionState, text: &str) -> Result<ExprWithAlias, String> {
    let parser = DFParserBuilder::new(text).with_dialect(&GenericDialect {}).with_recursion_limit(DEPTH_MAX).build();
    let parsed = parser.and_then(|mut parser| parser.parse_into_expr()).map_err(|error| match error {
        DataFusionError::SQL(error, _) if matches!(*error, ParserError::RecursionLimitExceeded) => {
            format!("it nests deeper than {DEPTH_MAX} levels; remove redundant parentheses")
        }
        error => reason_of(&error),
    })?;
    if let Some(alias) = &parsed.alias {
        return Err(format!("`{alias}` follows a complete expression; join conditions by AND or OR"));
    }
    let rejected = visit_expressions(&parsed.expr, |part| match rejection(state, part) {
        Some(reason) => ControlFlow::Break(reason),
        None => ControlFlow::Continue(()),
    });
    match rejected {
        ControlFlow::Break(reason) => Err(reason),
        ControlFlow::Continue(()) => Ok(parsed),
    }
}

/// Returns the reason why a part is not allowed in a filter, if it is not.
fn rejection(state: &SessionState, part: &Expr) -> Option<String> {
    let about_one_row = |function_name: &str| Some(format!("a filter is about one row: {function_name}"));
    match part {
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => {
            let part = shortened(&part.to_string());
            about_one_row(&format!("`{part}` is a subquery; list the values instead, as in `x IN (1, 2)`"))
        }
        Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => Some(format!("`{name}` is a placeholder; write the value in its place")),
            _ => None,
        },
        Expr::RLike { .. } => Some("RLIKE is not supported; write `text ~ 'regular expression'`".to_owned()),
        Expr::Function(function) => {
            let name = name_of(function);
            if function.over.is_some() || state.window_functions().contains_key(&name) {
                about_one_row(&format!("`{name}` is a window function"))
            } else if state.aggregate_functions().contains_key(&name) {
                about_one_row(&format!("`{name}` is an aggregate"))
            } else if state.scalar_functions().contains_key(&name) || state.higher_order_functions().contains_key(&name)
            {
                None
            } else {
                let mut known: Vec<String> = state.scalar_functions().keys().cloned().collect();
                known.sort();
                let hint = hint(&name, &known);
                Some(format!("no function is named `{name}`{hint}"))
            }
        }
        _ => None,
    }
}

/// Returns a function's name in DataFusion: lower case unless it is quoted.
fn name_of(function: &Function) -> String {
    match function.name.0.as_slice() {
        [part] => match part.as_ident() {
            Some(name) if name.quote_style.is_none() => name.value.to_ascii_lowercase(),
            Some(name) => name.value.clone(),
            None => part.to_string(),
        },
        _ => function.name.to_string(),
    }
}

/// Returns the message for an error of DataFusion's planner.
pub(super) fn reason(error: &DataFusionError, text: &str, schema: &DFSchema) -> String {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => reason(inner, text, schema),
        DataFusionError::SchemaError(schema_error, _) => match &**schema_error {
            SchemaError::FieldNotFound { field, .. } => {
                let available = schema.fields().iter().map(|field| field.name().as_str());
                let mut reason =
                    DatasetError::no_column("column", &field.flat_name(), "the input", available).to_string();
                if let Some(table) = &field.relation {
                    reason += &format!("; columns in a filter need no `{table}.` prefix");
                }
                if text.contains(&format!("\"{}\"", field.name)) {
                    reason += &format!("; text literals need single quotes: '{}'", field.name);
                }
                reason
            }
            _ => reason_of(error),
        },
        // DataFusion's message shows its own syntax tree and its build features.
        DataFusionError::NotImplemented(_) => {
            "a part of it is not supported in filters: lists, structs, or an operator of another dialect".to_owned()
        }
        _ => reason_of(error),
    }
}

/// Shortens a part of a filter for a message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(PART_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
