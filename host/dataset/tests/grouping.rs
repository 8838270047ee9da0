//! Grouping returns the same groups however rows arrive, and agrees with a naive implementation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::cast::AsArray as _;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array as _, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int32Array, Int64Array,
    RecordBatch, StringArray, Time64MicrosecondArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow_buffer::{Buffer, NullBuffer};
use sandbar_core::{Code, Seed, Split};
use sandbar_dataset::{
    BlockWriter, DatasetError, FinishedBlock, Grouper, Grouping, HeapUnitMemory, MemoryBudget, UnitMemory, UnitShape,
    WorkUnit, describe_key,
};

/// Way in which rows arrive.
#[derive(Debug, Clone, Copy)]
struct IngestMode {
    threads: usize,
    batch_rows: usize,
    morsel_rows: usize,
    budget_bytes: usize,
    /// Whether rows arrive as encoded blocks, if the keys allow it.
    as_blocks: bool,
}

const PLAIN: IngestMode =
    IngestMode { threads: 1, batch_rows: 65_536, morsel_rows: usize::MAX, budget_bytes: 1 << 30, as_blocks: false };

const MODES: [IngestMode; 7] = [
    IngestMode { threads: 1, batch_rows: 1, morsel_rows: 997, budget_bytes: 1 << 30, as_blocks: false },
    IngestMode { threads: 2, batch_rows: 1_000, morsel_rows: 5_000, budget_bytes: 1 << 30, as_blocks: false },
    IngestMode { threads: 4, batch_rows: 77, morsel_rows: 1_013, budget_bytes: 1 << 16, as_blocks: false },
    IngestMode { threads: 3, batch_rows: 8_192, morsel_rows: 20_011, budget_bytes: 0, as_blocks: false },
    IngestMode { threads: 1, batch_rows: 900, morsel_rows: 5_000, budget_bytes: 1 << 30, as_blocks: true },
    IngestMode { threads: 2, batch_rows: 1_000, morsel_rows: 100_000, budget_bytes: 1 << 30, as_blocks: true },
    IngestMode { threads: 3, batch_rows: 8_192, morsel_rows: 20_011, budget_bytes: 0, as_blocks: true },
];

/// Groups `files`, one batch each. Returns the units of each partition.
fn group(files: &[RecordBatch], grouping: &Grouping, mode: IngestMode) -> Result<Vec<Vec<WorkUnit>>, DatasetError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names = (0..files.len()).map(|i| format!("data/{i}.parquet")).collect();
    let budget = MemoryBudget { bytes_max: mode.budget_bytes, spill_dir: folder.path().to_owned() };
    let grouper = Grouper::new(grouping.clone(), &files[0].schema(), names, budget)?;
    let mut morsels: Vec<(usize, RecordBatch)> = Vec::new();
    for (file, batch) in files.iter().enumerate() {
        let step = mode.morsel_rows.min(batch.num_rows().max(1));
        morsels.extend(
            (0..batch.num_rows()).step_by(step).map(|at| (file, batch.slice(at, step.min(batch.num_rows() - at)))),
        );
    }
    let next = AtomicUsize::new(0);
    let take = || -> Result<(), DatasetError> {
        while let Some((sequence, (file, rows))) = {
            let next = next.fetch_add(1, Ordering::Relaxed);
            morsels.get(next).map(|m| (next, m))
        } {
            let mut into = grouper.morsel(sequence as u64, *file)?;
            let batches = (0..rows.num_rows()).step_by(mode.batch_rows);
            let batches = batches.map(|at| rows.slice(at, mode.batch_rows.min(rows.num_rows() - at)));
            if mode.as_blocks && grouper.accepts_blocks() {
                // Each block buffer has three batches.
                for batches in batches.collect::<Vec<_>>().chunks(3) {
                    let mut all: Vec<u64> = Vec::new();
                    let mut append = |block: FinishedBlock| -> Result<(), DatasetError> {
                        let at = all.len();
                        all.resize(at + block.words(), 0);
                        block.write(&mut all[at..]);
                        Ok(())
                    };
                    let mut blocks = BlockWriter::new(grouping, &rows.schema(), *file as u32)?;
                    batches.iter().try_for_each(|batch| blocks.push(batch, &mut append))?;
                    blocks.flush().map_or(Ok(()), &mut append)?;
                    into.push_blocks(Buffer::from_vec(all))?;
                }
            } else {
                batches.into_iter().try_for_each(|batch| into.push(&batch))?;
            }
            into.finish()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..mode.threads).map(|_| scope.spawn(take)).collect();
        threads.into_iter().try_for_each(|t| t.join().expect("no panic"))
    })?;
    assert_eq!(grouper.usage().1 > 0, mode.budget_bytes < 1 << 20 && !morsels.is_empty(), "{mode:?}");
    let partitions = grouper.finish()?;
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "a spill file has a name");
    (0..partitions.len()).map(|p| partitions.units(p, |shape| Ok(HeapUnitMemory::new(shape)))).collect()
}

