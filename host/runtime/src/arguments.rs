//! Arguments and the result of a job's first task, in the text forms that users write and read.

use sandbar_core::{Argument, Code, Fault};
use serde::Serialize;
use serde_json::Value;

use crate::calls::{Program, ProgramTask};
use crate::error::ProgramError;
use crate::files::{JobFiles, REFUSED, several_files};

/// An argument of a program's first task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArgumentPlan {
    /// Name.
    pub name: String,
    /// Type, as the task declares it.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Text as given by the user, if any.
    pub value: Option<String>,
    /// Number of files that the argument names, if any.
    pub files: Option<u64>,
}

/// Maximum bytes of the first task's result as JSON. The result is printed, and stored in the job's record.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// Kind of an argument, by the name of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentKind {
    Text,
    File,
    Files,
    Float32,
    Float64,
    Other,
}

/// Types whose values are encoded like the values of the type that they wrap. Only `Option` changes the encoding.
const WRAPPERS: [&str; 5] = ["Option<", "Box<", "Rc<", "Arc<", "Cow<"];

/// Returns the last path segment of the type inside all [`WRAPPERS`], and the number of options among these.
/// `Option<sandbar_guest::File>` returns `File` and 1.
fn unwrap_type(type_name: &str) -> (String, usize) {
    let type_name: String = type_name.chars().filter(|c| !c.is_whitespace()).collect();
    let (mut rest, mut options) = (type_name.as_str(), 0);
    loop {
        let path_end = rest.find('<').unwrap_or(rest.len());
        let last = rest[..path_end].rfind("::").map_or(0, |at| at + 2);
        let wrapped =
            WRAPPERS.iter().find_map(|name| Some((name, rest[last..].strip_prefix(name)?.strip_suffix('>')?)));
        let Some((name, inner)) = wrapped else { break (rest[last..].to_owned(), options) };
        options += usize::from(*name == "Option<");
        rest = inner.strip_prefix("'static,").unwrap_or(inner);
    }
}

impl ArgumentKind {
    /// Returns the kind of an unwrapped type.
    fn from_type(type_name: &str) -> ArgumentKind {
        match type_name {
            "String" | "str" | "char" | "PathBuf" | "Path" => ArgumentKind::Text,
            "File" => ArgumentKind::File,
            "Files" => ArgumentKind::Files,
            "f32" => ArgumentKind::Float32,
            "f64" => ArgumentKind::Float64,
            _ => ArgumentKind::Other,
        }
    }

    /// Encodes NaN or an infinity, which JSON lacks, in postcard as a value inside this many options. Returns `None` for other
    /// texts and kinds.
    fn encode_non_finite(self, options: usize, text: &str) -> Option<Box<[u8]>> {
        let value = match text.strip_prefix('-').unwrap_or(text) {
            "NaN" | "nan" => f64::NAN,
            "Infinity" | "infinity" | "inf" if text.starts_with('-') => f64::NEG_INFINITY,
            "Infinity" | "infinity" | "inf" => f64::INFINITY,
            _ => return None,
        };
        let bytes = match self {
            ArgumentKind::Float32 => (value as f32).to_le_bytes().to_vec(),
            ArgumentKind::Float64 => value.to_le_bytes().to_vec(),
            _ => return None,
        };
        // `Some` is encoded as a byte 1 before its value.
        Some(std::iter::repeat_n(1, options).chain(bytes).collect())
    }
}

/// An argument as it is passed to the task.
#[derive(Debug, Clone, PartialEq)]
enum EncodedArgument {
    Json(String),
    Value(Box<[u8]>),
}

/// Encodes the arguments of a task, and returns them with the files that they name. `values` has names and texts; of several
/// texts of a name, the last counts. Reads the metadata of files from disk, and adds them to `files`.
///
/// # Errors
/// Fails if a name is not an argument of the task, a file does not exist, or the job may name no files.
pub(super) fn encode_arguments(
    task: &ProgramTask,
    values: &[(String, String)],
    mut files: JobFiles,
) -> Result<(Box<[u8]>, JobFiles), ProgramError> {
    let given = values.iter().map(|(name, _)| name.as_str());
    check_names(task, given.chain(files.sent_arguments())).map_err(ProgramError::Invalid)?;
    let encode = |(name, type_name): &(String, String)| {
        last_value(values, name).map(|text| encode_argument(name, type_name, text, &mut files)).transpose()
    };
    let encoded: Vec<Option<EncodedArgument>> = task.arguments.iter().map(encode).collect::<Result<_, _>>()?;
    let arguments = encoded.iter().map(|encoded| match encoded {
        Some(EncodedArgument::Json(text)) => Argument::Json(text),
        Some(EncodedArgument::Value(bytes)) => Argument::Value(bytes),
        None => Argument::Missing,
    });
    let arguments: Vec<Argument<'_>> = arguments.chain([Argument::ReturnsJson]).collect();
    let encoded = postcard::to_stdvec(&arguments).map_err(|e| ProgramError::Invalid(e.to_string()))?;
    Ok((encoded.into(), files))
}

