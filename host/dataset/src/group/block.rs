//! Blocks of rows that are sorted by partition, and how morsels become blocks.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;

use super::GrouperShared;
use super::block_builder::{BlockBuilder, PendingBlock};
use super::block_codec;
use super::hash::{PARTITIONS, salt};
use super::region::BlockMemory;
use super::rows::RowLayout;
use crate::DatasetError;

/// Partitions of a block: those that keys are hashed to, and one for a null
/// that is the whole key.
pub(super) const SLOTS: usize = PARTITIONS + 1;

/// The partition of rows whose only key is null.
pub(super) const NULL_SLOT: usize = PARTITIONS;

/// Bytes of a shelf, about: neighbouring partitions that share an allocation,
/// which is freed when all of them are consumed.
const SEGMENT_BYTES: usize = 2 << 20;

/// A block, or what remains of its description when its rows were spilled.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) sequence: u64,
    pub(super) number: u32,
    pub(super) file: u32,
    /// Whether each feature and target is a finite number.
    pub(super) finite: bool,
    pub(super) layout: RowLayout,
    /// The partitions that have rows, ascending.
    pub(super) slices: Vec<BlockSlice>,
    pub(super) bytes: usize,
}

/// The rows of one partition in one block.
#[derive(Debug, Clone)]
pub(super) struct BlockSlice {
    pub(super) slot: u16,
    pub(super) rows: u32,
    pub(super) location: SliceLocation,
}

/// Where a slice's rows and key bytes are.
#[derive(Debug, Clone)]
pub(super) enum SliceLocation {
    Memory {
        rows: Buffer,
        keys: Buffer,
    },
    /// At `at`, so many bytes of rows, and those of keys behind at a multiple of eight.
    Disk {
        file: Arc<super::spill::SpillFile>,
        at: u64,
        rows: usize,
        keys: usize,
    },
}

/// Takes the rows of one morsel, in order, on one thread.
pub struct MorselGrouper {
    shared: Arc<GrouperShared>,
    sequence: u64,
    file: u32,
    builder: BlockBuilder,
    number: u32,
}

impl MorselGrouper {
    pub(super) fn new(shared: Arc<GrouperShared>, sequence: u64, file: u32) -> Result<Self, DatasetError> {
        let salt = salt(if shared.grouping.per_file { file } else { 0 });
        let builder = BlockBuilder::new(shared.columns.clone(), shared.block_rows, salt)?;
        Ok(MorselGrouper { shared, sequence, file, builder, number: 0 })
    }

    /// Takes the next rows of the morsel. May write spilled rows to disk, and
    /// waits while others do and memory is used up.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let MorselGrouper { shared, sequence, file, builder, number } = self;
        builder.push(batch, |pending| {
            shared.add(build_block(pending, *sequence, *number, *file))?;
            *number += 1;
            Ok(())
        })
    }

    /// Takes the next rows of the morsel as [`crate::BlockWriter`] made blocks of them, for the same grouping and
    /// file. As `push` otherwise.
    pub fn push_blocks(&mut self, blocks: Buffer) -> Result<(), DatasetError> {
        self.flush()?;
        for mut block in block_codec::decode(blocks, &self.shared.columns)? {
            (block.sequence, block.number, block.file) = (self.sequence, self.number, self.file);
            self.shared.add(block)?;
            self.number += 1;
        }
        Ok(())
    }

    /// Hands over the rows that are left.
    pub fn finish(mut self) -> Result<(), DatasetError> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), DatasetError> {
        if let Some(pending) = self.builder.flush() {
            self.shared.add(build_block(pending, self.sequence, self.number, self.file))?;
            self.number += 1;
        }
        Ok(())
    }
}

/// A block in memory of this process.
fn build_block(pending: PendingBlock, sequence: u64, number: u32, file: u32) -> Block {
    let (counts, finite, layout) = (pending.counts().to_vec(), pending.is_finite(), pending.layout());
    let (row_bytes, key_bytes) = (layout.row_bytes(pending.row_cells()), pending.key_bytes().collect::<Vec<_>>());
    let (mut words, mut keys) = (BlockMemory::zeroed(pending.words()), vec![0; key_bytes.iter().sum()]);
    pending.fill(words.as_mut_slice(), &mut keys);
    // Each shelf is some neighbouring partitions.
    let (mut starts, mut end) = (vec![0], 0);
    for count in &counts {
        if end - starts[starts.len() - 1] >= SEGMENT_BYTES {
            starts.push(end);
        }
        end += *count as usize * row_bytes;
    }
    let segments = words.freeze(&starts);
    let keys = Buffer::from_vec(keys);
    let (mut segment, mut at, mut key_at) = (0, 0, 0);
    let mut slices = Vec::new();
    for (slot, rows) in counts.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let len = *rows as usize * row_bytes;
        while starts.get(segment + 1).is_some_and(|next| *next <= at) {
            segment += 1;
        }
        let location = SliceLocation::Memory {
            rows: segments[segment].slice_with_length(at - starts[segment], len),
            keys: keys.slice_with_length(key_at, key_bytes[slot]),
        };
        slices.push(BlockSlice { slot: slot as u16, rows: *rows, location });
        at += len;
        key_at += key_bytes[slot];
    }
    Block { sequence, number, file, finite, layout, slices, bytes: end + keys.len() }
}
