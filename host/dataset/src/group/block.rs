//! Cutting rows into blocks that are sorted by partition.
//!
//! A row is copied once on the way in: from its columns to the place where its
//! partition lies in the block. Rows lie whole, one after another, since a
//! write then touches one cache line rather than one for each column, and a
//! partition is one range of bytes, in memory as in a spill file.

use std::mem;
use std::sync::Arc;

use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_row::{RowConverter, Rows};

use super::Shared;
use super::columns::Columns;
use super::hash::{PARTITIONS, hash_bytes, hash_word, partition, salt};
use super::keys::{KeyKind, converter, encode_words, normalised};
use super::region::Words;
use crate::DatasetError;

/// Partitions of a block: those that keys are hashed to, and one for a null
/// that is the whole key.
pub(super) const SLOTS: usize = PARTITIONS + 1;

/// The partition of rows whose only key is null.
pub(super) const NULL_SLOT: usize = PARTITIONS;

/// Bytes of a shelf, about: neighbouring partitions that share an allocation,
/// which is freed when all of them are consumed.
const SHELF_BYTES: usize = 2 << 20;

/// A block, or what remains of its description when its rows were spilled.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) sequence: u64,
    pub(super) number: u32,
    pub(super) file: u32,
    /// Whether each feature and target is a finite number.
    pub(super) finite: bool,
    /// The partitions that have rows, ascending.
    pub(super) slices: Vec<Slice>,
    pub(super) bytes: usize,
}

/// The rows of one partition in one block.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) slot: u16,
    pub(super) rows: u32,
    pub(super) place: Place,
}

/// Where a slice's rows and key bytes are.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Memory { words: ScalarBuffer<u64>, bytes: Buffer },
    Disk { file: Arc<super::spill::SpillFile>, at: u64, words: usize, bytes: usize },
}

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

/// Takes the batches of one morsel, in order, on one thread.
pub struct MorselGrouper {
    shared: Arc<Shared>,
    sequence: u64,
    file: u32,
    salt: u64,
    converter: Option<RowConverter>,
    pending: Vec<Pending>,
    rows: usize,
    finite: bool,
    counts: Vec<u32>,
    key_bytes: Vec<usize>,
    number: u32,
}

impl MorselGrouper {
    pub(super) fn new(shared: Arc<Shared>, sequence: u64, file: u32) -> Result<Self, DatasetError> {
        let converter = match &shared.columns.kind {
            KeyKind::Bytes(types) => Some(converter(types)?),
            _ => None,
        };
        Ok(MorselGrouper {
            salt: salt(if shared.grouping.per_file { file } else { 0 }),
            shared,
            sequence,
            file,
            converter,
            pending: Vec::new(),
            rows: 0,
            finite: true,
            counts: vec![0; SLOTS],
            key_bytes: vec![0; SLOTS],
            number: 0,
        })
    }

    /// Takes the next rows of the morsel. May write spilled rows to disk, and
    /// waits while others do and memory is used up.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        self.shared.columns.check(batch)?;
        let mut at = 0;
        while at < batch.num_rows() {
            let rows = (self.shared.block_rows - self.rows).min(batch.num_rows() - at);
            let part = if rows == batch.num_rows() { batch.clone() } else { batch.slice(at, rows) };
            self.take(&part)?;
            at += rows;
            if self.rows >= self.shared.block_rows {
                self.cut()?;
            }
        }
        Ok(())
    }

    /// Hands over the rows that are left.
    pub fn finish(mut self) -> Result<(), DatasetError> {
        self.cut()
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let (values, finite) = self.shared.columns.values_of(batch)?;
        let rows = batch.num_rows();
        let columns = self.shared.columns.keys_of(batch)?;
        let (keys, slots, hashes) = match (&self.converter, columns.as_slice()) {
            (None, []) => (BatchKeys::None, vec![partition(hash_word(0, self.salt)); rows], Vec::new()),
            (None, [column, ..]) => {
                let words = encode_words(column)?;
                let slots = self.slots_of_words(&words, column.nulls());
                (BatchKeys::Words(words), slots, Vec::new())
            }
            (Some(converter), _) => {
                let columns: Vec<_> = columns.iter().map(normalised).collect();
                let keys = converter.convert_columns(&columns).map_err(DatasetError::internal)?;
                let hashes: Vec<u64> = keys.iter().map(|key| hash_bytes(key.as_ref(), self.salt)).collect();
                let slots: Vec<u16> = hashes.iter().map(|hash| partition(*hash)).collect();
                keys.iter()
                    .zip(&slots)
                    .for_each(|(key, slot)| self.key_bytes[usize::from(*slot)] += key.as_ref().len());
                (BatchKeys::Bytes(keys), slots, hashes)
            }
        };
        slots.iter().for_each(|slot| self.counts[usize::from(*slot)] += 1);
        self.finite &= finite;
        self.rows += rows;
        self.pending.push(Pending { slots, keys, hashes, values, rows });
        Ok(())
    }

    fn slots_of_words(&self, words: &[u64], nulls: Option<&NullBuffer>) -> Vec<u16> {
        let salt = self.salt;
        match nulls.filter(|n| n.null_count() > 0) {
            None => words.iter().map(|word| partition(hash_word(*word, salt))).collect(),
            Some(nulls) => words
                .iter()
                .zip(nulls)
                .map(|(word, valid)| if valid { partition(hash_word(*word, salt)) } else { NULL_SLOT as u16 })
                .collect(),
        }
    }

    fn cut(&mut self) -> Result<(), DatasetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let pending = mem::take(&mut self.pending);
        let mut shelves = Shelves::new(&self.counts, &self.key_bytes, &self.shared.columns);
        for batch in pending {
            shelves.fill(&batch, self.shared.columns.key_words());
        }
        let block = shelves.into_block(self.sequence, self.number, self.file, self.finite);
        self.number += 1;
        self.rows = 0;
        self.finite = true;
        self.counts.fill(0);
        self.key_bytes.fill(0);
        self.shared.add(block)
    }
}

