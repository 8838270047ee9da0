//! Blocks as objects: cut where rows come to be, and taken in elsewhere.
//!
//! Each part of an object is a block: a magic number, whether each feature and
//! target is a finite number (1) and cells are narrow (2) or packed (4), the cells
//! of a row, the base of narrow words, for each packed field its base and its bits
//! (and 256 where it is a number in single precision), the rows of each partition
//! (all of them u64), and then the rows, those of a partition side by side.
//! Only keys of one word travel like this: there are no wrong ones.

use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use sandbar_store::{Mapping, OBJECT_PART_BYTES, Object, ObjectWriter};

use super::block::{Block, Place, SLOTS, Slice};
use super::columns::Columns;
use super::cut::{Cut, Cutter};
use super::hash::salt;
use super::keys::KeyKind;
use super::rows::{FIELDS_MAX, Field, Layout, Packing};
use super::{Grouping, block_rows};
use crate::DatasetError;

const MAGIC: u64 = u64::from_le_bytes(*b"SBBLOCK2");
const FINITE: u64 = 1;
const NARROW: u64 = 2;
const PACKED: u64 = 4;
const SINGLE: u64 = 256;
/// Words before the rows.
pub(super) const HEADER_WORDS: usize = 4 + 2 * FIELDS_MAX + SLOTS;
/// Objects of fewer bytes are copied: a mapping costs more.
const MAPPED_MIN: usize = 256 << 10;
/// Objects that are mapped at a time, about: a process may have some 65,000 mappings.
const MAPPED_MAX: usize = 32 << 10;

/// Cuts the rows of a morsel, or of a part of one, into blocks for [`crate::MorselGrouper::push_blocks`].
pub struct BlockWriter {
    cutter: Cutter,
}

impl BlockWriter {
    /// For rows of the `file`th file, in batches of `schema`: what their [`crate::Grouper`] was made with,
    /// which [takes blocks](crate::Grouper::takes_blocks).
    pub fn new(grouping: &Grouping, schema: &SchemaRef, file: u32) -> Result<BlockWriter, DatasetError> {
        let columns = Arc::new(Columns::new(grouping, schema)?);
        if !travels(&columns) {
            return Err(DatasetError::internal("blocks of keys that are not one word"));
        }
        let salt = salt(if grouping.per_file { file } else { 0 });
        let block_rows = block_rows(&columns, usize::MAX);
        Ok(BlockWriter { cutter: Cutter::new(columns, block_rows, salt)?.of_lent_batches() })
    }

    /// Takes the next rows, and adds each block that is full to `object`. Keeps nothing that shares the batch's
    /// buffers.
    pub fn push(&mut self, batch: &RecordBatch, object: &mut ObjectWriter) -> Result<(), DatasetError> {
        self.cutter.push(batch, |cut| write(cut, object))
    }

    /// Adds the rows that are left to `object`.
    pub fn finish(&mut self, object: &mut ObjectWriter) -> Result<(), DatasetError> {
        self.cutter.rest().map_or(Ok(()), |cut| write(cut, object))
    }
}

/// Whether blocks of these columns can be made elsewhere.
pub(super) fn travels(columns: &Columns) -> bool {
    !matches!(columns.kind, KeyKind::Bytes(_))
}

fn write(cut: Cut, object: &mut ObjectWriter) -> Result<(), DatasetError> {
    let layout = cut.layout();
    let (narrow, base, fields) = match &layout {
        Layout::Wide => (0, 0, &[][..]),
        Layout::Narrow { base } => (NARROW, *base, &[][..]),
        Layout::Packed(packing) => (PACKED, 0, packing.fields()),
    };
    let flags = narrow | if cut.is_finite() { FINITE } else { 0 };
    let written = object.part(HEADER_WORDS + cut.words(), |words| {
        let (header, rows) = words.split_at_mut(HEADER_WORDS);
        header[..4].copy_from_slice(&[MAGIC, flags, cut.row_cells() as u64, base]);
        let (packing, counts) = header[4..].split_at_mut(2 * FIELDS_MAX);
        for (words, field) in packing.chunks_exact_mut(2).zip(fields) {
            words.copy_from_slice(&[field.base, u64::from(field.bits) | if field.single { SINGLE } else { 0 }]);
        }
        counts.iter_mut().zip(cut.counts()).for_each(|(word, count)| *word = u64::from(*count));
        cut.fill(rows, &mut []);
    });
    written.map_err(|e: io::Error| DatasetError::internal(format!("memory for a block: {e}")))
}

/// The blocks of an object, which may be anything. All blocks together may have `bytes_max` bytes.
pub(super) fn read(object: &Object, columns: &Columns, bytes_max: usize) -> Result<Vec<Block>, DatasetError> {
    let malformed = || DatasetError::Columns("blocks of rows are malformed".to_owned());
    if !travels(columns) {
        return Err(malformed());
    }
    let mapping = Mapping::of(object).map_err(DatasetError::internal)?;
    let words = mapping.len() / size_of::<u64>();
    let bytes = if mapping.len() < MAPPED_MIN.max(bytes_max / MAPPED_MAX) {
        Buffer::from(&mapping[..])
    } else {
        Buffer::from(Bytes::from_owner(mapping))
    };
    let all: ScalarBuffer<u64> = ScalarBuffer::new(bytes, 0, words);
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let (block, end) = parse(&all, at, columns.row_cells()).ok_or_else(malformed)?;
        blocks.push(block);
        at = end.next_multiple_of(OBJECT_PART_BYTES / size_of::<u64>());
    }
    Ok(blocks)
}

