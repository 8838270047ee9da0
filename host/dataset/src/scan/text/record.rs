//! Records of text files, as textual values.

/// Maximum bytes of a record. Beyond it a quote or bracket is considered unclosed.
pub(super) const RECORD_BYTES_MAX: usize = 64 << 20;

/// Textual value of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawValue<'b> {
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
pub(super) enum RecordStep {
    /// Record in this byte range.
    Record { start: usize, end: usize },
    /// The input ends within the record that starts here, or before one starts.
    More(usize),
    /// The input has no more records.
    End,
}

/// Malformed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordError {
    /// Start of the record.
    pub(super) at: usize,
    pub(super) reason: String,
}
