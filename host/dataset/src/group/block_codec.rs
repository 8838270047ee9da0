//! Binary encoding of blocks: worker processes write it, the node reads it.
//!
//! Blocks follow one another. A block is a header of u64 words and its rows. The header has: a magic number; flags (1:
//! each feature and target is a finite number; 2: cells are narrow; 4: rows are packed); the cells of a row; the base
//! of narrow words; for each packed field its base and its bits (plus 256 for a single-precision number); the rows of
//! each partition. The rows of a partition are contiguous. Byte keys are not supported: every word is a valid key, but
//! bytes may be malformed.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::SchemaRef;

use super::block::{Block, BlockSlice, SLOTS, SliceLocation};
use super::block_builder::{BlockBuilder, PendingBlock};
use super::columns::Columns;
use super::grouping::Grouping;
use super::hash::salt;
use super::keys::KeyKind;
use super::rows::{FIELDS_MAX, PackedField, Packing, RowLayout};
use crate::DatasetError;

const MAGIC: u64 = u64::from_le_bytes(*b"SBBLOCK2");
const FINITE: u64 = 1;
const NARROW: u64 = 2;
const PACKED: u64 = 4;
const FLOAT: u64 = 256;
/// Words of a block's header.
const HEADER_WORDS: usize = 4 + 2 * FIELDS_MAX + SLOTS;

/// Maximum bytes of a block: its rows should still be cached when they are scattered. Twice the size takes twice the
/// time (measured).
const BLOCK_BYTES: usize = 4 << 20;

/// Minimum rows of a block, however small the memory budget.
const BLOCK_ROWS_MIN: usize = 1 << 10;

/// Minimum number of blocks that fit the memory budget.
const BLOCKS_MIN: usize = 32;

/// Returns the maximum rows of a block when all blocks share `bytes_max` bytes.
pub(super) fn block_rows(columns: &Columns, bytes_max: usize) -> usize {
    let bytes = BLOCK_BYTES.min(bytes_max / BLOCKS_MIN).saturating_sub(HEADER_WORDS * 8);
    (bytes / (columns.row_cells() * 8)).max(BLOCK_ROWS_MIN)
}

/// Encodes the rows of a morsel, or of a part of one, as blocks for [`crate::MorselGrouper::push_blocks`].
pub struct BlockWriter {
    builder: BlockBuilder,
}

impl BlockWriter {
    /// Creates a writer for rows of the file with index `file`, in batches of `schema`. Takes the arguments of the
    /// receiving [`crate::Grouper`], which must [accept blocks](crate::Grouper::accepts_blocks).
    pub fn new(grouping: &Grouping, schema: &SchemaRef, file: u32) -> Result<BlockWriter, DatasetError> {
        let columns = Arc::new(Columns::new(grouping, schema)?);
        if !is_supported(&columns) {
            return Err(DatasetError::internal("blocks of keys that are not one word"));
        }
        let salt = salt(if grouping.per_file { file } else { 0 });
        let block_rows = block_rows(&columns, usize::MAX);
        Ok(BlockWriter { builder: BlockBuilder::new(columns, block_rows, salt)?.with_copied_values() })
    }

    /// Adds rows, and passes each full block to `full`. Keeps no reference to the batch's buffers.
    ///
    /// # Errors
    /// If the batch's columns differ from the schema, and the errors of `full`.
    pub fn push<E: From<DatasetError>>(
        &mut self,
        batch: &RecordBatch,
        mut full: impl FnMut(FinishedBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        self.builder.push(batch, |pending| full(FinishedBlock(pending)))
    }

    /// Returns the remaining rows as a block.
    pub fn flush(&mut self) -> Option<FinishedBlock> {
        self.builder.flush().map(FinishedBlock)
    }
}

/// Block that is ready to be encoded into the caller's memory.
pub struct FinishedBlock(PendingBlock);

impl FinishedBlock {
    /// Returns the encoded size in words.
    pub fn words(&self) -> usize {
        HEADER_WORDS + self.0.words()
    }

