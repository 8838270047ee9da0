//! Work units: the groups of a partition in the column-major form that training takes, training rows first.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::Schema;
use sandbar_core::{Code, Seed, Split};

use super::columns::UnusableCounts;
use super::group_ids::{GroupKeys, Groups, LoadedSlice, too_many_rows};
use super::keys::{CanonicalColumn, KeyKind, converter, decode_words, describe_key, write_file};
use super::row_store::RowStore;
use super::rows::{Cell, FIELDS_MAX, PackedField, PackedRow, RowLayout, cells};
use crate::DatasetError;

/// Position of a group in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitGroup {
    /// First row of the group in the unit's columns.
    pub first_row: u32,
    /// Number of training rows, which come first, in file order.
    pub train_rows: u32,
    /// Number of test rows, which follow, in file order.
    pub test_rows: u32,
    /// Seed of all randomness in the group's training.
    pub seed: u64,
}

/// Group with unusable values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedGroup {
    /// Key of the group for messages: `zone=7, file=2019-01.parquet`.
    pub group: String,
    /// Rows of the group.
    pub rows: u32,
    /// Cause and remedy.
    pub reason: String,
    /// Error code.
    pub code: Code,
    /// Morsel with the first row of unusable values.
    pub morsel: u64,
}

/// Whole groups, ready for training.
#[derive(Debug, Clone)]
pub struct WorkUnit<M = HeapUnitMemory> {
    /// One row per group: `file` when groups are per file, then the keys.
    pub keys: RecordBatch,
    /// Position of each group.
    pub groups: Vec<UnitGroup>,
    /// Dimensions of the memory.
    pub shape: UnitShape,
    /// Features and target.
    pub memory: M,
    /// Groups that are left out because of unusable values.
    pub failed: Vec<FailedGroup>,
    /// Number of groups that are left out because they have too few rows.
    pub skipped: usize,
}

/// Dimensions of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitShape {
    /// Number of groups.
    pub groups: usize,
    /// Number of features, plus one for the target.
    pub columns: usize,
    /// Rows of all groups.
    pub rows: usize,
    /// Test rows of all groups.
    pub test_rows: usize,
}

impl UnitShape {
    /// Returns the distance between the starts of two columns, in numbers: a multiple of 64 bytes.
    pub fn stride(&self) -> usize {
        self.rows.next_multiple_of(8)
    }

    /// Returns the size of all columns, in numbers.
    pub fn numbers(&self) -> usize {
        self.columns * self.stride()
    }
}

/// Memory for the numbers of a unit, provided by the caller.
pub trait UnitMemory {
    /// Returns the buffer of the columns, of at least [`UnitShape::numbers`] numbers, and the buffer of the test
    /// targets, of at least [`UnitShape::test_rows`] numbers. Both are overwritten completely.
    ///
    /// The columns are the features and then the target, [`UnitShape::stride`] numbers apart, with zeros behind the
    /// rows. In test rows the target is NaN; its values are in the second buffer, group after group.
    fn buffers(&mut self) -> (&mut [f64], &mut [f64]);
}

/// Unit memory on the heap of this process.
#[derive(Debug, Clone)]
pub struct HeapUnitMemory {
    numbers: Vec<f64>,
    test_targets: Vec<f64>,
}

impl HeapUnitMemory {
    /// Allocates memory for a unit of `shape`.
    pub fn new(shape: &UnitShape) -> HeapUnitMemory {
        HeapUnitMemory { numbers: vec![0.0; shape.numbers()], test_targets: vec![0.0; shape.test_rows] }
    }
}

impl UnitMemory for HeapUnitMemory {
    fn buffers(&mut self) -> (&mut [f64], &mut [f64]) {
        (&mut self.numbers, &mut self.test_targets)
    }
}

impl<M> WorkUnit<M> {
    /// Splits the unit from its memory.
    pub fn split(self) -> (WorkUnit<()>, M) {
        let WorkUnit { keys, groups, shape, memory, failed, skipped } = self;
        (WorkUnit { keys, groups, shape, memory: (), failed, skipped }, memory)
    }
}

impl WorkUnit {
    /// Returns column `index`: a feature, or the target at the end.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    pub fn column(&self, index: usize) -> &[f64] {
        &self.memory.numbers[index * self.shape.stride()..][..self.shape.rows]
    }

    /// Returns the targets of the test rows, group after group.
    pub fn test_targets(&self) -> &[f64] {
        &self.memory.test_targets
    }
}