/// The block at a word, and the word where it ends.
fn parse(all: &ScalarBuffer<u64>, at: usize, row_cells: usize) -> Option<(Block, usize)> {
    let header = all.get(at..at.checked_add(HEADER_WORDS)?)?;
    let &[magic, flags, cells_of_row, base, ref rest @ ..] = header else { return None };
    if magic != MAGIC || cells_of_row != row_cells as u64 {
        return None;
    }
    let (packing, counts) = rest.split_at(2 * FIELDS_MAX);
    let layout = match flags & !FINITE {
        0 => Layout::Wide,
        NARROW => Layout::Narrow { base },
        PACKED => Layout::Packed(packed(packing, row_cells)?),
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
        let place = Place::Memory { rows: bytes.slice_with_length(end, len), keys: Buffer::from_vec(Vec::<u8>::new()) };
        slices.push(Slice { slot: slot as u16, rows, place });
        end = next;
    }
    let finite = flags & FINITE > 0;
    let block = Block { sequence: 0, number: 0, file: 0, finite, layout, slices, bytes: end - start };
    Some((block, end.div_ceil(size_of::<u64>())))
}

fn packed(words: &[u64], cells: usize) -> Option<Packing> {
    let mut fields = [Field::default(); FIELDS_MAX];
    for (field, words) in fields.iter_mut().zip(words.chunks_exact(2)) {
        (field.base, field.single) = (words[0], words[1] & SINGLE > 0);
        field.bits = u32::try_from(words[1] & !SINGLE).ok()?;
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

    fn object(rows: &[i64]) -> (Object, Columns) {
        let schema = batch(0).schema();
        let mut writer = BlockWriter::new(&grouping(), &schema, 0).expect("a writer");
        let mut object = ObjectWriter::new(usize::MAX).expect("memory");
        rows.iter().for_each(|rows| writer.push(&batch(*rows), &mut object).expect("rows"));
        writer.finish(&mut object).expect("rows");
        (object.seal().expect("seals"), Columns::new(&grouping(), &schema).expect("columns"))
    }

    fn rows_of(blocks: &[Block]) -> u64 {
        blocks.iter().flat_map(|block| &block.slices).map(|slice| u64::from(slice.rows)).sum()
    }

    #[test]
    fn blocks_come_back() {
        // None, some that are copied, some that are mapped, and several blocks.
        for (rows, blocks) in [(&[][..], 0), (&[0], 0), (&[10, 20], 1), (&[60_000, 70_000], 1), (&[200_000; 3], 4)] {
            let (object, columns) = object(rows);
            for bytes_max in [0, usize::MAX] {
                let read = read(&object, &columns, bytes_max).expect("blocks");
                assert_eq!((read.len(), rows_of(&read)), (blocks, rows.iter().sum::<i64>() as u64), "{rows:?}");
                assert!(read.iter().all(|block| block.finite && block.bytes > 0));
            }
        }
    }

    /// A worker that was taken over can write anything.
    #[test]
    fn damage_is_found_or_harmless() {
        let (object, columns) = object(&[1_000, 300_000]);
        let good: Vec<u64> = {
            let mapping = Mapping::of(&object).expect("a mapping");
            let (words, _) = mapping.as_chunks::<8>();
            words.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect()
        };
        let second = good.iter().rposition(|word| *word == MAGIC).expect("two blocks");
        assert!(second > 0);
        let values = [0, 1, 4, 1 << 20, u64::from(u32::MAX), u64::MAX / 24 + 1, u64::MAX];
        let places = (0..9).chain([HEADER_WORDS - 1, HEADER_WORDS, good.len() - 1]);
        let damaged = places.flat_map(|place| [place, second + place]).filter(|place| *place < good.len());
        for (place, value) in damaged.flat_map(|place| values.map(|value| (place, value))) {
            let mut words = good.clone();
            words[place] = value;
            check(&words, words.len() * 8, &columns);
        }
        for bytes in [1, 7, 8, 24, HEADER_WORDS * 8 - 1, HEADER_WORDS * 8, good.len() * 8 - 1, second * 8 + 5] {
            check(&good, bytes, &columns);
        }
    }

    fn check(words: &[u64], bytes: usize, columns: &Columns) {
        let all: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let object = Object::new(&all[..bytes]).expect("an object");
        let Ok(blocks) = read(&object, columns, 0) else { return };
        for slice in blocks.iter().flat_map(|block| &block.slices) {
            let Place::Memory { rows, .. } = &slice.place else { panic!("a block in memory") };
            assert!([4, 8].map(|cell| slice.rows as usize * columns.row_cells() * cell).contains(&rows.len()));
        }
    }
}