/// Returns all values of a unit, floats as bits.
fn fingerprint(unit: &WorkUnit) -> impl PartialEq + std::fmt::Debug + use<> {
    let bits = |numbers: &[f64]| numbers.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let columns: Vec<_> = (0..unit.shape.columns).map(|c| bits(unit.column(c))).collect();
    let tests = bits(unit.test_targets());
    (unit.keys.clone(), unit.groups.clone(), columns, tests, unit.failed.clone(), unit.skipped)
}

/// Rows of a group: features and target.
type Rows = Vec<Vec<f64>>;

fn collect(partitions: &[Vec<WorkUnit>]) -> BTreeMap<String, (Rows, Rows)> {
    let mut groups = BTreeMap::new();
    for unit in partitions.iter().flatten() {
        assert_eq!(unit.keys.num_rows(), unit.groups.len());
        assert_eq!(unit.shape.rows, unit.groups.iter().map(|g| (g.train_rows + g.test_rows) as usize).sum::<usize>());
        let mut tests = unit.test_targets().iter();
        let row = |row: u32| -> Vec<f64> { (0..unit.shape.columns).map(|c| unit.column(c)[row as usize]).collect() };
        let mut expected_first = 0;
        for (index, group) in unit.groups.iter().enumerate() {
            assert_eq!(group.first_row, expected_first, "groups lie side by side");
            let train = (0..group.train_rows).map(|i| row(group.first_row + i)).collect();
            let test = (0..group.test_rows).map(|i| {
                let mut row = row(group.first_row + group.train_rows + i);
                assert!(row.last().is_some_and(|t| t.is_nan()), "targets of test rows are hidden");
                *row.last_mut().expect("a target") = *tests.next().expect("a test target");
                row
            });
            let before = groups.insert(describe_key(&unit.keys, index), (train, test.collect()));
            assert!(before.is_none(), "a group came twice");
            expected_first += group.train_rows + group.test_rows;
        }
        assert!(tests.next().is_none());
    }
    groups
}

/// Naive implementation of grouping.
fn naive(files: &[RecordBatch], grouping: &Grouping, seeds: &BTreeMap<String, u64>) -> BTreeMap<String, (Rows, Rows)> {
    let mut groups: BTreeMap<String, Rows> = BTreeMap::new();
    for (file, batch) in files.iter().enumerate() {
        let column = |name: &String| batch.column_by_name(name).expect("a column");
        let keys = RecordBatch::try_from_iter(grouping.keys.iter().map(|name| (name, column(name).clone())));
        let values: Vec<_> = grouping.features.iter().chain([&grouping.target]).map(column).collect();
        for row in 0..batch.num_rows() {
            let mut name = keys.as_ref().map_or_else(|_| String::new(), |keys| describe_key(keys, row));
            if grouping.per_file {
                let comma = if name.is_empty() { "" } else { ", " };
                name += &format!("{comma}file=data/{file}.parquet");
            }
            let name = if name.is_empty() { "all rows".to_owned() } else { name };
            let values = values.iter().map(|c| c.as_primitive::<Float64Type>().value(row)).collect();
            groups.entry(name).or_default().push(values);
        }
    }
    let split = |(name, rows): (String, Rows)| {
        let exact = (grouping.test * rows.len() as f64).ceil() as u32;
        let expected_tests =
            if rows.len() < 2 || grouping.test == 0.0 { 0 } else { exact.clamp(1, rows.len() as u32 - 1) };
        let (mut train, mut test) = (Rows::new(), Rows::new());
        let seed = Seed::new(seeds.get(&name).copied().unwrap_or_default());
        for (row, is_test) in rows.iter().zip(Split::new(seed, rows.len() as u32, expected_tests)) {
            if is_test { test.push(row.clone()) } else { train.push(row.clone()) }
        }
        (name, (train, test))
    };
    groups.into_iter().filter(|(_, rows)| rows.len() >= grouping.min_rows as usize).map(split).collect()
}

