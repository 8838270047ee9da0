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
pub const NAMES: [&str; 17] = [
    "answer",
    "batch",
    "blocks",
    "component",
    "dense",
    "door",
    "events",
    "file",
    "gpu",
    "job",
    "message",
    "metadata",
    "peer",
    "request",
    "ring",
    "text",
    "token",
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
        "door" => sandbar_node::fuzz_tenant_request(bytes),
        "events" => events::events(bytes),
        "file" => file(bytes),
        "gpu" => dense::gpu(bytes),
        "job" => job(bytes),
        "message" => programs::message(bytes),
        "metadata" => sandbar_node::fuzz_model_metadata(bytes),
        "peer" => peers::peer(bytes),
        "request" => programs::request(bytes),
        "text" => text(bytes),
        "ring" => programs::ring(bytes),
        "token" => sandbar_node::fuzz_join_token(bytes),
        _ => panic!("there is no boundary `{name}`"),
    }
}

/// Message of the last panic. Caught panics are no crash: some file readers panic and are caught.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Prepares a libFuzzer run: writes the seeds of a boundary into the first corpus folder on the command line, which libFuzzer
/// reads next.
///
/// # Panics
/// Panics if the seeds can't be written.
pub fn prepare(name: &str) {
    // Replaces libFuzzer's hook, which ends the process at caught panics too.
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

/// Reads a guest's output batch: the length of the header as two bytes, the header, the body.
///
/// # Panics
/// Panics if the host accepts an invalid batch, or if a batch differs after a round trip through the encoding.
fn batch(bytes: &[u8]) -> bool {
    let Some((header, body)) = split_by_length(bytes) else { return false };
    let Ok(batch) = read_batch(header, body) else { return false };
    check(&batch);
    // The reader accepts some types that the writer converts or rejects.
    let Ok(encoded) = encode(&batch) else { return true };
    let again = read_batch(&encoded.header, &encoded.body()).expect("an encoded batch is valid");
    assert_eq!(again.num_rows(), batch.num_rows());
    for (again, before) in again.columns().iter().zip(batch.columns()) {
        // Compares floats by their bits, so that NaN equals itself.
        assert!(again.to_data() == before.to_data(), "{before:?} became {again:?}");
    }
    true
}

/// Unpacks a worker's message: its length as two bytes, the message, and the content of its output slot.
///
/// # Panics
/// Panics if the host accepts an invalid batch.
fn answer(bytes: &[u8]) -> bool {
    let Some((message, slot)) = split_by_length(bytes) else { return false };
    let results = sandbar_worker::fuzz_unpack(message, slot);
    let outputs: Vec<_> = results.into_iter().filter_map(|called| called.result.ok()).collect();
    let is_accepted = !outputs.is_empty();
    outputs.into_iter().flat_map(|output| output.product.into_batches()).flatten().for_each(|batch| check(&batch));
    is_accepted
}

/// Groups blocks of rows that a worker has cut: the kind of key as a byte, and the blocks.
///
/// # Panics
/// Panics if a group's rows differ from its declared count.
fn blocks(bytes: &[u8]) -> bool {
    let Some((kind, blocks)) = bytes.split_first() else { return false };
    let (grouping, schema) = grouping(*kind);
    let budget = MemoryBudget { bytes_max: 64 << 20, ..MemoryBudget::default() };
    let grouper =
        Grouper::new(grouping, &schema, vec!["one.csv".to_owned()], budget).expect("the schema has the columns");
    let mut morsel = grouper.morsel(0, 0).expect("file 0 exists");
    if morsel.push_blocks(aligned(blocks)).is_err() {
        return false;
    }
    morsel.finish().expect("the morsel has no further rows");
    let partitions = grouper.finish().expect("all morsels are finished");
    for partition in 0..partitions.len() {
        let allocate = |shape: &UnitShape| Ok::<_, DatasetError>(HeapUnitMemory::new(shape));
        for unit in partitions.units(partition, allocate).into_iter().flatten() {
            assert_eq!((unit.keys.num_rows(), unit.shape.groups), (unit.groups.len(), unit.groups.len()));
            let rows: usize = unit.groups.iter().map(|group| (group.train_rows + group.test_rows) as usize).sum();
            assert_eq!((rows, unit.column(0).len()), (unit.shape.rows, unit.shape.rows));
            check(&unit.keys);
            (0..unit.groups.len()).for_each(|group| _ = describe_key(&unit.keys, group));
        }
    }
    true
}

/// Returns the grouping and the schema of blocks with this kind byte.
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

/// Checks a component that a user submits.
///
/// # Panics
/// Panics if an accepted component has no header, no exports or another size than its description says, or if moving its
/// memory to a separate module changes its imports or exports.
fn component(bytes: &[u8]) -> bool {
    let Ok(shape) = sandbar_sandbox::check_binary(bytes) else { return false };
    assert!(bytes.starts_with(b"\0asm") && !shape.exports.is_empty());
    assert_eq!(shape.bytes, bytes.len() as u64);
    if let Some(rewritten) = sandbar_sandbox::move_memory_first(bytes) {
        let again = sandbar_sandbox::inspect(&rewritten.component).expect("the rewritten component is valid");
        assert_eq!((again.imports, again.exports), (shape.imports, shape.exports));
    }
    true
}

/// Parses a job file, followed by `--set` values, each after a zero byte.
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
    assert_eq!(read().expect("a valid job is valid again"), job);
    true
}

