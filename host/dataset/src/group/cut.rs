//! Cutting rows into blocks that are sorted by partition.
//!
//! A row is copied once on the way in: from its columns to the place where its
//! partition lies in the block. Rows lie whole, one after another, since a
//! write then touches one cache line rather than one for each column, and a
//! partition is one range of bytes, in memory as in a spill file.

use std::mem;
use std::sync::Arc;

use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_row::{RowConverter, Rows};

use super::block::{NULL_SLOT, SLOTS};
use super::columns::Columns;
use super::hash::{hash_bytes, hash_word, partition};
use super::keys::{KeyKind, converter, encode_words, normalised};
use super::rows::{Cell, Layout, are_single, cells_mut};
use crate::DatasetError;

enum BatchKeys {
    None,
    Words(Vec<u64>),
    Bytes(Rows),
}

struct Pending {
    slots: Vec<u16>,
    keys: BatchKeys,
    /// Hashes of keys of bytes.
    hashes: Vec<u64>,
    values: Vec<ScalarBuffer<f64>>,
    rows: usize,
}

/// The least and the largest of some words.
#[derive(Clone, Copy)]
struct Range {
    least: u64,
    most: u64,
}

/// Collects rows until they are a block.
pub(super) struct Cutter {
    columns: Arc<Columns>,
    block_rows: usize,
    salt: u64,
    converter: Option<RowConverter>,
    pending: Cut,
}

/// The rows of a block, counted by partition and not in place yet.
pub(super) struct Cut {
    pending: Vec<Pending>,
    rows: usize,
    finite: bool,
    /// Whether all its numbers and keys may be narrow, and what keys of one word there are.
    may_be_narrow: bool,
    words: Range,
    counts: Vec<u32>,
    /// Bytes of the keys of each partition, of keys of bytes.
    key_bytes: Vec<usize>,
    key_cells: usize,
    row_cells: usize,
}

impl Cutter {
    /// Cuts blocks of up to `block_rows` rows. `salt` is what keys are hashed with.
    pub(super) fn new(columns: Arc<Columns>, block_rows: usize, salt: u64) -> Result<Self, DatasetError> {
        let converter = match &columns.kind {
            KeyKind::Bytes(types) => Some(converter(types)?),
            _ => None,
        };
        let pending = Cut::new(&columns);
        Ok(Cutter { columns, block_rows, salt, converter, pending })
    }

    /// Takes the next rows, and gives away each block that is full.
    pub(super) fn push(
        &mut self,
        batch: &RecordBatch,
        mut full: impl FnMut(Cut) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        self.columns.check(batch)?;
        let mut at = 0;
        while at < batch.num_rows() {
            let rows = (self.block_rows - self.pending.rows).min(batch.num_rows() - at);
            let part = if rows == batch.num_rows() { batch.clone() } else { batch.slice(at, rows) };
            self.take(&part)?;
            at += rows;
            if self.pending.rows >= self.block_rows {
                self.rest().map_or(Ok(()), &mut full)?;
            }
        }
        Ok(())
    }

