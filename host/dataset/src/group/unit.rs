//! The groups of a partition as training takes them: rows side by side, those
//! to train on first.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::Schema;
use sandbar_core::{Code, Seed, split_test};

use super::Shared;
use super::assign::{GroupKeys, Groups, Piece};
use super::columns::Unusable;
use super::keys::{Canonical, KeyKind, converter, decode_words, describe_key, write_file};
use crate::DatasetError;

/// Where a group lies in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitGroup {
    /// Its first row in [`Unit::batch`].
    pub first_row: u32,
    /// Its rows to train on, which come first, in file order.
    pub train_rows: u32,
    /// Its rows to test with, which follow, in file order.
    pub test_rows: u32,
    /// What everything random about the group is to depend on.
    pub seed: u64,
}

/// A group whose values can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedGroup {
    /// The group in words: `zone=7, file=2019-01.parquet`.
    pub group: String,
    /// Its rows.
    pub rows: u32,
    /// What is wrong, and what to do.
    pub reason: String,
    /// The code of that.
    pub code: Code,
}

/// Some groups, ready for training.
#[derive(Debug, Clone)]
pub struct Unit {
    /// A row for each group: `file` when groups are per file, then the keys.
    pub keys: RecordBatch,
    /// Where each group lies.
    pub groups: Vec<UnitGroup>,
    /// Features, then the target, as `Float64` without nulls. In test rows the
    /// target is NaN.
    pub batch: RecordBatch,
    /// What the target was in the test rows, group after group.
    pub test_targets: Vec<f64>,
    /// Groups that are left out because their values can't be used.
    pub failed: Vec<FailedGroup>,
    /// How many groups are left out because they have too few rows.
    pub skipped: usize,
}

/// Rows for testing of a group of `rows` rows.
fn test_rows(rows: u32, share: f64) -> u32 {
    if rows < 2 || share <= 0.0 {
        return 0;
    }
    // 0.07 of 100 is 7.000000000000001, and means 7.
    let exact = share * f64::from(rows);
    let wanted = (exact - exact * 1e-12).ceil() as u32;
    wanted.clamp(1, rows - 1)
}

/// Puts the rows of a partition in place.
pub(super) fn units_of(
    groups: Groups,
    pieces: Vec<Piece>,
    shared: &Shared,
    key_is_null: bool,
) -> Result<Vec<Unit>, DatasetError> {
    let order = groups.sorted();
    let unusable = count_unusable(&groups, &pieces, shared);
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
    let failed = describe_failed(&failed, &groups, &unusable, shared, key_is_null)?;
    let keys = key_batch(&kept, &groups, shared, key_is_null)?;
    let placed = Placed::new(&kept, &groups, seeds(&keys, shared)?, shared.grouping.test);
    let columns = scatter(groups, pieces, &placed, shared);
    cut(keys, placed, columns, shared, failed, skipped)
}

/// For each group with values that are no finite numbers, how many of each
/// column.
fn count_unusable(groups: &Groups, pieces: &[Piece], shared: &Shared) -> HashMap<u32, Vec<Unusable>> {
    let mut found: HashMap<u32, Vec<Unusable>> = HashMap::new();
    let (row_words, key_words) = (shared.columns.row_words(), shared.columns.key_words());
    let mut first = 0;
    for piece in pieces {
        if !piece.finite {
            for (row, id) in piece.words.chunks_exact(row_words).zip(&groups.ids[first..]) {
                let values = &row[key_words..];
                if values.iter().any(|bits| !f64::from_bits(*bits).is_finite()) {
                    let counts = found.entry(*id).or_insert_with(|| vec![Unusable::default(); values.len()]);
                    counts.iter_mut().zip(values).for_each(|(count, bits)| count.count(*bits));
                }
            }
        }
        first += piece.rows;
    }
    found
}

