//! The arguments and the result of a job's first task, as people write and read them.

use sandbar_core::{Argument, Code, Fault};
use serde::Serialize;
use serde_json::Value;

use crate::calls::ProgramTask;
use crate::error::ProgramError;
use crate::files::JobFiles;
use crate::plan::ArgumentPlan;

/// Bytes of what a job's first task returns, as JSON: it is shown, and kept in the job's record.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// What a task's argument is, by the words of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Text,
    File,
    Files,
    Float32,
    Float64,
    Other,
}

/// Types around another whose values are written as that one's. Of an option it matters that it is one.
const AROUND: [&str; 5] = ["Option<", "Box<", "Rc<", "Arc<", "Cow<"];

impl Of {
    /// Of a type as its task has it, and in how many options it is: `Option<sandbar_guest::File>`.
    fn named(of: &str) -> (Of, usize) {
        let (word, options) = Of::innermost(of);
        (Of::word(&word), options)
    }

    /// The last word of the type within those that are written as it is, and in how many options it is.
    fn innermost(of: &str) -> (String, usize) {
        let of: String = of.chars().filter(|c| !c.is_whitespace()).collect();
        let (mut of, mut options) = (of.as_str(), 0);
        loop {
            // Of a path the last word counts.
            let words = of.find('<').unwrap_or(of.len());
            let last = of[..words].rfind("::").map_or(0, |at| at + 2);
            let around = AROUND.iter().find_map(|name| Some((name, of[last..].strip_prefix(name)?.strip_suffix('>')?)));
            let Some((name, within)) = around else { break (of[last..].to_owned(), options) };
            options += usize::from(*name == "Option<");
            of = within.strip_prefix("'static,").unwrap_or(within);
        }
    }

    fn word(of: &str) -> Of {
        match of {
            "String" | "str" | "char" | "PathBuf" | "Path" => Of::Text,
            "File" => Of::File,
            "Files" => Of::Files,
            "f32" => Of::Float32,
            "f64" => Of::Float64,
            _ => Of::Other,
        }
    }

    /// A number that JSON lacks, in the bytes of a value of this type within so many options.
    fn unwritten(self, options: usize, text: &str) -> Option<Box<[u8]>> {
        let value = match text.strip_prefix('-').unwrap_or(text) {
            "NaN" | "nan" => f64::NAN,
            "Infinity" | "infinity" | "inf" if text.starts_with('-') => f64::NEG_INFINITY,
            "Infinity" | "infinity" | "inf" => f64::INFINITY,
            _ => return None,
        };
        let bytes = match self {
            Of::Float32 => (value as f32).to_le_bytes().to_vec(),
            Of::Float64 => value.to_le_bytes().to_vec(),
            _ => return None,
        };
        // Each option that is one is a byte.
        Some(std::iter::repeat_n(1, options).chain(bytes).collect())
    }
}

/// An argument, as its task gets it.
#[derive(Debug, Clone, PartialEq)]
enum Written {
    Json(String),
    Value(Box<[u8]>),
}

/// The arguments of a task in their order, each as JSON, and the files that it is given. Looks for these on disk.
pub(super) fn arguments(task: &ProgramTask, given: &[(String, String)]) -> Result<(Box<[u8]>, JobFiles), ProgramError> {
    let known = |name: &str| task.arguments.iter().any(|(argument, _)| argument == name);
    if let Some((name, _)) = given.iter().find(|(name, _)| !known(name)) {
        let names: Vec<_> = task.arguments.iter().map(|(name, of)| format!("{name}: {of}")).collect();
        return Err(ProgramError::Invalid(format!(
            "task `{}` has no argument `{name}`; it takes ({})",
            task.name,
            names.join(", ")
        )));
    }
    let mut files = JobFiles::default();
    // The last value that was given for an argument is the one that is meant.
    let last = |name: &str| given.iter().rev().find(|(argument, _)| argument == name).map(|(_, text)| text.as_str());
    let write = |(name, of): &(String, String)| last(name).map(|text| write(name, of, text, &mut files)).transpose();
    let written: Vec<Option<Written>> = task.arguments.iter().map(write).collect::<Result<_, _>>()?;
    let arguments = written.iter().map(|written| match written {
        Some(Written::Json(text)) => Argument::Json(text),
        Some(Written::Value(bytes)) => Argument::Value(bytes),
        None => Argument::Missing,
    });
    let arguments: Vec<Argument<'_>> = arguments.chain([Argument::ReturnsJson]).collect();
    let encoded = postcard::to_stdvec(&arguments).map_err(|e| ProgramError::Invalid(e.to_string()))?;
    Ok((encoded.into(), files))
}

