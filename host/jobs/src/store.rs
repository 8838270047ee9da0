//! The store of a user's jobs: one folder with a folder per job, which is found, listed and pruned here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sandbar_machine::write_atomically;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::inspect::{self, InspectError, JobQuery, JobResponse};
use crate::job_record::{JobFailure, JobRecord, LOG_FILE, SUMMARY_FILE, TASKS_FILE, read_bounded};
use crate::limits::JobFolderLimits;
use crate::log::LoggedLine;
use crate::name::JobName;
use crate::rows::{JobSummary, Listing, TaskRow};
use crate::run_state::RunState;
use crate::store_error::JobStoreError;

/// Locked by the node of a running job.
const LOCK_FILE: &str = "lock";
/// Present if the job was interrupted, even if its node was killed before it wrote the final record.
pub(crate) const STOP_MARK_FILE: &str = "stopping";
const LIMITS: JobFolderLimits = JobFolderLimits::DEFAULT;
/// Maximum bytes of a log line in the file: the longest line that a task can log, and its JSON fields.
const LINE_BYTES_MAX: usize = 4 << 20;

/// The store of a user's jobs.
#[derive(Debug, Clone)]
pub struct JobStore {
    pub(crate) folder: PathBuf,
}

/// A job in the store.
#[derive(Debug, Clone)]
pub struct StoredJob {
    folder: PathBuf,
    /// The job's record at the time of the lookup.
    pub record: JobRecord,
}

impl JobStore {
    /// Returns the store in this folder, which need not exist.
    pub fn open(folder: PathBuf) -> JobStore {
        JobStore { folder }
    }

