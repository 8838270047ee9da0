//! The recent change history, and its watchers.
//!
//! Watchers have no buffers: each has a position in the one bounded history. A watcher that falls behind it gets an
//! error.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::{Change, KeyRange, LimitKind, MetaError, MetaLimits, Revision, Watcher};

/// All changes of one transaction: at least one, all of the same revision.
pub(crate) type Commit = Arc<[Change]>;

/// The recent changes, in memory.
#[derive(Debug)]
pub(crate) struct History {
    /// Commits of consecutive revisions.
    commits: VecDeque<Commit>,
    /// Revision of the next commit.
    next: Revision,
    /// Last revision that was compacted, or that the store never had.
    compacted: Revision,
    changes: usize,
    bytes: usize,
}

impl History {
    /// Creates an empty history of a store at `revision` whose changes are compacted up to `compacted`.
    pub(crate) fn new(compacted: Revision, revision: Revision) -> History {
        History { commits: VecDeque::new(), next: revision.next(), compacted, changes: 0, bytes: 0 }
    }

    /// Returns the revision up to which the history must be compacted to make room for these commits.
    fn compacted_by(&self, commits: &[Commit], limits: &MetaLimits) -> Revision {
        let mut changes = self.changes + commits.iter().map(|commit| commit.len()).sum::<usize>();
        let mut bytes = self.bytes + commits.iter().map(bytes_of).sum::<usize>();
        let mut compacted = self.compacted;
        let first = self.next.0 - self.commits.len() as u64;
        for (revision, oldest) in (first..).map(Revision).zip(self.commits.iter().chain(commits)) {
            if changes <= limits.history_changes_max && bytes <= limits.history_bytes_max {
                break;
            }
            changes -= oldest.len();
            bytes -= bytes_of(oldest);
            compacted = revision;
        }
        compacted
    }

