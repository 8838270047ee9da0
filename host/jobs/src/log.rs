//! The log of a job: lines of its tasks and of its node, shown to the user and written to a file.
//!
//! Senders put lines into a bounded queue and never wait. One thread deduplicates and shows the lines, and writes all of
//! them to the job's log file, which is bounded as well. Lines beyond either bound are dropped and counted.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandbar_core::{TaskId, TenantId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::dedup::LogDeduplicator;
use crate::job_record::{LogCounts, now_ms};
use crate::limits::JobFolderLimits;
use crate::progress::JobProgress;
use crate::updates::JobUpdates;

/// Interval at which summaries of repeated lines are shown.
const TICK: Duration = Duration::from_millis(200);

/// A line to log.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'a> {
    /// Id and name of the task that logs it, and its worker. `None` for the node.
    pub task: Option<(TaskId, &'a str, WorkerId)>,
    /// 0 (`debug`) to 3 (`error`).
    pub level: u8,
    /// Text of the line.
    pub line: &'a str,
}

/// A line of a job's log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedLine {
    /// Time in milliseconds since 1970.
    pub ms: u64,
    /// Tenant of the job.
    #[serde(default)]
    pub tenant: TenantId,
    /// Name of the task that logged it, or `node`.
    pub name: String,
    /// Id of the task.
    pub task: Option<String>,
    /// Worker of the task.
    pub worker: Option<u32>,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// Text of the line.
    pub line: String,
}

impl LoggedLine {
    fn new(entry: LogEntry<'_>, tenant: TenantId) -> LoggedLine {
        let level = ["debug", "info", "warn"].get(usize::from(entry.level)).copied().unwrap_or("error");
        LoggedLine {
            ms: now_ms(),
            tenant,
            name: entry.task.map_or("node", |(_, name, _)| name).to_owned(),
            task: entry.task.map(|(id, ..)| id.short()),
            worker: entry.task.map(|(.., worker)| worker.0),
            level: level.to_owned(),
            line: entry.line.to_owned(),
        }
    }

    /// Returns the source for display: `(add 3-17, worker 3)`.
    pub fn source(&self) -> String {
        match (&self.task, self.worker) {
            (Some(task), Some(worker)) => format!("({} {task}, worker {worker})", self.name),
            _ => format!("({})", self.name),
        }
    }

    /// Returns level and text for display: `info: it starts`.
    pub fn message(&self) -> String {
        format!("{}: {}", self.level, self.line)
    }
}

/// Counters that a log shares with its senders.
#[derive(Debug, Default)]
struct QueueCounters {
    /// Bytes of queued lines.
    bytes: AtomicU64,
    /// Lines that found the queue full.
    dropped: AtomicU64,
}

/// Puts lines into the queue of a job's log.
#[derive(Debug, Clone)]
pub struct LogSender {
    lines: SyncSender<LoggedLine>,
    counters: Arc<QueueCounters>,
    tenant: TenantId,
}

