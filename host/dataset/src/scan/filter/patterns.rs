//! `SIMILAR TO`, and `LIKE` with an escape character, with the semantics of SQL.
//!
//! Patterns of `SIMILAR TO` combine those of `LIKE` and regular expressions: `%` matches any characters and `_` any
//! single one; `|`, `*`, `+`, `?`, `{m,n}`, `(…)` and `[…]` have their meaning in regular expressions; every other
//! character matches itself. The pattern must match the whole text.

use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::expr::Like;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, lit};

use super::evaluator::Evaluator;
use super::sql::display_sql;

/// Replaces each `SIMILAR TO` by a regular expression match.
pub(super) fn as_regex(evaluator: &dyn Evaluator, expr: Expr) -> Result<Expr> {
    let replaced = expr.transform_up(|part| match part {
        Expr::SimilarTo(Like { negated, expr, pattern, escape_char, .. }) => {
            let regex = match constant(evaluator, "SIMILAR TO", &pattern)? {
                Some(text) => lit(regex_of(&text, escape_char.unwrap_or('\\')).map_err(DataFusionError::Plan)?),
                None => Expr::Literal(ScalarValue::Utf8(None), None),
            };
            let op = if negated { Operator::RegexNotMatch } else { Operator::RegexMatch };
            Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr::new(expr, op, Box::new(regex)))))
        }
        other => Ok(Transformed::no(other)),
    });
    replaced.data()
}

/// Replaces the escape character of a `LIKE` by a backslash, the only one that DataFusion supports.
pub(super) fn with_backslash(evaluator: &dyn Evaluator, expr: Expr) -> Result<Expr> {
    let replaced = expr.transform_up(|part| match part {
        Expr::Like(Like { negated, expr, pattern, escape_char: Some(escape), case_insensitive }) if escape != '\\' => {
            let pattern = match constant(evaluator, "LIKE with ESCAPE", &pattern)? {
                Some(text) => lit(escaped_by_backslash(&text, escape).map_err(DataFusionError::Plan)?),
                None => Expr::Literal(ScalarValue::Utf8(None), None),
            };
            Ok(Transformed::yes(Expr::Like(Like::new(negated, expr, Box::new(pattern), None, case_insensitive))))
        }
        other => Ok(Transformed::no(other)),
    });
    replaced.data()
}

fn escaped_by_backslash(pattern: &str, escape: char) -> std::result::Result<String, String> {
    let (mut escaped, mut rest) = (String::new(), pattern.chars());
    while let Some(c) = rest.next() {
        let c = if c == escape {
            let next = rest.next();
            escaped.push('\\');
            next.ok_or_else(|| format!("the pattern `{pattern}` ends with its escape character"))?
        } else {
            if c == '\\' {
                escaped.push(c);
            }
            c
        };
        escaped.push(c);
    }
    Ok(escaped)
}

/// Evaluates the constant pattern of the operator `name`; `None` is null.
fn constant(evaluator: &dyn Evaluator, name: &str, pattern: &Expr) -> Result<Option<String>> {
    if pattern.any_column_refs() {
        return Err(DataFusionError::Plan(format!(
            "the pattern of {name} must be a constant, but `{}` is not; use `~` to match regular expressions \
             from a column",
            display_sql(pattern)
        )));
    }
    match evaluator.value_of(pattern)? {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => Ok(text),
        ScalarValue::Null => Ok(None),
        _ => Err(DataFusionError::Plan(format!("the pattern of {name}, `{}`, is not text", display_sql(pattern)))),
    }
}

/// Translates a `SIMILAR TO` pattern to a regular expression.
fn regex_of(pattern: &str, escape: char) -> std::result::Result<String, String> {
    let mut regex = "^(?s:".to_owned();
    let mut rest = pattern.chars().peekable();
    let mut in_brackets = false;
    while let Some(c) = rest.next() {
        match c {
            _ if c == escape => {
                let next = rest.next();
                let next = next.ok_or_else(|| format!("the pattern `{pattern}` ends with its escape character"))?;
                push_literal(&mut regex, next);
            }
            '[' if in_brackets && rest.peek() != Some(&':') => regex.push_str("\\["),
            '[' if in_brackets => {
                // A character class within brackets: `[[:alpha:]]`.
                regex.push('[');
                while let Some(c) = rest.next() {
                    regex.push(c);
                    if c == ':' && rest.peek() == Some(&']') {
                        regex.extend(rest.next());
                        break;
                    }
                }
            }
            '[' => {
                in_brackets = true;
                regex.push('[');
                regex.extend(rest.next_if_eq(&'^'));
                // A `]` right after the opening bracket is literal.
                if rest.next_if_eq(&']').is_some() {
                    regex.push_str("\\]");
                }
            }
            ']' if in_brackets => {
                in_brackets = false;
                regex.push(']');
            }
            '-' | '^' if in_brackets => regex.push(c),
            _ if in_brackets => push_literal(&mut regex, c),
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            '(' => regex.push_str("(?:"),
            '|' | '*' | '+' | '?' | '{' | '}' | ')' => regex.push(c),
            _ => push_literal(&mut regex, c),
        }
    }
    if in_brackets {
        return Err(format!("the pattern `{pattern}` has a `[` without its `]`"));
    }
    regex.push_str(")$");
    Ok(regex)
}

fn push_literal(regex: &mut String, c: char) {
    if r"\.+*?()|[]{}^$#&-~".contains(c) {
        regex.push('\\');
    }
    regex.push(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_character_escapes() {
        for (pattern, escape, expected) in [
            ("a!_b", '!', Ok(r"a\_b")),
            ("a!!b%", '!', Ok(r"a\!b%")),
            (r"a\_b", '!', Ok(r"a\\_b")),
            ("a%%b", '%', Ok(r"a\%b")),
            ("a!", '!', Err("the pattern `a!` ends with its escape character")),
        ] {
            let found = escaped_by_backslash(pattern, escape);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{pattern}");
        }
    }

    #[test]
    fn patterns_follow_sql_semantics() {
        for (pattern, escape, expected) in [
            ("b%", '\\', Ok(r"^(?s:b.*)$")),
            ("_b", '\\', Ok(r"^(?s:.b)$")),
            ("(a|b)+", '\\', Ok(r"^(?s:(?:a|b)+)$")),
            ("a.b^c$", '\\', Ok(r"^(?s:a\.b\^c\$)$")),
            (r"50\%", '\\', Ok(r"^(?s:50%)$")),
            ("50#%", '#', Ok(r"^(?s:50%)$")),
            (r"a\b", '#', Ok(r"^(?s:a\\b)$")),
            ("[a-c%_]{2,3}", '\\', Ok(r"^(?s:[a-c%_]{2,3})$")),
            ("[^]&&x]", '\\', Ok(r"^(?s:[^\]\&\&x])$")),
            ("[[:alpha:]_]", '\\', Ok(r"^(?s:[[:alpha:]_])$")),
            ("", '\\', Ok("^(?s:)$")),
            ("a[b", '\\', Err("the pattern `a[b` has a `[` without its `]`")),
            (r"a\", '\\', Err(r"the pattern `a\` ends with its escape character")),
        ] {
            let found = regex_of(pattern, escape);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{pattern}");
        }
    }
}
