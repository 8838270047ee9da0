//! Every bound on what is kept of jobs, in one place.

/// How much is kept of jobs in a user's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFolderLimits {
    /// Jobs that have ended and are kept. Older ones go.
    pub jobs_max: usize,
    /// Bytes that these may take together.
    pub bytes_max: u64,
    /// Bytes of a job's log. What is over is dropped, and counted.
    pub log_bytes_max: u64,
    /// Lines of a log on their way to their file.
    pub log_queue_lines_max: usize,
    /// And their bytes.
    pub log_queue_bytes_max: u64,
    /// Characters of each argument that a record shows.
    pub argument_chars_max: usize,
    /// Arguments that a record shows.
    pub arguments_max: usize,
    /// Bytes of a record.
    pub record_bytes_max: u64,
    /// Bytes of the records of a job's tasks, and of an answer.
    pub response_bytes_max: u64,
    /// Bytes of a question.
    pub query_bytes_max: u64,
    /// Questions that are answered at once.
    pub concurrent_queries_max: usize,
    /// For a question and its answer, on both sides.
    pub query_time_ms_max: u64,
    /// Rows of a list.
    pub rows_max: u32,
}

impl JobFolderLimits {
    /// Those of this build.
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
