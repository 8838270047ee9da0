//! The fixed part of the layout: parsing and building headers.

/// Alignment of each buffer in the body, in bytes.
pub const ALIGNMENT: usize = 64;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"SBB1");
pub(crate) const FIXED_BYTES: usize = 32;
/// Maximum size of a schema in bytes: bounds the cost of one header.
pub(crate) const SCHEMA_BYTES_MAX: usize = 1 << 20;
/// Maximum number of rows: arrays index rows by `i32` offsets, guests by `u32`.
pub(crate) const ROWS_MAX: u64 = i32::MAX as u64;
pub(crate) const NODES_MAX: usize = 1 << 16;

/// Description of an invalid header.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HeaderError(pub(crate) String);

pub(crate) fn invalid<T>(reason: impl Into<String>) -> Result<T, HeaderError> {
    Err(HeaderError(reason.into()))
}

/// A header whose parts are in bounds of each other. [`Header::check_bounds`] checks that each buffer is inside a given
/// body.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    rows: usize,
    body_bytes: usize,
    schema: &'a [u8],
    nodes: &'a [u8],
    buffers: &'a [u8],
}

impl<'a> Header<'a> {
    /// Parses `bytes`, which must be exactly one header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let Some((fixed, rest)) = bytes.split_at_checked(FIXED_BYTES) else {
            return invalid(format!("a header has at least {FIXED_BYTES} bytes, this one {}", bytes.len()));
        };
        if u32_at(fixed, 0) != MAGIC {
            return invalid("it does not start with SBB1");
        }
        let schema_bytes = u32_at(fixed, 4) as usize;
        let rows = u64_at(fixed, 8);
        let (nodes, buffers) = (u32_at(fixed, 16) as usize, u32_at(fixed, 20) as usize);
        let body_bytes = u64_at(fixed, 24);
        if schema_bytes > SCHEMA_BYTES_MAX || nodes > NODES_MAX || buffers > 4 * NODES_MAX {
            return invalid(format!(
                "schema of {schema_bytes} bytes, {nodes} nodes and {buffers} buffers are over the bounds"
            ));
        }
        if rows > ROWS_MAX {
            return invalid(format!("{rows} rows are over the bound of {ROWS_MAX}"));
        }
        let Ok(body_bytes) = usize::try_from(body_bytes) else {
            return invalid(format!("a body of {body_bytes} bytes can't be addressed here"));
        };
        let padded = schema_bytes.next_multiple_of(8);
        if rest.len() != padded + 16 * (nodes + buffers) {
            return invalid(format!(
                "its parts take {} bytes, it has {}",
                FIXED_BYTES + padded + 16 * (nodes + buffers),
                bytes.len()
            ));
        }
        let (schema, tables) = rest.split_at(padded);
        let (nodes, buffers) = tables.split_at(16 * nodes);
        Ok(Header { rows: rows as usize, body_bytes, schema: &schema[..schema_bytes], nodes, buffers })
    }

    /// Returns the number of rows of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the size in bytes of the body that holds the buffers.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Returns the encoded schema; equal schemas have equal bytes.
    pub fn schema_bytes(&self) -> &'a [u8] {
        self.schema
    }

    /// Checks that each buffer is aligned, inside `body_bytes` bytes, and behind the buffers before it. Columns that
    /// share bytes would multiply the cost of checks and copies.
    pub fn check_bounds(&self, body_bytes: usize) -> Result<(), HeaderError> {
        if self.body_bytes > body_bytes {
            return invalid(format!("it claims a body of {} bytes, there are {body_bytes}", self.body_bytes));
        }
        let mut before = 0;
        for i in 0..self.buffer_count() {
            let (offset, len) = pair_at(self.buffers, i);
            let end = offset.checked_add(len).filter(|end| *end <= self.body_bytes as u64);
            let Some(end) = end.filter(|_| offset % ALIGNMENT as u64 == 0) else {
                return invalid(format!(
                    "buffer {i} at {offset} of {len} bytes leaves the body of {} bytes or is not aligned",
                    self.body_bytes
                ));
            };
            if len > 0 {
                if offset < before {
                    return invalid(format!("buffer {i} at {offset} begins before the end of another, at {before}"));
                }
                before = end;
            }
        }
        Ok(())
    }

    /// Returns the number of nodes (columns and their children).
    pub fn node_count(&self) -> usize {
        self.nodes.len() / 16
    }

    /// Returns the number of buffers.
    pub fn buffer_count(&self) -> usize {
        self.buffers.len() / 16
    }

    /// Returns the claimed length and null count of node `i`.
    pub fn node(&self, i: usize) -> (u64, u64) {
        pair_at(self.nodes, i)
    }

    /// Returns offset and length of buffer `i`. They are in bounds of the body after a successful
    /// [`Header::check_bounds`].
    pub fn buffer(&self, i: usize) -> (usize, usize) {
        let (offset, len) = pair_at(self.buffers, i);
        (offset as usize, len as usize)
    }
}

/// Assembles a header, the inverse of [`Header::parse`].
pub(crate) fn build(
    schema: &[u8],
    rows: usize,
    nodes: &[(u64, u64)],
    buffers: &[(u64, u64)],
    body_bytes: usize,
) -> Vec<u8> {
    let padded = schema.len().next_multiple_of(8);
    let mut out = Vec::with_capacity(FIXED_BYTES + padded + 16 * (nodes.len() + buffers.len()));
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&(schema.len() as u32).to_le_bytes());
    out.extend_from_slice(&(rows as u64).to_le_bytes());
    out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
    out.extend_from_slice(&(buffers.len() as u32).to_le_bytes());
    out.extend_from_slice(&(body_bytes as u64).to_le_bytes());
    out.extend_from_slice(schema);
    out.resize(FIXED_BYTES + padded, 0);
    for (a, b) in nodes.iter().chain(buffers) {
        out.extend_from_slice(&a.to_le_bytes());
        out.extend_from_slice(&b.to_le_bytes());
    }
    out
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

fn pair_at(table: &[u8], i: usize) -> (u64, u64) {
    (u64_at(table, 16 * i), u64_at(table, 16 * i + 8))
}