impl LogSender {
    /// Queues a line. Drops and counts it if the queue is full. Never waits.
    pub fn send(&self, entry: LogEntry<'_>) {
        let bytes = entry.line.len() as u64;
        let queued_bytes = self.counters.bytes.fetch_add(bytes, Relaxed);
        let is_over = queued_bytes + bytes > JobFolderLimits::DEFAULT.log_queue_bytes_max;
        if is_over || self.lines.try_send(LoggedLine::new(entry, self.tenant)).is_err() {
            self.counters.bytes.fetch_sub(bytes, Relaxed);
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Where lines are shown, besides the file.
pub enum LogOutput {
    /// In the progress output of a command, with repeated lines as one.
    Deduplicated(Arc<JobProgress>),
    /// In a function that is called with each line.
    Callback(Box<dyn FnMut(&LoggedLine) + Send>),
}

/// The file of a job's log.
#[derive(Debug)]
pub struct JobLogFile {
    file: File,
    /// Notified when readers of the file see more lines.
    updates: JobUpdates,
}

impl JobLogFile {
    pub(crate) fn new(file: File, updates: JobUpdates) -> JobLogFile {
        JobLogFile { file, updates }
    }
}

/// The log of a job, with its thread.
#[derive(Debug)]
pub struct JobLog {
    sender: LogSender,
    thread: JoinHandle<LogCounts>,
}

impl JobLog {
    /// Starts the thread that shows lines of a tenant's job and writes them to `file`, if any.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(file: Option<JobLogFile>, output: LogOutput, tenant: TenantId) -> std::io::Result<JobLog> {
        let (sender, lines) = sync_channel(JobFolderLimits::DEFAULT.log_queue_lines_max);
        let counters = Arc::new(QueueCounters::default());
        let bytes_max = JobFolderLimits::DEFAULT.log_bytes_max;
        let file = file.map(|file| LogFile::new(file, bytes_max));
        let mut writer =
            LogWriter { lines, counters: counters.clone(), deduplicator: LogDeduplicator::default(), file, output };
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(JobLog { sender: LogSender { lines: sender, counters, tenant }, thread })
    }

    /// Returns a new sender of this log.
    pub fn sender(&self) -> LogSender {
        self.sender.clone()
    }

    /// Waits until all senders are dropped and all lines are shown and written. Returns the counters of the log.
    pub fn close(self) -> LogCounts {
        drop(self.sender);
        self.thread.join().unwrap_or_default()
    }
}

struct LogWriter {
    lines: Receiver<LoggedLine>,
    counters: Arc<QueueCounters>,
    deduplicator: LogDeduplicator,
    file: Option<LogFile>,
    output: LogOutput,
}

impl LogWriter {
    fn run(&mut self) -> LogCounts {
        let mut next_tick = Instant::now() + TICK;
        while let Some(line) = self.next(next_tick) {
            if let Some(line) = line {
                self.handle(&line);
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                let due = self.deduplicator.take_due(Instant::now());
                due.into_iter().for_each(|text| self.show(text));
            }
        }
        self.deduplicator.take_all().into_iter().for_each(|text| self.show(text));
        let mut counts = self.file.as_mut().map(LogFile::finish).unwrap_or_default();
        let dropped = self.counters.dropped.load(Relaxed);
        if dropped > 0 {
            self.show(format!("({dropped} lines were dropped: the log queue was full)"));
        }
        counts.dropped += dropped;
        counts
    }

    /// Returns the next line, `Some(None)` at the deadline, or `None` once all senders are dropped and the queue is empty.
    fn next(&mut self, deadline: Instant) -> Option<Option<LoggedLine>> {
        match self.lines.try_recv() {
            Ok(line) => return Some(Some(line)),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        // The queue is empty: readers that follow the file see all lines before this thread sleeps.
        self.file.iter_mut().for_each(LogFile::flush);
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(Some(line)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn handle(&mut self, line: &LoggedLine) {
        self.counters.bytes.fetch_sub(line.line.len() as u64, Relaxed);
        if let Some(file) = &mut self.file {
            file.write(line);
        }
        match &mut self.output {
            LogOutput::Callback(show) => show(line),
            LogOutput::Deduplicated(_) => {
                let text = self.deduplicator.add(Instant::now(), &line.source(), &line.message());
                text.into_iter().for_each(|text| self.show(text));
            }
        }
    }

    fn show(&self, text: String) {
        if let LogOutput::Deduplicated(progress) = &self.output {
            progress.log(text);
        }
    }
}

/// A log file of bounded size, with one JSON object per line.
struct LogFile {
    file: BufWriter<File>,
    updates: JobUpdates,
    has_unflushed: bool,
    bytes_max: u64,
    counts: LogCounts,
}

impl LogFile {
    fn new(file: JobLogFile, bytes_max: u64) -> LogFile {
        let JobLogFile { file, updates } = file;
        LogFile { file: BufWriter::new(file), updates, has_unflushed: false, bytes_max, counts: LogCounts::default() }
    }

    fn write(&mut self, line: &LoggedLine) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let bytes = self.counts.bytes + text.len() as u64;
        if bytes > self.bytes_max || self.file.write_all(&text).is_err() {
            self.counts.dropped += 1;
        } else {
            self.counts.lines += 1;
            self.counts.bytes = bytes;
            self.has_unflushed = true;
        }
    }

    fn flush(&mut self) {
        // A write error leaves the log incomplete, but does not fail the job.
        let _ = self.file.flush();
        if std::mem::take(&mut self.has_unflushed) {
            self.updates.notify();
        }
    }

    fn finish(&mut self) -> LogCounts {
        self.flush();
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_counted() {
        let file = tempfile::tempfile().unwrap();
        let updates = JobUpdates::default();
        let mut receiver = updates.subscribe();
        let mut log = LogFile::new(JobLogFile::new(file, updates), 1000);
        let line = |line: &str| LoggedLine::new(LogEntry { task: None, level: 1, line }, TenantId::DEFAULT);
        (0..100).for_each(|_| log.write(&line("short")));
        log.write(&line(&"x".repeat(2000)));
        assert!(!receiver.has_changed().unwrap());
        let counts = log.finish();
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        log.flush();
        assert!(!receiver.has_changed().unwrap(), "nothing was written since");
        assert_eq!(counts.lines + counts.dropped, 101);
        assert!(counts.lines >= 5 && counts.bytes <= 1000, "{counts:?}");
    }

    #[test]
    fn a_line_names_its_source() {
        let task = Some((TaskId((3 << 36) + 17), "add", WorkerId(4)));
        for (task, level, expected) in [
            (task, 0, "(add 3-17, worker 4) debug: x"),
            (task, 3, "(add 3-17, worker 4) error: x"),
            (None, 2, "(node) warn: x"),
        ] {
            let line = LoggedLine::new(LogEntry { task, level, line: "x" }, TenantId(7));
            assert_eq!(format!("{} {}", line.source(), line.message()), expected);
        }
    }

    #[test]
    fn repeated_lines_are_shown_once_and_all_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let progress = Arc::new(JobProgress::default());
        let shown = LogOutput::Deduplicated(progress.clone());
        let file = JobLogFile::new(File::create(&path).unwrap(), JobUpdates::default());
        let log = JobLog::start(Some(file), shown, TenantId::DEFAULT).unwrap();
        let sender = log.sender();
        for id in 0..50 {
            sender.send(LogEntry { task: Some((TaskId(id), "add", WorkerId(1))), level: 1, line: "the same" });
        }
        drop(sender);
        let counts = log.close();
        assert_eq!((counts.lines, counts.dropped), (50, 0));
        let shown = progress.take_log();
        assert_eq!(shown.first().unwrap(), "(add 0-0, worker 1) info: the same");
        assert!(shown.last().unwrap().ends_with("across tasks]") && shown.len() <= 3, "{shown:?}");
        let written = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<LoggedLine> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 50);
        assert_eq!(counts.bytes, written.len() as u64);
    }
}