/// The arguments of a task in their order, as [`arguments`] has them, and checked as the task would check those of plain
/// types: that they are there, and can be read.
pub(super) fn plan(task: &ProgramTask, given: &[(String, String)]) -> Result<Vec<ArgumentPlan>, ProgramError> {
    arguments(task, given)?;
    let argument = |(name, of): &(String, String)| {
        let text = given.iter().rev().find(|(argument, _)| argument == name).map(|(_, text)| text.as_str());
        let mut files = JobFiles::default();
        let written = text.map(|text| write(name, of, text, &mut files)).transpose()?;
        check(name, of, written.as_ref()).map_err(|what| Fault::new(Code::Refused, what).of(&task.name))?;
        let files = Some(files.count()).filter(|files| *files > 0);
        Ok(ArgumentPlan { name: name.clone(), type_name: of.clone(), value: text.map(str::to_owned), files })
    };
    task.arguments.iter().map(argument).collect()
}

/// Whether a task would take an argument; of types of its own only it knows.
fn check(name: &str, of: &str, written: Option<&Written>) -> Result<(), String> {
    let (word, options) = Of::innermost(of);
    let is_known = WORDS.contains(&word.as_str()) || word.starts_with("Vec<") || unreadable(&word, "").is_some();
    match written {
        None if options == 0 && is_known => Err(format!("argument `{name}` is missing")),
        Some(Written::Json(json)) if options == 0 || json != "null" => match unreadable(&word, json) {
            Some(why) => Err(format!("argument `{name}` can't be read as {of}: {why}")),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Types that nothing stands for, besides numbers and truth values.
const WORDS: [&str; 7] = ["String", "str", "char", "PathBuf", "Path", "File", "Files"];

/// Why JSON is no value of a plain type, if it is none.
fn unreadable(word: &str, json: &str) -> Option<String> {
    macro_rules! plain {
        ($($of:ident)*) => {
            match word {
                $(stringify!($of) => serde_json::from_str::<$of>(json).err().map(|e| e.to_string()),)*
                _ => None,
            }
        };
    }
    plain!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool)
}

/// The name of an argument that stands for files, if there is one: `@PATH`. Who did not type it must not have it opened.
pub fn names_files(arguments: &[(String, String)]) -> Option<&str> {
    let found = arguments.iter().find(|(_, value)| value.starts_with('@') && !value.starts_with("@@"));
    found.map(|(name, _)| name.as_str())
}

/// An argument as its task gets it.
fn write(name: &str, of: &str, text: &str, files: &mut JobFiles) -> Result<Written, ProgramError> {
    let (kind, options) = Of::named(of);
    match kind.unwritten(options, text) {
        Some(bytes) => Ok(Written::Value(bytes)),
        None => json(name, (kind, of), text, files).map(Written::Json),
    }
}

/// An argument as JSON: as it is if it is JSON and not of a text; behind an `@`, files.
fn json(name: &str, (kind, of): (Of, &str), text: &str, files: &mut JobFiles) -> Result<String, ProgramError> {
    let quoted = |text: &str| Value::from(text).to_string();
    match (kind, text.strip_prefix('@')) {
        (Of::File, Some(path)) => described(&files.file(path)?),
        (Of::Files, Some(path)) => described(&files.files(path)?),
        (_, Some(rest)) if rest.starts_with('@') => Ok(quoted(rest)),
        (_, Some(_)) => Err(ProgramError::Invalid(format!(
            "argument `{name}` is of type {of}: `@` stands for a file where a task takes a `File` or `Files`, and `@@` for itself"
        ))),
        (Of::Text, None) => Ok(quoted(text)),
        (_, None) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => Ok(text.to_owned()),
        (_, None) => Ok(quoted(text)),
    }
}

fn described(given: &impl Serialize) -> Result<String, ProgramError> {
    serde_json::to_string(given).map_err(|e| ProgramError::Invalid(e.to_string()))
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
        let found = write("x", of, text, &mut JobFiles::default()).map_err(|e| e.to_string());
        match expected {
            Ok(json) => assert_eq!(found, Ok(Written::Json(json.to_owned())), "{of} {text}"),
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
        for of in
            ["Box<str>", "std::borrow::Cow<'static, str>", "Option<Arc<str>>", "PathBuf", "char", "Option < String >"]
        {
            check(of, "5", Ok(r#""5""#));
        }
        check("Map<String,i64>", "5", Ok("5"));
        check("Option<Vec<String>>", "[1]", Ok("[1]"));
        check("Files", "@Cargo.toml", Ok(r#"{"first":0,"count":1,"names":1}"#));
        check("Files", "@src/*.rs.not", Err("no file matches it"));
        check("File", "@src", Err("one is asked for"));
        check("File", "Cargo.toml", Ok(r#""Cargo.toml""#));
    }

    #[test]
    fn arguments_of_plain_types_are_checked_before_their_task_runs() {
        for (of, text, expected) in [
            ("u64", Some("5"), Ok(())),
            ("u64", Some("-5"), Err("argument `x` can't be read as u64: ")),
            ("u64", Some("x"), Err("expected u64")),
            ("Option<u64>", Some("null"), Ok(())),
            ("Option<Option<u8>>", Some("256"), Err("expected u8")),
            ("f64", Some("inf"), Ok(())),
            ("bool", Some("1"), Err("expected a boolean")),
            ("u64", None, Err("argument `x` is missing")),
            ("Box<u64>", None, Err("argument `x` is missing")),
            ("Vec<u64>", None, Err("argument `x` is missing")),
            ("sandbar_guest::File", None, Err("argument `x` is missing")),
            ("Option<u64>", None, Ok(())),
            ("String", Some("null"), Ok(())),
            // Of a type of its own, which may be made of nothing.
            ("Shape", None, Ok(())),
            ("Shape", Some("flat"), Ok(())),
        ] {
            let task = ProgramTask {
                name: "main".into(),
                arguments: vec![("x".to_owned(), of.to_owned())],
                returns: "()".to_owned(),
                count: 0,
                kind: sandbar_core::TaskKind::Task,
            };
            let given: Vec<_> = text.map(|text| ("x".to_owned(), text.to_owned())).into_iter().collect();
            let found = plan(&task, &given).map(drop).map_err(|e| e.to_string());
            match expected {
                Ok(()) => assert_eq!(found, Ok(()), "{of} {text:?}"),
                Err(words) => assert!(found.clone().is_err_and(|e| e.contains(words)), "{of} {text:?}: {found:?}"),
            }
        }
    }

    /// Their bytes are those of the value: JSON has no such numbers.
    #[test]
    fn numbers_may_be_none_or_without_an_end() {
        fn is(of: &str, text: &str, value: impl Serialize) {
            let found = write("x", of, text, &mut JobFiles::default());
            let expected = Written::Value(postcard::to_stdvec(&value).unwrap().into());
            assert_eq!(found.map_err(|e| e.to_string()), Ok(expected), "{of} {text}");
        }
        for text in ["NaN", "nan", "-nan"] {
            is("f64", text, f64::NAN);
        }
        for text in ["inf", "Infinity"] {
            is("f64", text, f64::INFINITY);
            is("Option<f32>", text, Some(f32::INFINITY));
            is("f64", &format!("-{text}"), f64::NEG_INFINITY);
        }
        is("Option<Option<f64>>", "inf", Some(Some(f64::INFINITY)));
        check("f64", "1e999", Ok("1e999"));
        check("String", "NaN", Ok(r#""NaN""#));
        check("u64", "NaN", Ok(r#""NaN""#));
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
