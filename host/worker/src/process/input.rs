//! The input of a call, mapped into this process.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault};
use sandbar_sandbox::{GroupRange, Input};
use sandbar_store::Mapping;

use crate::batches::BatchReader;
use crate::protocol::{BatchLocation, GROUP_BYTES, Groups, PART_ALIGNMENT, Payload};

/// An input: its bytes, the location of its batches, and its file if it has one.
pub(super) struct CallInput {
    bytes: Bytes,
    batches: Vec<Batch>,
    /// Index of the batch that the guest sees.
    shown: AtomicUsize,
    file: Option<OwnedFd>,
}

struct Batch {
    body: Range<usize>,
    header: Range<usize>,
}

impl Batch {
    /// Locates a batch, whose header is the part after its body. Returns `None` if it exceeds `bytes` bytes.
    fn new(at: &BatchLocation, bytes: usize) -> Option<Batch> {
        let number = |number| usize::try_from(number).ok();
        let body_at = number(at.body_at).filter(|at| at.is_multiple_of(PART_ALIGNMENT))?;
        let body = body_at..body_at.checked_add(number(at.body_bytes)?)?;
        let header_at = body.end.checked_next_multiple_of(PART_ALIGNMENT)?;
        let header = header_at..header_at.checked_add(number(at.header_bytes)?)?;
        (header.end <= bytes).then_some(Batch { body, header })
    }
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

/// Returns a buffer of an input's bytes that keeps the input alive.
fn shared(input: &Arc<CallInput>, bytes: &[u8]) -> Buffer {
    // SAFETY: the buffer keeps the input alive, and nothing writes its bytes while the call runs.
    unsafe { Buffer::from_custom_allocation(NonNull::from(bytes).cast(), bytes.len(), input.clone()) }
}

fn wrong(reason: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Host, format!("the input of the call can't be read: {reason}"))
}

impl CallInput {
    pub(super) fn open(payload: &Payload<u64>, file: Option<OwnedFd>) -> Result<CallInput, Fault> {
        match payload {
            Payload::Inline { header, body } => {
                let mut bytes = body.to_vec();
                bytes.extend_from_slice(header);
                let batch = Batch { body: 0..body.len(), header: body.len()..bytes.len() };
                Ok(CallInput { batches: vec![batch], bytes: Bytes::Own(bytes), shown: AtomicUsize::new(0), file: None })
            }
            Payload::Stored { .. } => Err(wrong("it is stored")),
            Payload::File { file: file_bytes, batches } => {
                let file = file.ok_or_else(|| wrong("its file is missing"))?;
                // SAFETY: the node lends the file to this call, and does not write it until the call is finished.
                let mapping = unsafe { Mapping::lent(file.as_fd(), *file_bytes) }.map_err(wrong)?;
                let batches = batches.iter().map(|at| Batch::new(at, mapping.len())).collect::<Option<Vec<_>>>();
                let batches =
                    batches.filter(|all| !all.is_empty()).ok_or_else(|| wrong("a batch exceeds its length"))?;
                Ok(CallInput { bytes: Bytes::Mapped(mapping), batches, shown: AtomicUsize::new(0), file: Some(file) })
            }
        }
    }

    /// Returns the number of batches, at least one.
    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Makes a batch visible to the guest. Returns its header.
    pub(super) fn show(&self, batch: usize) -> &[u8] {
        self.shown.store(batch, Relaxed);
        &self.bytes[self.batches[batch].header.clone()]
    }

    /// Returns the bytes that the guest may read: the body of the current batch.
    pub(super) fn shown(&self) -> Input<'_> {
        let body = &self.batches[self.shown.load(Relaxed)].body;
        let file = self.file.as_ref().map(|file| (file.as_fd(), body.start as u64));
        Input { bytes: self.bytes[body.clone()].into(), file }
    }

    /// Returns the companion columns of a batch, without copying them.
    pub(super) fn beside(self: &Arc<Self>, at: &BatchLocation, reader: &mut BatchReader) -> Result<RecordBatch, Fault> {
        let wrong = |reason: String| wrong(format!("the companion columns of a batch: {reason}"));
        let batch = Batch::new(at, self.bytes.len()).ok_or_else(|| wrong("they exceed its length".into()))?;
        let (header, body) = (&self.bytes[batch.header], &self.bytes[batch.body]);
        reader.read(header, &shared(self, body)).map_err(|e| wrong(e.message))
    }

    /// Parses the group table.
    pub(super) fn groups(&self, groups: &Groups) -> Result<Vec<GroupRange>, Fault> {
        let table = self.part(groups.table_at, u64::from(groups.count) * GROUP_BYTES as u64)?;
        let (rows, _) = table.as_chunks::<GROUP_BYTES>();
        Ok(rows
            .iter()
            .map(|row| {
                let number = |at: usize| u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
                GroupRange {
                    first_row: number(0),
                    train_rows: number(4),
                    test_rows: number(8),
                    seed: u64::from(number(16)) | u64::from(number(20)) << 32,
                }
            })
            .collect())
    }

    /// Returns the data of the groups besides their rows.
    pub(super) fn extra(&self, groups: &Groups) -> Result<&[u8], Fault> {
        self.part(groups.extra_at, groups.extra_bytes)
    }

    fn part(&self, at: u64, bytes: u64) -> Result<&[u8], Fault> {
        let range = usize::try_from(at)
            .ok()
            .zip(usize::try_from(bytes).ok())
            .and_then(|(at, bytes)| Some(at..at.checked_add(bytes)?));
        range.and_then(|range| self.bytes.get(range)).ok_or_else(|| wrong("a part exceeds its length"))
    }
}
