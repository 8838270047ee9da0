//! Files of text: CSV and lines of JSON.
//!
//! [`inspect`] finds a file's columns, their types and where it can be cut; [`TextTable`] reads the parts. Both split
//! bytes of UTF-8 ([`bytes`]) into records and these into values ([`csv`], [`json`]), as they are written.

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

/// Bytes of a record: a longer one is none, but a quote or bracket that is never closed.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// A value as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RawValue<'b> {
    /// The record does not have it.
    Absent,
    /// `null` of JSON.
    Null,
    /// A value of CSV, or a string of JSON.
    Text(&'b [u8]),
    /// The same, which has quotes or escapes to be read: of JSON without the quotes around it.
    Escaped(&'b [u8]),
    /// `true` and `false` of JSON.
    Bool(&'b [u8]),
    /// A number of JSON.
    Number(&'b [u8]),
    /// A list or an object of JSON.
    Nested(&'b [u8]),
    /// What is no value, with the reason.
    Bad(&'static str),
}

/// What comes next in some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordStep {
    /// A record, between these bytes.
    Record { begins: usize, ends: usize },
    /// One that begins here, or none yet, whose end is in bytes to come.
    More(usize),
    /// None.
    End,
}

/// Why there is no record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordError {
    /// Where it begins.
    at: usize,
    reason: String,
}

/// What the records of a file are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Csv(csv::CsvSyntax),
    Json,
}

impl Syntax {
    /// Whether a line that begins with this byte is left out.
    fn skips(self, byte: u8) -> bool {
        matches!(self, Syntax::Csv(csv) if csv.comment == Some(byte))
    }

    /// What an escaped value stands for.
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