/// Groups `files` in every mode, and compares with the naive implementation.
fn check(label: &str, files: &[RecordBatch], grouping: &Grouping) -> Vec<Vec<WorkUnit>> {
    let plain = group(files, grouping, PLAIN).unwrap_or_else(|e| panic!("{label}: {e}"));
    let expected: Vec<Vec<_>> = plain.iter().map(|p| p.iter().map(fingerprint).collect()).collect();
    for mode in MODES {
        let units = group(files, grouping, mode).unwrap_or_else(|e| panic!("{label}: {e}"));
        let found: Vec<Vec<_>> = units.iter().map(|p| p.iter().map(fingerprint).collect()).collect();
        assert!(expected == found, "{label}: {mode:?} differs");
    }
    let seeds = plain.iter().flatten().flat_map(|unit| {
        unit.groups.iter().enumerate().map(|(i, g)| (describe_key(&unit.keys, i), g.seed)).collect::<Vec<_>>()
    });
    let naive = naive(files, grouping, &seeds.collect());
    let found = collect(&plain);
    assert_eq!(naive.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{label}");
    assert!(naive == found, "{label}: rows of a group differ");
    plain
}

fn random(seed: u64) -> Seed {
    Seed::new(seed ^ 0x7465_7374)
}

/// Returns a batch of `rows` rows: keys as given, features `a` and `b` and target `y`.
fn batch(rows: usize, seed: u64, keys: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let mut random = random(seed);
    let mut column =
        || -> ArrayRef { Arc::new(Float64Array::from_iter_values((0..rows).map(|_| random.next_u64() as f64 / 1e15))) };
    let values = ["a", "b", "y"].map(|name| (name, column()));
    RecordBatch::try_from_iter(keys.into_iter().chain(values)).expect("a batch")
}

/// Returns `rows` numbers below `below`.
fn numbers(rows: usize, below: u32, seed: u64) -> Vec<u32> {
    let mut random = random(seed);
    (0..rows).map(|_| random.below(below)).collect()
}

fn grouping(keys: &[&str]) -> Grouping {
    Grouping {
        keys: keys.iter().map(|k| (*k).to_owned()).collect(),
        features: vec!["a".to_owned(), "b".to_owned()],
        target: "y".to_owned(),
        seed: 7,
        ..Grouping::default()
    }
}

#[test]
fn keys_of_every_type() {
    let seed = 1;
    let rows = 20_000;
    let n = numbers(rows, 300, seed);
    let some = |i: &u32| !i.is_multiple_of(17);
    let floats = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, -1.5, 1e-300];
    let keys: Vec<(&str, ArrayRef)> = vec![
        ("i64", Arc::new(n.iter().map(|i| some(i).then_some(i64::from(*i) - 150)).collect::<Int64Array>())),
        ("i8", Arc::new(n.iter().map(|i| (*i % 256) as u8 as i8).collect::<Int8Array>())),
        ("u64", Arc::new(n.iter().map(|i| u64::MAX - u64::from(*i)).collect::<UInt64Array>())),
        ("bool", Arc::new(n.iter().map(|i| some(i).then_some(i % 2 == 0)).collect::<BooleanArray>())),
        ("date", Arc::new(n.iter().map(|i| some(i).then_some(*i as i32)).collect::<Date32Array>())),
        (
            "time",
            Arc::new(TimestampMicrosecondArray::from_iter_values(n.iter().map(|i| i64::from(*i) * 1_000_000_007))),
        ),
        // One value is a full day, which is out of range for a time.
        ("clock", {
            let steps = n.iter().map(|i| i64::from(*i.min(&288)) * 300_000_000);
            Arc::new(Time64MicrosecondArray::from_iter_values(steps))
        }),
        ("text", Arc::new(n.iter().map(|i| some(i).then(|| "x".repeat(*i as usize % 40))).collect::<StringArray>())),
        ("price", {
            let prices = n.iter().map(|i| some(i).then_some(i128::from(*i))).collect::<Decimal128Array>();
            Arc::new(prices.with_precision_and_scale(10, 2).expect("a price"))
        }),
    ];
    for (name, column) in keys {
        let units = check(name, &[batch(rows, seed, vec![(name, column.clone())])], &grouping(&[name]));
        let types: Vec<_> = units.iter().flatten().map(|u| u.keys.column(0).data_type().clone()).collect();
        assert!(types.iter().all(|t| t == column.data_type()), "{name}: keys keep their type");
    }
    let column: ArrayRef = Arc::new(n.iter().map(|i| floats[*i as usize % floats.len()]).collect::<Float64Array>());
    let units = group(&[batch(rows, seed, vec![("f64", column)])], &grouping(&["f64"]), PLAIN).expect("groups");
    let groups = collect(&units);
    let names: Vec<_> = groups.keys().map(String::as_str).collect();
    assert_eq!(names, ["f64=-1.5", "f64=0.0", "f64=1e-300", "f64=NaN", "f64=inf"], "zeros are one, NaNs are one");
}