/// Returns the number of test rows in a group of `rows` rows.
fn test_rows(rows: u32, share: f64) -> u32 {
    if rows < 2 || share <= 0.0 {
        return 0;
    }
    // 0.07 * 100 is 7.000000000000001, but means 7.
    let exact = share * f64::from(rows);
    let rounded = (exact - exact * 1e-12).ceil() as u32;
    rounded.clamp(1, rows - 1)
}

/// Copies the rows of a partition to their final positions, in memory that `reserve` provides for each unit.
pub(super) fn build_units<M: UnitMemory, E: From<DatasetError>>(
    groups: Groups,
    slices: Vec<LoadedSlice>,
    shared: &RowStore,
    key_is_null: bool,
    reserve: impl FnMut(&UnitShape) -> Result<M, E>,
) -> Result<Vec<WorkUnit<M>>, E> {
    let order = groups.sorted();
    let unusable = count_unusable(&groups, &slices, shared);
    let (mut kept, mut failed, mut skipped) = (Vec::with_capacity(order.len()), Vec::new(), 0);
    for id in order {
        if groups.rows[id as usize] < shared.grouping.min_rows {
            skipped += 1;
        } else if unusable.contains_key(&id) {
            failed.push(id);
        } else {
            kept.push(id);
        }
    }
    let mut failed = describe_failed(&failed, &groups, &unusable, shared, key_is_null)?;
    let keys = key_batch(&kept, &groups, shared, key_is_null)?;
    let placed = RowPlacement::new(&kept, &groups, seeds(&keys, shared)?, shared)?;
    let mut memory = placed.units.iter().map(|unit| &unit.shape).map(reserve).collect::<Result<Vec<M>, E>>()?;
    let RowPlacement { units, cursors, discarded } = placed;
    let positions = positions(groups.ids, cursors, discarded);
    let mut left_out = vec![0.0; shared.columns.names.len()];
    fill(&positions, slices, UnitBuffers::new(&units, discarded, &mut memory, &mut left_out), shared);
    units.iter().zip(&mut memory).for_each(|(unit, memory)| finish(unit, memory));
    let mut first = 0;
    let unit = |(unit, memory): (PlannedUnit, M)| {
        let count = unit.groups.len();
        let keys = keys.slice(first, count);
        first += count;
        let (failed, skipped) = (std::mem::take(&mut failed), std::mem::take(&mut skipped));
        WorkUnit { keys, groups: unit.groups, shape: unit.shape, memory, failed, skipped }
    };
    Ok(units.into_iter().zip(memory).map(unit).collect())
}

/// Counts of a group's non-finite values by column, and the morsel of the first one.
struct UnusableGroup {
    counts: Vec<UnusableCounts>,
    morsel: u64,
}

/// Finds the groups with non-finite values.
fn count_unusable(groups: &Groups, slices: &[LoadedSlice], shared: &RowStore) -> HashMap<u32, UnusableGroup> {
    let mut found: HashMap<u32, UnusableGroup> = HashMap::new();
    let (row_cells, key_cells) = (shared.columns.row_cells(), shared.columns.key_cells());
    let mut first = 0;
    for slice in slices {
        // Narrow rows are finite.
        if !slice.finite && slice.layout == RowLayout::Wide {
            for (row, id) in cells::<u64>(&slice.cells).chunks_exact(row_cells).zip(&groups.ids[first..]) {
                let values = &row[key_cells..];
                if values.iter().any(|bits| !f64::from_bits(*bits).is_finite()) {
                    let (counts, morsel) = (vec![UnusableCounts::default(); values.len()], slice.sequence);
                    let unusable_group = found.entry(*id).or_insert(UnusableGroup { counts, morsel });
                    unusable_group.counts.iter_mut().zip(values).for_each(|(count, bits)| count.count(*bits));
                }
            }
        }
        first += slice.rows;
    }
    found
}

fn describe_failed(
    failed: &[u32],
    groups: &Groups,
    unusable: &HashMap<u32, UnusableGroup>,
    shared: &RowStore,
    key_is_null: bool,
) -> Result<Vec<FailedGroup>, DatasetError> {
    if failed.is_empty() {
        return Ok(Vec::new());
    }
    let keys = key_batch(failed, groups, shared, key_is_null)?;
    let describe = |(row, id): (usize, &u32)| {
        let UnusableGroup { counts, morsel } = &unusable[id];
        let columns = counts.iter().zip(&shared.columns.names).filter(|(count, _)| count.any());
        let problems = columns.map(|(count, name)| count.describe(name)).collect::<Vec<_>>().join("; ");
        FailedGroup {
            group: describe_key(&keys, row),
            rows: groups.rows[*id as usize],
            reason: format!("{problems}: fill them in, or filter them out, in a transform"),
            code: Code::Values,
            morsel: *morsel,
        }
    };
    Ok(failed.iter().enumerate().map(describe).collect())
}

