//! What became of a job: one small file, replaced as a whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use sandbar_core::Fault;
use sandbar_machine::write_atomically;
use serde::{Deserialize, Serialize};

use crate::limits::JobFolderLimits;
use crate::name::JobName;
use crate::rows::ProgressRow;

/// Where a job is, or a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// It has not begun.
    Pending,
    /// It has begun.
    Running,
    /// It has ended well.
    Succeeded,
    /// It has ended, and not well.
    Failed,
    /// It was ended by somebody.
    Stopped,
}

impl RunState {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Pending => "pending",
            RunState::Running => "running",
            RunState::Succeeded => "succeeded",
            RunState::Failed => "failed",
            RunState::Stopped => "stopped",
        }
    }

    /// Whether nothing more comes of it.
    pub fn is_finished(self) -> bool {
        !matches!(self, RunState::Pending | RunState::Running)
    }
}

/// Why a job failed, or was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// The code, where the error has one.
    pub code: Option<String>,
    /// In words.
    pub message: String,
    /// Names of the tasks that led to it, from the job's first one on.
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

/// What a job's tasks came to. All that shows a job has these numbers, under these names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounts {
    /// Tasks that were submitted, without the first one.
    pub tasks: u64,
    /// Tasks that succeeded, the first one among them.
    pub succeeded: u64,
    /// Tasks that failed for good, after their last attempt: those of `host list tasks --state failed`.
    pub failed: u64,
    /// Tasks that were cancelled, or left when the job ended.
    pub stopped: u64,
    /// Attempts that ended with an error, also where the task was begun again and succeeded.
    pub failed_attempts: u64,
    /// Attempts that were under way on a worker or a node that died.
    #[serde(default)]
    pub lost_attempts: u64,
    /// Workers that died while they ran something of the job.
    pub lost_workers: u64,
    /// Other nodes that died while they had tasks of the job.
    #[serde(default)]
    pub lost_nodes: u64,
    /// How often a node took the job over from one that was gone. The other numbers count from the last time.
    #[serde(default)]
    pub takeovers: u64,
    /// Of a job that was taken over, tasks that did not have to be run again.
    #[serde(default)]
    pub resumed: u64,
}

impl JobCounts {
    /// What went wrong, for people: `16 tasks failed, 3 attempts failed, 2 lost with 1 worker`. None where nothing did.
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

/// What a job has logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounts {
    /// Lines that are kept.
    pub lines: u64,
    /// Their bytes in the file.
    pub bytes: u64,
    /// Lines that are not kept: there were too many.
    pub dropped: u64,
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Of this form.
    pub version: u32,
    /// What it is called.
    pub id: JobName,
    /// Whose it is.
    pub tenant: u32,
    /// The program, as it was given.
    pub program: String,
    /// Names and values of the arguments of its first task, as they were given; the first characters of each.
    pub arguments: BTreeMap<String, String>,
    /// Where it is.
    pub state: RunState,
    /// When it was submitted: milliseconds since 1970.
    pub submitted_ms: u64,
    /// When its first task could begin, as above.
    pub begun_ms: Option<u64>,
    /// When it had ended, as above.
    pub ended_ms: Option<u64>,
    /// The process of its node.
    pub process: u32,
    /// What its first task returned; nothing where that has no JSON.
    pub result: serde_json::Value,
    /// Why it failed or was stopped.
    pub error: Option<JobFailure>,
    /// What its tasks came to, once it has ended.
    pub counts: JobCounts,
    /// What it has logged, once it has ended.
    pub log: LogCounts,
    /// How far its tasks said that they were, once it has ended.
    #[serde(default)]
    pub progress: Vec<ProgressRow>,
}

/// The form of records that this build writes.
const VERSION: u32 = 1;
const RECORD_FILE: &str = "job.json";
/// What a job's folder holds beside its record.
pub(crate) const LOG_FILE: &str = "log";
pub(crate) const TASKS_FILE: &str = "tasks.json";
pub(crate) const SUMMARY_FILE: &str = "summary.json";
const OTHER_FILES: [&str; 3] = [TASKS_FILE, SUMMARY_FILE, LOG_FILE];

impl JobRecord {
    pub(crate) fn new(id: JobName, program: &str, arguments: &[(String, String)]) -> JobRecord {
        let limits = JobFolderLimits::DEFAULT;
        let truncated = |value: &str| match value.char_indices().nth(limits.argument_chars_max) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.to_owned(),
        };
        JobRecord {
            version: VERSION,
            id,
            tenant: sandbar_core::TenantId::DEFAULT.0,
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

    /// Of a job whose record is none: what can be said of it nevertheless.
    pub(crate) fn unreadable(id: JobName, error: &io::Error) -> JobRecord {
        let error = Some(JobFailure::from_message(format!("its record can't be read: {error}")));
        JobRecord { state: RunState::Failed, submitted_ms: 0, process: 0, error, ..JobRecord::new(id, "?", &[]) }
    }

    pub(crate) fn read(folder: &Path) -> io::Result<JobRecord> {
        let bytes = read_bounded(&folder.join(RECORD_FILE), JobFolderLimits::DEFAULT.record_bytes_max)?;
        let record: JobRecord = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
        if record.version != VERSION {
            let message = format!("it is of version {}, this program reads version {VERSION}", record.version);
            return Err(io::Error::other(message));
        }
        Ok(record)
    }

    /// Replaces the record of a job as a whole.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        write_atomically(&folder.join(RECORD_FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// Replaces the record of a job that has ended. What else its folder holds goes where the disk is full.
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
        // The last room may be that of the record that was written first.
        self.write(folder)
            .or_else(|_| fs::write(folder.join(RECORD_FILE), serde_json::to_vec(self).map_err(io::Error::other)?))
    }

    /// When it was submitted, for people.
    pub fn submitted_utc(&self) -> String {
        let time = i64::try_from(self.submitted_ms).ok().and_then(DateTime::from_timestamp_millis);
        time.map_or_else(String::new, |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
    }

    /// How long it has run, or ran, in milliseconds.
    pub fn duration_ms(&self) -> u64 {
        self.ended_ms.unwrap_or_else(now_ms).saturating_sub(self.submitted_ms)
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A file of no more than so many bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
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

    /// Records of builds before these counters stay readable.
    #[test]
    fn counters_of_older_records_are_zero() {
        let text = r#"{"tasks":1,"succeeded":2,"failed":0,"stopped":0,"failed_attempts":0,"lost_workers":0}"#;
        let counts: JobCounts = serde_json::from_str(text).unwrap();
        assert_eq!(counts, JobCounts { tasks: 1, succeeded: 2, ..JobCounts::default() });
    }
}
