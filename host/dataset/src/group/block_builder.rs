//! Building of blocks whose rows are sorted by partition.
//!
//! A row is copied once: from its columns to its partition's range of the block. Blocks are row-major, so that a row
//! touches one cache line rather than one per column, and a partition is one range of bytes, in memory as in a spill
//! file.

use std::mem;
use std::sync::Arc;

use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_row::{RowConverter, Rows};

use super::block::{NULL_SLOT, SLOTS};
use super::columns::Columns;
use super::hash::{hash_bytes, hash_word, partition};
use super::keys::{KeyKind, converter, encode_words, normalised};
use super::rows::{Cell, PackedField, PackedRow, Packing, RowLayout, cells_mut, int_range, to_f32_cells};
use crate::DatasetError;

/// Keys that are encoded as bytes at a time. Their length is known only afterwards.
const BYTE_KEYS_MAX: usize = 1 << 10;

enum BatchKeys {
    None,
    Words(Vec<u64>),
    Bytes(Rows),
}

/// Rows of a batch, in columns, until a block is full.
struct PendingBatch {
    slots: Vec<u16>,
    columns: PendingColumns,
}

enum PendingColumns {
    Wide {
        keys: BatchKeys,
        /// Hashes of byte keys.
        hashes: Vec<u64>,
        values: Vec<ScalarBuffer<f64>>,
    },
    /// Columns in the narrow layout, so that twice as many rows fit the cache.
    Narrow {
        base: u64,
        /// `None` without key columns.
        keys: Option<Vec<u32>>,
        values: Vec<Vec<u32>>,
    },
}

/// Inclusive range of words.
#[derive(Clone, Copy)]
struct WordRange {
    min: u64,
    max: u64,
}

/// Collects rows until they fill a block.
pub(super) struct BlockBuilder {
    columns: Arc<Columns>,
    block_rows: usize,
    salt: u64,
    converter: Option<RowConverter>,
    /// Whether values are copied, so that the builder keeps no reference to a batch's buffers.
    copies_values: bool,
    pending: PendingBlock,
}

/// Rows of a block, counted by partition but not yet scattered.
pub(super) struct PendingBlock {
    pending: Vec<PendingBatch>,
    rows: usize,
    finite: bool,
    /// Whether all batches are narrow, and the range of their word keys.
    narrow: bool,
    words: WordRange,
    /// Range of each value column that has integers only.
    int_range: Vec<Option<(i32, i32)>>,
    counts: Vec<u32>,
    /// Bytes of the byte keys of each partition.
    key_bytes: Vec<usize>,
    key_cells: usize,
    row_cells: usize,
}

impl BlockBuilder {
    /// Creates a builder of blocks of up to `block_rows` rows, or the equivalent in bytes. Keys are hashed with `salt`.
    pub(super) fn new(columns: Arc<Columns>, block_rows: usize, salt: u64) -> Result<Self, DatasetError> {
        let converter = match &columns.kind {
            KeyKind::Bytes(types) => Some(converter(types)?),
            _ => None,
        };
        let pending = PendingBlock::new(&columns);
        Ok(BlockBuilder { columns, block_rows, salt, converter, copies_values: false, pending })
    }

    /// Copies values out of batches whose buffers are only valid during `push`.
    pub(super) fn with_copied_values(self) -> Self {
        BlockBuilder { copies_values: true, ..self }
    }

