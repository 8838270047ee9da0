//! Runs a crate's functions as a host does, without a host: for tests of the functions.
//!
//! Only the sandbox is missing: parameters are parsed, columns are laid out and viewed, results are checked. Use it in
//! the crate's unit tests, not in those under `tests/`: there, the linker drops functions that the test does not name.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow_array::{Float64Array, RecordBatch};
//! use sandbar_guest::prelude::*;
//! use sandbar_guest::testing;
//!
//! #[scalar]
//! fn half(x: f64) -> Option<f64> {
//!     (x > 0.0).then_some(x / 2.0)
//! }
//!
//! let x = Arc::new(Float64Array::from(vec![4.0, -1.0]));
//! let input = RecordBatch::try_from_iter([("x", x as _)]).unwrap();
//! let output = testing::call("half", "{}", &input).unwrap();
//! assert_eq!(*output[0].column(0).as_ref(), Float64Array::from(vec![Some(2.0), None]));
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_batch::{Header, decode_schema, encode, read};
use sandbar_core::{Argument, FileRef, TaskRequest};

use crate::dense::Device;
use crate::host::{self, FunctionHost};
use crate::random;
use crate::registry::{BoundFunction, functions, tasks};
use crate::task::{File, Files, ObjectRef, Value, release_dropped};

/// Rows and seed of a group in a training or prediction call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// First row of the group.
    pub first_row: u32,
    /// Number of training rows, which come first.
    pub train_rows: u32,
    /// Number of test rows, after the training rows.
    pub test_rows: u32,
    /// The value of [`crate::Group::seed`].
    pub seed: u64,
}

/// The outcome of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupFit {
    /// The model's serialised form; empty for predictions.
    pub model: Vec<u8>,
    /// The model's parameters for display, as JSON; empty for predictions.
    pub params: String,
    /// Predictions for the test rows.
    pub predictions: Vec<f64>,
}

/// Runs `call` as part of a job that requests `device` for dense algebra. The test host always uses the processor.
pub fn with_device<T>(device: Device, call: impl FnOnce() -> T) -> T {
    host::dense::with_device(device, call)
}

/// Calls the scalar or batch function of this name, with parameters as a JSON object, on `input`. A large input of a
/// scalar function may give several batches.
///
/// # Errors
/// The error that the host would receive: a wrong parameter, the function's own error, or a malformed result.
pub fn call(function: &str, params: &str, input: &RecordBatch) -> Result<Vec<RecordBatch>, String> {
    let mut bound = open(function, params)?;
    let (header, local) = encode_input(input)?;
    let (result, local) = host::with(local, || bound.process(&header));
    result?;
    local.emitted.iter().map(|(header, buffers)| decode_batch(header, buffers)).collect()
}

/// Fits each group of `input`. Its columns are features of f64; the last one is the target.
///
/// # Errors
/// An error of the call as a whole, as the host would receive it. The error of a group is in the group's position.
pub fn fit(
    trainer: &str,
    params: &str,
    input: &RecordBatch,
    groups: &[Split],
) -> Result<Vec<Result<GroupFit, String>>, String> {
    let mut bound = open(trainer, params)?;
    let (header, mut local) = encode_input(input)?;
    local.splits = groups.to_vec();
    let (result, local) = host::with(local, || bound.fit(&header));
    result.map(|()| local.settled)
}

/// Predicts the test rows of each group of `input`, whose columns are features of f64, with the group's stored model.
///
/// # Errors
/// As [`fit`].
pub fn predict(
    trainer: &str,
    params: &str,
    input: &RecordBatch,
    groups: &[Split],
    models: &[Vec<u8>],
) -> Result<Vec<Result<Vec<f64>, String>>, String> {
    let mut bound = open(trainer, params)?;
    let (header, mut local) = encode_input(input)?;
    (local.splits, local.models) = (groups.to_vec(), models.to_vec());
    let (result, local) = host::with(local, || bound.predict(&header));
    result.map(|()| local.settled.into_iter().map(|group| group.map(|fitted| fitted.predictions)).collect())
}

