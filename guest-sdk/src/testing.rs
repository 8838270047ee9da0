//! Calls of a crate's functions as a host makes them, without a host: for the function's own tests.
//!
//! Everything but the sandbox is as it will be: parameters are parsed, columns laid out and viewed, results checked. For
//! the crate's unit tests, not those under `tests/`: a linker leaves out functions that nothing there names.
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
use crate::host::{self, Local};
use crate::random;
use crate::registry::{Opened, functions, tasks};
use crate::task::{File, Files, ObjectRef, Value, release_gone};

/// A group of a training or prediction call: where its rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Row at which the group starts.
    pub first_row: u32,
    /// Rows to train on, which come first.
    pub train_rows: u32,
    /// Rows to test on, behind them.
    pub test_rows: u32,
    /// What [`crate::Group::seed`] gives.
    pub seed: u64,
}

/// What became of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The model's serialised form; empty for predictions.
    pub model: Vec<u8>,
    /// What people read of it, as JSON; empty for predictions.
    pub params: String,
    /// What it predicts for each test row.
    pub predictions: Vec<f64>,
}

/// Runs `call` as of a job that says where dense algebra is to be done; here the processor does it.
pub fn with_device<T>(device: Device, call: impl FnOnce() -> T) -> T {
    host::dense::with_device(device, call)
}

/// Calls the scalar or batch function of this name, with parameters as a JSON object, on `input`. Large inputs of a scalar
/// function come back in several batches.
///
/// # Errors
/// What a host would be told: a wrong parameter, a function's own error, a result that is malformed.
pub fn call(function: &str, params: &str, input: &RecordBatch) -> Result<Vec<RecordBatch>, String> {
    let mut opened = open(function, params)?;
    let (header, local) = laid_out(input)?;
    let (answer, local) = host::with(local, || opened.process(&header));
    answer?;
    local.emitted.iter().map(|(header, buffers)| reassembled(header, buffers)).collect()
}

/// Fits each group of `input`, whose columns are features as f64 and, last, the target.
///
/// # Errors
/// What a host would be told of the call as a whole; what it is told of a group is in the group's place.
pub fn fit(
    trainer: &str,
    params: &str,
    input: &RecordBatch,
    groups: &[Split],
) -> Result<Vec<Result<Fitted, String>>, String> {
    let mut opened = open(trainer, params)?;
    let (header, mut local) = laid_out(input)?;
    local.splits = groups.to_vec();
    let (answer, local) = host::with(local, || opened.fit(&header));
    answer.map(|()| local.settled)
}

/// Predicts the test rows of each group of `input`, whose columns are features as f64, with the group's stored model.
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
    let mut opened = open(trainer, params)?;
    let (header, mut local) = laid_out(input)?;
    (local.splits, local.models) = (groups.to_vec(), models.to_vec());
    let (answer, local) = host::with(local, || opened.predict(&header));
    answer.map(|()| local.settled.into_iter().map(|group| group.map(|fitted| fitted.predictions)).collect())
}

/// Runs the task of this name, with its arguments as a JSON object. Tasks that it submits run when they are submitted, in
/// this thread. (Tasks can be submitted without this as well: outside of a sandbox they all run so.)
///
/// # Errors
/// What a host would be told: arguments that are missing, wrong or too many, and the task's own errors.
pub fn run<R: Value>(task: &str, arguments: &str) -> Result<R, String> {
    let of_name: Vec<_> = tasks().into_iter().filter(|t| t.name == task).collect();
    let task = match of_name[..] {
        [task] if task.count == 1 => task,
        [task] => return Err(format!("{task} returns {} objects: call it instead", task.count, task = task.name)),
        [] => return Err(format!("there is no task {task}")),
        _ => return Err(format!("there are {} tasks called {task}; rename all but one", of_name.len())),
    };
    let mut given: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(arguments).map_err(|e| format!("the arguments are no JSON object: {e}"))?;
    let texts: Vec<_> =
        task.arguments.iter().map(|(name, _)| given.remove(*name).map(|json| json.to_string())).collect();
    if let Some(name) = given.keys().next() {
        return Err(format!("there is no argument `{name}`"));
    }
    let as_argument = |text| match text {
        Some(text) => Argument::Json(text),
        None => Argument::Missing,
    };
    let arguments = texts.iter().map(|text| as_argument(text.as_deref())).collect();
    let request =
        postcard::to_stdvec(&TaskRequest { arguments, ..TaskRequest::default() }).map_err(|e| e.to_string())?;
    ObjectRef::held(host::submit(task.place(), 1, &request)).get().map_err(|e| e.to_string())
}

/// A file that the tasks of this thread may open, as if their job had been given it.
pub fn file(path: impl Into<PathBuf>) -> File {
    let path = path.into();
    let name = path.to_string_lossy().into_owned();
    FileRef { number: host::give(vec![path]).first, name }.into()
}

/// Files, in this order, as [`file()`].
pub fn files(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Files {
    host::give(paths.into_iter().map(Into::into).collect()).into()
}

/// How many objects there are in this thread. What is dropped is gone when the next task is submitted, or the next object is
/// waited for, and here.
pub fn objects() -> usize {
    // What is dropped may be an actor, with what that had.
    let mut before = usize::MAX;
    while host::count() < before {
        before = host::count();
        release_gone();
    }
    before
}

fn open(function: &str, params: &str) -> Result<Box<dyn Opened>, String> {
    random::seed(0);
    let of_name: Vec<_> = functions().into_iter().filter(|f| f.name == function).collect();
    match of_name[..] {
        [function] => (function.open)(params),
        [] => Err(format!("there is no function {function}")),
        _ => Err(format!("there are {} functions called {function}; rename all but one", of_name.len())),
    }
}

fn laid_out(input: &RecordBatch) -> Result<(Vec<u8>, Local), String> {
    let encoded = encode(input).map_err(|e| e.to_string())?;
    let body = encoded.body();
    Ok((encoded.header, Local { body, ..Local::default() }))
}

/// The batch that was handed over, checked as a host checks it.
fn reassembled(header: &[u8], buffers: &[Vec<u8>]) -> Result<RecordBatch, String> {
    let header = Header::parse(header).map_err(|e| e.to_string())?;
    let mut body = vec![0; header.body_bytes()];
    let places = (0..header.buffer_count()).map(|i| header.buffer(i)).filter(|(_, len)| *len > 0);
    for ((offset, len), buffer) in places.zip(buffers) {
        body[offset..offset + len].copy_from_slice(buffer);
    }
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    read(&header, Arc::new(schema), &Buffer::from_vec(body)).map_err(|e| e.to_string())
}