    /// Adds rows, and passes each full block to `on_full`. Bytes of byte keys count as rows of the same size.
    pub(super) fn push<E: From<DatasetError>>(
        &mut self,
        batch: &RecordBatch,
        mut on_full: impl FnMut(PendingBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        self.columns.check(batch)?;
        let mut at = 0;
        while at < batch.num_rows() {
            let rows = (self.block_rows - self.pending.rows).min(batch.num_rows() - at);
            let rows = if self.converter.is_some() { rows.min(BYTE_KEYS_MAX) } else { rows };
            let part = if rows == batch.num_rows() { batch.clone() } else { batch.slice(at, rows) };
            self.add(&part)?;
            at += rows;
            if self.pending.rows + self.pending.rows_of_keys() >= self.block_rows {
                self.flush().map_or(Ok(()), &mut on_full)?;
            }
        }
        Ok(())
    }

    /// Returns the remaining rows as a block.
    pub(super) fn flush(&mut self) -> Option<PendingBlock> {
        (self.pending.rows > 0).then(|| mem::replace(&mut self.pending, PendingBlock::new(&self.columns)))
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let (values, finite) = self.columns.values_of(batch)?;
        let rows = batch.num_rows();
        let columns = self.columns.keys_of(batch)?;
        let pending = &mut self.pending;
        let mut range = Some(WordRange::NONE);
        let (keys, slots, hashes) = match (&self.converter, columns.as_slice()) {
            (None, []) => (BatchKeys::None, vec![partition(hash_word(0, self.salt)); rows], Vec::new()),
            (None, [column, ..]) => {
                let words = encode_words(column)?;
                let slots = slots_of_words(&words, column.nulls(), self.salt);
                range = Some(WordRange::from_words(&words, column.nulls()));
                (BatchKeys::Words(words), slots, Vec::new())
            }
            (Some(converter), _) => {
                range = None;
                let columns: Vec<_> = columns.iter().map(normalised).collect();
                let keys = converter.convert_columns(&columns).map_err(DatasetError::internal)?;
                let hashes: Vec<u64> = keys.iter().map(|key| hash_bytes(key.as_ref(), self.salt)).collect();
                let slots: Vec<u16> = hashes.iter().map(|hash| partition(*hash)).collect();
                keys.iter()
                    .zip(&slots)
                    .for_each(|(key, slot)| pending.key_bytes[usize::from(*slot)] += key.as_ref().len());
                (BatchKeys::Bytes(keys), slots, hashes)
            }
        };
        slots.iter().for_each(|slot| pending.counts[usize::from(*slot)] += 1);
        pending.finite &= finite;
        pending.rows += rows;
        let single = range.filter(|range| finite && range.is_narrow()).and_then(|range| {
            let values = values.iter().map(|column| to_f32_cells(column)).collect::<Option<Vec<_>>>()?;
            Some((range, values))
        });
        let columns = match single {
            Some((range, values)) => {
                pending.words = pending.words.union(range);
                for (of_block, column) in pending.int_range.iter_mut().zip(&values) {
                    let (min, max) = of_block.unzip();
                    let column = min.and(int_range(column));
                    *of_block = min.zip(max).zip(column).map(|((a, b), (c, d))| (a.min(c), b.max(d)));
                }
                let base = range.min;
                let narrow = |keys: &Vec<u64>| keys.iter().map(|key| u32::of_word(*key, base)).collect();
                let keys = if let BatchKeys::Words(keys) = &keys { Some(narrow(keys)) } else { None };
                PendingColumns::Narrow { base, keys, values }
            }
            None => {
                pending.narrow = false;
                let copy = |column: ScalarBuffer<f64>| ScalarBuffer::from(column.to_vec());
                let values = if self.copies_values { values.into_iter().map(copy).collect() } else { values };
                PendingColumns::Wide { keys, hashes, values }
            }
        };
        pending.pending.push(PendingBatch { slots, columns });
        Ok(())
    }
}

impl WordRange {
    const NONE: WordRange = WordRange { min: u64::MAX, max: 0 };

    /// Returns the range of the words that are not null.
    fn from_words(words: &[u64], nulls: Option<&NullBuffer>) -> WordRange {
        let with = |range: WordRange, word: &u64| WordRange { min: range.min.min(*word), max: range.max.max(*word) };
        match nulls.filter(|n| n.null_count() > 0) {
            None => words.iter().fold(WordRange::NONE, with),
            Some(nulls) => {
                words.iter().zip(nulls).filter(|(_, valid)| *valid).map(|(w, _)| w).fold(WordRange::NONE, with)
            }
        }
    }

