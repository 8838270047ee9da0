//! The arguments and the result of a job's first task, as people write and read them.

use sandbar_core::{Argument, Code, Fault};
use serde::Serialize;
use serde_json::Value;

use super::ProgramTask;
use super::files::Given;
use crate::NodeError;

/// Bytes of what a job's first task returns, as JSON: it is shown, and kept in the job's record.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// What a task's argument is, by the words of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Text,
    File,
    Files,
    Other,
}

impl Of {
    /// Of a type as its task has it: `Option<sandbar_guest::File>`.
    fn named(of: &str) -> Of {
        let of: String = of.chars().filter(|c| !c.is_whitespace()).collect();
        let inner = of.rsplit_once("Option<").and_then(|(_, rest)| rest.strip_suffix('>')).unwrap_or(&of);
        match inner.rsplit("::").next().unwrap_or(inner) {
            "String" => Of::Text,
            "File" => Of::File,
            "Files" => Of::Files,
            _ => Of::Other,
        }
    }
}

/// The arguments of a task in their order, each as JSON, and the files that it is given. Looks for these on disk.
pub(super) fn arguments(task: &ProgramTask, given: &[(String, String)]) -> Result<(Box<[u8]>, Given), NodeError> {
    let known = |name: &str| task.arguments.iter().any(|(argument, _)| argument == name);
    if let Some((name, _)) = given.iter().find(|(name, _)| !known(name)) {
        let names: Vec<_> = task.arguments.iter().map(|(name, of)| format!("{name}: {of}")).collect();
        return Err(NodeError::Job(format!(
            "task `{}` has no argument `{name}`; it takes ({})",
            task.name,
            names.join(", ")
        )));
    }
    let mut files = Given::default();
    // The last value that was given for an argument is the one that is meant.
    let last = |name: &str| given.iter().rev().find(|(argument, _)| argument == name).map(|(_, text)| text.as_str());
    let json = |(name, of): &(String, String)| last(name).map(|text| json(name, of, text, &mut files)).transpose();
    let texts: Vec<Option<String>> = task.arguments.iter().map(json).collect::<Result<_, _>>()?;
    let arguments = texts.iter().map(|text| text.as_deref().map_or(Argument::Missing, Argument::Json));
    let arguments: Vec<Argument<'_>> = arguments.chain([Argument::ReturnsJson]).collect();
    let encoded = postcard::to_stdvec(&arguments).map_err(|e| NodeError::Job(e.to_string()))?;
    Ok((encoded.into(), files))
}

/// An argument as JSON: as it is if it is JSON and not of a text; behind an `@`, files.
fn json(name: &str, of: &str, text: &str, files: &mut Given) -> Result<String, NodeError> {
    let kind = Of::named(of);
    let quoted = |text: &str| Value::from(text).to_string();
    match (kind, text.strip_prefix('@')) {
        (Of::File, Some(path)) => written(&files.file(path)?),
        (Of::Files, Some(path)) => written(&files.files(path)?),
        (_, Some(rest)) if rest.starts_with('@') => Ok(quoted(rest)),
        (_, Some(_)) => Err(NodeError::Job(format!(
            "argument `{name}` is of type {of}: `@` stands for a file where a task takes a `File` or `Files`, and `@@` for itself"
        ))),
        (Of::Text, None) => Ok(quoted(text)),
        (_, None) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => Ok(text.to_owned()),
        (_, None) => Ok(quoted(text)),
    }
}

fn written(given: &impl Serialize) -> Result<String, NodeError> {
    serde_json::to_string(given).map_err(|e| NodeError::Job(e.to_string()))
}

/// What a job's first task returned: any bytes.
pub(super) fn result(task: &str, bytes: &[u8]) -> Result<Value, Fault> {
    let wrong = |what: String| Fault::new(Code::BadOutput, format!("{task}: what it returned {what}"));
    if bytes.len() > RESULT_BYTES_MAX {
        let bytes = bytes.len();
        return Err(wrong(format!(
            "takes {bytes} bytes as JSON, {RESULT_BYTES_MAX} are shown: return less, or log it"
        )));
    }
    serde_json::from_slice(bytes).map_err(|e| wrong(format!("is no JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of: &str, text: &str, expected: Result<&str, &str>) {
        let found = json("x", of, text, &mut Given::default()).map_err(|e| e.to_string());
        match expected {
            Ok(json) => assert_eq!(found.as_deref(), Ok(json), "{of} {text}"),
            Err(words) => assert!(found.clone().is_err_and(|e| e.contains(words)), "{of} {text}: {found:?}"),
        }
    }

    #[test]
    fn arguments_are_json_or_text_or_files() {
        check("i64", "5", Ok("5"));
        check("String", "5", Ok(r#""5""#));
        check("Option<String>", "null", Ok(r#""null""#));
        check("Vec<String>", r#"["a"]"#, Ok(r#"["a"]"#));
        check("Shape", "flat", Ok(r#""flat""#));
        for (of, text) in [("String", "@@home"), ("Shape", "@@home")] {
            check(of, text, Ok(r#""@home""#));
        }
        for of in ["String", "i64", "Vec<File>", "ObjectRef<Files>", "FileLike"] {
            check(of, "@Cargo.toml", Err("where a task takes a `File` or `Files`"));
        }
        let file = r#"{"number":0,"name":"Cargo.toml"}"#;
        for of in ["File", "Option<File>", "sandbar_guest::File", "Option<sandbar_guest :: File>"] {
            check(of, "@Cargo.toml", Ok(file));
        }
        check("Files", "@Cargo.toml", Ok(r#"{"first":0,"count":1,"names":1}"#));
        check("Files", "@src/*.rs.not", Err("no file matches it"));
        check("File", "@src", Err("one is asked for"));
        check("File", "Cargo.toml", Ok(r#""Cargo.toml""#));
    }

    #[test]
    fn results_are_json_of_a_bounded_size() {
        assert_eq!(result("main", br#"{"a": [1]}"#), Ok(serde_json::json!({"a": [1]})));
        assert!(
            result("main", &[7]).is_err_and(|fault| fault.message.starts_with("main: what it returned is no JSON"))
        );
        assert!(result("main", &[b' '; RESULT_BYTES_MAX + 1]).is_err());
        let deep = "[".repeat(10_000);
        assert!(result("main", deep.as_bytes()).is_err());
    }
}
