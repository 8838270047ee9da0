//! Errors of scanning, grouping and writing. Each message names the file, the column or the limit, and the remedy.

use std::path::{Path, PathBuf};

use sandbar_core::{Code, Fault, hint};

/// Error while reading, grouping or writing data.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A path, glob or URL matches no readable file.
    #[error("{path}: {reason}")]
    Input {
        /// Path as given by the user.
        path: String,
        /// Cause and remedy.
        reason: String,
    },
    /// The file exists, but reading its content failed.
    #[error("can't read {file}{}: {reason}", .line.map_or_else(String::new, |l| format!(", line {l}")))]
    Read {
        /// File name.
        file: String,
        /// Line number, from 1, in line-based formats where it is known.
        line: Option<u64>,
        /// Message of the reader.
        reason: String,
    },
    /// A requested column does not exist.
    #[error("{role} `{column}` is not in {place}{hint}; its columns are {}", list(.available))]
    MissingColumn {
        /// Role of the column: "key", "feature", "target" or "column".
        role: String,
        /// Requested name.
        column: String,
        /// File name, or "the input".
        place: String,
        /// ` (did you mean …?)`, or empty.
        hint: String,
        /// Names of the existing columns.
        available: Vec<String>,
    },
    /// A column has an unsupported type for its role.
    #[error("{role} `{column}` has type {data_type}, {reason}")]
    ColumnType {
        /// Role of the column, as in [`DatasetError::MissingColumn`].
        role: String,
        /// Column name.
        column: String,
        /// Arrow's name of the column's type.
        data_type: String,
        /// Supported types and the remedy.
        reason: String,
    },
    /// Two files have incompatible types for one column.
    #[error(
        "column `{column}` is {first_type} in {first} but {second_type} in {second}; \
         declare its type in [input] types if the files are text, or read the files separately"
    )]
    TypeConflict {
        /// Column name.
        column: String,
        /// First file.
        first: String,
        /// Type of the column in the first file.
        first_type: String,
        /// Second file.
        second: String,
        /// Type of the column in the second file.
        second_type: String,
    },
    /// The requested combination of columns is invalid.
    #[error("{0}")]
    Columns(String),
    /// The filter is not a valid expression over the columns.
    #[error("filter `{filter}`: {reason}")]
    Filter {
        /// Filter text as given by the user.
        filter: String,
        /// Cause and remedy.
        reason: String,
    },
    /// An I/O operation of this machine failed, e.g. because the disk is full or a folder is not writable.
    #[error("{action} {}: {source}", .path.display())]
    Io {
        /// Failed operation, e.g. "can't write".
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A limit of this crate is exceeded.
    #[error("{quantity} is {value}, over the limit of {bound}")]
    LimitExceeded {
        /// Limited quantity, e.g. "rows of group zone=7".
        quantity: String,
        /// Actual value.
        value: u64,
        /// Limit.
        bound: u64,
    },
    /// A dependency failed in a way that no input should cause.
    #[error("internal error: {0}")]
    Internal(String),
}

impl DatasetError {
    /// Returns the stable error code.
    pub fn code(&self) -> Code {
        match self {
            DatasetError::Input { .. } | DatasetError::Read { .. } => Code::Input,
            DatasetError::MissingColumn { .. }
            | DatasetError::ColumnType { .. }
            | DatasetError::TypeConflict { .. }
            | DatasetError::Columns(_)
            | DatasetError::Filter { .. } => Code::Columns,
            DatasetError::LimitExceeded { .. } => Code::Values,
            DatasetError::Io { .. } | DatasetError::Internal(_) => Code::Host,
        }
    }

    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        DatasetError::Internal(strip_bug_report_notice(&error.to_string()).to_owned())
    }

    pub(crate) fn input(path: impl Into<String>, reason: impl Into<String>) -> Self {
        DatasetError::Input { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        DatasetError::Io { action: "can't write", path: path.to_owned(), source }
    }

    pub(crate) fn no_column<'a>(
        role: &str,
        column: &str,
        place: &str,
        available: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let available: Vec<String> = available.into_iter().map(str::to_owned).collect();
        let hint = hint(column, &available);
        DatasetError::MissingColumn {
            role: role.to_owned(),
            column: column.to_owned(),
            place: place.to_owned(),
            hint,
            available,
        }
    }
}

impl From<DatasetError> for Fault {
    fn from(error: DatasetError) -> Self {
        Fault::new(error.code(), error.to_string())
    }
}

/// Strips DataFusion's request to report a bug to its project, which can't help Sandbar's users, from an internal error.
pub(crate) fn strip_bug_report_notice(message: &str) -> &str {
    let end = message.find("This issue was likely caused by a bug");
    message[..end.unwrap_or(message.len())].trim_end()
}

/// Maximum number of columns that a message names before it counts the rest.
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
