//! The input of a call, in this process's memory.

use std::os::fd::{AsFd, OwnedFd};

use sandbar_core::{Code, Fault};
use sandbar_sandbox::{GroupAt, Input};
use sandbar_store::Mapping;

use crate::protocol::{GROUP_BYTES, Groups, PART_ALIGNMENT, WirePayload};

/// An input: its bytes, and its file where it has one.
pub(super) struct CallInput {
    bytes: Bytes,
    body_bytes: usize,
    header: std::ops::Range<usize>,
    file: Option<OwnedFd>,
}

enum Bytes {
    Own(Vec<u8>),
    Mapped(Mapping),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Mapped(mapping) => mapping,
        }
    }
}

fn wrong(what: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Host, format!("the input of the call can't be read: {what}"))
}

impl CallInput {
    pub(super) fn open(payload: &WirePayload, file: Option<OwnedFd>) -> Result<CallInput, Fault> {
        match payload {
            WirePayload::Inline { header, body } => {
                let mut bytes = body.clone();
                bytes.extend_from_slice(header);
                Ok(CallInput {
                    body_bytes: body.len(),
                    header: body.len()..bytes.len(),
                    bytes: Bytes::Own(bytes),
                    file: None,
                })
            }
            WirePayload::File { body_bytes, header_bytes, file_bytes } => {
                let file = file.ok_or_else(|| wrong("its file is missing"))?;
                // SAFETY: the node lends the file to this call, and writes it no more until the call is done.
                let mapping = unsafe { Mapping::lent(file.as_fd(), *file_bytes) }.map_err(wrong)?;
                let body_bytes = *body_bytes as usize;
                let at = body_bytes.next_multiple_of(PART_ALIGNMENT);
                let header = at..at.saturating_add(*header_bytes as usize);
                if header.end > mapping.len() {
                    return Err(wrong("its header is behind its end"));
                }
                Ok(CallInput { bytes: Bytes::Mapped(mapping), body_bytes, header, file: Some(file) })
            }
        }
    }

    pub(super) fn header(&self) -> &[u8] {
        &self.bytes[self.header.clone()]
    }

    /// What a guest may see of it.
    pub(super) fn body(&self) -> Input<'_> {
        Input { bytes: &self.bytes[..self.body_bytes], file: self.file.as_ref().map(AsFd::as_fd) }
    }

    /// The table of groups, parsed.
    pub(super) fn groups(&self, groups: &Groups) -> Result<Vec<GroupAt>, Fault> {
        let table = self.part(groups.table_at, u64::from(groups.count) * GROUP_BYTES as u64)?;
        let (rows, _) = table.as_chunks::<GROUP_BYTES>();
        Ok(rows
            .iter()
            .map(|row| {
                let number = |at: usize| u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
                GroupAt {
                    first_row: number(0),
                    train_rows: number(4),
                    test_rows: number(8),
                    seed: u64::from(number(16)) | u64::from(number(20)) << 32,
                }
            })
            .collect())
    }

    /// What belongs to the groups, besides.
    pub(super) fn extra(&self, groups: &Groups) -> Result<&[u8], Fault> {
        self.part(groups.extra_at, groups.extra_bytes)
    }

    fn part(&self, at: u64, bytes: u64) -> Result<&[u8], Fault> {
        let range = usize::try_from(at)
            .ok()
            .zip(usize::try_from(bytes).ok())
            .and_then(|(at, bytes)| Some(at..at.checked_add(bytes)?));
        range.and_then(|range| self.bytes.get(range)).ok_or_else(|| wrong("a part is behind its end"))
    }
}
