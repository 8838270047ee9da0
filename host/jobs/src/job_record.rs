//! The record of a job: one small JSON file, replaced atomically at each change.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use sandbar_core::{Fault, TenantId};
use sandbar_machine::write_atomically;
use serde::{Deserialize, Serialize};

use crate::limits::JobFolderLimits;
use crate::name::JobName;
use crate::rows::ProgressRow;
use crate::run_state::RunState;

/// Why a job failed, or was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// Error code, if the error has one.
    pub code: Option<String>,
    /// Error message.
    pub message: String,
    /// Names of the failed task and its ancestors, from the job's first task down.
    pub chain: Vec<String>,
}

impl JobFailure {
    /// Creates a failure without a code.
    pub fn from_message(message: impl Into<String>) -> JobFailure {
        JobFailure { code: None, message: message.into(), chain: Vec::new() }
    }

    /// Creates a failure from a fault and the names of the tasks that led to it.
    pub fn from_fault(fault: &Fault, chain: &[String]) -> JobFailure {
        JobFailure { code: Some(fault.code.as_str().to_owned()), message: fault.message.clone(), chain: chain.to_vec() }
    }
}

/// Formats the failure as a [`TaskError`](sandbar_core::TaskError): `main > add: no number [refused]`.
impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.chain.is_empty() {
            write!(f, "{}: ", self.chain.join(" > "))?;
        }
        f.write_str(&self.message)?;
        self.code.as_ref().map_or(Ok(()), |code| write!(f, " [{code}]"))
    }
}

/// Counters of a job's tasks. Every output about a job uses these numbers and names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounts {
    /// Submitted tasks, without the first task.
    pub tasks: u64,
    /// Tasks that succeeded, including the first task.
    pub succeeded: u64,
    /// Tasks that failed in their last attempt, as listed by `host list tasks --state failed`.
    pub failed: u64,
    /// Tasks that were cancelled, or unfinished when the job ended.
    pub stopped: u64,
    /// Attempts that failed, including those of tasks that succeeded in a retry.
    pub failed_attempts: u64,
    /// Attempts that were running in a worker or on a node that died.
    #[serde(default)]
    pub lost_attempts: u64,
    /// Workers that died while they ran tasks of the job.
    pub lost_workers: u64,
    /// Other nodes that died while they had tasks of the job.
    #[serde(default)]
    pub lost_nodes: u64,
    /// Takeovers of the job by another node after its node was lost. The other counters start at the last takeover.
    #[serde(default)]
    pub takeovers: u64,
    /// Tasks that did not run again after a takeover.
    #[serde(default)]
    pub resumed: u64,
}

