//! What can go wrong with data: each error names the file, the column or the
//! limit, and says what to do.

use std::path::PathBuf;

use sandbar_core::{Code, Fault, hint};

/// Why data could not be read, grouped or written.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A path, glob or URL leads to no file that can be read.
    #[error("{path}: {reason}")]
    Input {
        /// The path as it was given.
        path: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A file was found but its content could not be read.
    #[error("can't read {file}{}: {reason}", .line.map_or_else(String::new, |l| format!(", line {l}")))]
    Read {
        /// The file.
        file: String,
        /// The line, in formats made of lines, where it is known. The first is 1.
        line: Option<u64>,
        /// What the reader says.
        reason: String,
    },
    /// A column is not there.
    #[error("{wanted} `{column}` is not in {place}{hint}; its columns are {}", list(.there))]
    NoColumn {
        /// What asked for it: "key", "feature", "target", "column".
        wanted: String,
        /// The name that was asked for.
        column: String,
        /// The file, or "the input".
        place: String,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
        /// The columns there are.
        there: Vec<String>,
    },
    /// A column has a type that does not fit.
    #[error("{wanted} `{column}` has type {data_type}, {reason}")]
    ColumnType {
        /// What asked for it.
        wanted: String,
        /// The column.
        column: String,
        /// Arrow's name of its type.
        data_type: String,
        /// What would fit, and how to get there.
        reason: String,
    },
    /// Two files disagree about a column.
    #[error(
        "column `{column}` is {first_type} in {first} but {second_type} in {second}; \
         declare its type with [input] types if the files are text, or read them one at a time"
    )]
    Disagree {
        /// The column.
        column: String,
        /// A file.
        first: String,
        /// The column's type in it.
        first_type: String,
        /// Another file.
        second: String,
        /// The column's type in that one.
        second_type: String,
    },
    /// Columns can't be used as they were asked for.
    #[error("{0}")]
    Columns(String),
    /// The filter is no expression over the columns.
    #[error("filter `{filter}`: {reason}")]
    Filter {
        /// The filter as it was given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something of this machine failed: the disk is full, a folder can't be written.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// What was tried, e.g. "can't write".
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A bound of this room was passed.
    #[error("{what} is {value}, over the bound of {bound}")]
    Bound {
        /// What is too large, e.g. "rows of group zone=7".
        what: String,
        /// Its value.
        value: u64,
        /// The bound.
        bound: u64,
    },
    /// An engine failed in a way that no input should cause.
    #[error("internal error: {0}")]
    Internal(String),
}

impl DatasetError {
    /// The stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            DatasetError::Input { .. } | DatasetError::Read { .. } => Code::Input,
            DatasetError::NoColumn { .. }
            | DatasetError::ColumnType { .. }
            | DatasetError::Disagree { .. }
            | DatasetError::Columns(_)
            | DatasetError::Filter { .. } => Code::Columns,
            DatasetError::Bound { .. } => Code::Values,
            DatasetError::Io { .. } | DatasetError::Internal(_) => Code::Host,
        }
    }

    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        DatasetError::Internal(without_plea(&error.to_string()).to_owned())
    }

    pub(crate) fn input(path: impl Into<String>, reason: impl Into<String>) -> Self {
        DatasetError::Input { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn no_column<'a>(
        wanted: &str,
        column: &str,
        place: &str,
        there: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let there: Vec<String> = there.into_iter().map(str::to_owned).collect();
        let hint = hint(column, &there);
        DatasetError::NoColumn {
            wanted: wanted.to_owned(),
            column: column.to_owned(),
            place: place.to_owned(),
            hint,
            there,
        }
    }
}

impl From<DatasetError> for Fault {
    fn from(error: DatasetError) -> Self {
        Fault::new(error.code(), error.to_string())
    }
}

/// The message without what DataFusion asks of those who see its internal errors: its authors can't help our users.
pub(crate) fn without_plea(message: &str) -> &str {
    let end = message.find("This issue was likely caused by a bug");
    message[..end.unwrap_or(message.len())].trim_end()
}

/// Columns named in a message, before it says how many more there are.
const NAMES_MAX: usize = 40;

fn list(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_MAX).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX {
        text += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    if names.is_empty() { "none".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_thing() {
        let error = DatasetError::no_column("feature", "Fare", "a.parquet", ["fare", "zone"]);
        let expected = "feature `Fare` is not in a.parquet (did you mean `fare`?); its columns are `fare`, `zone`";
        assert_eq!(error.to_string(), expected);
        assert_eq!(Fault::from(error).code, Code::Columns);
    }
}
