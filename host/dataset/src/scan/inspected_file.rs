//! Properties of a file, known before its rows are read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;

use super::format::Format;
use super::inference::Evidence;
use super::text::TextFile;

/// Schema and other properties of a file, known before its rows are read.
#[derive(Debug)]
pub(super) struct InspectedFile {
    /// Format, by content.
    pub(super) format: Format,
    pub(super) schema: SchemaRef,
    /// Unusable columns, each with the reason and, if known, the line that shows it.
    pub(super) problems: HashMap<String, (Option<u64>, String)>,
    /// Observed values of text columns whose types are inferred.
    pub(super) evidence: HashMap<String, Evidence>,
    /// Whether the file has rows. Types of files without rows are ignored.
    pub(super) has_rows: bool,
    /// Number of rows, if the file states it.
    pub(super) rows: Option<u64>,
    /// Properties of a text file.
    pub(super) text: Option<Arc<TextFile>>,
}

/// Returns the message for a file with two columns of one name.
pub(super) fn named_twice(name: &str) -> String {
    format!("two of its columns are named `{name}`")
}