#[test]
fn keys_of_several_columns() {
    let (rows, seed) = (20_000, 2);
    let n = numbers(rows, 700, seed);
    let zone: ArrayRef = Arc::new(n.iter().map(|i| (i % 7 != 3).then_some((i % 30) as i32)).collect::<Int32Array>());
    let city: ArrayRef =
        Arc::new(n.iter().map(|i| (i % 5 > 0).then(|| format!("city {}", i % 23))).collect::<StringArray>());
    let files = [batch(rows, seed, vec![("zone", zone), ("city", city)])];
    check("two columns", &files, &grouping(&["zone", "city"]));
    check("the other way round", &files, &grouping(&["city", "zone"]));
    check(
        "per file",
        &[files[0].clone(), files[0].slice(5, 10_000)],
        &Grouping { per_file: true, ..grouping(&["zone", "city"]) },
    );

    let ab: ArrayRef = Arc::new(StringArray::from(vec!["a", "ab", "a", "ab"]));
    let bc: ArrayRef = Arc::new(StringArray::from(vec!["bc", "c", "bc", "c"]));
    let units = group(&[batch(4, seed, vec![("k", ab), ("l", bc)])], &grouping(&["k", "l"]), PLAIN).expect("groups");
    let seeds: Vec<_> = units.iter().flatten().flat_map(|u| &u.groups).map(|g| g.seed).collect();
    assert!(seeds.len() == 2 && seeds[0] != seeds[1], "(a, bc) and (ab, c) are two");
}

#[test]
fn shapes() {
    let seed = 3;
    let key = |rows, below| -> ArrayRef {
        Arc::new(numbers(rows, below, seed).into_iter().map(|i| i as i32).collect::<Int32Array>())
    };
    let keyed = |rows, below| batch(rows, seed, vec![("k", key(rows, below))]);
    let files = [keyed(9_000, 40), keyed(1, 40), keyed(5_000, 40)];
    for (label, files, grouping) in [
        ("no keys", &files[..], grouping(&[])),
        ("no keys, per file", &files[..], Grouping { per_file: true, ..grouping(&[]) }),
        ("per file", &files[..], Grouping { per_file: true, ..grouping(&["k"]) }),
        ("no test rows", &files[..], Grouping { test: 0.0, ..grouping(&["k"]) }),
        ("nearly all test rows", &files[..], Grouping { test: 0.99, ..grouping(&["k"]) }),
        ("small units", &files[..], Grouping { unit_bytes: 1, ..grouping(&["k"]) }),
        ("one feature", &files[..], Grouping { features: vec!["b".to_owned()], ..grouping(&["k"]) }),
        ("a row a group", &[keyed(30_000, u32::MAX)][..], grouping(&["k"])),
        ("too few rows", &[keyed(30_000, 10_000)][..], Grouping { min_rows: 4, ..grouping(&["k"]) }),
    ] {
        check(label, files, &grouping);
    }
    let wide: Vec<(String, ArrayRef)> =
        (0..40).map(|i| (format!("c{i}"), keyed(3_000, 50).column(1 + i % 3).clone())).collect();
    let wide = RecordBatch::try_from_iter([("k".to_owned(), key(3_000, 50))].into_iter().chain(wide)).expect("a batch");
    let features = (1..40).map(|i| format!("c{i}")).collect();
    check("many features", &[wide], &Grouping { features, target: "c0".to_owned(), ..grouping(&["k"]) });
}