/// Returns the keys of the groups `ids`, one row each.
fn key_batch(ids: &[u32], groups: &Groups, shared: &RowStore, is_null: bool) -> Result<RecordBatch, DatasetError> {
    let mut columns: Vec<ArrayRef> = Vec::new();
    if shared.grouping.per_file {
        let names = ids.iter().map(|id| &shared.files[groups.files[*id as usize] as usize]);
        columns.push(Arc::new(StringArray::from_iter_values(names)));
    }
    match (&shared.columns.kind, &groups.keys) {
        (KeyKind::Word(data_type), _) if is_null => columns.push(decode_words(&vec![None; ids.len()], data_type)?),
        (KeyKind::Word(data_type), GroupKeys::Words(words)) => {
            let words: Vec<_> = ids.iter().map(|id| Some(words[*id as usize])).collect();
            columns.push(decode_words(&words, data_type)?);
        }
        (KeyKind::Bytes(types), GroupKeys::Bytes { .. }) => {
            let converter = converter(types)?;
            let parser = converter.parser();
            let rows = ids.iter().map(|id| parser.parse(groups.bytes(*id)));
            columns.extend(converter.convert_rows(rows).map_err(DatasetError::internal)?);
        }
        _ => {}
    }
    batch_of(&shared.columns.key_schema, columns, ids.len())
}

fn batch_of(schema: &Arc<Schema>, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, DatasetError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(DatasetError::internal)
}

/// Derives the seed of each group from the job's seed and the group's key.
fn seeds(keys: &RecordBatch, shared: &RowStore) -> Result<Vec<Seed>, DatasetError> {
    let seed = Seed::new(shared.grouping.seed);
    let per_file = usize::from(shared.grouping.per_file);
    let columns = keys.columns()[per_file..].iter().map(CanonicalColumn::new).collect::<Result<Vec<_>, _>>()?;
    let files = keys.columns().first().filter(|_| per_file == 1).and_then(|c| c.as_any().downcast_ref::<StringArray>());
    let mut bytes = Vec::new();
    let seed_of = |row| {
        bytes.clear();
        if let Some(files) = files {
            write_file(files.value(row), &mut bytes);
        }
        columns.iter().for_each(|column| column.write(row, &mut bytes));
        seed.with(&bytes)
    };
    Ok((0..keys.num_rows()).map(seed_of).collect())
}

/// Unit whose rows have positions, but no memory yet.
struct PlannedUnit {
    /// Position of the unit's first row, a multiple of [`PAGE_ROWS`].
    first: u32,
    groups: Vec<UnitGroup>,
    shape: UnitShape,
}

/// Units start at multiples of this many positions, so that a short table maps a position to its unit.
const PAGE_ROWS: u32 = 512;

/// Positions of all rows.
struct RowPlacement {
    units: Vec<PlannedUnit>,
    /// Cursor of each group, by group number.
    cursors: Vec<Cursor>,
    /// Position of discarded rows, after all others.
    discarded: u32,
}

/// Next positions of a group's rows.
#[derive(Clone, Copy)]
struct Cursor {
    split: Split,
    /// Positions of the next training row and of the next test row. In a discarded group both are after all others.
    next: [u32; 2],
}

impl Cursor {
    /// Returns the position of the next row.
    #[inline]
    fn position(&mut self, discarded: u32) -> u32 {
        let is_test = self.split.next() == Some(true);
        let next = &mut self.next[usize::from(is_test)];
        let position = discarded.min(*next);
        *next = position + 1;
        position
    }
}

/// Returns the position of each row, given its group.
fn positions(mut ids: Vec<u32>, mut cursors: Vec<Cursor>, discarded: u32) -> Vec<u32> {
    ids.iter_mut().for_each(|id| *id = cursors[*id as usize].position(discarded));
    ids
}

