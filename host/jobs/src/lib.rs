//! The job store: a folder per job with its record, its log and the records of its tasks.
//!
//! While a job runs, its node writes the job's folder through a [`JobRecorder`], holds a lock in it that marks the node as
//! alive, and responds to [queries](JobQuery) on a socket in it. Clients find jobs in the [store](JobStore): they query the
//! nodes of running jobs, and read the folders of finished jobs.
//!
//! A store belongs to one user. Its files are nevertheless parsed defensively, because a folder may be incomplete or written
//! by another version.
//!
//! Non-goal: running jobs.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod creation;
mod dedup;
mod inspect;
mod job_record;
mod limits;
mod log;
mod name;
mod progress;
mod progress_bars;
mod recorder;
mod rows;
mod run_state;
mod store;
mod store_error;
mod task_records;
mod trace;
mod updates;

/// Prefix of the targets of this crate's log lines.
pub const LOG_TARGET: &str = module_path!();

pub use inspect::{InspectError, JobQuery, JobResponse};
pub use job_record::{JobCounts, JobFailure, JobRecord, LogCounts, now_ms, utc_text};
pub use limits::JobFolderLimits;
pub use log::{JobLog, JobLogFile, LogEntry, LogOutput, LogSender, LoggedLine};
pub use name::JobName;
pub use progress::{BuildTimer, JobProgress, Phase};
pub use progress_bars::ProgressBars;
pub use recorder::{JobRecorder, StopMark};
pub use rows::{
    ActorRow, BundleRow, DurationStats, ErrorRow, GroupRow, HolderRow, JobSummary, Listing, MemoryView, NameSummary,
    NodeRow, ObjectRow, ProcessRow, ProgressRow, ResourceRow, TaskRow, WorkerRow,
};
pub use run_state::RunState;
pub use store::{JobStore, LogReader, StoredJob};
pub use store_error::JobStoreError;
pub use task_records::{AttemptRecord, RecordLimits, TaskRecord, TaskRecords};
pub use trace::trace;
pub use updates::JobUpdates;