/// Blocks of packed rows of four and eight bytes, of narrow rows, and of rows that are wide because of a number or a
/// key.
#[test]
fn rows_of_any_width_are_unchanged() {
    let (rows, seed) = (30_000, 12);
    let n = numbers(rows, 50, seed);
    let whole =
        |add: f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(n.iter().map(|i| f64::from(*i) + add))) };
    let some = |wide: f64| -> ArrayRef {
        let number = |(row, i): (usize, &u32)| if row % 10_000 > 7_000 { wide } else { f64::from(*i) };
        Arc::new(Float64Array::from_iter_values(n.iter().enumerate().map(number)))
    };
    let key = |(row, i): (usize, &u32)| i64::from(*i) + if row / 3_000 == 4 { 1 << 40 } else { 0 };
    let key: Vec<i64> = n.iter().enumerate().map(key).collect();
    let near: ArrayRef = Arc::new(Int64Array::from_iter_values(n.iter().map(|i| i64::from(*i) - 7)));
    let far: ArrayRef = Arc::new(Int64Array::from_iter_values(key.clone()));
    // The value under a null is arbitrary.
    let nulls = NullBuffer::from_iter(key.iter().map(|k| k % 7 > 0));
    let null: ArrayRef = Arc::new(Int64Array::new(key.into(), Some(nulls)));
    for (label, key) in [("near", near), ("far", far), ("null", null)] {
        for (a, b) in [
            (whole(0.0), whole(-3.0)),
            (whole(0.0), some(4_000_000.0)),
            (whole(0.0), whole(0.5)),
            (whole(0.5), whole(16_000_000.0)),
            (whole(0.0), some(0.1)),
            (some(1e300), whole(-0.0)),
        ] {
            let columns = [
                ("k", key.clone()),
                ("a", a),
                ("b", b),
                ("y", whole(1.0)),
                ("c", whole(9.0)),
                ("d", whole(0.0)),
                ("e", whole(2.0)),
            ];
            let file = RecordBatch::try_from_iter(columns).expect("a batch");
            let files = [file.clone(), file.slice(100, 20_000)];
            // Keys and values up to the maximum of packed fields, and one more.
            for features in [&["a", "b"][..], &["a"], &["a", "b", "c", "d"], &["a", "b", "c", "d", "e"]] {
                let per_file = features.len() == 2;
                let features = features.iter().map(|name| (*name).to_owned()).collect();
                check(label, &files, &Grouping { features, per_file, ..grouping(&["k"]) });
            }
        }
    }
}

