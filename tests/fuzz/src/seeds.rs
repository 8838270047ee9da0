//! Valid input for each boundary.

use std::io::Write as _;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, new_empty_array,
};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use sandbar_dataset::{BlockWriter, DatasetError, FinishedBlock};
use sandbar_node::Job;
use serde_json::json;

use crate::{dense, grouping, programs};

/// Returns the seeds of a boundary.
///
/// # Panics
/// Panics if no boundary has this name.
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    match name {
        "answer" => inputs(),
        "batch" => batches().iter().map(batch).collect(),
        "blocks" => (0..16).map(blocks).collect(),
        "component" => components(),
        "dense" => dense::guest_requests(),
        "door" => tenant_requests(),
        "events" | "peer" | "ring" => histories(),
        "file" => files(),
        "gpu" => dense::gpu_responses(),
        "job" => jobs(),
        "message" => programs::messages(),
        "metadata" => model_metadata(),
        "request" => programs::requests(),
        "text" => texts(),
        "token" => tokens(),
        _ => panic!("there is no boundary `{name}`"),
    }
}

/// Returns requests of tenants, in JSON.
fn tenant_requests() -> Vec<Vec<u8>> {
    let component = "07".repeat(32);
    let submit = |arguments: &str| {
        format!(
            r#"{{"submit":{{"key":"k-1","program":"sum.wasm","component":"{component}","component_bytes":8,"task":"main","arguments":{arguments}}}}}"#
        )
    };
    let file = format!(r#""file":"{component}","bytes":9"#);
    let with_file = submit("[[\"n\",\"@a\"]]")
        .replace("}}", &format!(r#","files":[{{"argument":"n","files":[{{"name":"a",{file}}}]}}]}}}}"#));
    let job = r#"{"input":{"paths":["a.csv"],"filter":"x > 1"},"transform":[{"udf":"t#f","params":{"a":[1.5,null]}}],"train":{"features":["x"],"target":"y","test":0.1,"models":[{"udf":"m#linear"}]},"output":{"path":"o.parquet"}}"#;
    let component_of = |name: &str| format!(r#"{{"name":"{name}","found":"/f","component":"{component}","bytes":8}}"#);
    let job_file = format!(
        r#"{{"submit":{{"key":"k-1","program":"j.toml","job_file":{{"job":{job},"inputs":[{{"name":"a.csv",{file}}}],"components":[{},{}]}}}}}}"#,
        component_of("t"),
        component_of("m")
    );
    let requests = [
        with_file,
        job_file,
        r#"{"output":{"job":"4f3a9c"}}"#.to_owned(),
        submit("[]"),
        submit(r#"[["n","3"],["text","\u0001\ud83d\ude00"],["file","@@x"]]"#),
        r#"{"follow":{"job":"4f3a9c","taken":1,"after":2,"stays":true}}"#.to_owned(),
        r#"{"status":{"job":"20260131-235959-123-4f3a9c"}}"#.to_owned(),
        r#"{"stop":{"job":"4f"}}"#.to_owned(),
        r#"{"list":{"limit":3}}"#.to_owned(),
        r#"{"look":{"job":"4f3a9c","question":"summary"}}"#.to_owned(),
        r#"{"look":{"job":"4f3a9c","question":{"tasks":{"limit":9,"state":"failed","name":"add"}}}}"#.to_owned(),
        r#""tenant""#.to_owned(),
        r#"{"create-token":{"role":"submitter","use_once":true,"lifetime_s":60}}"#.to_owned(),
        r#"{"revoke-token":{"token":"07070707070707070707070707070707"}}"#.to_owned(),
        r#""find-issuer""#.to_owned(),
        r#"{"stop-actor":{"actor":"a"}}"#.to_owned(),
        r#"{"usage":{"since_ms":5,"job":null,"by":"tenant"}}"#.to_owned(),
    ];
    requests.into_iter().map(String::into_bytes).collect()
}

/// Returns the bytes of join tokens, without a valid signature: in postcard the id, the cluster, the grant, whether it is
/// for one use, times of issue and expiry, the authority's fingerprint, and the signature.
fn tokens() -> Vec<Vec<u8>> {
    let token = |grant: &[u8], use_once: u8| {
        [&[1; 16][..], b"\x0ecabcdefghijklm", grant, &[use_once, 0x80, 0x01, 0x90, 0x01], &[2; 32], &[3; 64]].concat()
    };
    vec![token(&[0], 0), token(&[0], 1), token(b"\x01\x03ada\x00", 0), token(b"\x01\x03bob\x02", 1)]
}

/// Returns random bytes, which are valid histories.
fn histories() -> Vec<Vec<u8>> {
    let random_bytes = |seed: u64| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut bytes = vec![0; 8 << 10];
        random.fill_bytes(&mut bytes);
        bytes
    };
    (0..16).map(random_bytes).collect()
}

/// Concatenates `first`, after its length as two bytes, and `rest`.
fn join(first: &[u8], rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(first.len()).expect("the message of a seed is short");
    [&length.to_le_bytes(), first, rest].concat()
}

fn batches() -> Vec<RecordBatch> {
    let numbers = Float64Array::from_iter([Some(1.5), None, Some(-0.0), Some(f64::NAN), Some(1e300)]);
    let integers = Int64Array::from_iter([Some(1), Some(i64::MIN), None, Some(4), Some(5)]);
    let texts = StringArray::from_iter([Some("a"), None, Some(""), Some("日本"), Some("long enough")]);
    let flags = BooleanArray::from_iter([Some(true), None, Some(false), Some(true), Some(true)]);
    let times = TimestampMicrosecondArray::from(vec![0, 1, -1, i64::MAX, 1_546_300_800_000_000]);
    let words: DictionaryArray<Int32Type> = ["x", "y", "x", "x", "z"].into_iter().collect();
    let mut lists = ListBuilder::new(StringBuilder::new());
    for length in 0..5 {
        (0..length).for_each(|item| lists.values().append_option((item > 0).then_some("item")));
        lists.append(length % 2 == 0);
    }
    let number: ArrayRef = Arc::new(numbers);
    let field = Field::new("inner", DataType::Float64, true);
    let nested = StructArray::new(vec![field].into(), vec![number.clone()], None);
    let batch =
        |columns: Vec<(&str, ArrayRef)>| RecordBatch::try_from_iter(columns).expect("all columns have the same length");
    vec![
        batch(vec![("n", number), ("i", Arc::new(integers)), ("s", Arc::new(texts))]),
        batch(vec![("b", Arc::new(flags)), ("t", Arc::new(times))]),
        batch(vec![("d", Arc::new(words)), ("l", Arc::new(lists.finish())), ("o", Arc::new(nested))]),
        batch(vec![("none", new_empty_array(&DataType::Int64))]),
    ]
}

fn batch(batch: &RecordBatch) -> Vec<u8> {
    let encoded = sandbar_batch::encode(batch).expect("all column types are supported");
    join(&encoded.header, &encoded.body())
}

/// Returns messages of workers in postcard's encoding.
fn inputs() -> Vec<Vec<u8>> {
    const DONE: u8 = 1;
    const OK: u8 = 0;
    const INLINE: u8 = 0;
    const SLOT: u8 = 1;
    // The slot, one call, its result and its output; bytes of its log and of its memory, and its duration.
    let message = |output: &[u8], log_bytes| [&[DONE, 0, 1, OK], output, &[log_bytes, 3, 4]].concat();
    let lines = b"\x01\x02\x07careful";
    let mut inputs = vec![
        join(&message(&[INLINE, 0], 0), &[]),
        join(&message(&[&[INLINE, lines.len() as u8], &lines[..]].concat(), lines.len() as u8), &[]),
        join(&[DONE, 0, 1, 1, 3, 4, b'o', b'h', b' ', b'!', INLINE, 0, 0, 0, 0], &[]),
    ];
    for batch in batches() {
        let encoded = sandbar_batch::encode(&batch).expect("all column types are supported");
        let (header, body) = (&encoded.header, encoded.body());
        let mut slot = [header.len(), body.len()].map(|length| (length as u64).to_le_bytes()).concat();
        slot.extend_from_slice(header);
        slot.resize(slot.len().next_multiple_of(64), 0);
        slot.extend_from_slice(&body);
        let written = [&slot[..], lines].concat();
        let length = [SLOT, (written.len() % 128) as u8 | 128, (written.len() / 128) as u8];
        inputs.push(join(&message(&length, lines.len() as u8), &written));
    }
    inputs
}

fn blocks(kind: u8) -> Vec<u8> {
    let (grouping, schema) = grouping(kind);
    let mut writer = BlockWriter::new(&grouping, &schema, 0).expect("the keys have supported types");
    let fraction = if kind.is_multiple_of(3) { 0.37 } else { 1.0 };
    let number = |row: i64| if row == 7 && kind.is_multiple_of(5) { f64::NAN } else { row as f64 * fraction };
    let column = |field: &Field| -> ArrayRef {
        let rows = 0..20;
        match field.data_type() {
            DataType::Float64 => Arc::new(Float64Array::from_iter_values(rows.map(number))),
            DataType::Boolean => Arc::new(rows.map(|row| (row > 2).then_some(row % 2 == 0)).collect::<BooleanArray>()),
            other => {
                let integers = rows.map(|row| (row > 2).then_some(row as i32 % 5)).collect::<arrow_array::Int32Array>();
                match other {
                    DataType::Date32 => Arc::new(integers.reinterpret_cast::<arrow_array::types::Date32Type>()),
                    DataType::Int8 => {
                        Arc::new(integers.unary_opt::<_, arrow_array::types::Int8Type>(|n| Some(n as i8)))
                    }
                    _ => Arc::new(integers.unary_opt::<_, arrow_array::types::Int64Type>(|n| Some(i64::from(n)))),
                }
            }
        }
    };
    let columns = schema.fields().iter().map(|field| column(field)).collect();
    let rows = RecordBatch::try_new(schema, columns).expect("all columns have the same length");
    let mut words = Vec::new();
    let mut append = |block: FinishedBlock| -> Result<(), DatasetError> {
        let at = words.len();
        words.resize(at + block.words(), 0);
        block.write(&mut words[at..]);
        Ok(())
    };
    writer.push(&rows, &mut append).expect("the columns match the schema");
    writer.flush().map_or(Ok(()), append).expect("writing to memory succeeds");
    [kind].into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes)).collect()
}

fn components() -> Vec<Vec<u8>> {
    let texts = [
        r#"(component (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#,
        r#"(component
            (import "sandbar:udf/data@0.1.0" (instance (export "read" (func (param "offset" u64)))))
            (core module (memory 1) (data (i32.const 1024) "abcd") (func (export "f")))
            (core module (memory 1) (data (i32.const 5000) "yz"))
            (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#,
        // Modules linked through trampolines, as `cargo build` links them.
        r#"(component
            (import "sandbar:udf/data@0.1.0" (instance $data
                (export "read" (func (param "offset" u64) (param "region" (list u8))))))
            (core module $code
                (import "data" "read" (func (param i64 i32 i32))) (memory (export "memory") 1) (data (i32.const 8) "*"))
            (core module $trampolines
                (type $read (func (param i64 i32 i32)))
                (table (export "$imports") 1 1 funcref)
                (func (export "0") (type $read)
                    (call_indirect (type $read) (local.get 0) (local.get 1) (local.get 2) (i32.const 0))))
            (core module $filler
                (import "" "0" (func $0 (param i64 i32 i32)))
                (import "" "$imports" (table 1 1 funcref))
                (elem (i32.const 0) func $0))
            (core instance $trampolines (instantiate $trampolines))
            (core instance $code (instantiate $code
                (with "data" (instance (export "read" (func $trampolines "0"))))))
            (alias core export $code "memory" (core memory $memory))
            (core func $read (canon lower (func $data "read") (memory $memory)))
            (core instance (instantiate $filler
                (with "" (instance (export "$imports" (table $trampolines "$imports")) (export "0" (func $read))))))
            (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#,
        r#"(component (import "wasi:io/streams@0.2.0" (instance)))"#,
        "(module (memory 1))",
    ];
    texts.map(|text| wat::parse_str(text).expect("the text is valid WebAssembly")).into()
}

fn files() -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> = [
        "\x01a,b,c\n1,2.5,x\n2,,y\n-3,1e9,\"q,\"\"r\"\n",
        "\x01a\n1\n",
        "\x01when,flag\n2019-01-01T00:00:00,true\n2019-01-02 01:02:03,false\n",
        "\x02a\tb\n1\t2\n\t3\n",
        "\x03{\"a\": 1, \"b\": \"x\"}\n{\"a\": 2.5, \"c\": [1, 2]}\n\n{\"b\": null, \"d\": {\"e\": true}}\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    for batch in batches() {
        let schema = batch.schema();
        let mut parquet = vec![0];
        let mut writer =
            ArrowWriter::try_new(&mut parquet, schema.clone(), None).expect("Parquet supports all column types");
        writer.write(&batch).and_then(|()| writer.write(&batch)).expect("writing to memory succeeds");
        writer.close().expect("writing to memory succeeds");
        files.push(parquet);
        files.push(ipc(4, &batch, |to| {
            let mut writer = FileWriter::try_new(to, &schema)?;
            writer.write(&batch)?;
            writer.finish()
        }));
        files.push(ipc(5, &batch, |to| {
            let mut writer = StreamWriter::try_new(to, &schema)?;
            writer.write(&batch)?;
            writer.finish()
        }));
    }
    files
}

fn texts() -> Vec<Vec<u8>> {
    let csv = "zip,x,s\n01234,1,\"a\nb\"\n00501,2.5,NA\n1e400,-0,\"q,\"\"r\"\n9007199254740993,,2019-01-01\n";
    let json = "{\"id\": 18446744073709551615, \"s\": \"a\\u00fc\"}\n{\"id\": 1, \"l\": [{\"a\": 0.5}, null]}\n{}\n";
    let utf16: Vec<u8> = csv.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let zstd = |text: &str| zstd::stream::encode_all(text.as_bytes(), 1).expect("writing to memory succeeds");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(csv.as_bytes()).expect("writing to memory succeeds");
    [
        (0, 0, csv.as_bytes().to_vec()),
        (0x40, 0b0001_0000, format!("# no, \"quote\n{csv}").into_bytes()),
        (0x80, 0b0000_0101, csv.replace(',', ";").replace('"', "'").into_bytes()),
        (0, 0b1000_0000, b"n\xe4me\n\xfc\n".to_vec()),
        (0, 0b0100_0000, utf16),
        (1, 0, json.as_bytes().to_vec()),
        (1, 0, "\u{feff}{\n  \"k\": 1\n}\n{\n  \"k\": 2\n}\n".as_bytes().to_vec()),
        (2, 0, csv.replace(',', "\t").into_bytes()),
        (3, 0, zstd(json)),
        (4, 0, gzip.finish().expect("writing to memory succeeds")),
        (5, 0, zstd(csv)),
    ]
    .map(|(format, options, bytes)| [&[format, options], &bytes[..]].concat())
    .to_vec()
}

fn ipc(
    format: u8,
    batch: &RecordBatch,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), arrow_schema::ArrowError>,
) -> Vec<u8> {
    let mut file = vec![format];
    write(&mut file).unwrap_or_else(|e| panic!("{e}: {}", Schema::clone(&batch.schema())));
    file
}

/// Returns the metadata of model files, in JSON.
fn model_metadata() -> Vec<Vec<u8>> {
    let jobs = jobs().into_iter().filter_map(|job| {
        let text = String::from_utf8(job).expect("a job is text");
        Job::parse(text.split('\0').next().unwrap_or_default(), &[]).ok()
    });
    let origin = |function: &str| {
        let component = "07".repeat(32);
        json!({ "component": component, "function": function, "params": "{\"a\":[1,null]}", "path": "../udfs/models.wasm" })
    };
    let metadata = |job: Job| {
        [
            json!({ "job": job, "trainers": { "linear": origin("linear"), "t": origin("tree") }, "transforms": [origin("clean")] }),
            json!({ "job": job, "trainers": {} }),
        ]
    };
    jobs.take(1).flat_map(metadata).map(|metadata| metadata.to_string().into_bytes()).collect()
}

fn jobs() -> Vec<Vec<u8>> {
    let job = r#"
name = "taxi"
[input]
paths = ["data/**/*.parquet"]
filter = "zone IS NOT NULL"
[[transform]]
udf = "udfs/taxi#clean"
columns = { pickup_at = "tpep_pickup_datetime" }
[train]
group_by = ["zone"]
per_file = true
features = ["x"]
target = "y"
test = 0.25
seed = 201
min_rows = 4
metric = "mae"
models = [ { udf = "udfs/models#linear" }, { udf = "udfs/models#tree", name = "t", params = { splitter = "random" } } ]
[output]
path = "out/models.parquet"
[limits]
memory_bytes_max = 1048576
"#;
    let sets =
        ["", "\0train.test=0.5", "\0train.models.0.params.x=[1, {}]\0input.paths=[\"a\"]", "\0limits.time_ms_max=0"];
    sets.iter().map(|set| format!("{job}{set}").into_bytes()).collect()
}