    /// The rows that are no full block.
    pub(super) fn rest(&mut self) -> Option<Cut> {
        (self.pending.rows > 0).then(|| mem::replace(&mut self.pending, Cut::new(&self.columns)))
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let (values, finite) = self.columns.values_of(batch)?;
        let rows = batch.num_rows();
        let columns = self.columns.keys_of(batch)?;
        let pending = &mut self.pending;
        let (keys, slots, hashes) = match (&self.converter, columns.as_slice()) {
            (None, []) => (BatchKeys::None, vec![partition(hash_word(0, self.salt)); rows], Vec::new()),
            (None, [column, ..]) => {
                let words = encode_words(column)?;
                let slots = slots_of_words(&words, column.nulls(), self.salt);
                pending.words = pending.words.and(Range::of(&words, column.nulls()));
                (BatchKeys::Words(words), slots, Vec::new())
            }
            (Some(converter), _) => {
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
        pending.may_be_narrow = pending.may_be_narrow && values.iter().all(|column| are_single(column));
        pending.rows += rows;
        pending.pending.push(Pending { slots, keys, hashes, values, rows });
        Ok(())
    }
}

impl Range {
    const NONE: Range = Range { least: u64::MAX, most: 0 };

    /// Of those that are not null.
    fn of(words: &[u64], nulls: Option<&NullBuffer>) -> Range {
        let with = |range: Range, word: &u64| Range { least: range.least.min(*word), most: range.most.max(*word) };
        match nulls.filter(|n| n.null_count() > 0) {
            None => words.iter().fold(Range::NONE, with),
            Some(nulls) => words.iter().zip(nulls).filter(|(_, valid)| *valid).map(|(w, _)| w).fold(Range::NONE, with),
        }
    }

    fn and(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    fn is_narrow(self) -> bool {
        self.most.saturating_sub(self.least) <= u64::from(u32::MAX)
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

impl Cut {
    fn new(columns: &Columns) -> Cut {
        Cut {
            pending: Vec::new(),
            rows: 0,
            finite: true,
            may_be_narrow: !matches!(columns.kind, KeyKind::Bytes(_)),
            words: Range::NONE,
            counts: vec![0; SLOTS],
            key_bytes: vec![0; SLOTS],
            key_cells: columns.key_cells(),
            row_cells: columns.row_cells(),
        }
    }

    /// Rows of each partition.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Whether each feature and target is a finite number.
    pub(super) fn is_finite(&self) -> bool {
        self.finite
    }

    pub(super) fn row_cells(&self) -> usize {
        self.row_cells
    }

    /// How its rows will lie.
    pub(super) fn layout(&self) -> Layout {
        let narrow = self.finite && self.may_be_narrow && self.words.is_narrow();
        if narrow { Layout::Narrow { base: self.words.least } } else { Layout::Wide }
    }

    /// Words of memory that its rows take.
    pub(super) fn words(&self) -> usize {
        (self.rows * self.row_cells * self.layout().cell_bytes()).div_ceil(size_of::<u64>())
    }

    /// Bytes that the keys of each partition take, of keys of bytes.
    pub(super) fn key_bytes(&self) -> impl Iterator<Item = usize> {
        self.key_bytes.iter().map(|bytes| padded(*bytes))
    }

    /// Puts the rows in place, the partitions in their order. The memory is zero.
    pub(super) fn fill(self, words: &mut [u64], bytes: &mut [u8]) {
        match self.layout() {
            Layout::Wide => self.fill_cells::<u64>(0, cells_mut(words), bytes),
            Layout::Narrow { base } => self.fill_cells::<u32>(base, cells_mut(words), bytes),
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
        let mut shelves = Shelves { key_cells, row_cells, base, cells, bytes, cursors, byte_cursors };
        self.pending.iter().for_each(|batch| shelves.fill(batch));
    }
}

/// Where the key bytes of a partition end that has so many: words that follow in a file stay aligned.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// The memory of a block while it is filled.
struct Shelves<'a, C> {
    key_cells: usize,
    row_cells: usize,
    /// What words are counted from.
    base: u64,
    cells: &'a mut [C],
    bytes: &'a mut [u8],
    /// Where the next row of each partition goes.
    cursors: Vec<usize>,
    /// Where the next key of each partition goes, of keys of bytes.
    byte_cursors: Vec<usize>,
}

impl<C: Cell> Shelves<'_, C> {
    fn fill(&mut self, batch: &Pending) {
        match (&batch.keys, batch.values.as_slice()) {
            (BatchKeys::Words(keys), [a, b]) => self.fill_words(batch, keys, [a, b]),
            (BatchKeys::Words(keys), [a, b, c]) => self.fill_words(batch, keys, [a, b, c]),
            (BatchKeys::Words(keys), [a, b, c, d]) => self.fill_words(batch, keys, [a, b, c, d]),
            (BatchKeys::Words(keys), [a, b, c, d, e]) => self.fill_words(batch, keys, [a, b, c, d, e]),
            _ => self.fill_any(batch),
        }
    }

    /// One word of key and `N` values: the common shapes, unrolled.
    fn fill_words<const N: usize>(&mut self, batch: &Pending, keys: &[u64], values: [&ScalarBuffer<f64>; N]) {
        let rows = batch.rows;
        let values = values.map(|v| &v[..rows]);
        for (row, (slot, key)) in batch.slots.iter().zip(keys).enumerate().take(rows) {
            let cursor = &mut self.cursors[usize::from(*slot)];
            let place = &mut self.cells[*cursor..*cursor + N + 1];
            *cursor += N + 1;
            place[0] = C::of_word(*key, self.base);
            for i in 0..N {
                place[i + 1] = C::of_number(values[i][row]);
            }
        }
    }

    fn fill_any(&mut self, batch: &Pending) {
        let (cells, base) = (&mut *self.cells, self.base);
        let mut places = Vec::with_capacity(batch.rows);
        for slot in &batch.slots {
            let cursor = &mut self.cursors[usize::from(*slot)];
            places.push(*cursor);
            *cursor += self.row_cells;
        }
        match &batch.keys {
            BatchKeys::None => {}
            BatchKeys::Words(keys) => {
                keys.iter().zip(&places).for_each(|(key, at)| cells[*at] = C::of_word(*key, base));
            }
            BatchKeys::Bytes(keys) => {
                for (row, at) in places.iter().enumerate() {
                    let key = keys.row(row);
                    let key: &[u8] = key.as_ref();
                    cells[*at] = C::of_word(batch.hashes[row], base);
                    cells[*at + 1] = C::of_word(key.len() as u64, base);
                    let byte = &mut self.byte_cursors[usize::from(batch.slots[row])];
                    self.bytes[*byte..*byte + key.len()].copy_from_slice(key);
                    *byte += key.len();
                }
            }
        }
        for (column, values) in batch.values.iter().enumerate() {
            let offset = self.key_cells + column;
            values.iter().zip(&places).for_each(|(value, at)| cells[*at + offset] = C::of_number(*value));
        }
    }
}
