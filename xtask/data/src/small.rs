//! Many small groups in one Parquet file, for training a model per customer.
//!
//! Rows of group k lie on its own plane, `y = a_k x1 + b_k x2 + c_k`, with noise. The file consists of rounds: each round
//! has one row of every group in a new random order, so that the distance between a group's rows is about the number of
//! groups. Each row is computed from its number, so that memory does not depend on the file's size.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::parquet_file::{BATCH_ROWS, Dictionary, GROUP_ROWS, ParquetFile};
use crate::random::{Shuffle, mix, normal, seed_of, unit};

const SEED: u64 = 0x73_6d_61_6c_6c;

/// Maximum number of rows of a file.
pub const ROWS_MAX: u64 = 1 << 40;

/// Returns the schema: `key`, `x1`, `x2`, `y`.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("x1", DataType::Float64, false),
        Field::new("x2", DataType::Float64, false),
        Field::new("y", DataType::Float64, false),
    ]))
}

/// Returns the plane of a group: `[a, b, c]`, each in -5..5. Tests compare models with it.
pub fn plane(key: u64) -> [f64; 3] {
    let seed = seed_of(&[SEED, key]);
    [1, 2, 3].map(|i| 10.0 * unit(mix(seed ^ i)) - 5.0)
}

/// Writes the Parquet file `path`, completely or not at all: keys 0..`groups`, each with `rows_per_group` rows. Calls
/// `progress` with the number of written rows after each row group.
pub fn write(path: &Path, groups: u64, rows_per_group: u64, progress: &dyn Fn(u64)) -> io::Result<PathBuf> {
    let rows = groups.checked_mul(rows_per_group).filter(|rows| (1..=ROWS_MAX).contains(rows)).ok_or_else(|| {
        let requested = format!("{groups} groups of {rows_per_group} rows");
        io::Error::new(io::ErrorKind::InvalidInput, format!("{requested}: a file has 1 to {ROWS_MAX} rows"))
    })?;
    let mut file = ParquetFile::create(path, schema(), Dictionary::Off)?;
    let mut done = 0;
    while done < rows {
        let count = (rows - done).min(BATCH_ROWS as u64);
        file.write(&batch(done, count, groups)?)?;
        done += count;
        if done.is_multiple_of(GROUP_ROWS as u64) || done == rows {
            progress(done);
        }
    }
    file.finish()?.commit()
}

fn batch(first: u64, count: u64, groups: u64) -> io::Result<RecordBatch> {
    let capacity = count as usize;
    let mut keys = Vec::with_capacity(capacity);
    let [mut x1, mut x2, mut y] = [(); 3].map(|()| Vec::with_capacity(capacity));
    let mut round = first / groups;
    let mut shuffle = order_of(round, groups);
    for row in first..first + count {
        if row / groups != round {
            round = row / groups;
            shuffle = order_of(round, groups);
        }
        let key = shuffle.at(row % groups);
        let sample = sample(key, round);
        keys.push(key as i64);
        x1.push(sample[0]);
        x2.push(sample[1]);
        y.push(sample[2]);
    }
    let [x1, x2, y] = [x1, x2, y].map(|values| Arc::new(Float64Array::from(values)) as ArrayRef);
    RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(keys)), x1, x2, y]).map_err(io::Error::other)
}

fn order_of(round: u64, groups: u64) -> Shuffle {
    Shuffle::new(groups, seed_of(&[SEED, round]))
}

/// Returns `[x1, x2, y]` of a group's row.
fn sample(key: u64, round: u64) -> [f64; 3] {
    let seed = mix(seed_of(&[SEED, key]) ^ mix(round));
    let [a, b, c] = plane(key);
    let [x1, x2] = [1, 2].map(|i| 2.0 * unit(mix(seed ^ i)) - 1.0);
    [x1, x2, a * x1 + b * x2 + c + 0.1 * normal(mix(seed ^ 3))]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::{self, File};

    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Float64Type, Int64Type};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::atomic_file::test_folder::TestFolder;

    fn read(path: &Path) -> Vec<(i64, [f64; 3])> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        assert_eq!(reader.schema().fields(), schema().fields());
        let mut rows = Vec::new();
        for batch in reader.build().unwrap().map(Result::unwrap) {
            let keys = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            let column = |index: usize| batch.column(index).as_primitive::<Float64Type>().values().to_vec();
            let (x1, x2, y) = (column(1), column(2), column(3));
            rows.extend(keys.into_iter().enumerate().map(|(row, key)| (key, [x1[row], x2[row], y[row]])));
        }
        rows
    }

    #[test]
    fn the_same_bytes_twice() {
        let folder = TestFolder::new("small-bytes");
        let files = ["a", "b"].map(|name| write(&folder.join(name), 100, 10, &|_| ()).unwrap());
        assert_eq!(fs::read(&files[0]).unwrap(), fs::read(&files[1]).unwrap());
    }

    #[test]
    fn groups_are_complete_apart_and_planes() {
        let folder = TestFolder::new("small-rows");
        let rows = read(&write(&folder.join("a"), 10_000, 10, &|_| ()).unwrap());
        let mut counts = HashMap::new();
        for (key, [x1, x2, y]) in &rows {
            *counts.entry(*key).or_insert(0) += 1;
            let [a, b, c] = plane(*key as u64);
            assert!((a * x1 + b * x2 + c - y).abs() < 0.4, "{key}");
        }
        assert_eq!(counts.len(), 10_000);
        assert!(counts.iter().all(|(key, count)| (0..10_000).contains(key) && *count == 10));
        assert!(rows.windows(2).all(|pair| pair[0].0 != pair[1].0));
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for (groups, rows) in [(0, 10), (10, 0), (u64::MAX, 2), (ROWS_MAX, 2)] {
            assert!(write(Path::new("/nonexistent/x"), groups, rows, &|_| ()).is_err(), "{groups} {rows}");
        }
    }
}