    /// Encodes the block into `words`, which must be zero and at least [`FinishedBlock::words`] long.
    ///
    /// # Panics
    /// If `words` is shorter.
    pub fn write(self, words: &mut [u64]) {
        let FinishedBlock(pending) = self;
        let layout = pending.layout();
        let (narrow, base, fields) = match &layout {
            RowLayout::Wide => (0, 0, &[][..]),
            RowLayout::Narrow { base } => (NARROW, *base, &[][..]),
            RowLayout::Packed(packing) => (PACKED, 0, packing.fields()),
        };
        let flags = narrow | if pending.is_finite() { FINITE } else { 0 };
        let (header, rows) = words.split_at_mut(HEADER_WORDS);
        header[..4].copy_from_slice(&[MAGIC, flags, pending.row_cells() as u64, base]);
        let (packing, counts) = header[4..].split_at_mut(2 * FIELDS_MAX);
        for (words, field) in packing.chunks_exact_mut(2).zip(fields) {
            words.copy_from_slice(&[field.base, u64::from(field.bits) | if field.is_float { FLOAT } else { 0 }]);
        }
        counts.iter_mut().zip(pending.counts()).for_each(|(word, count)| *word = u64::from(*count));
        pending.fill(rows, &mut []);
    }
}

/// Returns whether blocks of these columns can be encoded.
pub(super) fn is_supported(columns: &Columns) -> bool {
    !matches!(columns.kind, KeyKind::Bytes(_))
}

/// Decodes blocks from untrusted bytes.
pub(super) fn decode(bytes: Buffer, columns: &Columns) -> Result<Vec<Block>, DatasetError> {
    let malformed = || DatasetError::Columns("blocks of rows are malformed".to_owned());
    if !is_supported(columns) || bytes.as_ptr().align_offset(align_of::<u64>()) > 0 {
        return Err(malformed());
    }
    let words = bytes.len() / size_of::<u64>();
    let all: ScalarBuffer<u64> = ScalarBuffer::new(bytes, 0, words);
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let (block, end) = parse(&all, at, columns.row_cells()).ok_or_else(malformed)?;
        blocks.push(block);
        at = end;
    }
    Ok(blocks)
}

/// Decodes the block at word `at`. Returns it with the index of the word after it.
fn parse(all: &ScalarBuffer<u64>, at: usize, row_cells: usize) -> Option<(Block, usize)> {
    let header = all.get(at..at.checked_add(HEADER_WORDS)?)?;
    let &[magic, flags, cells_of_row, base, ref flush @ ..] = header else { return None };
    if magic != MAGIC || cells_of_row != row_cells as u64 {
        return None;
    }
    let (packing, counts) = flush.split_at(2 * FIELDS_MAX);
    let layout = match flags & !FINITE {
        0 => RowLayout::Wide,
        NARROW => RowLayout::Narrow { base },
        PACKED => RowLayout::Packed(decode_packing(packing, row_cells)?),
        _ => return None,
    };
    let bytes = all.inner();
    let start = (at + HEADER_WORDS) * size_of::<u64>();
    let mut end = start;
    let mut slices = Vec::new();
    for (slot, rows) in counts.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let rows = u32::try_from(*rows).ok()?;
        let len = (rows as usize).checked_mul(layout.row_bytes(row_cells))?;
        let next = end.checked_add(len).filter(|next| *next <= bytes.len())?;
        let location =
            SliceLocation::Memory { rows: bytes.slice_with_length(end, len), keys: Buffer::from_vec(Vec::<u8>::new()) };
        slices.push(BlockSlice { slot: slot as u16, rows, location });
        end = next;
    }
    let finite = flags & FINITE > 0;
    let block = Block { sequence: 0, number: 0, file: 0, finite, layout, slices, bytes: end - start };
    Some((block, end.div_ceil(size_of::<u64>())))
}

