//! The binary layout of record batches between a host and a guest, between processes and in spill files.
//!
//! A batch consists of a *header* and a *body*. The body is the Arrow buffers, each 64-byte aligned, so that any holder
//! of the body views the columns in place. The header locates the buffers:
//!
//! ```text
//! offset  bytes  header (little-endian)
//!      0      4  magic "SBB1"
//!      4      4  length of the schema part, in bytes
//!      8      8  rows
//!     16      4  nodes, N
//!     20      4  buffers, B
//!     24      8  length of the body, in bytes
//!     32      S  schema (see `schema`), padded to 8 bytes
//!   32+S   16·N  per node: length, null count
//!      …   16·B  per buffer: offset in the body, length
//! ```
//!
//! Nodes and buffers are those of Arrow's IPC format, in the same order (pre-order; validity first, absent when its
//! length is zero).
//!
//! Goals: one layout for every boundary; no allocation from an unchecked length; [`read`] returns errors and never
//! panics, whatever the bytes. Non-goals: views, unions and run-end encoding, which a writer converts or rejects by
//! name.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod header;
mod read;
mod schema;
mod value;
mod write;

pub use header::{ALIGNMENT, Header, HeaderError};
pub use read::{read, read_parts, read_trusted};
pub use schema::{decode_schema, encode_schema};
pub use value::{split_value, write_value_head};
pub use write::{EncodedBatch, encode, flat_header};

/// Errors of decoding bytes as a batch, or of laying out a batch.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The header contradicts itself or the body.
    #[error("not a record batch: {0}")]
    Header(#[from] HeaderError),
    /// The layout does not support the column's type.
    #[error("column `{column}` has type {data_type}, which can't cross the boundary; cast it first")]
    Unsupported {
        /// Column, with the path to a nested field.
        column: String,
        /// Arrow's name of the type.
        data_type: String,
    },
    /// The buffers are in bounds but don't form the arrays that the schema names.
    #[error("column `{column}` is malformed: {reason}")]
    Array {
        /// Column.
        column: String,
        /// Arrow's error message.
        reason: String,
    },
}