impl RowPlacement {
    fn new(kept: &[u32], all: &Groups, seeds: Vec<Seed>, shared: &RowStore) -> Result<RowPlacement, DatasetError> {
        let (columns, unit_rows) = (shared.columns.names.len(), shared.unit_rows());
        let left_out = Cursor { split: Split::new(Seed::new(0), 0, 0), next: [u32::MAX; 2] };
        let mut cursors = vec![left_out; all.rows.len()];
        let shape = UnitShape { groups: 0, columns, rows: 0, test_rows: 0 };
        let planned = |first| PlannedUnit { first, groups: Vec::new(), shape };
        // The first unit reports the failed and skipped groups, so at least one unit exists.
        let mut units = vec![planned(0)];
        for (id, seed) in kept.iter().zip(seeds) {
            let rows = all.rows[*id as usize];
            let last = &units[units.len() - 1];
            if last.shape.rows > 0 && last.shape.rows + rows as usize > unit_rows {
                units.push(planned(last.end()?));
            }
            let at = units.len() - 1;
            let unit = &mut units[at];
            let test_rows = test_rows(rows, shared.grouping.test);
            let (first_row, train_rows) = (unit.shape.rows as u32, rows - test_rows);
            unit.groups.push(UnitGroup { first_row, train_rows, test_rows, seed: seed.value() });
            unit.shape.groups += 1;
            unit.shape.rows += rows as usize;
            unit.shape.test_rows += test_rows as usize;
            unit.end()?;
            let first = unit.first + first_row;
            let split = Split::new(seed, rows, test_rows);
            cursors[*id as usize] = Cursor { split, next: [first, first + train_rows] };
        }
        let discarded = units[units.len() - 1].end()?;
        Ok(RowPlacement { units, cursors, discarded })
    }
}

impl PlannedUnit {
    /// Returns the first position after this unit at which another can start.
    fn end(&self) -> Result<u32, DatasetError> {
        let end = self.first as usize + self.shape.rows.next_multiple_of(PAGE_ROWS as usize);
        u32::try_from(end).ok().filter(|end| end.checked_add(PAGE_ROWS).is_some()).ok_or_else(|| too_many_rows(end))
    }
}

/// Memory of the units while rows are copied, indexed by position.
struct UnitBuffers<'a> {
    buffers: Vec<UnitBuffer<'a>>,
    /// Buffer of each page of positions.
    buffer_of_page: Vec<u32>,
}

struct UnitBuffer<'a> {
    numbers: &'a mut [f64],
    first: usize,
    stride: usize,
}

impl<'a> UnitBuffers<'a> {
    /// Creates a buffer for each unit, and one for discarded rows.
    fn new<M: UnitMemory>(
        units: &[PlannedUnit],
        discarded: u32,
        memory: &'a mut [M],
        left_out: &'a mut [f64],
    ) -> UnitBuffers<'a> {
        let mut buffers = Vec::with_capacity(units.len() + 1);
        let mut buffer_of_page = Vec::new();
        let ends = units.iter().skip(1).map(|unit| unit.first).chain([discarded]);
        for ((unit, end), memory) in units.iter().zip(ends).zip(memory) {
            buffer_of_page.resize((end / PAGE_ROWS) as usize, buffers.len() as u32);
            buffers.push(UnitBuffer {
                numbers: memory.buffers().0,
                first: unit.first as usize,
                stride: unit.shape.stride(),
            });
        }
        buffer_of_page.push(buffers.len() as u32);
        buffers.push(UnitBuffer { numbers: left_out, first: discarded as usize, stride: 1 });
        UnitBuffers { buffers, buffer_of_page }
    }

    /// Returns the numbers of the row's unit, the index of the row's first column, and the distance to the next column.
    #[inline]
    fn at(&mut self, position: u32) -> (&mut [f64], usize, usize) {
        let buffer = &mut self.buffers[self.buffer_of_page[(position / PAGE_ROWS) as usize] as usize];
        (buffer.numbers, position as usize - buffer.first, buffer.stride)
    }
}

/// Copies features and targets of all rows to their positions.
fn fill(positions: &[u32], slices: Vec<LoadedSlice>, mut buffers: UnitBuffers<'_>, shared: &RowStore) {
    let (row_cells, key_cells) = (shared.columns.row_cells(), shared.columns.key_cells());
    let mut unpacked = vec![[0.0; UNPACKED_ROWS]; FIELDS_MAX];
    let mut first = 0;
    for slice in slices {
        let to = &positions[first..first + slice.rows];
        first += slice.rows;
        match slice.layout {
            RowLayout::Wide => fill_piece(&cells::<u64>(&slice.cells), to, row_cells, key_cells, &mut buffers),
            RowLayout::Narrow { .. } => fill_piece(&cells::<u32>(&slice.cells), to, row_cells, key_cells, &mut buffers),
            RowLayout::Packed(packing) => {
                let fields = &packing.fields()[key_cells..];
                if packing.row_bytes() == size_of::<u32>() {
                    fill_packed(&cells::<u32>(&slice.cells), to, fields, &mut unpacked, &mut buffers);
                } else {
                    fill_packed(&cells::<u64>(&slice.cells), to, fields, &mut unpacked, &mut buffers);
                }
            }
        }
    }
}