fn decode_packing(words: &[u64], cells: usize) -> Option<Packing> {
    let mut fields = [PackedField::default(); FIELDS_MAX];
    for (field, words) in fields.iter_mut().zip(words.chunks_exact(2)) {
        (field.base, field.is_float) = (words[0], words[1] & FLOAT > 0);
        field.bits = u32::try_from(words[1] & !FLOAT).ok()?;
    }
    Packing::new(fields.get(..cells)?)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Float64Array, Int64Array};

    use super::*;
    use crate::Grouping;

    fn grouping() -> Grouping {
        Grouping {
            keys: vec!["k".to_owned()],
            features: vec!["x".to_owned()],
            target: "y".to_owned(),
            ..Grouping::default()
        }
    }

    fn batch(rows: i64) -> RecordBatch {
        let key = Int64Array::from_iter((0..rows).map(|row| (row % 7 > 0).then_some(row % 100)));
        let number = Float64Array::from_iter_values((0..rows).map(|row| row as f64));
        let (key, number) = (Arc::new(key) as ArrayRef, Arc::new(number) as ArrayRef);
        RecordBatch::try_from_iter([("k", key), ("x", number.clone()), ("y", number)]).expect("a batch")
    }

    fn written(rows: &[i64]) -> (Vec<u64>, Columns) {
        let schema = batch(0).schema();
        let mut writer = BlockWriter::new(&grouping(), &schema, 0).expect("a writer");
        let mut all = Vec::new();
        let mut append = |block: FinishedBlock| -> Result<(), DatasetError> {
            let at = all.len();
            all.resize(at + block.words(), 0);
            block.write(&mut all[at..]);
            Ok(())
        };
        rows.iter().for_each(|rows| writer.push(&batch(*rows), &mut append).expect("rows"));
        writer.flush().map_or(Ok(()), &mut append).expect("rows");
        (all, Columns::new(&grouping(), &schema).expect("columns"))
    }

    fn rows_of(blocks: &[Block]) -> u64 {
        blocks.iter().flat_map(|block| &block.slices).map(|slice| u64::from(slice.rows)).sum()
    }

    #[test]
    fn blocks_come_back() {
        // No rows, one block, and several blocks.
        for (rows, blocks) in [(&[][..], 0), (&[0], 0), (&[10, 20], 1), (&[60_000, 70_001], 1), (&[200_000; 3], 4)] {
            let (words, columns) = written(rows);
            let decode = decode(Buffer::from_vec(words), &columns).expect("blocks");
            assert_eq!((decode.len(), rows_of(&decode)), (blocks, rows.iter().sum::<i64>() as u64), "{rows:?}");
            assert!(decode.iter().all(|block| block.finite && block.bytes > 0));
        }
    }

    /// A compromised worker can write anything.
    #[test]
    fn damage_is_found_or_harmless() {
        let (good, columns) = written(&[1_000, 300_000]);
        let second = good.iter().rposition(|word| *word == MAGIC).expect("two blocks");
        assert!(second > 0);
        let values = [0, 1, 2, 4, 7, 64, 256 + 32, 1 << 20, u64::from(u32::MAX), u64::MAX / 24 + 1, u64::MAX];
        let positions = (0..20).chain([HEADER_WORDS - 1, HEADER_WORDS, good.len() - 1]);
        let damaged =
            positions.flat_map(|position| [position, second + position]).filter(|position| *position < good.len());
        for (position, value) in damaged.flat_map(|position| values.map(|value| (position, value))) {
            let mut words = good.clone();
            words[position] = value;
            check(&words, words.len() * 8, &columns);
        }
        for bytes in [1, 7, 8, 24, HEADER_WORDS * 8 - 1, HEADER_WORDS * 8, good.len() * 8 - 1, second * 8 + 5] {
            check(&good, bytes, &columns);
        }
        assert!(decode(Buffer::from_vec(good).slice(4), &columns).is_err());
    }

    fn check(words: &[u64], bytes: usize, columns: &Columns) {
        let bytes = Buffer::from_vec(words.to_vec()).slice_with_length(0, bytes);
        let Ok(blocks) = decode(bytes, columns) else { return };
        for slice in blocks.iter().flat_map(|block| &block.slices) {
            let SliceLocation::Memory { rows, .. } = &slice.location else { panic!("a block in memory") };
            let cells = columns.row_cells();
            assert!([4, 8, 4 * cells, 8 * cells].map(|row| slice.rows as usize * row).contains(&rows.len()));
        }
    }
}