impl JobCounts {
    /// Returns a text about failures and losses: `16 tasks failed, 3 attempts failed, 2 attempts lost, 1 worker lost`.
    /// `None` if there were none.
    pub fn failure_summary(&self) -> Option<String> {
        let counted = |count: u64, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        let lost = [counted(self.lost_workers, "worker", "workers"), counted(self.lost_nodes, "node", "nodes")];
        let lost: Vec<String> = lost.into_iter().flatten().collect();
        let all = [
            counted(self.failed, "task failed", "tasks failed"),
            counted(self.failed_attempts, "attempt failed", "attempts failed"),
            counted(self.lost_attempts, "attempt lost", "attempts lost"),
            (!lost.is_empty()).then(|| format!("{} lost", lost.join(" and "))),
            counted(self.takeovers, "takeover by another node", "takeovers by other nodes"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Counters of a job's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounts {
    /// Lines in the log file.
    pub lines: u64,
    /// Bytes of the log file.
    pub bytes: u64,
    /// Lines that were dropped because of a limit or a write error.
    pub dropped: u64,
}

/// Record of a job: its program, its state and, once it has finished, its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Version of the record format.
    pub version: u32,
    /// Name of the job.
    pub id: JobName,
    /// Tenant that submitted the job.
    pub tenant: TenantId,
    /// The program as given on submission, truncated.
    pub program: String,
    /// Names and values of the first task's arguments as given on submission, each truncated.
    pub arguments: BTreeMap<String, String>,
    /// State of the job.
    pub state: RunState,
    /// Submission time in milliseconds since 1970.
    pub submitted_ms: u64,
    /// Time from which the first task could start, in milliseconds since 1970.
    pub begun_ms: Option<u64>,
    /// End of the job in milliseconds since 1970.
    pub ended_ms: Option<u64>,
    /// Process id of the job's node.
    pub process: u32,
    /// Value that the first task returned, or null if it has no JSON form.
    pub result: serde_json::Value,
    /// Why the job failed or was stopped.
    pub error: Option<JobFailure>,
    /// Counters of the tasks, set at the end of the job.
    pub counts: JobCounts,
    /// Counters of the log, set at the end of the job.
    pub log: LogCounts,
    /// Progress that the tasks reported, set at the end of the job.
    #[serde(default)]
    pub progress: Vec<ProgressRow>,
}

/// Version of the record format that this build reads and writes.
const VERSION: u32 = 1;
const RECORD_FILE: &str = "job.json";
/// JSON lines, each a [`LoggedLine`](crate::log::LoggedLine).
pub(crate) const LOG_FILE: &str = "log";
/// The task rows of a finished job.
pub(crate) const TASKS_FILE: &str = "tasks.json";
/// The task summaries of a finished job.
pub(crate) const SUMMARY_FILE: &str = "summary.json";
/// Files of a job's folder that are given up for its record if the disk is full.
const OTHER_FILES: [&str; 3] = [TASKS_FILE, SUMMARY_FILE, LOG_FILE];

impl JobRecord {
    pub(crate) fn new(id: JobName, program: &str, arguments: &[(String, String)], tenant: TenantId) -> JobRecord {
        let limits = JobFolderLimits::DEFAULT;
        let truncated = |value: &str| match value.char_indices().nth(limits.argument_chars_max) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.to_owned(),
        };
        JobRecord {
            version: VERSION,
            id,
            tenant,
            program: truncated(program),
            arguments: arguments
                .iter()
                .take(limits.arguments_max)
                .map(|(name, value)| (truncated(name), truncated(value)))
                .collect(),
            state: RunState::Pending,
            submitted_ms: now_ms(),
            begun_ms: None,
            ended_ms: None,
            process: std::process::id(),
            result: serde_json::Value::Null,
            error: None,
            counts: JobCounts::default(),
            log: LogCounts::default(),
            progress: Vec::new(),
        }
    }

    /// Returns a substitute for a record that can't be read: a failed job with that error.
    pub(crate) fn unreadable(id: JobName, error: &io::Error) -> JobRecord {
        let error = Some(JobFailure::from_message(format!("its record can't be read: {error}")));
        JobRecord {
            state: RunState::Failed,
            submitted_ms: 0,
            process: 0,
            error,
            ..JobRecord::new(id, "?", &[], TenantId::DEFAULT)
        }
    }

    pub(crate) fn read(folder: &Path) -> io::Result<JobRecord> {
        let bytes = read_bounded(&folder.join(RECORD_FILE), JobFolderLimits::DEFAULT.record_bytes_max)?;
        let record: JobRecord = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
        if record.version != VERSION {
            let message = format!("its version is {}, this program reads version {VERSION}", record.version);
            return Err(io::Error::other(message));
        }
        Ok(record)
    }

    /// Replaces the job's record atomically.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        write_atomically(&folder.join(RECORD_FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// Replaces the record of a finished job. If the disk is full, removes the folder's other files to make room.
    pub(crate) fn write_final(&self, folder: &Path) -> io::Result<()> {
        let written = self.write(folder);
        if !written
            .as_ref()
            .is_err_and(|e| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
        {
            return written;
        }
        for name in OTHER_FILES {
            let _ = fs::remove_file(folder.join(name));
        }
        // The disk may have no room beside the previous record, which is therefore overwritten in place.
        self.write(folder)
            .or_else(|_| fs::write(folder.join(RECORD_FILE), serde_json::to_vec(self).map_err(io::Error::other)?))
    }

    /// Returns the submission time as text: `2026-01-31 23:59:59 UTC`.
    pub fn submitted_utc(&self) -> String {
        utc_text(self.submitted_ms)
    }

    /// Returns the time from submission to the job's end, or to now, in milliseconds.
    pub fn duration_ms(&self) -> u64 {
        self.ended_ms.unwrap_or_else(now_ms).saturating_sub(self.submitted_ms)
    }
}

/// Formats a time in milliseconds since 1970: `2026-01-31 23:59:59 UTC`.
pub fn utc_text(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(String::new, |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Reads a file. Fails if it has more than `bytes_max` bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("the file has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_are_summarized() {
        let none = JobCounts { tasks: 9, succeeded: 10, resumed: 3, ..JobCounts::default() };
        for (counts, expected) in [
            (none, None),
            (JobCounts { failed: 16, ..none }, Some("16 tasks failed")),
            (JobCounts { failed: 1, failed_attempts: 4, ..none }, Some("1 task failed, 4 attempts failed")),
            (
                JobCounts { lost_attempts: 3, lost_workers: 1, lost_nodes: 2, ..none },
                Some("3 attempts lost, 1 worker and 2 nodes lost"),
            ),
            (JobCounts { takeovers: 1, ..none }, Some("1 takeover by another node")),
        ] {
            assert_eq!(counts.failure_summary().as_deref(), expected, "{counts:?}");
        }
    }

    /// Records of builds without these counters stay readable.
    #[test]
    fn counters_of_older_records_are_zero() {
        let text = r#"{"tasks":1,"succeeded":2,"failed":0,"stopped":0,"failed_attempts":0,"lost_workers":0}"#;
        let counts: JobCounts = serde_json::from_str(text).unwrap();
        assert_eq!(counts, JobCounts { tasks: 1, succeeded: 2, ..JobCounts::default() });
    }
}
