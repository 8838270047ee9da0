//! The thread that reads files of jobs, so that the runtime never waits for a disk.

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
    pub(crate) request: ReadRequest,
    pub(crate) content: Result<Content, Fault>,
}

/// The reading thread. Dropping it waits for the current file.
#[derive(Debug)]
pub(crate) struct FileReader {
    requests: Option<Sender<ReadRequest>>,
    results: Receiver<ReadResult>,
    /// Number of available results.
    available: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl FileReader {
    /// Starts the thread. It reads files of at most `bytes_max` bytes, and calls `notify` after each.
    pub(crate) fn start(bytes_max: u64, notify: impl Fn() + Send + 'static) -> io::Result<FileReader> {
        let (requests, received) = channel::<ReadRequest>();
        let (sender, results) = channel();
        let available = Arc::new(AtomicUsize::new(0));
        let counter = available.clone();
        let work = move || {
            for request in received {
                let content = request.files.read(request.number, bytes_max);
                counter.fetch_add(1, AcqRel);
                if sender.send(ReadResult { request, content }).is_err() {
                    return;
                }
                notify();
            }
        };
        let thread = std::thread::Builder::new().name("files".into()).spawn(work)?;
        Ok(FileReader { requests: Some(requests), results, available, thread: Some(thread) })
    }

    /// Queues a request. The caller bounds the number of queued requests.
    pub(crate) fn read(&self, request: ReadRequest) {
        // The thread runs until this reader is dropped.
        let _ = self.requests.as_ref().map(|sender| sender.send(request));
    }

    /// Returns the next result, if there is one.
    pub(crate) fn next_result(&self) -> Option<ReadResult> {
        let result = self.results.try_recv().ok()?;
        self.available.fetch_sub(1, AcqRel);
        Some(result)
    }

    /// Returns whether a result is available.
    pub(crate) fn has_results(&self) -> bool {
        self.available.load(Acquire) > 0
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
