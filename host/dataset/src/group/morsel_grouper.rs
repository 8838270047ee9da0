//! Conversion of a morsel's rows to blocks.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;

use super::block::{Block, BlockSlice, SliceLocation};
use super::block_builder::{BlockBuilder, PendingBlock};
use super::block_codec;
use super::hash::salt;
use super::region::BlockMemory;
use super::row_store::RowStore;
use crate::DatasetError;

/// Approximate bytes of a segment: neighbouring partitions that share an allocation, which is freed when all of them
/// are consumed.
const SEGMENT_BYTES: usize = 2 << 20;

/// Collects the rows of one morsel, in order, on one thread.
pub struct MorselGrouper {
    shared: Arc<RowStore>,
    sequence: u64,
    file: u32,
    builder: BlockBuilder,
    number: u32,
}

impl MorselGrouper {
    pub(super) fn new(shared: Arc<RowStore>, sequence: u64, file: u32) -> Result<Self, DatasetError> {
        let salt = salt(if shared.grouping.per_file { file } else { 0 });
        let builder = BlockBuilder::new(shared.columns.clone(), shared.block_rows, salt)?;
        Ok(MorselGrouper { shared, sequence, file, builder, number: 0 })
    }

    /// Adds the next rows of the morsel. May spill rows to disk; blocks while other threads spill and memory is used
    /// up.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let MorselGrouper { shared, sequence, file, builder, number } = self;
        builder.push(batch, |pending| {
            shared.add(build_block(pending, *sequence, *number, *file))?;
            *number += 1;
            Ok(())
        })
    }

    /// Adds the next rows of the morsel as blocks that a [`crate::BlockWriter`] encoded for the same grouping and file.
    /// May spill and block like `push`.
    pub fn push_blocks(&mut self, blocks: Buffer) -> Result<(), DatasetError> {
        self.flush()?;
        for mut block in block_codec::decode(blocks, &self.shared.columns)? {
            (block.sequence, block.number, block.file) = (self.sequence, self.number, self.file);
            self.shared.add(block)?;
            self.number += 1;
        }
        Ok(())
    }

    /// Adds the remaining rows as a last block.
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

/// Builds a block in this process's memory.
fn build_block(pending: PendingBlock, sequence: u64, number: u32, file: u32) -> Block {
    let (counts, finite, layout) = (pending.counts().to_vec(), pending.is_finite(), pending.layout());
    let (row_bytes, key_bytes) = (layout.row_bytes(pending.row_cells()), pending.key_bytes().collect::<Vec<_>>());
    let (mut words, mut keys) = (BlockMemory::zeroed(pending.words()), vec![0; key_bytes.iter().sum()]);
    pending.fill(words.as_mut_slice(), &mut keys);
    // A segment holds neighbouring partitions.
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
