//! Bounds of the job store.

/// Bounds on the store of a user's jobs, and on queries to their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFolderLimits {
    /// Maximum jobs in the store. Older finished jobs are removed.
    pub jobs_max: usize,
    /// Maximum bytes of all jobs in the store. Older finished jobs are removed.
    pub bytes_max: u64,
    /// Maximum bytes of a job's log file. Further lines are dropped and counted.
    pub log_bytes_max: u64,
    /// Maximum queued lines of a log. Further lines are dropped and counted.
    pub log_queue_lines_max: usize,
    /// Maximum bytes of the queued lines of a log. Further lines are dropped and counted.
    pub log_queue_bytes_max: u64,
    /// Maximum characters of the program and of each argument in a record. Longer ones are truncated.
    pub argument_chars_max: usize,
    /// Maximum arguments in a record.
    pub arguments_max: usize,
    /// Maximum bytes of a record.
    pub record_bytes_max: u64,
    /// Maximum bytes of the records of a job's tasks, and of a response.
    pub response_bytes_max: u64,
    /// Maximum bytes of a query.
    pub query_bytes_max: u64,
    /// Maximum concurrent queries to a node. Further ones wait.
    pub concurrent_queries_max: usize,
    /// Timeout in milliseconds of a query and its response, on both sides.
    pub query_time_ms_max: u64,
    /// Maximum rows of a list.
    pub rows_max: u32,
}

impl JobFolderLimits {
    /// The bounds that this build uses.
    pub const DEFAULT: JobFolderLimits = JobFolderLimits {
        jobs_max: 1000,
        bytes_max: 512 << 20,
        log_bytes_max: 16 << 20,
        log_queue_lines_max: 10_000,
        log_queue_bytes_max: 8 << 20,
        argument_chars_max: 200,
        arguments_max: 100,
        record_bytes_max: 4 << 20,
        response_bytes_max: 64 << 20,
        query_bytes_max: 64 << 10,
        concurrent_queries_max: 16,
        query_time_ms_max: 10_000,
        rows_max: 100_000,
    };
}
