//! Files of a dataset.

use object_store::ObjectMeta;

use super::format::Format;
use super::text::Compression;

/// File of a dataset.
#[derive(Debug, Clone)]
pub(super) struct DatasetFile {
    /// Display name: relative if it was given so.
    pub(super) name: String,
    /// Index of the store.
    pub(super) store: usize,
    /// Whether the file is on this machine.
    pub(super) is_local: bool,
    /// Path in the store, and size.
    pub(super) meta: ObjectMeta,
    /// Format, by extension.
    pub(super) format: Format,
    /// Compression of a text file, by extension.
    pub(super) compression: Option<Compression>,
}
