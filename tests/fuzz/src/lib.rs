//! Fuzz targets: one function for each boundary of the host at which untrusted bytes arrive.
//!
//! Each function decodes bytes as a guest, a worker, a peer, a file or a user may send them, as the host does. It
//! panics if the host accepts bytes that violate an invariant. [`seeds`] returns valid bytes to start from.
//!
//! `cargo xtask test` damages the seeds at random for some seconds (see `tests/damaged.rs`). `cargo xtask fuzz NAME`
//! runs libFuzzer without a time limit.

mod dense;
mod events;
mod peers;
mod programs;
mod seeds;

use std::io::Write as _;
use std::panic::{catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt as _;
use sandbar_batch::{Header, decode_schema, encode, read};
use sandbar_dataset::{
    DatasetError, Grouper, Grouping, HeapUnitMemory, MemoryBudget, RowGroupReader, Scan, ScanOptions, ScanSource,
    TextOptions, TextSpec, UnitShape, describe_key,
};
use sandbar_node::{Job, Override};
use tokio::runtime::{Builder, Runtime};

pub use seeds::seeds;

/// Names of the boundaries.
pub const NAMES: [&str; 14] = [
    "answer",
    "batch",
    "blocks",
    "component",
    "dense",
    "events",
    "file",
    "gpu",
    "job",
    "message",
    "peer",
    "request",
    "ring",
    "text",
];

/// Runs the target of a boundary, and returns whether the host accepted the bytes.
///
/// # Panics
/// Panics if no boundary has this name, or if an invariant is violated.
pub fn run(name: &str, bytes: &[u8]) -> bool {
    match name {
        "answer" => answer(bytes),
        "batch" => batch(bytes),
        "blocks" => blocks(bytes),
        "component" => component(bytes),
        "dense" => dense::dense(bytes),
        "events" => events::events(bytes),
        "file" => file(bytes),
        "gpu" => dense::gpu(bytes),
        "job" => job(bytes),
        "message" => programs::message(bytes),
        "peer" => peers::peer(bytes),
        "request" => programs::request(bytes),
        "text" => text(bytes),
        "ring" => programs::ring(bytes),
        _ => panic!("there is no boundary `{name}`"),
    }
}

/// Message of the last panic. Caught panics are no crash: some file readers panic and are caught.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Runs before libFuzzer starts: writes the seeds of a boundary into the first corpus folder on the command line, which
/// libFuzzer reads next.
///
/// # Panics
/// Panics if the seeds can't be written.
pub fn begin(name: &str) {
    // libFuzzer's own hook would end the process at caught panics, too.
    std::panic::set_hook(Box::new(|panic| {
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
    let Some(folder) = std::env::args_os().skip(1).map(PathBuf::from).find(|path| path.is_dir()) else { return };
    for (number, seed) in seeds(name).iter().enumerate() {
        let file = folder.join(format!("seed-{number}"));
        std::fs::write(&file, seed).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

/// Runs a target for libFuzzer, and prints the message of an uncaught panic.
///
/// # Panics
/// Panics as [`run`] does.
pub fn fuzz(name: &str, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(|| run(name, bytes)) {
        eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
        resume_unwind(panic);
    }
}

/// A guest's output batch: the length of the header as two bytes, the header, the body.
///
/// # Panics
/// Panics if the host accepts an invalid batch, or if a batch differs after a round trip through the encoding.
fn batch(bytes: &[u8]) -> bool {
    let Some((header, body)) = parted(bytes) else { return false };
    let Ok(batch) = batch_of(header, body) else { return false };
    check(&batch);
    // The reader accepts some types that the writer converts or rejects.
    let Ok(encoded) = encode(&batch) else { return true };
    let again = batch_of(&encoded.header, &encoded.body()).expect("what was written is read");
    assert_eq!(again.num_rows(), batch.num_rows());
    for (again, before) in again.columns().iter().zip(batch.columns()) {
        // Compares floats by their bits, so that NaN equals itself.
        assert!(again.to_data() == before.to_data(), "{before:?} became {again:?}");
    }
    true
}

/// A worker's message: its length as two bytes, the message, and the content of its output slot.
///
/// # Panics
/// Panics if the host accepts an invalid batch.
fn answer(bytes: &[u8]) -> bool {
    let Some((message, slot)) = parted(bytes) else { return false };
    let called = sandbar_worker::fuzz_unpack(message, slot);
    let completed: Vec<_> = called.into_iter().filter_map(|called| called.result.ok()).collect();
    let taken = !completed.is_empty();
    completed
        .into_iter()
        .flat_map(|completed| completed.product.into_batches())
        .flatten()
        .for_each(|batch| check(&batch));
    taken
}

/// Blocks of rows that a worker has cut: the kind of key as a byte, and the blocks.
///
/// # Panics
/// Panics if a group's rows differ from its declared count.
fn blocks(bytes: &[u8]) -> bool {
    let Some((kind, blocks)) = bytes.split_first() else { return false };
    let (grouping, schema) = grouping(*kind);
    let budget = MemoryBudget { bytes_max: 64 << 20, ..MemoryBudget::default() };
    let grouper = Grouper::new(grouping, &schema, vec!["one.csv".to_owned()], budget).expect("the columns are there");
    let mut morsel = grouper.morsel(0, 0).expect("there is one file");
    if morsel.push_blocks(aligned(blocks)).is_err() {
        return false;
    }
    morsel.finish().expect("there are no other rows");
    let partitions = grouper.finish().expect("all morsels are finished");
    for partition in 0..partitions.len() {
        let room = |shape: &UnitShape| Ok::<_, DatasetError>(HeapUnitMemory::new(shape));
        for unit in partitions.units(partition, room).into_iter().flatten() {
            assert_eq!((unit.keys.num_rows(), unit.shape.groups), (unit.groups.len(), unit.groups.len()));
            let rows: usize = unit.groups.iter().map(|group| (group.train_rows + group.test_rows) as usize).sum();
            assert_eq!((rows, unit.column(0).len()), (unit.shape.rows, unit.shape.rows));
            check(&unit.keys);
            (0..unit.groups.len()).for_each(|group| _ = describe_key(&unit.keys, group));
        }
    }
    true
}

/// Returns grouping and schema for blocks with this kind byte.
pub(crate) fn grouping(kind: u8) -> (Grouping, SchemaRef) {
    let key = [
        None,
        Some(DataType::Int64),
        Some(DataType::Float64),
        Some(DataType::Boolean),
        Some(DataType::Date32),
        Some(DataType::Int8),
    ];
    let key = &key[usize::from(kind % 8) % key.len()];
    let mut fields: Vec<_> = ["x", "y"].map(|name| Field::new(name, DataType::Float64, true)).into();
    fields.extend(key.iter().map(|key| Field::new("k", key.clone(), true)));
    let grouping = Grouping {
        keys: key.iter().map(|_| "k".to_owned()).collect(),
        features: vec!["x".to_owned()],
        target: "y".to_owned(),
        per_file: kind & 8 > 0,
        ..Grouping::default()
    };
    (grouping, Arc::new(Schema::new(fields)))
}

/// A component that a user submits.
///
/// # Panics
/// Panics if an accepted component is invalid, if its description understates it, or if moving its memory to a module
/// of its own changes its imports or exports.
fn component(bytes: &[u8]) -> bool {
    let Ok(shape) = sandbar_sandbox::check_binary(bytes) else { return false };
    assert!(bytes.starts_with(b"\0asm") && !shape.exports.is_empty());
    assert_eq!(shape.bytes, bytes.len() as u64);
    if let Some(rewritten) = sandbar_sandbox::move_memory_first(bytes) {
        let again = sandbar_sandbox::inspect(&rewritten.component).expect("it was valid");
        assert_eq!((again.imports, again.exports), (shape.imports, shape.exports));
    }
    true
}

/// A job file, followed by `--set` values, each behind a zero byte.
///
/// # Panics
/// Panics if an accepted job differs when it is parsed a second time.
fn job(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split('\0');
    let (job, overrides) =
        (parts.next().unwrap_or_default(), parts.map(|set| Override::new("--set", set)).collect::<Vec<_>>());
    let read = || Job::parse(job, &overrides).map(|job| format!("{job:?}"));
    let Ok(job) = read() else { return false };
    assert_eq!(read().expect("a job is a job again"), job);
    true
}

/// A text file: two bytes for its format and its options in the job, and the file. Reads it whole, and again in small
/// ranges.
///
/// # Panics
/// Panics if the two reads give different rows, or if only one of them succeeds.
fn text(bytes: &[u8]) -> bool {
    const EXTENSIONS: [&str; 8] = ["csv", "jsonl", "tsv", "json.zst", "csv.gz", "csv.zst", "csv.bz2", "csv.xz"];
    let [format, options, contents @ ..] = bytes else { return false };
    let extension = EXTENSIONS[usize::from(*format) % EXTENSIONS.len()];
    let of = |shift: u8, names: [Option<&str>; 4]| names[usize::from(options >> shift & 3)].map(str::to_owned);
    let spec = TextSpec {
        delimiter: of(0, [None, Some(";"), Some(" "), None]),
        quote: of(2, [None, Some("'"), Some(""), None]),
        comment: of(4, [None, Some("#"), None, Some("a")]),
        encoding: of(6, [None, Some("utf-16"), Some("latin-1"), None]),
        header: Some(format & 0x80 == 0),
        null_values: (format & 0x40 != 0).then(|| vec![String::new(), "NA".to_owned()]),
        ..TextSpec::default()
    };
    let options = TextOptions::new(&spec).expect("options that are right");
    let mut file = tempfile::Builder::new().suffix(&format!(".{extension}")).tempfile().expect("a file can be made");
    file.write_all(contents).expect("a file can be written");
    let path = file.path().to_str().expect("temporary files have plain names").to_owned();
    let all = |morsel_bytes| {
        let source = ScanSource { paths: vec![path.clone()], text: options.clone(), ..ScanSource::default() };
        futures::executor::block_on(rows(source, ScanOptions { morsel_bytes, batch_rows: 16 }, false))
    };
    let (whole, ranges) = (all(1 << 20), all(32));
    assert_eq!(whole.is_ok(), ranges.is_ok(), "in one range and in many: {whole:?} {ranges:?}");
    let (Ok(whole), Ok(ranges)) = (whole, ranges) else { return false };
    assert_eq!(whole, ranges, "in one range and in many");
    true
}

/// An input file: its format as a byte, and the file. Reads it whole, again in small ranges, and again by row groups as
/// workers do.
///
/// # Panics
/// Panics if two successful reads give different rows.
fn file(bytes: &[u8]) -> bool {
    const EXTENSIONS: [&str; 6] = ["parquet", "csv", "tsv", "jsonl", "arrow", "feather"];
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime takes a few bytes"));
    let Some((format, contents)) = bytes.split_first() else { return false };
    let extension = EXTENSIONS[usize::from(*format) % EXTENSIONS.len()];
    let mut file = tempfile::Builder::new().suffix(&format!(".{extension}")).tempfile().expect("a file can be made");
    file.write_all(contents).expect("a file can be written");
    let path = file.path().to_str().expect("temporary files have plain names").to_owned();
    let all = |morsel_bytes, stored| {
        let source = ScanSource { paths: vec![path.clone()], ..ScanSource::default() };
        RUNTIME.block_on(rows(source, ScanOptions { morsel_bytes, batch_rows: 64 }, stored))
    };
    let ways = [(1 << 20, false), (64, false), (64, true)].map(|(bytes, stored)| all(bytes, stored));
    let [Ok(whole), Ok(ranges), stored] = ways else { return false };
    assert_eq!(whole, ranges, "in one range and in many");
    // A decoder that reads other ranges may find other damage.
    let Ok(stored) = stored else { return false };
    assert_eq!(whole, stored, "in row groups");
    true
}

/// Returns the rows of all files as text.
async fn rows(source: ScanSource, options: ScanOptions, stored: bool) -> Result<Vec<String>, DatasetError> {
    let batch_rows = options.batch_rows;
    let scan = Scan::open(source, options).await?;
    let mut rows = Vec::new();
    let mut add = |batch: RecordBatch| {
        check(&batch);
        rows.extend((0..batch.num_rows()).map(|row| format!("{:?}", batch.slice(row, 1).columns())));
    };
    for morsel in 0..scan.morsels().len() {
        let groups = if stored { scan.row_groups(morsel).await } else { None };
        let Some(groups) = groups else {
            let mut batches = scan.read(morsel)?;
            while let Some(batch) = batches.try_next().await? {
                add(batch);
            }
            continue;
        };
        for group in groups {
            for batch in RowGroupReader::new(group.file().clone(), group.description(), batch_rows)? {
                add(batch?);
            }
        }
    }
    Ok(rows)
}

/// Validates a batch, including all its values.
fn check(batch: &RecordBatch) {
    for column in batch.columns() {
        assert_eq!(column.len(), batch.num_rows());
        column.to_data().validate_full().expect("an array is one");
    }
}

fn batch_of(header: &[u8], body: &[u8]) -> Result<RecordBatch, String> {
    let header = Header::parse(header).map_err(|e| e.to_string())?;
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    read(&header, Arc::new(schema), &aligned(body)).map_err(|e| e.to_string())
}

fn aligned(bytes: &[u8]) -> Buffer {
    let mut copy = MutableBuffer::with_capacity(bytes.len());
    copy.extend_from_slice(bytes);
    copy.into()
}

/// Splits off the bytes behind a two-byte length. Returns them and the rest.
fn parted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}
