//! The thread that reads what programs were given, so that nobody else waits for a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use sandbar_core::{Fault, JobId, ObjectId};

use super::files::{Content, Given};

/// What is to be read, for which object.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) object: ObjectId,
    pub(crate) job: JobId,
    pub(crate) given: Arc<Given>,
    pub(crate) number: u64,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) wanted: Wanted,
    pub(crate) content: Result<Content, Fault>,
}

/// Who reads. Dropping it waits for what is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    wanted: Option<Sender<Wanted>>,
    read: Receiver<Read>,
    /// How much was read and not taken.
    ready: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts the thread, which reads what has `bytes_max` bytes at most, and calls `notify` whenever it has.
    pub(crate) fn start(bytes_max: u64, notify: impl Fn() + Send + 'static) -> io::Result<Reader> {
        let (wanted, received) = channel::<Wanted>();
        let (sender, read) = channel();
        let ready = Arc::new(AtomicUsize::new(0));
        let there = ready.clone();
        let work = move || {
            for wanted in received {
                let content = wanted.given.read(wanted.number, bytes_max);
                there.fetch_add(1, AcqRel);
                if sender.send(Read { wanted, content }).is_err() {
                    return;
                }
                notify();
            }
        };
        let thread = std::thread::Builder::new().name("files".into()).spawn(work)?;
        Ok(Reader { wanted: Some(wanted), read, ready, thread: Some(thread) })
    }

    /// Has something read. How much is asked for at once is for who asks.
    pub(crate) fn ask(&self, wanted: Wanted) {
        // The thread ends with this.
        let _ = self.wanted.as_ref().map(|sender| sender.send(wanted));
    }

    /// The next that was read, if there is any.
    pub(crate) fn next_read(&self) -> Option<Read> {
        let read = self.read.try_recv().ok()?;
        self.ready.fetch_sub(1, AcqRel);
        Some(read)
    }

    /// Whether something was read and not taken.
    pub(crate) fn has_some(&self) -> bool {
        self.ready.load(Acquire) > 0
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