    fn union(self, other: WordRange) -> WordRange {
        WordRange { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn is_narrow(self) -> bool {
        self.max.saturating_sub(self.min) <= u64::from(u32::MAX)
    }
}

fn slots_of_words(words: &[u64], nulls: Option<&NullBuffer>, salt: u64) -> Vec<u16> {
    match nulls.filter(|n| n.null_count() > 0) {
        None => words.iter().map(|word| partition(hash_word(*word, salt))).collect(),
        Some(nulls) => words
            .iter()
            .zip(nulls)
            .map(|(word, valid)| if valid { partition(hash_word(*word, salt)) } else { NULL_SLOT as u16 })
            .collect(),
    }
}

impl PendingBlock {
    fn new(columns: &Columns) -> PendingBlock {
        PendingBlock {
            pending: Vec::new(),
            rows: 0,
            finite: true,
            narrow: true,
            words: WordRange::NONE,
            int_range: vec![Some((i32::MAX, i32::MIN)); columns.row_cells() - columns.key_cells()],
            counts: vec![0; SLOTS],
            key_bytes: vec![0; SLOTS],
            key_cells: columns.key_cells(),
            row_cells: columns.row_cells(),
        }
    }

    /// Returns the rows of each partition.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns whether each feature and target value is a finite number.
    pub(super) fn is_finite(&self) -> bool {
        self.finite
    }

    pub(super) fn row_cells(&self) -> usize {
        self.row_cells
    }

    /// Returns the number of rows that take as many bytes as the byte keys do.
    fn rows_of_keys(&self) -> usize {
        self.key_bytes.iter().sum::<usize>() / (self.row_cells * size_of::<u64>())
    }

    /// Returns the most compact layout that holds all rows.
    pub(super) fn layout(&self) -> RowLayout {
        if !self.narrow || !self.words.is_narrow() {
            return RowLayout::Wide;
        }
        let key = PackedField::of_range(self.words.min, self.words.max.max(self.words.min));
        let value = |int_range: &Option<(i32, i32)>| match int_range {
            Some((min, max)) => PackedField::of_range(i64::from(*min) as u64, i64::from(*max.max(min)) as u64),
            None => PackedField::of_floats(),
        };
        let fields: Vec<_> = std::iter::repeat_n(key, self.key_cells).chain(self.int_range.iter().map(value)).collect();
        Packing::new(&fields).map_or(RowLayout::Narrow { base: self.words.min }, RowLayout::Packed)
    }

    /// Returns the words that the rows take.
    pub(super) fn words(&self) -> usize {
        (self.rows * self.layout().row_bytes(self.row_cells)).div_ceil(size_of::<u64>())
    }

    /// Returns the padded bytes of the byte keys of each partition.
    pub(super) fn key_bytes(&self) -> impl Iterator<Item = usize> {
        self.key_bytes.iter().map(|bytes| padded(*bytes))
    }

    /// Scatters the rows to `words` and the byte keys to `bytes`, in the order of partitions. Writes all of both.
    pub(super) fn fill(self, words: &mut [u64], bytes: &mut [u8]) {
        match self.layout() {
            RowLayout::Wide => self.fill_cells::<u64>(0, cells_mut(words), bytes),
            RowLayout::Narrow { base } => self.fill_cells::<u32>(base, cells_mut(words), bytes),
            RowLayout::Packed(packing) if packing.row_bytes() == size_of::<u32>() => {
                self.fill_packed::<u32>(packing, cells_mut(words));
            }
            RowLayout::Packed(packing) => self.fill_packed::<u64>(packing, cells_mut(words)),
        }
    }

    fn fill_packed<R: PackedRow>(self, packing: Packing, rows: &mut [R]) {
        let mut next = 0;
        let mut cursors = Vec::with_capacity(SLOTS);
        for count in &self.counts {
            cursors.push(next);
            next += *count as usize;
        }
        let (of_key, of_values) = packing.fields().split_at(self.key_cells);
        let mut packed: Vec<R> = Vec::new();
        for PendingBatch { slots, columns } in &self.pending {
            let PendingColumns::Narrow { base, keys, values } = columns else {
                unreachable!("rows are packed where all of them are narrow")
            };
            packed.clear();
            packed.resize(slots.len(), R::default());
            of_key.iter().zip(keys).for_each(|(field, keys)| field.put_words(keys, *base, &mut packed));
            of_values.iter().zip(values).for_each(|(field, values)| field.put_numbers(values, &mut packed));
            for (slot, row) in slots.iter().zip(&packed) {
                let cursor = &mut cursors[usize::from(*slot)];
                rows[*cursor] = *row;
                *cursor += 1;
            }
        }
    }

    fn fill_cells<C: Cell>(self, base: u64, cells: &mut [C], bytes: &mut [u8]) {
        let (mut cell, mut byte) = (0, 0);
        let mut cursors = Vec::with_capacity(SLOTS);
        let mut byte_cursors = Vec::with_capacity(SLOTS);
        for (count, key_bytes) in self.counts.iter().zip(&self.key_bytes) {
            cursors.push(cell);
            byte_cursors.push(byte);
            cell += *count as usize * self.row_cells;
            byte += padded(*key_bytes);
        }
        let (key_cells, row_cells) = (self.key_cells, self.row_cells);
        let mut buffers = BlockBuffers { key_cells, row_cells, base, cells, bytes, cursors, byte_cursors };
        self.pending.iter().for_each(|batch| buffers.fill(batch));
    }
}

/// Pads a partition's key bytes, so that words after them in a file stay aligned.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Memory of a block while it is filled.
struct BlockBuffers<'a, C> {
    key_cells: usize,
    row_cells: usize,
    /// Base of narrow words.
    base: u64,
    cells: &'a mut [C],
    bytes: &'a mut [u8],
    /// Cell offset of the next row of each partition.
    cursors: Vec<usize>,
    /// Byte offset of the next byte key of each partition.
    byte_cursors: Vec<usize>,
}

impl<C: Cell> BlockBuffers<'_, C> {
    fn fill(&mut self, batch: &PendingBatch) {
        let (slots, to) = (&batch.slots, self.base);
        match &batch.columns {
            PendingColumns::Narrow { base, keys, values } => {
                let values: Vec<&[u32]> = values.iter().map(Vec::as_slice).collect();
                let word = |key| C::of_narrow_word(key, *base, to);
                self.fill_columns(slots, keys.as_deref(), &values, word, C::of_narrow_number);
            }
            PendingColumns::Wide { keys, hashes, values } => {
                let values: Vec<&[f64]> = values.iter().map(|column| &**column).collect();
                let word = |word| C::of_word(word, to);
                match keys {
                    BatchKeys::Bytes(keys) => {
                        let row_offsets = self.row_offsets(slots);
                        self.fill_bytes(slots, keys, hashes, &row_offsets);
                        self.fill_values(&values, &row_offsets, C::of_number);
                    }
                    BatchKeys::Words(keys) => self.fill_columns(slots, Some(keys), &values, word, C::of_number),
                    BatchKeys::None => self.fill_columns(slots, None, &values, word, C::of_number),
                }
            }
        }
    }

