//! Record batches as values of tasks: the bytes of an argument, a result or an object.
//!
//! ```text
//! offset  bytes
//!      0      8  length of the header, H (little-endian)
//!     64      H  header
//!      …      …  body, from the next multiple of 64 on
//! ```
//!
//! A consumer that loads these bytes at a multiple of 64 views the columns in place.

use arrow_buffer::Buffer;

use crate::header::{ALIGNMENT, HeaderError};
use crate::{Header, LayoutError};

/// Writes the bytes before the body into an empty buffer.
pub fn write_value_head(header: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(header.len() as u64).to_le_bytes());
    out.resize(ALIGNMENT, 0);
    out.extend_from_slice(header);
    out.resize(body_at(header.len()), 0);
}

/// Splits a value into the header and the body of a batch. Trusts no byte.
///
/// # Errors
/// The value is too short, or its header is malformed.
pub fn split_value(value: &Buffer) -> Result<(Header<'_>, Buffer), LayoutError> {
    let short = || HeaderError(format!("a value of {} bytes is too short", value.len()));
    let (len, _) = value.split_first_chunk().ok_or_else(short)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
    let header = value.get(ALIGNMENT..).and_then(|rest| rest.get(..len)).ok_or_else(short)?;
    let header = Header::parse(header)?;
    if value.len() < body_at(len) {
        return Err(short().into());
    }
    Ok((header, value.slice(body_at(len))))
}

/// Returns the offset of the body after a header of `len` bytes.
fn body_at(len: usize) -> usize {
    ALIGNMENT + len.next_multiple_of(ALIGNMENT)
}
