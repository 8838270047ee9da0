//! Reading and verification of the files of an audit log, of a node that runs or does not.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::record::{AuditRecord, LineHash};

/// Prefix and extension of the files. The number of the first record is between them.
const PREFIX: &str = "audit-";
const EXTENSION: &str = ".jsonl";
/// Maximum bytes of a line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a verified log has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSummary {
    /// Number of records.
    pub records: u64,
    /// Number of the first record: 1, unless older files were removed.
    pub first_number: u64,
    /// Number of the last record; zero if there is none.
    pub last_number: u64,
    /// SHA-256 of the last line in hexadecimal digits. Note it elsewhere: a log that was cut or written anew does not contain
    /// it.
    pub head: String,
}

/// Why an audit log is not what the node has written.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The folder or a file can't be read.
    #[error("{}: {_1}", _0.display())]
    Io(PathBuf, io::Error),
    /// A line is not a record, or not the one that follows the line before it.
    #[error("{}, line {line}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1 on.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The log has no line with the expected hash.
    #[error("no record has the hash {_0}: the log was cut or written anew")]
    Missing(String),
}

/// Verifies the log in a folder: each record follows the one before it. With `expected`, one of the records must have that
/// hash, as the [head](AuditSummary::head) of an earlier verification had.
///
/// # Errors
/// Where the log is broken, or what can't be read.
pub fn verify_audit(folder: &Path, expected: Option<&str>) -> Result<AuditSummary, AuditError> {
    let mut summary = AuditSummary { records: 0, first_number: 0, last_number: 0, head: LineHash::default().to_hex() };
    let mut is_expected = expected.is_none_or(|expected| expected == summary.head);
    for_each(folder, |path, at, line, record| {
        let broken = |why: String| AuditError::Broken { path: path.to_owned(), line: at, why };
        let is_named = || path.file_name().is_some_and(|name| name == file_name(record.number).as_str());
        if at == 1 && !is_named() {
            return Err(broken(format!("the file begins with record {}, not with that of its name", record.number)));
        }
        if summary.records == 0 {
            summary.first_number = record.number;
            // The files before the first one that is left may have been removed.
            if record.number == 1 && record.previous != summary.head {
                return Err(broken("the first record names a record before it".to_owned()));
            }
        } else if record.number != summary.last_number + 1 {
            return Err(broken(format!("record {} follows record {}", record.number, summary.last_number)));
        } else if record.previous != summary.head {
            return Err(broken(format!(
                "record {} was written after another line than the one before it",
                record.number
            )));
        }
        summary.records += 1;
        (summary.last_number, summary.head) = (record.number, LineHash::of(line).to_hex());
        is_expected |= expected.is_some_and(|expected| expected == summary.head);
        Ok(())
    })?;
    match expected {
        Some(expected) if !is_expected => Err(AuditError::Missing(expected.to_owned())),
        _ => Ok(summary),
    }
}

/// Returns the last records of the log in a folder, in their order.
///
/// # Errors
/// What can't be read.
pub fn read_audit(folder: &Path, records_max: usize) -> Result<Vec<AuditRecord>, AuditError> {
    let mut last = VecDeque::new();
    for_each(folder, |_, _, _, record| {
        last.push_back(record);
        if last.len() > records_max {
            last.pop_front();
        }
        Ok(())
    })?;
    Ok(last.into())
}

/// Calls `with` for each line: its file, number, bytes and record.
fn for_each(
    folder: &Path,
    mut with: impl FnMut(&Path, u64, &[u8], AuditRecord) -> Result<(), AuditError>,
) -> Result<(), AuditError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| AuditError::Io(path, error)
    };
    for path in audit_files(folder).map_err(io(folder))? {
        let mut reader = BufReader::new(File::open(&path).map_err(io(&path))?);
        let mut line = Vec::new();
        for at in 1.. {
            line.clear();
            let bytes = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(io(&path))?;
            if bytes == 0 {
                break;
            }
            let broken = |why: String| AuditError::Broken { path: path.clone(), line: at, why };
            if line.pop() != Some(b'\n') {
                return Err(broken("the line has no end, or is too long".to_owned()));
            }
            let record: AuditRecord =
                serde_json::from_slice(&line).map_err(|error| broken(format!("it is not a record: {error}")))?;
            with(&path, at, &line, record)?;
        }
    }
    Ok(())
}

/// Returns the name of the file whose first record has this number.
pub(crate) fn file_name(number: u64) -> String {
    format!("{PREFIX}{number:012}{EXTENSION}")
}

/// Returns the files of a log, the oldest first.
pub(crate) fn audit_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(EXTENSION)) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the last line of a file. A part of a line after it, of a node that was killed while it wrote, is removed.
pub(crate) fn last_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let bytes = file.metadata()?.len();
    let start = bytes.saturating_sub(2 * LINE_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut end = Vec::new();
    file.take(2 * LINE_BYTES_MAX).read_to_end(&mut end)?;
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < end.len() {
        File::options().write(true).open(path)?.set_len(start + whole as u64)?;
    }
    end.truncate(whole);
    end.pop();
    let line = end.rsplit(|byte| *byte == b'\n').next().map(<[u8]>::to_vec);
    Ok(line.filter(|line| !line.is_empty()))
}