/// A compromised worker can write anything: its job fails or gets wrong rows, but the node continues.
#[test]
fn damaged_blocks_are_refused_or_grouped() {
    let number = |add: f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values((0..3_000).map(|i| f64::from(i % 50) + add)))
    };
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values((0..3_000).map(|i| i % 40)));
    // Rows packed in four bytes and in eight, narrow rows, and wide rows.
    for (a, b) in [(0.0, 1.0), (0.0, 0.5), (0.5, 0.25), (0.1, 0.0)] {
        let columns = [("k", key.clone()), ("a", number(a)), ("b", number(b)), ("y", number(b))];
        let rows = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut writer = BlockWriter::new(&grouping(&["k"]), &rows.schema(), 0).expect("a writer");
        writer.push(&rows, |_| -> Result<(), DatasetError> { panic!("3,000 rows are no full block") }).expect("rows");
        let block = writer.flush().expect("a block");
        let mut good = vec![0; block.words()];
        block.write(&mut good);
        let values = [0, 1, 2, 4, 5, 6, 32, 33, 256, 256 + 32, 1 << 40, u64::MAX];
        let places = (0..18).chain([good.len() / 2, good.len() - 1]);
        for (place, value) in places.flat_map(|place| values.map(|value| (place, value))) {
            let mut words = good.clone();
            words[place] = value;
            let grouper = Grouper::new(grouping(&["k"]), &rows.schema(), vec!["f".to_owned()], MemoryBudget::default())
                .expect("a grouper");
            let mut morsel = grouper.morsel(0, 0).expect("a morsel");
            let taken = morsel.push_blocks(Buffer::from_vec(words));
            morsel.finish().expect("no rows are left");
            let partitions = grouper.finish().expect("partitions");
            for partition in 0..partitions.len() {
                let units = partitions.units(partition, |shape| Ok::<_, DatasetError>(HeapUnitMemory::new(shape)));
                assert!(taken.is_ok() && units.is_ok(), "{place} {value}");
            }
        }
    }
}

#[test]
fn units_are_cut_at_groups_and_sorted() {
    let n: ArrayRef = Arc::new(Int32Array::from_iter_values((0..100_000).map(|i| i % 5_000 - 100)));
    let files = [batch(100_000, 4, vec![("k", n)])];
    let unit_bytes = 1_500;
    let units = group(&files, &Grouping { unit_bytes, ..grouping(&["k"]) }, PLAIN).expect("groups");
    assert!(units.iter().any(|p| p.len() > 1));
    for partition in &units {
        let keys =
            partition.iter().flat_map(|u| u.keys.column(0).as_primitive::<arrow_array::types::Int32Type>().values());
        assert!(keys.clone().zip(keys.skip(1)).all(|(a, b)| a < b), "groups of a partition are sorted");
        assert!(partition.iter().all(|u| u.shape.rows * 3 * 8 <= unit_bytes));
    }
}

/// Memory with old content.
struct DirtyMemory(Vec<f64>, Vec<f64>);

impl UnitMemory for DirtyMemory {
    fn buffers(&mut self) -> (&mut [f64], &mut [f64]) {
        (&mut self.0, &mut self.1)
    }
}

#[test]
fn all_of_the_memory_is_written() {
    let before = f64::from_bits(0x5ec3_e75e_c3e7_5ec3);
    let n: ArrayRef = Arc::new(Int32Array::from_iter_values((0..10_000).map(|i| i % 777)));
    let rows = batch(10_000, 11, vec![("k", n)]);
    for (unit_bytes, min_rows) in [(1, 1), (5_000, 13), (1 << 20, 1)] {
        let grouping = Grouping { unit_bytes, min_rows, ..grouping(&["k"]) };
        let grouper = Grouper::new(grouping, &rows.schema(), Vec::new(), MemoryBudget::default()).expect("a grouper");
        let mut morsel = grouper.morsel(0, 0).expect("a morsel");
        morsel.push(&rows).and_then(|()| morsel.finish()).expect("rows");
        let partitions = grouper.finish().expect("partitions");
        let used = |shape: &UnitShape| -> Result<DirtyMemory, DatasetError> {
            Ok(DirtyMemory(vec![before; shape.numbers()], vec![before; shape.test_rows]))
        };
        for unit in (0..partitions.len()).flat_map(|p| partitions.units(p, used).expect("units")) {
            let DirtyMemory(numbers, tests) = &unit.memory;
            assert!(numbers.iter().chain(tests).all(|n| n.to_bits() != before.to_bits()));
            for column in numbers.chunks_exact(unit.shape.stride().max(1)) {
                assert!(column[unit.shape.rows..].iter().all(|n| n.to_bits() == 0), "zeros between columns");
            }
        }
    }
}