/// Reads a text file: two bytes for its format and its options in the job, and the file. Reads it whole, and again in small
/// ranges.
///
/// # Panics
/// Panics if the two reads give different rows, or if only one of them succeeds.
fn text(bytes: &[u8]) -> bool {
    const EXTENSIONS: [&str; 8] = ["csv", "jsonl", "tsv", "json.zst", "csv.gz", "csv.zst", "csv.bz2", "csv.xz"];
    let [format, options, contents @ ..] = bytes else { return false };
    let extension = EXTENSIONS[usize::from(*format) % EXTENSIONS.len()];
    let option = |shift: u8, values: [Option<&str>; 4]| values[usize::from(options >> shift & 3)].map(str::to_owned);
    let spec = TextSpec {
        delimiter: option(0, [None, Some(";"), Some(" "), None]),
        quote: option(2, [None, Some("'"), Some(""), None]),
        comment: option(4, [None, Some("#"), None, Some("a")]),
        encoding: option(6, [None, Some("utf-16"), Some("latin-1"), None]),
        header: Some(format & 0x80 == 0),
        null_values: (format & 0x40 != 0).then(|| vec![String::new(), "NA".to_owned()]),
        ..TextSpec::default()
    };
    let options = TextOptions::new(&spec).expect("the options are valid");
    let mut file = tempfile::Builder::new().suffix(&format!(".{extension}")).tempfile().expect("a temporary file");
    file.write_all(contents).expect("the file is writable");
    let path = file.path().to_str().expect("the path is UTF-8").to_owned();
    let read = |morsel_bytes| {
        let source = ScanSource { paths: vec![path.clone()], text: options.clone(), ..ScanSource::default() };
        futures::executor::block_on(rows(source, ScanOptions { morsel_bytes, batch_rows: 16 }, false))
    };
    let (whole, ranges) = (read(1 << 20), read(32));
    assert_eq!(whole.is_ok(), ranges.is_ok(), "read in one range and in many: {whole:?} {ranges:?}");
    let (Ok(whole), Ok(ranges)) = (whole, ranges) else { return false };
    assert_eq!(whole, ranges, "rows read in one range and in many");
    true
}

/// Reads an input file: its format as a byte, and the file. Reads it whole, again in small ranges, and again by row groups as
/// workers do.
///
/// # Panics
/// Panics if two successful reads give different rows.
fn file(bytes: &[u8]) -> bool {
    const EXTENSIONS: [&str; 6] = ["parquet", "csv", "tsv", "jsonl", "arrow", "feather"];
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime without IO drivers"));
    let Some((format, contents)) = bytes.split_first() else { return false };
    let extension = EXTENSIONS[usize::from(*format) % EXTENSIONS.len()];
    let mut file = tempfile::Builder::new().suffix(&format!(".{extension}")).tempfile().expect("a temporary file");
    file.write_all(contents).expect("the file is writable");
    let path = file.path().to_str().expect("the path is UTF-8").to_owned();
    let read = |morsel_bytes, by_row_group| {
        let source = ScanSource { paths: vec![path.clone()], ..ScanSource::default() };
        RUNTIME.block_on(rows(source, ScanOptions { morsel_bytes, batch_rows: 64 }, by_row_group))
    };
    let reads = [(1 << 20, false), (64, false), (64, true)].map(|(bytes, by_row_group)| read(bytes, by_row_group));
    let [Ok(whole), Ok(ranges), row_groups] = reads else { return false };
    assert_eq!(whole, ranges, "rows read in one range and in many");
    // A decoder that reads other ranges may find other damage.
    let Ok(row_groups) = row_groups else { return false };
    assert_eq!(whole, row_groups, "rows read by row groups");
    true
}

/// Returns the rows of all files as text. Reads row groups as workers do if `by_row_group` is set and the format has them.
async fn rows(source: ScanSource, options: ScanOptions, by_row_group: bool) -> Result<Vec<String>, DatasetError> {
    let batch_rows = options.batch_rows;
    let scan = Scan::open(source, options).await?;
    let mut rows = Vec::new();
    let mut add = |batch: RecordBatch| {
        check(&batch);
        rows.extend((0..batch.num_rows()).map(|row| format!("{:?}", batch.slice(row, 1).columns())));
    };
    for morsel in 0..scan.morsels().len() {
        let groups = if by_row_group { scan.row_groups(morsel).await } else { None };
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
        column.to_data().validate_full().expect("a valid array");
    }
}

fn read_batch(header: &[u8], body: &[u8]) -> Result<RecordBatch, String> {
    let header = Header::parse(header).map_err(|e| e.to_string())?;
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    read(&header, Arc::new(schema), &aligned(body)).map_err(|e| e.to_string())
}

fn aligned(bytes: &[u8]) -> Buffer {
    let mut copy = MutableBuffer::with_capacity(bytes.len());
    copy.extend_from_slice(bytes);
    copy.into()
}

/// Returns the bytes after a two-byte length, and the rest.
fn split_by_length(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}