    /// Returns at most `limit` jobs, the newest first.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn jobs(&self, limit: usize) -> Result<Vec<StoredJob>, JobStoreError> {
        let names = self.names_newest_first()?;
        Ok(names.into_iter().take(limit).map(|name| self.load(name)).collect())
    }

    /// Returns the job with this name, or whose short name starts with `text`.
    ///
    /// # Errors
    /// No job or several jobs match, or the store can't be read.
    pub fn find(&self, text: &str) -> Result<StoredJob, JobStoreError> {
        let mut names = self.names_newest_first()?;
        names.retain(|name| name.matches(text));
        match names.len() {
            0 => Err(JobStoreError::Unknown(text.to_owned())),
            1 => Ok(self.load(names.swap_remove(0))),
            _ => {
                let names = names.iter().map(|name| name.short().to_owned()).collect();
                Err(JobStoreError::Ambiguous { text: text.to_owned(), names })
            }
        }
    }

    /// Returns the newest job.
    ///
    /// # Errors
    /// The store is empty or can't be read.
    pub fn last(&self) -> Result<StoredJob, JobStoreError> {
        let last = self.names_newest_first()?.into_iter().next();
        Ok(self.load(last.ok_or(JobStoreError::Empty)?))
    }

    /// Removes a finished job.
    ///
    /// # Errors
    /// The job is running, or its folder can't be removed.
    pub fn remove(&self, job: &StoredJob) -> Result<(), JobStoreError> {
        let at = |reason| JobStoreError::Io { path: job.folder.clone(), reason };
        let lock = match lock_file(&job.folder, false) {
            Ok(lock) => Some(lock),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(at(e)),
        };
        if lock.as_ref().is_some_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err()) {
            return Err(JobStoreError::Running(job.record.id.short().to_owned()));
        }
        fs::remove_dir_all(&job.folder).map_err(at)
    }

    /// Removes the oldest finished jobs beyond the limits on their number and bytes.
    pub(crate) fn prune(&self, limits: &JobFolderLimits) {
        let Ok(names) = self.names_newest_first() else { return };
        let mut bytes = 0;
        for (number, name) in names.into_iter().enumerate() {
            let folder = self.folder.join(name.as_str());
            bytes += folder_bytes(&folder);
            if number >= limits.jobs_max || bytes > limits.bytes_max {
                // Running jobs stay. A folder that can't be removed is retried after the next job.
                let _ = self.remove(&self.load(name));
            }
        }
    }

    fn load(&self, name: JobName) -> StoredJob {
        let folder = self.folder.join(name.as_str());
        // The lock is checked before the record is read: a node writes the final record before it releases the lock.
        let is_running = is_locked(&folder);
        let mut record = JobRecord::read(&folder).unwrap_or_else(|e| JobRecord::unreadable(name, &e));
        if !is_running && !record.state.is_finished() {
            let is_stop_marked = folder.join(STOP_MARK_FILE).exists();
            let (state, message) = match is_stop_marked {
                true => (RunState::Stopped, "interrupted"),
                false => (RunState::Failed, "its node was killed"),
            };
            (record.state, record.error) = (state, Some(JobFailure::from_message(message)));
            // The last heartbeat or write of the node. File times may be some milliseconds behind the clock.
            record.ended_ms = last_written_ms(&folder).map(|last| last.max(record.submitted_ms));
        }
        StoredJob { folder, record }
    }

    fn names_newest_first(&self) -> Result<Vec<JobName>, JobStoreError> {
        let mut names = self.names().map_err(|reason| JobStoreError::Io { path: self.folder.clone(), reason })?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    pub(crate) fn names(&self) -> io::Result<Vec<JobName>> {
        match fs::read_dir(&self.folder) {
            // Entries that are not job names belong to others.
            Ok(all) => Ok(all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

impl StoredJob {
    /// Returns whether the job's node is alive.
    pub fn is_running(&self) -> bool {
        is_locked(&self.folder)
    }

    /// Reads the job's record again.
    pub fn reload(&self) -> StoredJob {
        let store = JobStore::open(self.folder.parent().unwrap_or(Path::new("/")).to_owned());
        store.load(self.record.id.clone())
    }

    /// Sends a query to the job's node.
    ///
    /// # Errors
    /// The node is not running, does not respond, or refuses the query.
    pub fn query_node(&self, query: &JobQuery) -> Result<JobResponse, InspectError> {
        inspect::send_query(&self.folder, query)
    }

    /// Answers a query: through the job's node while the job runs, otherwise from the records of its tasks. Returns `None` if
    /// the job has finished and its folder has no records of that kind.
    ///
    /// # Errors
    /// The node does not respond, or the records can't be read.
    pub fn query(&self, query: &JobQuery) -> Result<Option<JobResponse>, InspectError> {
        if self.is_running() {
            match self.query_node(query) {
                // The job ended meanwhile.
                Err(InspectError::Io(_)) if !self.is_running() => {}
                response => return response.map(Some),
            }
        }
        Ok(match query {
            JobQuery::Summary => Some(JobResponse::Summary(self.summary()?)),
            JobQuery::Tasks { limit, state, name } => {
                let is_named = |other: &str| name.as_ref().is_none_or(|name| name == other);
                let summary = self.summary()?.names;
                let total = summary.iter().filter(|name| is_named(&name.name)).map(|name| name.count(*state)).sum();
                let is_selected = |row: &TaskRow| is_named(&row.name) && state.is_none_or(|state| state == row.state);
                let rows = self.tasks()?.rows.into_iter().filter(is_selected);
                Some(JobResponse::Tasks(Listing::new(total, rows.take(*limit as usize).collect())))
            }
            _ => None,
        })
    }

    /// Returns the records of the finished job's tasks, empty if none were written.
    ///
    /// # Errors
    /// The records can't be read.
    pub fn tasks(&self) -> Result<Listing<TaskRow>, JobStoreError> {
        self.read(TASKS_FILE)
    }

    /// Returns the summary of the finished job's tasks, empty if none was written.
    ///
    /// # Errors
    /// The summary can't be read.
    pub fn summary(&self) -> Result<JobSummary, JobStoreError> {
        self.read(SUMMARY_FILE)
    }

    /// Returns a reader of the job's log, from its start.
    ///
    /// # Errors
    /// The log can't be opened.
    pub fn log(&self) -> Result<LogReader, JobStoreError> {
        let path = self.folder.join(LOG_FILE);
        let file = File::open(&path).map_err(|reason| JobStoreError::Io { path, reason })?;
        Ok(LogReader { file: BufReader::new(file), partial: Vec::new() })
    }

    fn read<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, JobStoreError> {
        let path = self.folder.join(name);
        match read_bounded(&path, LIMITS.response_bytes_max) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| JobStoreError::Io { path, reason: io::Error::other(e) })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(reason) => Err(JobStoreError::Io { path, reason }),
        }
    }
}

/// Writes the records of a job's tasks.
pub(crate) fn write_task_files(folder: &Path, tasks: &Listing<TaskRow>, summary: &JobSummary) -> io::Result<()> {
    let json = |value: &dyn Fn() -> serde_json::Result<Vec<u8>>| value().map_err(io::Error::other);
    write_atomically(&folder.join(SUMMARY_FILE), &json(&|| serde_json::to_vec(summary))?)?;
    let bytes = json(&|| serde_json::to_vec(tasks))?;
    if bytes.len() as u64 > LIMITS.response_bytes_max {
        // Long error messages may exceed the limit although the number of rows is bounded.
        let truncated = Listing::new(tasks.total, tasks.rows[..tasks.rows.len() / 10].to_vec());
        return write_atomically(&folder.join(TASKS_FILE), &to_vec(&truncated)?);
    }
    write_atomically(&folder.join(TASKS_FILE), &bytes)
}

fn to_vec(value: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}

/// Reads the lines of a job's log, which may still grow. An incomplete line is returned once it is complete.
#[derive(Debug)]
pub struct LogReader {
    file: BufReader<File>,
    partial: Vec<u8>,
}

impl LogReader {
    /// Returns the next line, or `None` if the file has no further complete line now. Skips invalid lines.
    pub fn next_line(&mut self) -> Option<LoggedLine> {
        loop {
            self.file.read_until(b'\n', &mut self.partial).ok()?;
            if self.partial.last() != Some(&b'\n') {
                if self.partial.len() > LINE_BYTES_MAX {
                    self.partial.clear();
                }
                return None;
            }
            let line = serde_json::from_slice(&self.partial);
            self.partial.clear();
            if let Ok(line) = line {
                return Some(line);
            }
        }
    }
}

pub(crate) fn lock_file(folder: &Path, create: bool) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true);
    if create {
        options.write(true).create_new(true).mode(0o600);
    }
    options.open(folder.join(LOCK_FILE)).map(OwnedFd::from)
}

