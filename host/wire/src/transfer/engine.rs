//! The engine: what fetches and answers have in common.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandbar_core::ObjectId;
use tokio::sync::{Semaphore, mpsc};

use super::event::Events;
use super::pace::Pace;
use super::progress::Progress;
use super::serve::Partial;
use super::trees::Trees;
use super::{Admission, FetchError, NotAdmitted, Permit, Priority, TransferEvent, TransferLimits, Tree};

/// Where work that takes long is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// On threads of tokio's for what blocks.
    Threads,
    /// On the spot: for simulations, which have one thread.
    Inline,
}

impl Offload {
    /// Nothing when it panicked, or the runtime is shutting down.
    pub(crate) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self {
            Offload::Threads => tokio::task::spawn_blocking(work).await.ok(),
            Offload::Inline => Some(work()),
        }
    }
}

/// Transfers of objects between this node and others. Clones are the same engine.
#[derive(Debug, Clone)]
pub struct Transfers(pub(crate) Arc<Engine>);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) limits: TransferLimits,
    pub(crate) admission: Arc<Admission>,
    pub(crate) events: Events,
    pub(crate) trees: Trees,
    /// Bytes that may be handed to QUIC at once.
    pub(crate) sending: Semaphore,
    /// How many bytes a second are sent to all peers.
    pub(crate) sent: Pace,
    /// Fetches that have memory, of each priority.
    active: [AtomicUsize; Priority::ALL.len()],
    fetching: Mutex<HashMap<ObjectId, Weak<Progress>>>,
    /// Fetches that were begun.
    fetches: AtomicU32,
}

impl Transfers {
    /// An engine that fetches into memory that `admission` has, and tells `events`, where there is room, what happens.
    ///
    /// # Errors
    /// When the limits can't be kept: says which.
    pub fn new(
        limits: TransferLimits,
        admission: Arc<Admission>,
        events: Option<mpsc::Sender<TransferEvent>>,
        offload: Offload,
    ) -> Result<Transfers, String> {
        limits.check()?;
        Ok(Transfers(Arc::new(Engine {
            limits,
            admission,
            events: Events::to(events),
            trees: Trees::new(limits.trees_bytes_max, limits.trees_made_max, offload),
            sending: Semaphore::new(usize::try_from(limits.sending_bytes_max).unwrap_or(Semaphore::MAX_PERMITS)),
            sent: Pace::default(),
            active: Default::default(),
            fetching: Mutex::default(),
            fetches: AtomicU32::new(0),
        })))
    }

    /// Keeps the hash tree of an object that is here, so that it is not made again when the object is asked for.
    pub fn keep_tree(&self, object: ObjectId, tree: Tree) {
        self.0.trees.put(object, tree);
    }

    /// An object is no more: its hash tree goes.
    pub fn forget(&self, object: ObjectId) {
        self.0.trees.forget(object);
    }

    /// What there is of an object that is being fetched, to be [served](super::Held::Partial).
    pub fn partial(&self, object: ObjectId) -> Option<Partial> {
        self.0.fetching().get(&object).and_then(Weak::upgrade).map(Partial)
    }

    pub(crate) async fn admit(&self, object: ObjectId, bytes: u64, priority: Priority) -> Result<Permit, FetchError> {
        self.0.admission.admit(bytes, priority).await.map_err(|refused| match refused {
            NotAdmitted::TooLarge { max } => FetchError::TooLarge { object, bytes, max },
            NotAdmitted::TooMany { max } => FetchError::TooManyWaiting { object, max },
        })
    }

    /// How many events were not told because nobody took them.
    pub fn events_lost(&self) -> u64 {
        self.0.events.lost()
    }

    /// Bytes of memory that hash trees take.
    pub fn trees_bytes(&self) -> u64 {
        self.0.trees.used()
    }
}

impl Engine {
    fn fetching(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectId, Weak<Progress>>> {
        // Nothing panics while it is held.
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object is being fetched, as long as what this gives lives.
    pub(crate) fn begin(self: &Arc<Self>, object: ObjectId, priority: Priority, progress: &Arc<Progress>) -> Begun {
        self.active[priority as usize].fetch_add(1, Ordering::Relaxed);
        self.fetching().insert(object, Arc::downgrade(progress));
        Begun { engine: self.clone(), object, priority, progress: progress.clone() }
    }

    /// A number for a fetch.
    pub(crate) fn next_fetch(&self) -> u32 {
        self.fetches.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether something more urgent is being fetched.
    pub(crate) fn is_outranked(&self, priority: Priority) -> bool {
        self.active[priority as usize + 1..].iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }
}

/// An object that is being fetched.
pub(crate) struct Begun {
    engine: Arc<Engine>,
    object: ObjectId,
    priority: Priority,
    progress: Arc<Progress>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.engine.active[self.priority as usize].fetch_sub(1, Ordering::Relaxed);
        self.progress.end();
        let mut fetching = self.engine.fetching();
        if fetching.get(&self.object).is_some_and(|other| other.as_ptr() == Arc::as_ptr(&self.progress)) {
            fetching.remove(&self.object);
        }
    }
}
