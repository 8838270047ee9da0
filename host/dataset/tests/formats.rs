//! Random tables: each format must return the values and groups that were written.
//!
//! `SANDBAR_SEED` repeats a table.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array as _, ArrayRef, BooleanArray, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use arrow_select::concat::concat_batches;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::arrow::json::LineDelimitedWriter;
use futures::TryStreamExt as _;
use futures::executor::block_on;
use parquet::arrow::ArrowWriter;
use sandbar_core::Seed;
use sandbar_dataset::{
    Grouper, Grouping, HeapUnitMemory, MemoryBudget, Scan, ScanOptions, ScanSource, TextOptions, TextSpec, describe_key,
};
use sandbar_seeds::{for_each_seed, seed_of_clock, seeds_from};

const ROUNDS: u64 = 40;

/// Text that careless readers take for other types or for delimiters.
const TEXTS: [&str; 30] = [
    "01234",
    "1234",
    "+5",
    "-0",
    "1e400",
    "0.50",
    "true",
    "NaN",
    "inf",
    "null",
    "NULL",
    "2019-02-30",
    "2019-01-01",
    "a,b",
    "a\"b",
    "\"",
    "\"\"",
    "'",
    "a\nb",
    "\r\n",
    "\n",
    " ",
    " x ",
    "\t",
    "日本",
    "é\u{301}",
    "𝄞",
    "\\u0041",
    "#x",
    "\u{feff}y",
];

#[test]
fn tables_are_the_same_in_every_format() {
    for_each_seed(seeds_from(seed_of_clock(), ROUNDS), |seed| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut random = Seed::new(seed);
        let table = table(&mut random);
        let options = ScanOptions {
            batch_rows: 1 + random.below(200) as usize,
            morsel_bytes: u64::from(200 + random.below(20_000)),
        };
        for path in write(folder.path(), &table) {
            // With declared types, and with inferred types.
            let declared = read(&path, &table, types(&table), &options);
            assert_eq!(declared.schema().fields().len(), table.num_columns(), "{path}");
            compare(&path, &table, &declared, true);
            let inferred = read(&path, &table, TextOptions::default(), &options);
            compare(&path, &table, &inferred, false);
            for key in 0..table.num_columns() - 2 {
                assert_eq!(groups(&declared, key), groups(&table, key), "{path}: groups of column {key}");
            }
        }
    });
}

/// Returns random values, some or all of them null.
fn column<T>(random: &mut Seed, rows: usize, mut value: impl FnMut(&mut Seed) -> T) -> Vec<Option<T>> {
    let nulls = [0, 3, 10, 10][random.below(4) as usize];
    (0..rows).map(|_| (random.below(10) >= nulls).then(|| value(random))).collect()
}

/// Returns a table with columns `c0`, `c1`, … of random types and numbers in the last two.
fn table(random: &mut Seed) -> RecordBatch {
    let rows = 1 + random.below(400) as usize;
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for number in 0..1 + random.below(7) {
        let values: ArrayRef = match random.below(7) {
            0 => Arc::new(Int64Array::from(column(random, rows, |random| match random.below(4) {
                0 => [i64::MIN, i64::MAX, 0, -1, 1 << 53, (1 << 53) + 1][random.below(6) as usize],
                _ => i64::from(random.below(20)) - 10,
            }))),
            1 => Arc::new(UInt64Array::from(column(random, rows, |random| match random.below(3) {
                0 => u64::MAX - u64::from(random.below(3)),
                1 => random.next_u64(),
                _ => u64::from(random.below(20)),
            }))),
            2 => Arc::new(Float64Array::from(column(random, rows, |random| match random.below(4) {
                0 => [f64::MIN, f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0, 0.1, 1e22][random.below(7) as usize],
                1 => f64::from_bits(random.next_u64() >> 2),
                _ => f64::from(random.below(40)) / 4.0,
            }))),
            3 => Arc::new(BooleanArray::from(column(random, rows, |random| random.below(2) == 0))),
            4 => Arc::new(Date32Array::from(column(random, rows, |random| random.below(2_000_000) as i32 - 700_000))),
            5 => Arc::new(TimestampMicrosecondArray::from(column(random, rows, |random| {
                let micros = i64::from(random.below(4_000_000_000)) * 50_000_000 - 30_000_000_000_000_000;
                micros + [0, 0, 1_000, 1][random.below(4) as usize]
            }))),
            _ => Arc::new(StringArray::from(column(random, rows, |random| {
                let parts = 1 + random.below(2);
                (0..parts).map(|_| TEXTS[random.below(TEXTS.len() as u32) as usize]).collect::<String>()
            }))),
        };
        let name = ["c", "a b", "ü", "x,y", "\"q\"", "0"][random.below(6) as usize];
        columns.push((format!("{name}{number}"), values));
    }
    for name in ["x", "y"] {
        columns.push((name.to_owned(), Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64)))));
    }
    RecordBatch::try_from_iter(columns).expect("a batch")
}

/// Declares the types of a table as a job does.
fn types(table: &RecordBatch) -> TextOptions {
    let name = |data_type: &DataType| match data_type {
        DataType::Timestamp(..) => "timestamp[us]".to_owned(),
        other => other.to_string().to_lowercase(),
    };
    let types = table.schema().fields().iter().map(|f| (f.name().clone(), name(f.data_type()))).collect();
    TextOptions::new(&TextSpec { types, ..TextSpec::default() }).expect("types")
}

