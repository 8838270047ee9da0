//! Errors of job files, with the line or the command-line flag that is to blame.

use std::fmt;
use std::ops::Range;

use sandbar_core::hint;

/// An invalid setting of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidationError {
    /// Dotted key of the setting, if known.
    pub key: Option<String>,
    /// Byte range of the setting in the text, if known.
    pub span: Option<Range<usize>>,
    pub message: String,
}

impl ValidationError {
    /// Creates an error about a dotted key.
    pub(crate) fn of_key(key: &str, message: impl Into<String>) -> ValidationError {
        ValidationError { key: Some(key.to_owned()), span: None, message: message.into() }
    }

    pub(super) fn from_toml(error: &toml::de::Error) -> ValidationError {
        ValidationError { key: None, span: error.span(), message: rephrase(error.message()) }
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Error of a job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFileError {
    /// Command-line flag that is to blame; `None` if the file is.
    pub(super) flag: Option<String>,
    /// Line and column in the file, from 1, if known.
    pub(super) position: Option<(usize, usize)>,
    pub(super) message: String,
}

impl JobFileError {
    /// Returns the message, with the name of the job file if that is to blame.
    pub fn describe(&self, file: impl fmt::Display) -> String {
        match (&self.flag, self.position) {
            (Some(flag), _) => format!("{flag}: {}", self.message),
            (None, Some((line, column))) => format!("{file}, line {line}, column {column}: {}", self.message),
            (None, None) => format!("{file}: {}", self.message),
        }
    }
}

impl fmt::Display for JobFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("the job file"))
    }
}

impl std::error::Error for JobFileError {}

/// Rephrases serde's message about a job file for users.
fn rephrase(message: &str) -> String {
    let message = message.trim();
    if message.contains("untagged enum Columns") {
        return "`columns` is a list of columns, or a table of columns by argument: { argument = \"column\" }"
            .to_owned();
    }
    with_hint(message)
}

/// Adds a suggestion to serde's message about an unknown name, in a job file or in the parameters of a function.
pub(crate) fn with_hint(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let is_unknown = message.contains("unknown field `") || message.contains("unknown variant `");
    match names.next().filter(|_| is_unknown) {
        Some(unknown) => {
            let known: Vec<&str> = names.collect();
            let (head, rest) = message.split_once(", expected").unwrap_or((message, ""));
            let rest = if rest.is_empty() { String::new() } else { format!(", expected{rest}") };
            format!("{head}{}{rest}", hint(unknown, &known))
        }
        None => message.to_owned(),
    }
}