fn fill_piece<C: Cell>(cells: &[C], to: &[u32], row_cells: usize, key_cells: usize, buffers: &mut UnitBuffers<'_>) {
    match row_cells - key_cells {
        2 => fill_rows::<2, C>(cells, to, row_cells, key_cells, buffers),
        3 => fill_rows::<3, C>(cells, to, row_cells, key_cells, buffers),
        4 => fill_rows::<4, C>(cells, to, row_cells, key_cells, buffers),
        5 => fill_rows::<5, C>(cells, to, row_cells, key_cells, buffers),
        columns => {
            for column in 0..columns {
                let values = cells.iter().skip(key_cells + column).step_by(row_cells);
                for (to, value) in to.iter().zip(values) {
                    let (numbers, at, stride) = buffers.at(*to);
                    numbers[at + column * stride] = value.number();
                }
            }
        }
    }
}

/// Copies all columns in one pass over the rows: the common shapes, unrolled.
fn fill_rows<const N: usize, C: Cell>(
    cells: &[C],
    to: &[u32],
    row_cells: usize,
    key_cells: usize,
    buffers: &mut UnitBuffers<'_>,
) {
    for (row, to) in cells.chunks_exact(row_cells).zip(to) {
        let values = &row[key_cells..key_cells + N];
        let (numbers, at, stride) = buffers.at(*to);
        for i in 0..N {
            numbers[at + i * stride] = values[i].number();
        }
    }
}

/// Rows that are unpacked at a time.
const UNPACKED_ROWS: usize = 256;

/// Unpacks rows into `unpacked`, which has space for all fields, and copies them to their positions.
fn fill_packed<R: PackedRow>(
    rows: &[R],
    to: &[u32],
    fields: &[PackedField],
    unpacked: &mut [[f64; UNPACKED_ROWS]],
    buffers: &mut UnitBuffers<'_>,
) {
    for (rows, to) in rows.chunks(UNPACKED_ROWS).zip(to.chunks(UNPACKED_ROWS)) {
        fields.iter().zip(&mut *unpacked).for_each(|(field, numbers)| field.numbers(rows, numbers));
        match &unpacked[..fields.len()] {
            [a, b] => fill_columns([a, b], to, 0, buffers),
            [a, b, c] => fill_columns([a, b, c], to, 0, buffers),
            [a, b, c, d] => fill_columns([a, b, c, d], to, 0, buffers),
            columns => {
                columns.iter().enumerate().for_each(|(first, column)| fill_columns([column], to, first, buffers));
            }
        }
    }
}

/// Copies the columns from `first` on in one pass over the rows.
fn fill_columns<const N: usize>(
    columns: [&[f64; UNPACKED_ROWS]; N],
    to: &[u32],
    first: usize,
    buffers: &mut UnitBuffers<'_>,
) {
    let columns = columns.map(|column| &column[..to.len()]);
    for (row, to) in to.iter().enumerate() {
        let (numbers, at, stride) = buffers.at(*to);
        for i in 0..N {
            numbers[at + (first + i) * stride] = columns[i][row];
        }
    }
}

/// Moves the targets of test rows to their own buffer, and zeroes the gaps between columns.
fn finish(unit: &PlannedUnit, memory: &mut impl UnitMemory) {
    let (numbers, test_targets) = memory.buffers();
    let (rows, stride) = (unit.shape.rows, unit.shape.stride());
    if stride == 0 {
        return;
    }
    let mut columns = numbers[..unit.shape.numbers()].chunks_exact_mut(stride);
    let Some(target) = columns.next_back() else { return };
    columns.for_each(|column| column[rows..].fill(0.0));
    target[rows..].fill(0.0);
    let mut hidden = 0;
    for group in &unit.groups {
        let tests = &mut target[(group.first_row + group.train_rows) as usize..][..group.test_rows as usize];
        test_targets[hidden..hidden + tests.len()].copy_from_slice(tests);
        tests.fill(f64::NAN);
        hidden += tests.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_rows_are_rounded_up_and_leave_some() {
        for (rows, share, expected) in [
            (0, 0.25, 0),
            (1, 0.25, 0),
            (2, 0.0, 0),
            (2, 0.01, 1),
            (2, 0.99, 1),
            (10, 0.25, 3),
            (100, 0.07, 7),
            (10, 0.1, 1),
            (4, 0.25, 1),
            (1_000_000, 0.3, 300_000),
            (u32::MAX, 0.5, 1 << 31),
        ] {
            assert_eq!(test_rows(rows, share), expected, "{share} of {rows}");
        }
    }
}
