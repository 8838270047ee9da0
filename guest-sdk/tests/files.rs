//! Input files of a job, on the in-process test host.

use std::fs;

use sandbar_guest::Value;
use sandbar_guest::prelude::*;
use sandbar_guest::testing::{self, file, files};

#[task]
fn length(file: File) -> Result<usize, TaskError> {
    Ok(file.bytes()?.len())
}

#[task]
fn total(files: Files) -> Result<usize, TaskError> {
    let lengths: Vec<_> = files.iter().map(length::submit).collect();
    Ok(get_all(&lengths)?.iter().sum())
}

#[task]
fn first_byte(bytes: Bytes) -> u8 {
    bytes[0]
}

fn check<R: Value + PartialEq + std::fmt::Debug>(task: &str, argument: &str, expected: Result<R, &str>) {
    let found = testing::run::<R>(task, argument);
    match (&found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{task}"),
        (Err(found), Err(expected_text)) => assert!(found.contains(expected_text), "{task}: {found}"),
        _ => panic!("{task}: {found:?}"),
    }
}

#[test]
fn a_file_is_opened_by_any_task_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, vec![7; 3 << 20]).unwrap();
    let one = file(&path);
    assert_eq!(one.name(), path.to_str().unwrap());
    assert_eq!(length::submit(&one).get(), Ok(3 << 20));
    let opened = one.open();
    assert_eq!(first_byte::submit(&opened).get(), Ok(7));
    check("length", &serde_json::json!({ "file": one }).to_string(), Ok(3_usize << 20));
    fs::remove_file(&path).unwrap();
    check::<usize>("length", &serde_json::json!({ "file": one }).to_string(), Err("a.csv: No such file"));
    assert_eq!(opened.get().unwrap().len(), 3 << 20);
}

#[test]
fn many_files_come_in_their_order_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..2500).map(|i| folder.path().join(format!("{i:04}"))).collect();
    paths.iter().enumerate().for_each(|(i, path)| fs::write(path, vec![0; i % 3]).unwrap());
    let all = files(&paths);
    assert_eq!((all.len(), all.iter().len(), all.is_empty()), (2500, 2500, false));
    assert!(all.iter().zip(&paths).all(|(file, path)| file.name() == path.to_str().unwrap()));
    assert_eq!(all.iter().skip(2499).map(|file| file.bytes().unwrap().len()).collect::<Vec<_>>(), [0]);
    assert_eq!(total::submit(&all).get(), Ok((0..2500).map(|i| i % 3).sum()));
    assert!(serde_json::to_string(&all).unwrap().len() < 100);
    assert_eq!(length::pool().chunksize(100).map(all).unwrap().iter().sum::<usize>(), 2499);
}

#[test]
fn missing_files_are_errors() {
    check::<usize>(
        "length",
        r#"{"file": {"number": 12345, "name": "x"}}"#,
        Err("is not a file of the task's job [bad-request]"),
    );
    check::<usize>("length", r#"{"file": "x"}"#, Err("a file: it is given as --arg NAME=@PATH"));
    check::<usize>("length", "{}", Err("argument `file` is missing"));
    check::<u8>("first_byte", r#"{"bytes": "x"}"#, Err("take a `File`"));
}