fn write(folder: &Path, table: &RecordBatch) -> Vec<String> {
    let csv = |delimiter: u8| {
        let mut csv = Vec::new();
        let format = "%Y-%m-%dT%H:%M:%S%.6f".to_owned();
        let mut writer = WriterBuilder::new().with_delimiter(delimiter).with_timestamp_format(format).build(&mut csv);
        writer.write(table).expect("written");
        drop(writer);
        csv
    };
    let mut json = LineDelimitedWriter::new(Vec::new());
    json.write(table).and_then(|()| json.finish()).expect("written");
    let json = json.into_inner();
    let mut parquet = ArrowWriter::try_new(Vec::new(), table.schema(), None).expect("a writer");
    parquet.write(table).expect("written");
    let mut arrow = FileWriter::try_new(Vec::new(), table.schema_ref()).expect("a writer");
    arrow.write(table).expect("written");
    let packed = zstd::stream::encode_all(&json[..], 1).expect("packed");
    [
        ("a.csv", csv(b',')),
        ("a.tsv", csv(b'\t')),
        ("a.jsonl", json),
        ("a.json.zst", packed),
        ("a.parquet", parquet.into_inner().expect("a file")),
        ("a.arrow", arrow.into_inner().expect("a file")),
    ]
    .map(|(name, bytes)| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.display().to_string()
    })
    .to_vec()
}

/// Reads the columns of a table from a file.
fn read(path: &str, table: &RecordBatch, text: TextOptions, options: &ScanOptions) -> RecordBatch {
    // JSON omits nulls.
    let names = || table.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    let is_json = path.contains(".json");
    let there = |name: &String| !is_json || table.column_by_name(name).is_some_and(|c| c.null_count() < c.len());
    let text = if names().iter().all(there) { text } else { text.as_hints([]) };
    let source = ScanSource {
        paths: vec![path.to_owned()],
        columns: Some(names().into_iter().filter(there).collect()),
        text,
        ..ScanSource::default()
    };
    let rows = block_on(async {
        let scan = Scan::open(source, options.clone()).await?;
        let mut batches = Vec::new();
        for morsel in 0..scan.morsels().len() {
            batches.extend(scan.read(morsel)?.try_collect::<Vec<_>>().await?);
        }
        Ok::<_, sandbar_dataset::DatasetError>(concat_batches(scan.schema(), &batches).expect("one schema"))
    });
    let rows = rows.unwrap_or_else(|e| panic!("{path}: {e}"));
    let column = |name: String| -> (String, ArrayRef) {
        let absent =
            || arrow_array::new_null_array(table.column_by_name(&name).expect("a column").data_type(), rows.num_rows());
        let column = rows.column_by_name(&name).cloned().unwrap_or_else(absent);
        (name, column)
    };
    RecordBatch::try_from_iter(names().into_iter().map(column)).expect("a batch")
}

/// Checks that a table was read back: with its types, or with types that its values convert to and from.
fn compare(path: &str, table: &RecordBatch, found: &RecordBatch, typed: bool) {
    assert_eq!(found.num_rows(), table.num_rows(), "{path}");
    for (field, (expected, found)) in table.schema().fields().iter().zip(table.columns().iter().zip(found.columns())) {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let context =
            format!("{path}: column {} of {}, found as {}", field.name(), field.data_type(), found.data_type());
        assert!(!typed || found.data_type() == expected.data_type(), "{context}");
        let back = match found.data_type() == expected.data_type() {
            true => found.clone(),
            false => {
                cast_with_options(found, expected.data_type(), &options).unwrap_or_else(|e| panic!("{context}: {e}"))
            }
        };
        for row in 0..table.num_rows() {
            let same = match expected.as_primitive_opt::<Float64Type>() {
                // Bits distinguish 0.0 and -0.0.
                Some(floats) if expected.is_valid(row) && back.is_valid(row) => {
                    floats.value(row).to_bits() == back.as_primitive::<Float64Type>().value(row).to_bits()
                }
                _ => expected.slice(row, 1) == back.slice(row, 1),
            };
            assert!(same, "{context}: row {row} is {:?}, not {:?}", back.slice(row, 1), expected.slice(row, 1));
        }
    }
}

/// Returns the rows of each group.
fn groups(table: &RecordBatch, key: usize) -> BTreeMap<String, u32> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let budget = MemoryBudget { bytes_max: 1 << 30, spill_dir: folder.path().to_owned() };
    let grouping = Grouping {
        keys: vec![table.schema().field(key).name().clone()],
        features: vec!["x".to_owned()],
        target: "y".to_owned(),
        min_rows: 1,
        ..Grouping::default()
    };
    let grouper = Grouper::new(grouping, &table.schema(), vec!["a".to_owned()], budget).expect("a grouper");
    let mut morsel = grouper.morsel(0, 0).expect("a morsel");
    morsel.push(table).and_then(|()| morsel.finish()).expect("rows");
    let partitions = grouper.finish().expect("partitions");
    let mut groups = BTreeMap::new();
    for partition in 0..partitions.len() {
        let units =
            partitions.units(partition, |shape| Ok::<_, sandbar_dataset::DatasetError>(HeapUnitMemory::new(shape)));
        for unit in units.expect("units") {
            for (index, group) in unit.groups.iter().enumerate() {
                groups.insert(describe_key(&unit.keys, index), group.train_rows + group.test_rows);
            }
        }
    }
    groups
}