/// The memory of a block while it is filled.
struct Shelves {
    row_words: usize,
    words: Words,
    bytes: Vec<u8>,
    counts: Vec<u32>,
    /// Where the next row of each partition goes.
    cursors: Vec<usize>,
    /// Where the next key of each partition goes, of keys of bytes.
    byte_cursors: Vec<usize>,
}

impl Shelves {
    fn new(counts: &[u32], key_bytes: &[usize], columns: &Columns) -> Self {
        let row_words = columns.row_words();
        let (mut words, mut bytes) = (0, 0);
        let mut cursors = Vec::with_capacity(SLOTS);
        let mut byte_cursors = Vec::with_capacity(SLOTS);
        for (count, key_bytes) in counts.iter().zip(key_bytes) {
            cursors.push(words);
            byte_cursors.push(bytes);
            words += *count as usize * row_words;
            // Padded, so that words that follow in a file stay aligned.
            bytes += key_bytes.next_multiple_of(8);
        }
        let (words, bytes) = (Words::zeroed(words), vec![0; bytes]);
        Shelves { row_words, words, bytes, counts: counts.to_vec(), cursors, byte_cursors }
    }

    fn fill(&mut self, batch: &Pending, key_words: usize) {
        match (&batch.keys, batch.values.as_slice()) {
            (BatchKeys::Words(keys), [a, b]) => self.fill_words(batch, keys, [a, b]),
            (BatchKeys::Words(keys), [a, b, c]) => self.fill_words(batch, keys, [a, b, c]),
            (BatchKeys::Words(keys), [a, b, c, d]) => self.fill_words(batch, keys, [a, b, c, d]),
            (BatchKeys::Words(keys), [a, b, c, d, e]) => self.fill_words(batch, keys, [a, b, c, d, e]),
            _ => self.fill_any(batch, key_words),
        }
    }

    /// One word of key and `N` values: the common shapes, unrolled.
    fn fill_words<const N: usize>(&mut self, batch: &Pending, keys: &[u64], values: [&ScalarBuffer<f64>; N]) {
        let rows = batch.rows;
        let values = values.map(|v| &v[..rows]);
        let words = self.words.as_mut_slice();
        for (row, (slot, key)) in batch.slots.iter().zip(keys).enumerate().take(rows) {
            let cursor = &mut self.cursors[usize::from(*slot)];
            let place = &mut words[*cursor..*cursor + N + 1];
            *cursor += N + 1;
            place[0] = *key;
            for i in 0..N {
                place[i + 1] = values[i][row].to_bits();
            }
        }
    }

    fn fill_any(&mut self, batch: &Pending, key_words: usize) {
        let words = self.words.as_mut_slice();
        let mut places = Vec::with_capacity(batch.rows);
        for slot in &batch.slots {
            let cursor = &mut self.cursors[usize::from(*slot)];
            places.push(*cursor);
            *cursor += self.row_words;
        }
        match &batch.keys {
            BatchKeys::None => {}
            BatchKeys::Words(keys) => keys.iter().zip(&places).for_each(|(key, at)| words[*at] = *key),
            BatchKeys::Bytes(keys) => {
                for (row, at) in places.iter().enumerate() {
                    let key = keys.row(row);
                    let key: &[u8] = key.as_ref();
                    words[*at] = batch.hashes[row];
                    words[*at + 1] = key.len() as u64;
                    let byte = &mut self.byte_cursors[usize::from(batch.slots[row])];
                    self.bytes[*byte..*byte + key.len()].copy_from_slice(key);
                    *byte += key.len();
                }
            }
        }
        for (column, values) in batch.values.iter().enumerate() {
            let offset = key_words + column;
            values.iter().zip(&places).for_each(|(value, at)| words[*at + offset] = value.to_bits());
        }
    }

    fn into_block(self, sequence: u64, number: u32, file: u32, finite: bool) -> Block {
        let row_words = self.row_words;
        let total = self.cursors.last().copied().unwrap_or_default();
        // Each shelf is some neighbouring partitions.
        let mut starts = vec![0];
        for (end, count) in self.cursors.iter().zip(&self.counts) {
            let start = end - *count as usize * row_words;
            if (start - starts[starts.len() - 1]) * 8 >= SHELF_BYTES {
                starts.push(start);
            }
        }
        let shelves = self.words.freeze(&starts);
        let bytes = Buffer::from_vec(self.bytes);
        let (mut shelf, mut byte_at) = (0, 0);
        let mut slices = Vec::new();
        for (slot, rows) in self.counts.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            let len = *rows as usize * row_words;
            let start = self.cursors[slot] - len;
            while starts.get(shelf + 1).is_some_and(|next| *next <= start) {
                shelf += 1;
            }
            let byte_len = (self.byte_cursors[slot] - byte_at).next_multiple_of(8);
            let words = shelves[shelf].slice(start - starts[shelf], len);
            let place = Place::Memory { words, bytes: bytes.slice_with_length(byte_at, byte_len) };
            slices.push(Slice { slot: slot as u16, rows: *rows, place });
            byte_at += byte_len;
        }
        Block { sequence, number, file, finite, slices, bytes: total * 8 + bytes.len() }
    }
}
