//! Programs with file arguments and results that are more than numbers.

use std::collections::BTreeMap;

use sandbar_guest::prelude::*;

/// Returns the sum of all bytes.
#[task]
fn sum(bytes: Bytes) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Returns the sum of all bytes of a file.
#[task]
fn sum_of(file: File) -> Result<u64, TaskError> {
    Ok(sum(file.bytes()?))
}

/// Returns the object of a file's bytes, which are read after this task has ended.
#[task]
fn opens(file: File) -> ObjectRef<Bytes> {
    file.open()
}

/// Reads one file in this task, in many tasks that take its bytes, and through a task that has ended.
#[task]
fn one(data: File, tasks: u64) -> Result<(String, u64, bool), TaskError> {
    let first = sum(data.bytes()?);
    let bytes = data.open();
    let sums: Vec<_> = (0..tasks).map(|_| sum::submit(&bytes)).collect();
    let same = get_all(&sums)?.iter().all(|sum| *sum == first);
    let of_child = sum(opens::submit(&data).get()?.get()?);
    Ok((data.name().to_owned(), first, same && of_child == first))
}

/// Reads many files: returns their number, the sum of all bytes, and the errors.
#[task]
fn many(files: Files, chunksize: Option<usize>) -> (usize, u64, Vec<(String, String)>) {
    let (mut all, mut errors) = (0, Vec::new());
    let sums = sum_of::pool().chunksize(chunksize.unwrap_or(1)).imap(&files);
    for (file, sum) in files.iter().zip(sums) {
        match sum {
            Ok(sum) => all += sum,
            Err(error) => errors.push((file.name().to_owned(), error.to_string())),
        }
    }
    (files.len(), all, errors)
}

/// Opens all files at once as objects: returns their number, the sum of all bytes, and the errors by code.
#[task]
fn at_once(files: Files) -> (usize, u64, BTreeMap<String, usize>) {
    let opened: Vec<_> = files.iter().map(|file| file.open()).collect();
    let (mut all, mut errors) = (0, BTreeMap::new());
    for bytes in &opened {
        match bytes.get() {
            Ok(bytes) => all += sum(bytes),
            Err(error) => *errors.entry(error.fault.code.as_str().to_owned()).or_default() += 1,
        }
    }
    (opened.len(), all, errors)
}

/// Opens a file repeatedly, mostly without reading it.
#[task]
fn forgets(data: File, times: u64) -> Result<u64, TaskError> {
    for _ in 0..times {
        data.open();
    }
    sum_of::submit(&data).get()
}

/// Ends before any of the files is read.
#[task]
fn leaves(files: Files) -> usize {
    files.iter().map(|file| file.open()).collect::<Vec<_>>().len()
}

/// Opens a file number that the job was not given.
#[task]
fn guesses(number: u64) -> Result<u64, TaskError> {
    let file: File = serde_json::from_value(serde_json::json!({ "number": number, "name": "x" })).expect("a file");
    sum_of::submit(&file).get()
}

/// Returns its texts.
#[task]
fn texts(text: String, other: Option<String>) -> Vec<String> {
    [Some(text), other].into_iter().flatten().collect()
}

/// Returns the name of the file, if one is given.
#[task]
fn perhaps(data: Option<File>) -> Option<String> {
    data.map(|file| file.name().to_owned())
}

#[derive(Serialize, Deserialize)]
struct Shape {
    name: String,
    sides: Option<u32>,
    lengths: Vec<f32>,
}

/// Returns a value with named fields.
#[task]
fn shape() -> Shape {
    Shape { name: "square".to_owned(), sides: Some(4), lengths: vec![0.1; 2] }
}

/// Returns a value without a JSON form.
#[task]
fn object() -> ObjectRef<u64> {
    put(&7)
}

/// Returns a text of `bytes` bytes.
#[task]
fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// Reports progress repeatedly, together with control characters and extreme numbers.
#[task]
fn reports(times: u64) -> u64 {
    for time in 1..=times {
        sandbar_guest::progress("loop", time, Some(times));
        sandbar_guest::progress(&"\x1b[2J".repeat(1 + time as usize % 50), u64::MAX, None);
    }
    times
}

/// Runs tasks in parallel that report progress under the same names.
#[task]
fn all_report(tasks: u64, times: u64) -> Result<u64, TaskError> {
    Ok(reports::pool().progress("tasks").map((0..tasks).map(|_| times))?.iter().sum())
}