/// Runs the task of this name, with its arguments as a JSON object. Tasks that it submits run at once, in this thread.
/// (Outside a sandbox, every submitted task runs that way, with or without this function.)
///
/// # Errors
/// The error that the host would receive: missing, wrong or extra arguments, and the task's own errors.
pub fn run<R: Value>(task: &str, arguments: &str) -> Result<R, String> {
    let matches: Vec<_> = tasks().into_iter().filter(|t| t.name == task).collect();
    let task = match matches[..] {
        [task] if task.count == 1 => task,
        [task] => {
            return Err(format!(
                "{task} returns {} objects, and `run` supports one: call the function directly",
                task.count,
                task = task.name
            ));
        }
        [] => return Err(format!("there is no task {task}")),
        _ => return Err(format!("there are {} tasks called {task}; rename all but one", matches.len())),
    };
    let mut remaining: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(arguments).map_err(|e| format!("the arguments are not a JSON object: {e}"))?;
    let texts: Vec<_> =
        task.arguments.iter().map(|(name, _)| remaining.remove(*name).map(|json| json.to_string())).collect();
    if let Some(name) = remaining.keys().next() {
        return Err(format!("there is no argument `{name}`"));
    }
    let as_argument = |text| match text {
        Some(text) => Argument::Json(text),
        None => Argument::Missing,
    };
    let arguments = texts.iter().map(|text| as_argument(text.as_deref())).collect();
    let request =
        postcard::to_stdvec(&TaskRequest { arguments, ..TaskRequest::default() }).map_err(|e| e.to_string())?;
    ObjectRef::from_number(host::submit(task.index(), 1, &request)).get().map_err(|e| e.to_string())
}

/// Adds a file that the tasks of this thread can open, like an input file of their job.
pub fn file(path: impl Into<PathBuf>) -> File {
    let path = path.into();
    let name = path.to_string_lossy().into_owned();
    FileRef { number: host::add_files(vec![path]).first, name }.into()
}

/// Adds files in this order, like [`file()`].
pub fn files(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Files {
    host::add_files(paths.into_iter().map(Into::into).collect()).into()
}

/// Number of live objects of this thread. Dropped objects are released at the next submission or wait, and by this
/// function.
pub fn objects() -> usize {
    // A dropped actor releases the objects that it held.
    let mut before = usize::MAX;
    while host::count() < before {
        before = host::count();
        release_dropped();
    }
    before
}

fn open(function: &str, params: &str) -> Result<Box<dyn BoundFunction>, String> {
    random::set_seed(0);
    let matches: Vec<_> = functions().into_iter().filter(|f| f.name == function).collect();
    match matches[..] {
        [function] => (function.open)(params),
        [] => Err(format!("there is no function {function}")),
        _ => Err(format!("there are {} functions called {function}; rename all but one", matches.len())),
    }
}

fn encode_input(input: &RecordBatch) -> Result<(Vec<u8>, FunctionHost), String> {
    let encoded = encode(input).map_err(|e| e.to_string())?;
    let body = encoded.body();
    Ok((encoded.header, FunctionHost { body, ..FunctionHost::default() }))
}

/// Reassembles an emitted batch, with the host's checks.
fn decode_batch(header: &[u8], buffers: &[Vec<u8>]) -> Result<RecordBatch, String> {
    let header = Header::parse(header).map_err(|e| e.to_string())?;
    let mut body = vec![0; header.body_bytes()];
    let places = (0..header.buffer_count()).map(|i| header.buffer(i)).filter(|(_, len)| *len > 0);
    for ((offset, len), buffer) in places.zip(buffers) {
        body[offset..offset + len].copy_from_slice(buffer);
    }
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    read(&header, Arc::new(schema), &Buffer::from_vec(body)).map_err(|e| e.to_string())
}