fn describe_failed(
    failed: &[u32],
    groups: &Groups,
    unusable: &HashMap<u32, Vec<Unusable>>,
    shared: &Shared,
    key_is_null: bool,
) -> Result<Vec<FailedGroup>, DatasetError> {
    if failed.is_empty() {
        return Ok(Vec::new());
    }
    let keys = key_batch(failed, groups, shared, key_is_null)?;
    let describe = |(row, id): (usize, &u32)| {
        let columns = unusable[id].iter().zip(&shared.columns.names).filter(|(count, _)| count.any());
        let what = columns.map(|(count, name)| count.describe(name)).collect::<Vec<_>>().join("; ");
        FailedGroup {
            group: describe_key(&keys, row),
            rows: groups.rows[*id as usize],
            reason: format!("{what}: fill them in, or filter them out, in a transform"),
            code: Code::Values,
        }
    };
    Ok(failed.iter().enumerate().map(describe).collect())
}

/// A row for each of the groups `ids`.
fn key_batch(ids: &[u32], groups: &Groups, shared: &Shared, is_null: bool) -> Result<RecordBatch, DatasetError> {
    let mut columns: Vec<ArrayRef> = Vec::new();
    if shared.grouping.per_file {
        let names = ids.iter().map(|id| &shared.files[groups.files[*id as usize] as usize]);
        columns.push(Arc::new(StringArray::from_iter_values(names)));
    }
    match (&shared.columns.kind, &groups.keys) {
        (KeyKind::Word(data_type), GroupKeys::Words(words)) => {
            let words: Vec<_> = ids.iter().map(|id| (!is_null).then(|| words[*id as usize])).collect();
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

/// The seed of each group, from the job's and the group's keys.
fn seeds(keys: &RecordBatch, shared: &Shared) -> Result<Vec<Seed>, DatasetError> {
    let seed = Seed::new(shared.grouping.seed);
    let per_file = usize::from(shared.grouping.per_file);
    let columns = keys.columns()[per_file..].iter().map(Canonical::new).collect::<Result<Vec<_>, _>>()?;
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

/// Where every row goes.
struct Placed {
    groups: Vec<UnitGroup>,
    /// Rows of the groups that are kept.
    rows: usize,
    /// The place of each row, the rows of a group side by side in file order.
    places: Vec<u32>,
    /// For each group by number, where in `places` its rows begin.
    starts: Vec<u32>,
}

impl Placed {
    fn new(kept: &[u32], all: &Groups, seeds: Vec<Seed>, test: f64) -> Placed {
        let total = all.ids.len();
        let mut starts = vec![u32::MAX; all.rows.len()];
        let mut places = Vec::with_capacity(total);
        let mut groups = Vec::with_capacity(kept.len());
        let mut first_row = 0;
        for (id, seed) in kept.iter().zip(seeds) {
            let rows = all.rows[*id as usize];
            let test_rows = test_rows(rows, test);
            let train_rows = rows - test_rows;
            starts[*id as usize] = first_row;
            if test_rows == 0 {
                places.extend(first_row..first_row + rows);
            } else {
                let (mut train, mut test) = (first_row, first_row + train_rows);
                split_test(seed, rows, test_rows, |_, is_test| {
                    places.push(if is_test { test } else { train });
                    test += u32::from(is_test);
                    train += u32::from(!is_test);
                });
            }
            groups.push(UnitGroup { first_row, train_rows, test_rows, seed: seed.value() });
            first_row += rows;
        }
        // Rows of groups that are left out go behind, where nobody looks.
        let mut end = first_row;
        for (start, rows) in starts.iter_mut().zip(&all.rows).filter(|(start, _)| **start == u32::MAX) {
            *start = end;
            end += rows;
        }
        places.extend(first_row..end);
        Placed { groups, rows: first_row as usize, places, starts }
    }
}

/// Features and target of all rows, in their places.
fn scatter(groups: Groups, pieces: Vec<Piece>, placed: &Placed, shared: &Shared) -> Vec<Vec<f64>> {
    let (row_words, key_words) = (shared.columns.row_words(), shared.columns.key_words());
    let mut to = groups.ids;
    let mut next = placed.starts.clone();
    for id in &mut to {
        let next = &mut next[*id as usize];
        *id = placed.places[*next as usize];
        *next += 1;
    }
    let mut columns: Vec<Vec<f64>> = (key_words..row_words).map(|_| vec![0.0; to.len()]).collect();
    let mut first = 0;
    for piece in pieces {
        let to = &to[first..first + piece.rows];
        first += piece.rows;
        match columns.as_mut_slice() {
            [a, b] => scatter_rows(&piece, to, row_words, key_words, [a, b]),
            [a, b, c] => scatter_rows(&piece, to, row_words, key_words, [a, b, c]),
            [a, b, c, d] => scatter_rows(&piece, to, row_words, key_words, [a, b, c, d]),
            [a, b, c, d, e] => scatter_rows(&piece, to, row_words, key_words, [a, b, c, d, e]),
            columns => {
                for (offset, column) in columns.iter_mut().enumerate() {
                    let values = piece.words.iter().skip(key_words + offset).step_by(row_words);
                    to.iter().zip(values).for_each(|(to, bits)| column[*to as usize] = f64::from_bits(*bits));
                }
            }
        }
    }
    columns
}

/// All columns in one pass over the rows: the common shapes, unrolled.
fn scatter_rows<const N: usize>(
    piece: &Piece,
    to: &[u32],
    row_words: usize,
    key_words: usize,
    columns: [&mut Vec<f64>; N],
) {
    for (row, to) in piece.words.chunks_exact(row_words).zip(to) {
        let values = &row[key_words..key_words + N];
        for i in 0..N {
            columns[i][*to as usize] = f64::from_bits(values[i]);
        }
    }
}

/// Cuts the rows at group boundaries into units.
fn cut(
    keys: RecordBatch,
    placed: Placed,
    mut columns: Vec<Vec<f64>>,
    shared: &Shared,
    failed: Vec<FailedGroup>,
    skipped: usize,
) -> Result<Vec<Unit>, DatasetError> {
    let mut test_targets = Vec::new();
    if let Some(target) = columns.last_mut() {
        for group in &placed.groups {
            let first = (group.first_row + group.train_rows) as usize;
            let tests = &mut target[first..first + group.test_rows as usize];
            test_targets.extend_from_slice(tests);
            tests.fill(f64::NAN);
        }
    }
    let row_bytes = columns.len() * 8;
    let arrays: Vec<ArrayRef> = columns
        .into_iter()
        .map(|mut column| {
            column.truncate(placed.rows);
            Arc::new(Float64Array::from(column)) as ArrayRef
        })
        .collect();
    let batch = batch_of(&shared.columns.output, arrays, placed.rows)?;
    let mut units = Vec::new();
    let mut tests = test_targets.into_iter();
    let mut first = 0;
    while first < placed.groups.len() {
        let (mut end, mut rows) = (first, 0);
        while end < placed.groups.len() {
            let group = &placed.groups[end];
            let with = rows + (group.train_rows + group.test_rows) as usize;
            if end > first && with * row_bytes > shared.grouping.unit_bytes {
                break;
            }
            rows = with;
            end += 1;
        }
        let at = placed.groups[first].first_row;
        let moved = |g: &UnitGroup| UnitGroup { first_row: g.first_row - at, ..*g };
        let groups: Vec<UnitGroup> = placed.groups[first..end].iter().map(moved).collect();
        let count = groups.iter().map(|g| g.test_rows as usize).sum();
        units.push(Unit {
            keys: keys.slice(first, end - first),
            groups,
            batch: batch.slice(at as usize, rows),
            test_targets: tests.by_ref().take(count).collect(),
            failed: Vec::new(),
            skipped: 0,
        });
        first = end;
    }
    if units.is_empty() && (!failed.is_empty() || skipped > 0) {
        let (groups, test_targets) = (Vec::new(), Vec::new());
        units.push(Unit { keys, groups, batch, test_targets, failed: Vec::new(), skipped: 0 });
    }
    if let Some(unit) = units.first_mut() {
        (unit.failed, unit.skipped) = (failed, skipped);
    }
    Ok(units)
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
