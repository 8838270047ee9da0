//! The source and the options of a scan.

use std::path::PathBuf;
use std::sync::Arc;

use super::text::TextOptions;

/// A file of this machine under another name, which messages and outputs show, and whose extension determines the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// Name. Nothing opens it.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
}

/// Files, columns and rows to read.
#[derive(Debug, Clone, Default)]
pub struct ScanSource {
    /// Files, folders (searched to any depth), globs (`*`, `?`, `[…]`, `**`) and URLs (`file`, `http`, `https`, `s3`,
    /// `gs`, `az`). The extension determines the format: `.parquet`, `.csv`, `.tsv`, `.json`, `.jsonl`, `.ndjson`
    /// (consecutive objects), `.arrow`, `.feather` or `.ipc`. Text formats may add `.gz`, `.zst`, `.bz2` or `.xz`.
    pub paths: Vec<String>,
    /// Files to read instead of `paths`.
    pub named: Option<Arc<[NamedFile]>>,
    /// SQL expression over the columns; rows for which it is not true are dropped. Names are case-sensitive, and quoted
    /// (`"a b"`) unless they are plain identifiers. A blank filter is ignored.
    pub filter: Option<String>,
    /// Columns to read, in this order; `None` reads all.
    pub columns: Option<Vec<String>>,
    /// Options of text files.
    pub text: TextOptions,
}

impl ScanSource {
    /// Returns the filter unless it is blank.
    pub(super) fn filter_text(&self) -> Option<&str> {
        self.filter.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// Returns whether the column is requested or its name occurs in the filter's text.
    pub(super) fn may_use(&self, column: &str) -> bool {
        let listed = self.columns.as_ref().is_none_or(|columns| columns.iter().any(|name| name == column));
        listed || self.filter.as_ref().is_some_and(|filter| filter.contains(&column.replace('"', "\"\"")))
    }
}

/// Sizes of batches and morsels.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Approximate rows of a batch.
    pub batch_rows: usize,
    /// Approximate bytes of a file per morsel.
    pub morsel_bytes: u64,
}

impl Default for ScanOptions {
    fn default() -> Self {
        ScanOptions { batch_rows: 16_384, morsel_bytes: 16 << 20 }
    }
}