    /// Writes word keys, if any, and values. `word` and `number` convert them to cells.
    fn fill_columns<K: Copy, V: Copy>(
        &mut self,
        slots: &[u16],
        keys: Option<&[K]>,
        values: &[&[V]],
        word: impl Fn(K) -> C,
        number: impl Fn(V) -> C,
    ) {
        match (keys, values) {
            (Some(keys), [a, b]) => self.fill_rows(slots, keys, [a, b], word, number),
            (Some(keys), [a, b, c]) => self.fill_rows(slots, keys, [a, b, c], word, number),
            (Some(keys), [a, b, c, d]) => self.fill_rows(slots, keys, [a, b, c, d], word, number),
            (Some(keys), [a, b, c, d, e]) => self.fill_rows(slots, keys, [a, b, c, d, e], word, number),
            _ => {
                let row_offsets = self.row_offsets(slots);
                let keys = keys.unwrap_or_default().iter();
                keys.zip(&row_offsets).for_each(|(key, at)| self.cells[*at] = word(*key));
                self.fill_values(values, &row_offsets, number);
            }
        }
    }

    /// Writes one key and `N` values per row: the common shapes, unrolled.
    fn fill_rows<const N: usize, K: Copy, V: Copy>(
        &mut self,
        slots: &[u16],
        keys: &[K],
        values: [&[V]; N],
        word: impl Fn(K) -> C,
        number: impl Fn(V) -> C,
    ) {
        let values = values.map(|v| &v[..slots.len()]);
        for (row, (slot, key)) in slots.iter().zip(keys).enumerate() {
            let cursor = &mut self.cursors[usize::from(*slot)];
            let place = &mut self.cells[*cursor..*cursor + N + 1];
            *cursor += N + 1;
            place[0] = word(*key);
            for i in 0..N {
                place[i + 1] = number(values[i][row]);
            }
        }
    }