    /// Appends commits and compacts changes beyond the limits.
    pub(crate) fn push(&mut self, commits: Vec<Commit>, limits: &MetaLimits) {
        self.compacted = self.compacted_by(&commits, limits);
        for commit in commits {
            self.changes += commit.len();
            self.bytes += bytes_of(&commit);
            self.next = self.next.next();
            self.commits.push_back(commit);
        }
        while self.next.0 - self.commits.len() as u64 <= self.compacted.0
            && let Some(oldest) = self.commits.pop_front()
        {
            self.changes -= oldest.len();
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// Iterates over the commits from a revision on.
    fn from(&self, from: Revision) -> impl Iterator<Item = (Revision, &Commit)> {
        let first = self.next.0 - self.commits.len() as u64;
        let skipped = usize::try_from(from.0.saturating_sub(first)).unwrap_or(usize::MAX);
        (first..).map(Revision).zip(&self.commits).skip(skipped)
    }
}

fn bytes_of(commit: &Commit) -> usize {
    commit.iter().map(Change::bytes).sum()
}

/// The history of a store, and its watchers.
pub(crate) struct ChangeLog {
    limits: MetaLimits,
    inner: Mutex<LogState>,
}

struct LogState {
    history: History,
    watchers: BTreeMap<u64, WatcherPosition>,
    next_watcher: u64,
    is_closed: bool,
}

/// Position of a watcher.
struct WatcherPosition {
    span: KeyRange,
    next: Revision,
    /// Wakes the watcher when its range may have changed.
    wakeup: Arc<Notify>,
}

impl ChangeLog {
    pub(crate) fn new(history: History, limits: MetaLimits) -> Arc<ChangeLog> {
        let inner = LogState { history, watchers: BTreeMap::new(), next_watcher: 0, is_closed: false };
        Arc::new(ChangeLog { limits, inner: Mutex::new(inner) })
    }

    /// Returns the revision up to which publishing these commits compacts the history.
    pub(crate) fn compacted_by(&self, commits: &[Commit]) -> Revision {
        self.lock().history.compacted_by(commits, &self.limits)
    }

    /// Appends commits and wakes the watchers of the changed keys.
    pub(crate) fn publish(&self, commits: Vec<Commit>) {
        let mut inner = self.lock();
        let LogState { history, watchers, .. } = &mut *inner;
        for (revision, commit) in (history.next.0..).map(Revision).zip(&commits) {
            for position in watchers.values_mut().filter(|position| position.next <= revision) {
                if position.next == revision && !commit.iter().any(|change| position.span.contains(change.key())) {
                    // The watcher has read everything before, and this commit is outside its range: it need not wake.
                    position.next = revision.next();
                } else {
                    position.wakeup.notify_one();
                }
            }
        }
        history.push(commits, &self.limits);
    }

    /// Ends the log: no more commits follow.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.watchers.values().for_each(|position| position.wakeup.notify_one());
    }

    pub(crate) fn watch(self: &Arc<ChangeLog>, span: &KeyRange, from: Revision) -> Result<Box<dyn Watcher>, MetaError> {
        let mut inner = self.lock();
        let from = from.max(Revision::FIRST);
        let compacted = inner.history.compacted;
        if from <= compacted {
            return Err(MetaError::Compacted { from, compacted });
        }
        if inner.watchers.len() >= self.limits.watchers_max {
            return Err(MetaError::limit(LimitKind::Watchers, inner.watchers.len() + 1, self.limits.watchers_max));
        }
        let id = inner.next_watcher;
        inner.next_watcher += 1;
        let wakeup = Arc::new(Notify::new());
        inner.watchers.insert(id, WatcherPosition { span: span.clone(), next: from, wakeup: wakeup.clone() });
        Ok(Box::new(ChangeLogWatcher { log: self.clone(), id, wakeup }))
    }

    /// Reads the next changes of a watcher, if there are any.
    fn read(&self, id: u64) -> Result<Option<Vec<Change>>, MetaError> {
        let mut inner = self.lock();
        let LogState { history, watchers, is_closed, .. } = &mut *inner;
        let Some(position) = watchers.get_mut(&id) else { return Err(MetaError::Closed) };
        if position.next <= history.compacted {
            return Err(MetaError::Compacted { from: position.next, compacted: history.compacted });
        }
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for (revision, commit) in history.from(position.next) {
            let of_span = || commit.iter().filter(|change| position.span.contains(change.key()));
            let (more, more_bytes) = (of_span().count(), of_span().map(Change::bytes).sum::<usize>());
            let is_page =
                changes.len() + more > self.limits.page_entries_max || bytes + more_bytes > self.limits.page_bytes_max;
            if is_page && !changes.is_empty() {
                break;
            }
            changes.extend(of_span().cloned());
            bytes += more_bytes;
            position.next = revision.next();
        }
        match changes.is_empty() {
            true if *is_closed => Err(MetaError::Closed),
            true => Ok(None),
            false => Ok(Some(changes)),
        }
    }

    /// No code under the lock panics between two consistent states, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChangeLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        write!(f, "ChangeLog({} watchers, compacted {})", inner.watchers.len(), inner.history.compacted)
    }
}

/// A watcher of the log. Dropping it removes its position.
#[derive(Debug)]
struct ChangeLogWatcher {
    log: Arc<ChangeLog>,
    id: u64,
    wakeup: Arc<Notify>,
}

#[async_trait]
impl Watcher for ChangeLogWatcher {
    async fn next(&mut self) -> Result<Vec<Change>, MetaError> {
        loop {
            if let Some(changes) = self.log.read(self.id)? {
                return Ok(changes);
            }
            self.wakeup.notified().await;
        }
    }

    fn position(&self) -> Revision {
        self.log.lock().watchers.get(&self.id).map_or(Revision::FIRST, |position| position.next)
    }
}

impl Drop for ChangeLogWatcher {
    fn drop(&mut self) {
        self.log.lock().watchers.remove(&self.id);
    }
}
