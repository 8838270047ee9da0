//! Text files whose columns and morsel boundaries are known.

use super::bytes::TextBytes;
use super::syntax::Syntax;
use crate::DatasetError;

/// Inspected text file.
#[derive(Debug)]
pub(in super::super) struct TextFile {
    pub(super) name: String,
    pub(super) bytes: TextBytes,
    pub(super) syntax: Syntax,
    /// Columns of a CSV file, in order.
    pub(super) columns: Vec<String>,
    /// Start of the first record, after the header.
    pub(super) first: u64,
    /// Byte ranges that start and end at record boundaries and can be read independently.
    pub(in super::super) parts: Vec<(u64, u64)>,
}

impl TextFile {
    /// Returns an error that names the line at byte `at`.
    pub(super) async fn fault(&self, at: u64, reason: String) -> DatasetError {
        let line = self.bytes.line_of(at, |byte| self.syntax.skips(byte)).await;
        DatasetError::Read { file: self.name.clone(), line, reason }
    }

    /// Formats the file and the line at byte `at` for a message.
    pub(in super::super) async fn place(&self, at: u64) -> String {
        let line = self.bytes.line_of(at, |byte| self.syntax.skips(byte)).await;
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        format!("{}{line}", self.name)
    }

    /// Returns the error of a file whose bytes can't be read.
    pub(super) fn unread(&self, reason: String) -> DatasetError {
        DatasetError::Read { file: self.name.clone(), line: None, reason }
    }
}