    /// Returns the cell offset of each row.
    fn row_offsets(&mut self, slots: &[u16]) -> Vec<usize> {
        let next = |slot: &u16| {
            let cursor = &mut self.cursors[usize::from(*slot)];
            *cursor += self.row_cells;
            *cursor - self.row_cells
        };
        slots.iter().map(next).collect()
    }

    fn fill_values<V: Copy>(&mut self, values: &[&[V]], row_offsets: &[usize], number: impl Fn(V) -> C) {
        for (values, column) in values.iter().zip(self.key_cells..) {
            values.iter().zip(row_offsets).for_each(|(value, at)| self.cells[*at + column] = number(*value));
        }
    }

    fn fill_bytes(&mut self, slots: &[u16], keys: &Rows, hashes: &[u64], row_offsets: &[usize]) {
        for (row, at) in row_offsets.iter().enumerate() {
            let key = keys.row(row);
            let key: &[u8] = key.as_ref();
            self.cells[*at] = C::of_word(hashes[row], self.base);
            self.cells[*at + 1] = C::of_word(key.len() as u64, self.base);
            let byte = &mut self.byte_cursors[usize::from(slots[row])];
            self.bytes[*byte..*byte + key.len()].copy_from_slice(key);
            *byte += key.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Float64Array, StringArray};

    use super::*;
    use crate::group::Grouping;

    #[test]
    fn blocks_end_where_keys_make_them_long() {
        const BLOCK_ROWS: usize = 8_192;
        for (key_bytes, rows_max) in [(1, 7_168), (100, 2_048), (2_000, 1_024), (100_000, 1_024)] {
            let rows = (20_000_000 / key_bytes).min(20_000);
            let key = "k".repeat(key_bytes);
            let numbers: ArrayRef = Arc::new(Float64Array::from(vec![0.5; rows]));
            let keys: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|_| &key)));
            let columns = [("k", keys), ("x", Arc::clone(&numbers)), ("y", numbers)];
            let batch = RecordBatch::try_from_iter(columns).expect("a batch");
            let grouping = Grouping {
                keys: vec!["k".into()],
                features: vec!["x".into()],
                target: "y".into(),
                ..Default::default()
            };
            let columns = Arc::new(Columns::new(&grouping, batch.schema_ref()).expect("columns"));
            let mut builder = BlockBuilder::new(columns, BLOCK_ROWS, 0).expect("a builder");
            let mut blocks = Vec::new();
            let on_full = |cut: PendingBlock| -> Result<(), DatasetError> {
                blocks.push(cut.rows);
                Ok(())
            };
            builder.push(&batch, on_full).expect("taken");
            blocks.extend(builder.flush().map(|cut| cut.rows));
            assert_eq!(blocks.iter().sum::<usize>(), rows, "{key_bytes}");
            assert_eq!(blocks.iter().max(), Some(&rows_max.min(rows)), "{key_bytes}");
        }
    }
}
