//! Morsels.

/// Byte range of a file: the unit of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Morsel {
    /// Index in [`Scan::files`](crate::Scan::files).
    pub file: usize,
    /// Approximate start in the file: records are not split.
    pub first_byte: u64,
    /// Approximate end in the file.
    pub end_byte: u64,
    pub(super) plan: usize,
    pub(super) partition: usize,
}
