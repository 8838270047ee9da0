//! Files of the test host, in this process and thread. They are read from their paths.

use std::fs;
use std::path::PathBuf;

use sandbar_core::{Code, FILE_NAMES_PER_OBJECT, Fault, FileListRef, TaskError};

use super::encoded_value::encoded;
use super::program_host::{InputFile, host};
use crate::bindings::tasks::Outcome;

/// Adds input files to the job.
pub(crate) fn add_files(paths: Vec<PathBuf>) -> FileListRef {
    let names: Vec<String> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let blocks = names.chunks(FILE_NAMES_PER_OBJECT as usize);
    let blocks = blocks.map(|names| InputFile::Names(postcard::to_stdvec(names).expect("names are texts")));
    host(|host| {
        let first = host.files.len() as u64;
        let count = paths.len() as u64;
        host.files.extend(paths.into_iter().map(InputFile::File));
        host.files.extend(blocks);
        FileListRef { first, count, names: first + count }
    })
}

pub(crate) fn open(number: u64) -> u64 {
    let failed =
        |code, message: String| Err(encoded(&TaskError { fault: Fault::new(code, message), chain: Vec::new() }));
    let file = host(|host| usize::try_from(number).ok().and_then(|at| host.files.get(at).cloned()));
    let read = match file {
        Some(InputFile::File(path)) => {
            fs::read(&path).or_else(|e| failed(Code::Input, format!("{}: {e}", path.display())))
        }
        Some(InputFile::Names(names)) => Ok(names),
        None => failed(Code::BadRequest, format!("file {number} is not a file of the task's job")),
    };
    host(|host| match read {
        Ok(bytes) => host.add(Outcome::Value, bytes, Vec::new()),
        Err(error) => host.add(Outcome::Failed, error, Vec::new()),
    })
}