/// Checks that names are arguments of a task.
fn check_names<'a>(task: &ProgramTask, mut names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let is_argument = |name: &str| task.arguments.iter().any(|(argument, _)| argument == name);
    let Some(name) = names.find(|name| !is_argument(name)) else { return Ok(()) };
    let names: Vec<_> = task.arguments.iter().map(|(name, type_name)| format!("{name}: {type_name}")).collect();
    Err(format!("task `{}` has no argument `{name}`; it takes ({})", task.name, names.join(", ")))
}

fn last_value<'a>(values: &'a [(String, String)], name: &str) -> Option<&'a str> {
    values.iter().rev().find(|(argument, _)| argument == name).map(|(_, text)| text.as_str())
}

/// Checks the arguments of a task as [`encode_arguments`] does, and also that arguments of plain types are present and can be
/// decoded. Returns them in the task's order.
///
/// # Errors
/// Fails if an argument is invalid.
pub(super) fn plan_arguments(
    task: &ProgramTask,
    values: &[(String, String)],
) -> Result<Vec<ArgumentPlan>, ProgramError> {
    encode_arguments(task, values, JobFiles::default())?;
    let plan = |(name, type_name): &(String, String)| {
        let text = last_value(values, name);
        let mut files = JobFiles::default();
        let encoded = text.map(|text| encode_argument(name, type_name, text, &mut files)).transpose()?;
        check_argument(name, type_name, encoded.as_ref()).map_err(|fault| fault.in_function(&task.name))?;
        let files = Some(files.count()).filter(|files| *files > 0);
        Ok(ArgumentPlan { name: name.clone(), type_name: type_name.clone(), value: text.map(str::to_owned), files })
    };
    task.arguments.iter().map(plan).collect()
}

