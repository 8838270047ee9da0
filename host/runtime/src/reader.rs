//! The thread that reads the files of jobs, so that the runtime never waits for a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use sandbar_core::{Fault, JobId, ObjectId};

use super::files::{Content, JobFiles};

/// A file to read, for an object.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    pub(crate) object: ObjectId,
    pub(crate) job: JobId,
    pub(crate) files: Arc<JobFiles>,
    pub(crate) number: u64,
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct ReadResult {
    pub(crate) wanted: ReadRequest,
    pub(crate) content: Result<Content, Fault>,
}

/// The reading thread. Dropping it waits for the current file.
#[derive(Debug)]
pub(crate) struct FileReader {
    wanted: Option<Sender<ReadRequest>>,
    read: Receiver<ReadResult>,
    /// Number of results that were not taken.
    ready: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl FileReader {
    /// Starts the thread. It reads files of at most `bytes_max` bytes, and calls `notify` after each.
    pub(crate) fn start(bytes_max: u64, notify: impl Fn() + Send + 'static) -> io::Result<FileReader> {
        let (wanted, received) = channel::<ReadRequest>();
        let (sender, read) = channel();
        let ready = Arc::new(AtomicUsize::new(0));
        let there = ready.clone();
        let work = move || {
            for wanted in received {
                let content = wanted.files.read(wanted.number, bytes_max);
                there.fetch_add(1, AcqRel);
                if sender.send(ReadResult { wanted, content }).is_err() {
                    return;
                }
                notify();
            }
        };
        let thread = std::thread::Builder::new().name("files".into()).spawn(work)?;
        Ok(FileReader { wanted: Some(wanted), read, ready, thread: Some(thread) })
    }

    /// Queues a request. The caller bounds the number of queued requests.
    pub(crate) fn read(&self, request: ReadRequest) {
        // The thread outlives this reader.
        let _ = self.wanted.as_ref().map(|sender| sender.send(request));
    }

    /// Returns the next result, if there is one.
    pub(crate) fn next_result(&self) -> Option<ReadResult> {
        let read = self.read.try_recv().ok()?;
        self.ready.fetch_sub(1, AcqRel);
        Some(read)
    }

    /// Returns whether a result is available.
    pub(crate) fn has_results(&self) -> bool {
        self.ready.load(Acquire) > 0
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
