//! The summary of a program that has run.

use sandbar_jobs::JobCounts;
use serde::Serialize;

/// Summary of a successful job.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramSummary {
    /// Name of the job, if it is recorded.
    pub job: Option<String>,
    /// `succeeded`.
    pub state: &'static str,
    /// Result of the first task; null for the job of a client.
    pub result: serde_json::Value,
    /// Counts of tasks.
    #[serde(flatten)]
    pub counts: JobCounts,
    /// Bytes of objects that were spilled to disk.
    pub spilled_bytes: u64,
    /// Bytes of spilled objects that were read back.
    pub restored_bytes: u64,
    /// Seconds of building and compiling the program before its start.
    pub build_seconds: f64,
    /// Seconds from the start to the end of the job.
    pub seconds: f64,
    /// Peak memory of the node's process, in bytes.
    pub peak_memory_bytes: u64,
}