/// Returns whether a node holds the lock of a job's folder.
fn is_locked(folder: &Path) -> bool {
    let lock = lock_file(folder, false);
    lock.is_ok_and(|lock| flock(lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK))
}

/// Returns the latest modification time of a folder's files, in milliseconds since 1970.
fn last_written_ms(folder: &Path) -> Option<u64> {
    let files = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.metadata().ok()?.modified().ok());
    let last = files.max()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(last.as_millis() as u64)
}

/// Returns the bytes of a folder's files.
fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use sandbar_core::TenantId;

    use super::*;
    use crate::{JobCounts, LogCounts};

    /// Returns a store with a number of finished jobs, and its temporary folder.
    async fn store_with(jobs: usize) -> (tempfile::TempDir, JobStore, Vec<JobName>) {
        let folder = tempfile::tempdir().unwrap();
        let store = JobStore::open(folder.path().join("jobs"));
        let mut names = Vec::new();
        for _ in 0..jobs {
            let mut recorder = store.create("p.wasm", &[], TenantId::DEFAULT).unwrap();
            names.push(recorder.name().unwrap().clone());
            recorder.finish(RunState::Succeeded, 7.into(), None, JobCounts::default(), LogCounts::default());
            // Names sort by their time, to the millisecond.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        (folder, store, names)
    }

    #[tokio::test]
    async fn jobs_are_found_by_digits_and_listed_by_time() {
        let (_folder, store, mut names) = store_with(5).await;
        for name in &names {
            assert_eq!(store.find(name.short()).unwrap().record.id, *name);
            assert_eq!(store.find(name.as_str()).unwrap().record.result, serde_json::json!(7));
        }
        names.reverse();
        let listed: Vec<_> = store.jobs(3).unwrap().into_iter().map(|job| job.record.id).collect();
        assert_eq!(listed, names[..3]);
        assert_eq!(store.last().unwrap().record.id, names[0]);
        assert!(matches!(store.find("xyz"), Err(JobStoreError::Unknown(_))));
        let empty = JobStore::open("/nowhere/at/all".into());
        assert!(matches!(empty.last(), Err(JobStoreError::Empty)) && empty.jobs(9).unwrap().is_empty());
    }

    #[tokio::test]
    async fn only_finished_jobs_are_removed() {
        let (_folder, store, names) = store_with(2).await;
        let running = store.create("p.wasm", &[("n".into(), "x".repeat(1000))], TenantId::DEFAULT).unwrap();
        let job = store.last().unwrap();
        assert!(job.is_running() && job.record.state == RunState::Pending);
        assert!(job.record.arguments["n"].chars().count() <= 201);
        assert!(matches!(store.remove(&job), Err(JobStoreError::Running(_))));
        store.prune(&JobFolderLimits { jobs_max: 0, ..JobFolderLimits::DEFAULT });
        assert_eq!(store.jobs(9).unwrap().len(), 1);
        // As if its node was killed.
        running.simulate_crash();
        let job = store.last().unwrap();
        assert_eq!(job.record.error.as_ref().map(|e| e.message.as_str()), Some("its node was killed"));
        assert_eq!((job.record.state, job.is_running()), (RunState::Failed, false));
        store.remove(&job).unwrap();
        assert!(store.jobs(9).unwrap().is_empty() && names.len() == 2);
    }

    #[tokio::test]
    async fn an_interrupted_job_is_stopped_even_if_its_node_is_killed() {
        let (_folder, store, _) = store_with(0).await;
        for is_marked in [true, false] {
            let running = store.create("p.wasm", &[], TenantId::DEFAULT).unwrap();
            running.mark_running();
            let mark = running.stop_mark().unwrap();
            if is_marked {
                mark.set();
                assert_eq!(store.last().unwrap().record.state, RunState::Running);
            }
            running.simulate_crash();
            let record = store.last().unwrap().record;
            let expected =
                if is_marked { (RunState::Stopped, "interrupted") } else { (RunState::Failed, "its node was killed") };
            assert_eq!((record.state, record.error.unwrap().message.as_str()), expected);
            // Names sort by their time, to the millisecond.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    #[tokio::test]
    async fn the_job_of_a_dropped_recorder_is_stopped() {
        let (_folder, store, _) = store_with(0).await;
        let recorder = store.create("p.wasm", &[], TenantId::DEFAULT).unwrap();
        let name = recorder.name().unwrap().clone();
        drop(recorder);
        let record = store.find(name.as_str()).unwrap().record;
        assert_eq!(record.state, RunState::Stopped);
        assert_eq!(record.error.unwrap().message, "its command ended before the job finished");
    }

    #[tokio::test]
    async fn a_killed_job_ends_at_its_last_heartbeat() {
        let (_folder, store, _) = store_with(0).await;
        let running = store.create("p.wasm", &[], TenantId::DEFAULT).unwrap();
        let written = store.last().unwrap().record.submitted_ms;
        let serving = running.serve(async |_| JobResponse::Stopping);
        let _ = tokio::time::timeout(std::time::Duration::from_millis(100), serving).await;
        let lock = store.last().unwrap().folder.join(LOCK_FILE);
        let heartbeat = fs::metadata(&lock).unwrap().modified().unwrap() + std::time::Duration::from_secs(60);
        File::options().write(true).open(&lock).unwrap().set_modified(heartbeat).unwrap();
        running.simulate_crash();
        let duration_ms = store.last().unwrap().record.ended_ms.unwrap() - written;
        assert!((60_000..70_000).contains(&duration_ms), "{duration_ms} ms");
    }

    #[tokio::test]
    async fn prune_removes_the_oldest_jobs() {
        for (limits, expected) in [
            (JobFolderLimits { jobs_max: 3, ..JobFolderLimits::DEFAULT }, 3),
            (JobFolderLimits { bytes_max: 1, ..JobFolderLimits::DEFAULT }, 0),
            (JobFolderLimits::DEFAULT, 5),
        ] {
            let (_folder, store, names) = store_with(5).await;
            store.prune(&limits);
            let mut remaining: Vec<_> = store.jobs(9).unwrap().into_iter().map(|job| job.record.id).collect();
            remaining.reverse();
            assert_eq!(remaining, names[5 - expected..]);
        }
    }

    #[tokio::test]
    async fn an_invalid_record_is_reported() {
        let (folder, store, names) = store_with(1).await;
        let path = folder.path().join("jobs").join(names[0].as_str()).join("job.json");
        for (text, expected) in [("{", "EOF"), ("{\"version\": 1}", "missing field"), ("[]", "invalid")] {
            fs::write(&path, text).unwrap();
            let record = store.last().unwrap().record;
            let message = record.error.unwrap().message;
            assert!(record.state == RunState::Failed && message.contains("can't be read"), "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }
}