#[test]
fn neighbouring_partitions_are_one_up_to_a_unit() {
    let n: ArrayRef = Arc::new(Int32Array::from_iter_values((0..10_000).map(|i| i % 777)));
    let rows = batch(10_000, 11, vec![("k", n)]);
    for unit_rows in [1, 100, 3_000, 20_000] {
        let grouping = grouping(&["k"]);
        let grouping = Grouping { unit_bytes: 8 * (grouping.features.len() + 1) * unit_rows, ..grouping };
        let grouper = Grouper::new(grouping, &rows.schema(), Vec::new(), MemoryBudget::default()).expect("a grouper");
        let mut morsel = grouper.morsel(0, 0).expect("a morsel");
        morsel.push(&rows).and_then(|()| morsel.finish()).expect("rows");
        let partitions = grouper.finish().expect("partitions");
        let rows_of: Vec<u64> = (0..partitions.len()).map(|p| partitions.rows_of(p)).collect();
        assert_eq!(rows_of.iter().sum::<u64>(), 10_000);
        let unit_rows = unit_rows as u64;
        assert!(rows_of.windows(2).all(|pair| pair[0] + pair[1] > unit_rows), "{unit_rows}: {rows_of:?}");
        assert!(rows_of.iter().all(|rows| *rows <= unit_rows.max(100)), "{unit_rows}: {rows_of:?}");
    }
}

#[test]
fn skipped_groups_are_counted() {
    let n: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 2, 3, 3, 3]));
    let files = [batch(6, 5, vec![("k", n)])];
    let units = group(&files, &Grouping { min_rows: 3, ..grouping(&["k"]) }, PLAIN).expect("groups");
    assert_eq!(units.iter().flatten().map(|u| u.skipped).sum::<usize>(), 2);
    assert_eq!(collect(&units).into_keys().collect::<Vec<_>>(), ["k=3"]);
}

#[test]
fn groups_with_values_that_are_no_numbers_fail_alone() {
    let key: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4, 1, 2, 3, 4]));
    let a = vec![Some(1.0), None, Some(3.0), Some(4.0), Some(5.0), None, Some(f64::NEG_INFINITY), Some(8.0)];
    let y = vec![Some(1.0), Some(f64::NAN), Some(3.0), Some(4.0), Some(5.0), Some(6.0), Some(7.0), Some(8.0)];
    let one: ArrayRef = Arc::new(Int32Array::from(vec![1; 8]));
    let columns: [(&str, ArrayRef); 4] =
        [("k", key), ("a", Arc::new(Float64Array::from(a))), ("b", one), ("y", Arc::new(Float64Array::from(y)))];
    let files = [RecordBatch::try_from_iter(columns).expect("a batch")];
    let units = group(&files, &Grouping { per_file: true, ..grouping(&["k"]) }, PLAIN).expect("groups");
    let mut failed: Vec<_> = units.iter().flatten().flat_map(|u| &u.failed).collect();
    failed.sort_by(|a, b| a.group.cmp(&b.group));
    let advice = "fill them in, or filter them out, in a transform";
    let reported: Vec<_> = failed.iter().map(|f| (f.group.as_str(), f.reason.clone(), f.rows, f.code)).collect();
    let nulls = format!("2 values of column `a` are null; 1 value of column `y` is NaN: {advice}");
    let infinite = format!("1 value of column `a` is infinite: {advice}");
    assert_eq!(
        reported,
        [("k=2, file=data/0.parquet", nulls, 2, Code::Values), ("k=3, file=data/0.parquet", infinite, 2, Code::Values),]
    );
    let kept = collect(&units);
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["k=1, file=data/0.parquet", "k=4, file=data/0.parquet"]);
}

#[test]
fn seeds_depend_on_the_key_and_not_on_its_width() {
    let seeds = |column: ArrayRef, seed: u64| -> Vec<u64> {
        let files = [batch(column.len(), 6, vec![("k", column)])];
        let units = group(&files, &Grouping { seed, ..grouping(&["k"]) }, PLAIN).expect("groups");
        let mut seeds: Vec<_> = units.iter().flatten().flat_map(|u| &u.groups).map(|g| g.seed).collect();
        seeds.sort_unstable();
        seeds
    };
    let narrow: ArrayRef = Arc::new(Int8Array::from(vec![Some(-3), Some(5), None]));
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![Some(-3), Some(5), None]));
    let other: ArrayRef = Arc::new(Int64Array::from(vec![Some(-3), Some(6), None]));
    assert_eq!(seeds(narrow, 1), seeds(wide.clone(), 1));
    assert_ne!(seeds(wide.clone(), 1), seeds(wide.clone(), 2));
    let (a, b) = (seeds(wide, 1), seeds(other, 1));
    assert_eq!(a.iter().filter(|s| b.contains(s)).count(), 2, "other groups keep their seeds");
}

