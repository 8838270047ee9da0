//! State that fetching and serving share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandbar_core::{LimitError, ObjectId};
use tokio::sync::{Semaphore, mpsc};

use super::event::EventSender;
use super::progress::FetchProgress;
use super::rate_meter::RateMeter;
use super::tree_cache::HashTreeCache;
use super::{
    Admission, AdmissionError, FetchError, HashTree, MemoryPermit, Offload, PartialObject, Priority, TransferEvent,
    TransferLimits,
};

/// Object transfers of this node. Clones share the engine.
#[derive(Debug, Clone)]
pub struct Transfers(pub(crate) Arc<Engine>);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) limits: TransferLimits,
    pub(crate) admission: Arc<Admission>,
    pub(crate) events: EventSender,
    pub(crate) trees: HashTreeCache,
    /// Permits for bytes that may be handed to QUIC at once.
    pub(crate) sending: Semaphore,
    /// Send rate to all peers together.
    pub(crate) sent: RateMeter,
    /// Admitted fetches of each priority.
    active: [AtomicUsize; Priority::ALL.len()],
    fetching: Mutex<HashMap<ObjectId, Weak<FetchProgress>>>,
    /// Number of started fetches.
    fetches: AtomicU32,
}

impl Transfers {
    /// Creates an engine. Fetches take memory from `admission`; `events` receives events while its channel has room.
    ///
    /// # Errors
    /// The first limit out of its range.
    pub fn new(
        limits: TransferLimits,
        admission: Arc<Admission>,
        events: Option<mpsc::Sender<TransferEvent>>,
        offload: Offload,
    ) -> Result<Transfers, LimitError> {
        limits.check()?;
        Ok(Transfers(Arc::new(Engine {
            limits,
            admission,
            events: EventSender::new(events),
            trees: HashTreeCache::new(limits.trees_bytes_max, limits.tree_builds_max, offload),
            sending: Semaphore::new(usize::try_from(limits.sending_bytes_max).unwrap_or(Semaphore::MAX_PERMITS)),
            sent: RateMeter::default(),
            active: Default::default(),
            fetching: Mutex::default(),
            fetches: AtomicU32::new(0),
        })))
    }

    /// Caches the hash tree of a local object, so that serving the object does not compute it.
    pub fn keep_tree(&self, object: ObjectId, tree: HashTree) {
        self.0.trees.put(object, tree);
    }

    /// Removes the hash tree of an object that no longer exists.
    pub fn forget(&self, object: ObjectId) {
        self.0.trees.forget(object);
    }

    /// Returns an object that is being fetched, to [serve](super::HeldObject::Partial) its verified groups.
    pub fn partial(&self, object: ObjectId) -> Option<PartialObject> {
        self.0.fetching().get(&object).and_then(Weak::upgrade).map(PartialObject)
    }

    pub(crate) async fn admit(
        &self,
        object: ObjectId,
        bytes: u64,
        priority: Priority,
    ) -> Result<MemoryPermit, FetchError> {
        self.0.admission.admit(bytes, priority).await.map_err(|refused| match refused {
            AdmissionError::TooLarge { max } => FetchError::TooLarge { object, bytes, max },
            AdmissionError::TooMany { max } => FetchError::TooManyWaiting { object, max },
        })
    }

    /// Returns the number of events that were lost because the channel was full.
    pub fn events_lost(&self) -> u64 {
        self.0.events.lost()
    }

    /// Returns the bytes of memory of cached hash trees.
    pub fn trees_bytes(&self) -> u64 {
        self.0.trees.used()
    }
}

impl Engine {
    fn fetching(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectId, Weak<FetchProgress>>> {
        // Poisoning is harmless: no code panics while it holds the lock.
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a running fetch until the returned guard is dropped.
    pub(crate) fn register(
        self: &Arc<Self>,
        object: ObjectId,
        priority: Priority,
        progress: &Arc<FetchProgress>,
    ) -> ActiveFetch {
        self.active[priority as usize].fetch_add(1, Ordering::Relaxed);
        self.fetching().insert(object, Arc::downgrade(progress));
        ActiveFetch { engine: self.clone(), object, priority, progress: progress.clone() }
    }

    /// Returns a number for a new fetch.
    pub(crate) fn next_fetch(&self) -> u32 {
        self.fetches.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether a fetch of a higher priority is running.
    pub(crate) fn is_outranked(&self, priority: Priority) -> bool {
        self.active[priority as usize + 1..].iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }
}

/// Registration of a running fetch.
pub(crate) struct ActiveFetch {
    engine: Arc<Engine>,
    object: ObjectId,
    priority: Priority,
    progress: Arc<FetchProgress>,
}

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.engine.active[self.priority as usize].fetch_sub(1, Ordering::Relaxed);
        self.progress.end();
        let mut fetching = self.engine.fetching();
        if fetching.get(&self.object).is_some_and(|other| other.as_ptr() == Arc::as_ptr(&self.progress)) {
            fetching.remove(&self.object);
        }
    }
}
