//! Assignment of rows to groups within a partition. Groups are numbered in order of first appearance.

use arrow_buffer::Buffer;

use super::hash::{hash_word, remaining_bits, salt};
use super::keys::KeyKind;
use super::rows::{Cell, PackedRow, Packing, RowLayout, cells};
use crate::DatasetError;

/// Rows of a partition from one block, in memory.
pub(super) struct LoadedSlice {
    pub(super) file: u32,
    /// Morsel of the rows.
    pub(super) sequence: u64,
    /// Whether each feature and target value of the block is a finite number.
    pub(super) finite: bool,
    pub(super) layout: RowLayout,
    pub(super) rows: usize,
    pub(super) cells: Buffer,
    /// Concatenated byte keys.
    pub(super) keys: Buffer,
}

/// Keys of groups, by group number.
pub(super) enum GroupKeys {
    None,
    Words(Vec<u64>),
    Bytes { bytes: Vec<u8>, ends: Vec<usize> },
}

/// Groups of a partition.
pub(super) struct Groups {
    /// Group of each row.
    pub(super) ids: Vec<u32>,
    /// Rows of each group.
    pub(super) rows: Vec<u32>,
    /// File of each group.
    pub(super) files: Vec<u32>,
    pub(super) keys: GroupKeys,
}

impl Groups {
    /// Returns the group numbers, sorted by file and key.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.rows.len() as u32).collect();
        let file = |id: &u32| self.files[*id as usize];
        match &self.keys {
            GroupKeys::None => order.sort_unstable_by_key(file),
            GroupKeys::Words(words) => order.sort_unstable_by_key(|id| (file(id), words[*id as usize])),
            GroupKeys::Bytes { .. } => {
                order.sort_unstable_by(|a, b| file(a).cmp(&file(b)).then_with(|| self.bytes(*a).cmp(self.bytes(*b))));
            }
        }
        order
    }

    /// Returns the byte key of a group.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        match &self.keys {
            GroupKeys::Bytes { bytes, ends } => {
                let id = id as usize;
                &bytes[id.checked_sub(1).map_or(0, |before| ends[before])..ends[id]]
            }
            _ => &[],
        }
    }
}

/// Finds the groups of a partition. Slices of one file must be adjacent. If the only key is null, each file has one
/// group.
pub(super) fn assign(
    slices: &[LoadedSlice],
    kind: &KeyKind,
    row_cells: usize,
    key_is_null: bool,
) -> Result<Groups, DatasetError> {
    let rows: usize = slices.iter().map(|p| p.rows).sum();
    if rows > ROWS_MAX {
        return Err(too_many_rows(rows));
    }
    let mut groups =
        Groups { ids: Vec::with_capacity(rows), rows: Vec::new(), files: Vec::new(), keys: GroupKeys::None };
    match kind {
        _ if key_is_null => by_file(slices, &mut groups),
        KeyKind::None => by_file(slices, &mut groups),
        KeyKind::Word(_) => by_word(slices, row_cells, &mut groups),
        KeyKind::Bytes(_) => by_bytes(slices, row_cells, &mut groups),
    }
    Ok(groups)
}

/// Maximum rows of a partition: row numbers have 32 bits.
const ROWS_MAX: usize = u32::MAX as usize - 1;

pub(super) fn too_many_rows(rows: usize) -> DatasetError {
    let quantity = "number of rows that hash to one partition".to_owned();
    DatasetError::LimitExceeded { quantity, value: rows as u64, bound: ROWS_MAX as u64 }
}

fn by_file(slices: &[LoadedSlice], groups: &mut Groups) {
    for slice in slices {
        if groups.files.last() != Some(&slice.file) {
            groups.files.push(slice.file);
            groups.rows.push(0);
        }
        let id = groups.files.len() - 1;
        groups.rows[id] += slice.rows as u32;
        groups.ids.extend(std::iter::repeat_n(id as u32, slice.rows));
    }
}

const EMPTY: u32 = u32::MAX;

/// Entry of a [`Table`].
#[derive(Clone, Copy)]
struct TableEntry {
    /// The key or its hash.
    word: u64,
    /// Number of the group, or [`EMPTY`].
    group: u32,
}

impl TableEntry {
    const FREE: TableEntry = TableEntry { word: 0, group: EMPTY };
}

/// Hash table with open addressing and linear probing, at most half full.
struct Table {
    entries: Vec<TableEntry>,
    mask: usize,
    used: usize,
}

impl Table {
    fn new() -> Self {
        let size = 64;
        Table { entries: vec![TableEntry::FREE; size], mask: size - 1, used: 0 }
    }

    fn clear(&mut self) {
        self.entries.fill(TableEntry::FREE);
        self.used = 0;
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        (remaining_bits(hash) >> 32) as usize & self.mask
    }