/// Checks an argument if its type is a plain one. Only the task can check other types.
fn check_argument(name: &str, type_name: &str, encoded: Option<&EncodedArgument>) -> Result<(), Fault> {
    let refused = |message: String| Err(Fault::new(Code::Refused, message));
    let (inner, options) = unwrap_type(type_name);
    let is_required =
        REQUIRED_TYPES.contains(&inner.as_str()) || inner.starts_with("Vec<") || decode_error(&inner, "").is_some();
    match encoded {
        None if options == 0 && is_required => refused(format!("argument `{name}` is missing")),
        Some(EncodedArgument::Json(json)) if options == 0 || json != "null" => match decode_error(&inner, json) {
            Some(reason) => refused(format!("argument `{name}` can't be read as {type_name}: {reason}")),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Types whose arguments can't be missing, besides numbers, Booleans and vectors.
const REQUIRED_TYPES: [&str; 7] = ["String", "str", "char", "PathBuf", "Path", "File", "Files"];

/// Returns why JSON can't be decoded as a number or Boolean of this type. Returns `None` if it can, and for other types.
fn decode_error(type_name: &str, json: &str) -> Option<String> {
    macro_rules! plain {
        ($($plain:ident)*) => {
            match type_name {
                $(stringify!($plain) => serde_json::from_str::<$plain>(json).err().map(|e| e.to_string()),)*
                _ => None,
            }
        };
    }
    plain!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool)
}

/// Checks the file arguments of a job of another node's or tenant's, as far as its task exists: the files were sent, and an
/// argument of that type exists. `sent` has the names of arguments and their numbers of files.
///
/// # Errors
/// Why the arguments are refused.
pub fn check_sent_files(
    program: &Program,
    task: &str,
    values: &[(String, String)],
    sent: &[(&str, usize)],
) -> Result<(), String> {
    let Some(task) = program.tasks.iter().find(|other| &*other.name == task) else { return Ok(()) };
    check_names(task, values.iter().map(|(name, _)| name.as_str()).chain(sent.iter().map(|(name, _)| *name)))?;
    for (name, type_name) in &task.arguments {
        let kind = ArgumentKind::from_type(&unwrap_type(type_name).0);
        let value = last_value(values, name);
        let is_path = value.is_some_and(|text| text.starts_with('@'));
        match (kind, sent.iter().find(|(argument, _)| argument == name)) {
            (ArgumentKind::File | ArgumentKind::Files, Some(_)) if !is_path => {
                return Err(format!("argument `{name}` has files, and no `@PATH` that names them"));
            }
            (ArgumentKind::Files, Some(_)) | (ArgumentKind::File, Some((_, 1))) => {}
            (ArgumentKind::File, Some((_, count))) => return Err(several_files(value.unwrap_or(name), *count)),
            (_, Some(_)) => return Err(takes_no_files(name, type_name)),
            (ArgumentKind::File | ArgumentKind::Files, None) if is_path => {
                return Err(format!("argument `{name}`: {REFUSED}"));
            }
            (_, None) => {}
        }
    }
    Ok(())
}

/// Returns the error of an argument of another type than `File` and `Files`.
fn takes_no_files(name: &str, type_name: &str) -> String {
    format!(
        "argument `{name}` has type {type_name}: `@PATH` needs type `File` or `Files`; write `@@` for a text that starts \
         with `@`"
    )
}

/// Encodes an argument, and adds the files that it names to `files`.
fn encode_argument(
    name: &str,
    type_name: &str,
    text: &str,
    files: &mut JobFiles,
) -> Result<EncodedArgument, ProgramError> {
    let (inner, options) = unwrap_type(type_name);
    let kind = ArgumentKind::from_type(&inner);
    match kind.encode_non_finite(options, text) {
        Some(bytes) => Ok(EncodedArgument::Value(bytes)),
        None => to_json(name, kind, type_name, text, files).map(EncodedArgument::Json),
    }
}

/// Converts an argument to JSON. `@PATH` becomes a reference to files. Text of a text type, and text that is not JSON, becomes
/// a JSON string; other text is JSON already.
fn to_json(
    name: &str,
    kind: ArgumentKind,
    type_name: &str,
    text: &str,
    files: &mut JobFiles,
) -> Result<String, ProgramError> {
    let quoted = |text: &str| Value::from(text).to_string();
    match (kind, text.strip_prefix('@')) {
        (ArgumentKind::File, Some(path)) => file_json(&files.file(name, path)?),
        (ArgumentKind::Files, Some(path)) => file_json(&files.files(name, path)?),
        _ if files.has_sent(name) => Err(ProgramError::Invalid(takes_no_files(name, type_name))),
        (_, Some(rest)) if rest.starts_with('@') => Ok(quoted(rest)),
        (_, Some(_)) => Err(ProgramError::Invalid(takes_no_files(name, type_name))),
        (ArgumentKind::Text, None) => Ok(quoted(text)),
        (_, None) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => Ok(text.to_owned()),
        (_, None) => Ok(quoted(text)),
    }
}

fn file_json(reference: &impl Serialize) -> Result<String, ProgramError> {
    serde_json::to_string(reference).map_err(|e| ProgramError::Invalid(e.to_string()))
}

/// Decodes the result of a job's first task, which may be any bytes.
///
/// # Errors
/// Fails if it is not JSON, or larger than [`RESULT_BYTES_MAX`].
pub(super) fn decode_result(task: &str, bytes: &[u8]) -> Result<Value, Fault> {
    let fault = |problem: String| Fault::new(Code::BadOutput, format!("{task}: its result {problem}"));
    if bytes.len() > RESULT_BYTES_MAX {
        let bytes = bytes.len();
        return Err(fault(format!(
            "has {bytes} bytes as JSON, the limit is {RESULT_BYTES_MAX}: return less, or log the rest"
        )));
    }
    serde_json::from_slice(bytes).map_err(|e| fault(format!("is not JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(type_name: &str, text: &str, expected: Result<&str, &str>) {
        let found = encode_argument("x", type_name, text, &mut JobFiles::default()).map_err(|e| e.to_string());
        match expected {
            Ok(json) => assert_eq!(found, Ok(EncodedArgument::Json(json.to_owned())), "{type_name} {text}"),
            Err(expected_text) => {
                assert!(found.clone().is_err_and(|e| e.contains(expected_text)), "{type_name} {text}: {found:?}")
            }
        }
    }

    #[test]
    fn arguments_are_json_or_text_or_files() {
        check("i64", "5", Ok("5"));
        check("String", "5", Ok(r#""5""#));
        check("Option<String>", "null", Ok(r#""null""#));
        check("Vec<String>", r#"["a"]"#, Ok(r#"["a"]"#));
        check("Shape", "flat", Ok(r#""flat""#));
        for (type_name, text) in [("String", "@@home"), ("Shape", "@@home")] {
            check(type_name, text, Ok(r#""@home""#));
        }
        for type_name in ["String", "i64", "Vec<File>", "ObjectRef<Files>", "FileLike"] {
            check(type_name, "@Cargo.toml", Err("`@PATH` needs type `File` or `Files`"));
        }
        let file = r#"{"number":0,"name":"Cargo.toml"}"#;
        for type_name in ["File", "Option<File>", "sandbar_guest::File", "Option<sandbar_guest :: File>"] {
            check(type_name, "@Cargo.toml", Ok(file));
        }
        for type_name in
            ["Box<str>", "std::borrow::Cow<'static, str>", "Option<Arc<str>>", "PathBuf", "char", "Option < String >"]
        {
            check(type_name, "5", Ok(r#""5""#));
        }
        check("Map<String,i64>", "5", Ok("5"));
        check("Option<Vec<String>>", "[1]", Ok("[1]"));
        check("Files", "@Cargo.toml", Ok(r#"{"first":0,"count":1,"names":1}"#));
        check("Files", "@src/*.rs.not", Err("no file matches it"));
        check("File", "@src", Err("the argument takes one"));
        check("File", "Cargo.toml", Ok(r#""Cargo.toml""#));
    }

    /// Whatever the spelling, a job of a tenant opens no file of a node.
    #[test]
    fn jobs_of_others_name_no_files() {
        for (type_name, text, is_refused) in [
            ("File", "@Cargo.toml", true),
            ("File", "@@Cargo.toml", true),
            ("File", "@@@Cargo.toml", true),
            ("Files", "@*", true),
            ("Files", "@@*", true),
            ("Option<sandbar_guest :: File>", "@@Cargo.toml", true),
            ("Box<File>", "@Cargo.toml", true),
            ("String", "@@home", false),
            ("String", "home", false),
        ] {
            let found = encode_argument("x", type_name, text, &mut JobFiles::sent(Vec::new()));
            let refused = found.as_ref().is_err_and(|e| e.to_string().contains("can't open files of its nodes"));
            assert_eq!((refused, found.is_ok()), (is_refused, !is_refused), "{type_name} {text}: {found:?}");
        }
    }

    #[test]
    fn arguments_of_plain_types_are_checked_before_their_task_runs() {
        for (type_name, text, expected) in [
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
            // A type of the program may have a default.
            ("Shape", None, Ok(())),
            ("Shape", Some("flat"), Ok(())),
        ] {
            let task = ProgramTask {
                name: "main".into(),
                arguments: vec![("x".to_owned(), type_name.to_owned())],
                returns: "()".to_owned(),
                count: 0,
                kind: sandbar_core::TaskKind::Task,
            };
            let values: Vec<_> = text.map(|text| ("x".to_owned(), text.to_owned())).into_iter().collect();
            let found = plan_arguments(&task, &values).map(drop).map_err(|e| e.to_string());
            match expected {
                Ok(()) => assert_eq!(found, Ok(()), "{type_name} {text:?}"),
                Err(expected_text) => {
                    assert!(found.clone().is_err_and(|e| e.contains(expected_text)), "{type_name} {text:?}: {found:?}")
                }
            }
        }
    }

    /// JSON has no such numbers: they are encoded as the task's values.
    #[test]
    fn floats_may_be_nan_or_infinite() {
        fn is(type_name: &str, text: &str, value: impl Serialize) {
            let found = encode_argument("x", type_name, text, &mut JobFiles::default());
            let expected = EncodedArgument::Value(postcard::to_stdvec(&value).unwrap().into());
            assert_eq!(found.map_err(|e| e.to_string()), Ok(expected), "{type_name} {text}");
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
        assert_eq!(decode_result("main", br#"{"a": [1]}"#), Ok(serde_json::json!({"a": [1]})));
        assert!(
            decode_result("main", &[7]).is_err_and(|fault| fault.message.starts_with("main: its result is not JSON"))
        );
        assert!(decode_result("main", &[b' '; RESULT_BYTES_MAX + 1]).is_err());
        let deep = "[".repeat(10_000);
        assert!(decode_result("main", deep.as_bytes()).is_err());
    }
}