#[test]
fn a_million_groups() {
    let rows = 2_000_000;
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|i| (i * 7_919) % 1_000_000)));
    let files = [batch(rows as usize, 8, vec![("k", key)])];
    let grouping = grouping(&["k"]);
    let plain = group(&files, &grouping, PLAIN).expect("groups");
    let spilled = group(
        &files,
        &grouping,
        IngestMode { threads: 2, batch_rows: 65_536, morsel_rows: 300_000, budget_bytes: 1 << 19, as_blocks: false },
    );
    let spilled = spilled.expect("groups");
    assert_eq!(plain.iter().flatten().map(|u| u.groups.len()).sum::<usize>(), 1_000_000);
    let same = plain.iter().flatten().zip(spilled.iter().flatten()).all(|(a, b)| fingerprint(a) == fingerprint(b));
    assert!(same && plain.iter().flatten().count() == spilled.iter().flatten().count());
}

#[test]
fn invalid_groupings_are_rejected_by_name() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let list: ArrayRef =
        Arc::new(arrow_array::ListArray::from_iter_primitive::<Float64Type, _, _>([Some([Some(1.0)])]));
    let key: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let files = [batch(1, 9, vec![("k", key.clone()), ("text", text), ("list", list), ("file", key)])];
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    for (grouping, expected) in [
        (grouping(&["K"]), "key `K` is not in the input (did you mean `k`?); its columns are `k`, `text`, `list`"),
        (grouping(&["list"]), "key `list` has type List(Float64), which can't be a key"),
        (grouping(&["file"]), "a key can't be named `file`"),
        (grouping(&["k", "k"]), "key `k` is named twice"),
        (
            Grouping { features: names(&["text"]), ..grouping(&[]) },
            "feature `text` has type Utf8, but must be a number",
        ),
        (Grouping { features: names(&["a", "a"]), ..grouping(&[]) }, "feature `a` is named twice"),
        (Grouping { features: names(&["a", "y"]), ..grouping(&[]) }, "`y` is the target and can't be a feature"),
        (Grouping { features: names(&[]), ..grouping(&[]) }, "no feature"),
        (
            Grouping { target: "list".to_owned(), ..grouping(&[]) },
            "target `list` has type List(Float64), but must be a number",
        ),
        (Grouping { test: 1.0, ..grouping(&[]) }, "test = 1 is not a fraction of rows"),
        (Grouping { test: f64::NAN, ..grouping(&[]) }, "test = NaN is not a fraction of rows"),
    ] {
        match group(&files, &grouping, PLAIN) {
            Err(error) => {
                assert!(error.to_string().starts_with(expected), "{error}\n{expected}");
                assert_eq!(error.code(), Code::Columns);
            }
            Ok(_) => panic!("accepted: {expected}"),
        }
    }
}

#[test]
fn a_spill_folder_that_is_not_there_is_named() {
    let key: ArrayRef = Arc::new(Int32Array::from_iter_values(0..10_000));
    let rows = batch(10_000, 10, vec![("k", key)]);
    let budget = MemoryBudget { bytes_max: 1000, spill_dir: "/nonexistent/spill".into() };
    let grouper = Grouper::new(grouping(&["k"]), &rows.schema(), Vec::new(), budget).expect("a grouper");
    let mut morsel = grouper.morsel(0, 0).expect("a morsel");
    let error = morsel.push(&rows).and_then(|()| morsel.finish()).expect_err("no room");
    assert!(error.to_string().starts_with("can't spill rows to /nonexistent/spill: "), "{error}");
    assert_eq!(error.code(), Code::Host);
}