    /// Inserts an entry at the free index that probing from [`Table::slot`] found, and grows the table if needed.
    /// `hash_of` returns the hash of an entry's word.
    #[cold]
    fn insert(&mut self, at: usize, entry: TableEntry, hash_of: impl Fn(u64) -> u64) {
        self.entries[at] = entry;
        self.used += 1;
        if self.used * 2 < self.entries.len() {
            return;
        }
        let old = std::mem::replace(&mut self.entries, vec![TableEntry::FREE; (self.mask + 1) * 2]);
        self.mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|entry| entry.group != EMPTY) {
            let mut at = self.slot(hash_of(entry.word));
            while self.entries[at].group != EMPTY {
                at = (at + 1) & self.mask;
            }
            self.entries[at] = entry;
        }
    }
}

fn by_word(slices: &[LoadedSlice], row_cells: usize, groups: &mut Groups) {
    let mut words = WordKeyGroups { table: Table::new(), keys: Vec::new(), groups };
    let mut file = None;
    for slice in slices {
        if file.replace(slice.file) != Some(slice.file) {
            words.table.clear();
        }
        match slice.layout {
            RowLayout::Wide => words.assign(slice.file, keys_of(&cells::<u64>(&slice.cells), row_cells, 0)),
            RowLayout::Narrow { base } => {
                words.assign(slice.file, keys_of(&cells::<u32>(&slice.cells), row_cells, base))
            }
            RowLayout::Packed(packing) if packing.row_bytes() == size_of::<u32>() => {
                words.assign(slice.file, packed_keys_of(&cells::<u32>(&slice.cells), packing));
            }
            RowLayout::Packed(packing) => {
                words.assign(slice.file, packed_keys_of(&cells::<u64>(&slice.cells), packing))
            }
        }
    }
    groups.keys = GroupKeys::Words(words.keys);
}

/// Returns the key word of each row.
fn keys_of<C: Cell>(cells: &[C], row_cells: usize, base: u64) -> impl Iterator<Item = u64> {
    cells.chunks_exact(row_cells).map(move |row| row[0].word(base))
}

fn packed_keys_of<R: PackedRow>(rows: &[R], packing: Packing) -> impl Iterator<Item = u64> {
    let key = packing.fields()[0];
    rows.iter().map(move |row| key.word(*row))
}

/// Groups of word keys.
struct WordKeyGroups<'a> {
    table: Table,
    keys: Vec<u64>,
    groups: &'a mut Groups,
}

impl WordKeyGroups<'_> {
    fn assign(&mut self, file: u32, words: impl Iterator<Item = u64>) {
        let WordKeyGroups { table, keys, groups } = self;
        let salt = salt(file);
        for key in words {
            let mut at = table.slot(hash_word(key, salt));
            let id = loop {
                let TableEntry { word: found, group: id } = table.entries[at & table.mask];
                if id == EMPTY {
                    let id = keys.len() as u32;
                    keys.push(key);
                    groups.rows.push(0);
                    groups.files.push(file);
                    table.insert(at & table.mask, TableEntry { word: key, group: id }, |key| hash_word(key, salt));
                    break id;
                }
                if found == key {
                    break id;
                }
                at += 1;
            };
            groups.rows[id as usize] += 1;
            groups.ids.push(id);
        }
    }
}

fn by_bytes(slices: &[LoadedSlice], row_cells: usize, groups: &mut Groups) {
    let mut table = Table::new();
    let mut bytes: Vec<u8> = Vec::new();
    let mut ends: Vec<usize> = Vec::new();
    let mut file = None;
    for slice in slices {
        if file.replace(slice.file) != Some(slice.file) {
            table.clear();
        }
        let mut key_at = 0;
        for row in cells::<u64>(&slice.cells).chunks_exact(row_cells) {
            let (hash, len) = (row[0], row[1] as usize);
            let key = &slice.keys[key_at..key_at + len];
            key_at += len;
            let mut at = table.slot(hash);
            let id = loop {
                let TableEntry { word: found, group: id } = table.entries[at & table.mask];
                if id == EMPTY {
                    let id = ends.len() as u32;
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len());
                    groups.rows.push(0);
                    groups.files.push(slice.file);
                    table.insert(at & table.mask, TableEntry { word: hash, group: id }, |hash| hash);
                    break id;
                }
                let known = id as usize;
                if found == hash && bytes[known.checked_sub(1).map_or(0, |before| ends[before])..ends[known]] == *key {
                    break id;
                }
                at += 1;
            };
            groups.rows[id as usize] += 1;
            groups.ids.push(id);
        }
    }
    groups.keys = GroupKeys::Bytes { bytes, ends };
}
