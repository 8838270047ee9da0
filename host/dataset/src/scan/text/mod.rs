//! Text files: CSV and JSON lines.
//!
//! [`inspect`] finds the columns of a file, their types and its morsel boundaries. [`TextTable`] reads the morsels.
//! Both read UTF-8 ([`bytes`]) and split it into records and textual values ([`csv`], [`json`]).

mod bytes;
mod column;
mod csv;
mod inspector;
mod json;
mod options;
mod reader;

pub(super) use bytes::Compression;
pub(super) use column::{folder_column, key};
pub(super) use inspector::{TextFile, inspect};
pub use options::{TextOptions, TextSpec};
pub(super) use reader::{TextError, TextTable};

/// Maximum bytes of a record. Beyond it a quote or bracket is considered unclosed.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Textual value of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RawValue<'b> {
    /// The record lacks the value.
    Absent,
    /// JSON `null`.
    Null,
    /// CSV value, or JSON string.
    Text(&'b [u8]),
    /// CSV value or JSON string with quotes or escapes to decode. JSON strings are without their outer quotes.
    Escaped(&'b [u8]),
    /// JSON `true` or `false`.
    Bool(&'b [u8]),
    /// JSON number.
    Number(&'b [u8]),
    /// JSON list or object.
    Nested(&'b [u8]),
    /// Invalid value, with the reason.
    Bad(&'static str),
}

/// Result of looking for the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordStep {
    /// Record in this byte range.
    Record { start: usize, end: usize },
    /// The input ends within the record that starts here, or before one starts.
    More(usize),
    /// The input has no more records.
    End,
}

/// Malformed record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordError {
    /// Start of the record.
    at: usize,
    reason: String,
}

/// Record syntax of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Csv(csv::CsvSyntax),
    Json,
}

impl Syntax {
    /// Returns whether lines that start with `byte` are skipped.
    fn skips(self, byte: u8) -> bool {
        matches!(self, Syntax::Csv(csv) if csv.comment == Some(byte))
    }

    /// Decodes an escaped value.
    fn unescape(self, text: &[u8], to: &mut Vec<u8>) -> Result<(), &'static str> {
        match self {
            Syntax::Csv(csv) => {
                csv.unescape(text, to);
                Ok(())
            }
            Syntax::Json => json::unescape(text, to),
        }
    }
}
