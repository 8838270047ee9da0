//! Steps that any store can execute, with results as lines of text that are equal for all stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use sandbar_meta::{
    Change, Clock, Condition, Entry, Key, KeyRange, LeaseId, ManualClock, MemoryStore, MetaError, MetaLimits,
    MetaStore, MetaValue, Operation, OperationResult, Predicate, RedbStore, Revision, Transaction, Watcher,
};
use tempfile::TempDir;

/// Maximum wait for a change.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(20);

/// A step. Revisions count from an empty store; leases and watchers are numbered in the order of their creation.
#[derive(Debug, Clone)]
pub enum Step {
    Get(Key),
    Range(KeyRange, usize),
    Transact {
        when: Vec<Condition>,
        then: Vec<Op>,
        otherwise: Vec<Op>,
    },
    Grant(u32),
    KeepAlive(usize),
    Revoke(usize),
    Watch(KeyRange, u64),
    /// Reads this many changes of a watcher, or until it ends. `None` reads the available changes, for stores in this
    /// process alone.
    Changes(usize, Option<usize>),
    Unwatch(usize),
    /// Advances time, in seconds. Sleeps where the clock can't be set.
    Advance(u64),
    /// Closes and reopens the store, as a restart of the process does.
    Reopen,
}

#[derive(Debug, Clone)]
pub enum Op {
    /// With the lease of this number.
    Put(Key, MetaValue, Option<usize>),
    Delete(KeyRange),
}

pub fn key(text: &str) -> Key {
    text.try_into().unwrap()
}

pub fn prefix(text: &str) -> KeyRange {
    KeyRange::prefix(text.as_bytes().to_vec()).unwrap()
}

pub fn put(name: &str, value: &str) -> Op {
    Op::Put(key(name), value.into(), None)
}

pub fn delete(name: &str) -> Op {
    Op::Delete(KeyRange::key(&key(name)))
}

pub fn then(ops: impl Into<Vec<Op>>) -> Step {
    Step::Transact { when: vec![], then: ops.into(), otherwise: vec![] }
}

/// Free space required: each of three etcd members preallocates 64 MB.
const FOLDER_BYTES: u64 = 1 << 30;

/// Creates a folder in memory if it has space: most tests do not depend on the disk.
pub fn folder() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let has_room = rustix::fs::statvfs(&memory).is_ok_and(|memory| memory.f_bavail * memory.f_frsize >= FOLDER_BYTES);
    let parent = if has_room { memory } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("sandbar-meta-").tempdir_in(parent).unwrap()
}

/// The kind of store, with the resources it needs.
pub enum StoreKind {
    Memory,
    Redb {
        folder: TempDir,
    },
    /// A store with real time.
    Other,
}

/// Executes steps on a store.
pub struct Driver {
    pub kind: StoreKind,
    store: Option<Arc<dyn MetaStore>>,
    redb: Option<RedbStore>,
    limits: MetaLimits,
    clock: Arc<ManualClock>,
    /// Offset of revisions.
    base: u64,
    leases: Vec<LeaseId>,
    watchers: Vec<Option<Box<dyn Watcher>>>,
}

impl Driver {
    pub fn memory(limits: MetaLimits) -> Driver {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::new(limits, clock.clone());
        Driver::new(StoreKind::Memory, Some(Arc::new(store)), None, limits, clock)
    }

    pub async fn redb(limits: MetaLimits) -> Driver {
        let clock = Arc::new(ManualClock::default());
        let folder = folder();
        let redb = RedbStore::open(&folder.path().join("meta"), limits, clock.clone()).await.unwrap();
        Driver::new(StoreKind::Redb { folder }, None, Some(redb), limits, clock)
    }

    /// Wraps a store that no other client changes meanwhile.
    pub async fn other(store: Arc<dyn MetaStore>) -> Driver {
        let limits = *store.limits();
        let base = store.get(&key("base")).await.unwrap().revision.0 - 1;
        let mut driver = Driver::new(StoreKind::Other, Some(store), None, limits, Arc::default());
        driver.base = base;
        driver
    }

    fn new(
        kind: StoreKind,
        store: Option<Arc<dyn MetaStore>>,
        redb: Option<RedbStore>,
        limits: MetaLimits,
        clock: Arc<ManualClock>,
    ) -> Driver {
        Driver { kind, store, redb, limits, clock, base: 0, leases: vec![], watchers: vec![] }
    }

    fn store(&self) -> &dyn MetaStore {
        match (&self.store, &self.redb) {
            (Some(store), _) => &**store,
            (None, Some(redb)) => redb,
            _ => unreachable!("it is one of them"),
        }
    }

    pub async fn step(&mut self, step: &Step) -> String {
        match self.try_step(step).await {
            Ok(text) => text,
            Err(MetaError::Compacted { from, compacted }) => {
                format!("meta-compacted from {} up to {}", self.relative(from), self.relative(compacted))
            }
            Err(error) => error.code().to_owned(),
        }
    }

    async fn try_step(&mut self, step: &Step) -> Result<String, MetaError> {
        Ok(match step {
            Step::Get(key) => {
                let response = self.store().get(key).await?;
                format!(
                    "@{} {}",
                    self.relative(response.revision),
                    response.entry.map_or("-".to_owned(), |entry| self.entry(&entry))
                )
            }
            Step::Range(span, limit) => {
                let page = self.store().range(span, *limit).await?;
                let entries: Vec<String> = page.entries.iter().map(|entry| self.entry(entry)).collect();
                let next = page.next.map_or(String::new(), |next| format!(" ...{next}"));
                format!("@{} {}{next}", self.relative(page.revision), entries.join(" "))
            }
            Step::Transact { when, then, otherwise } => {
                let transacted = self.store().transact(self.transaction(when, then, otherwise)).await?;
                let outcomes = transacted.outcomes.iter().map(|outcome| match outcome {
                    OperationResult::Put => " put".to_owned(),
                    OperationResult::Deleted(count) => format!(" deleted {count}"),
                });
                let branch = if transacted.succeeded { "then" } else { "otherwise" };
                format!("@{} {branch}{}", self.relative(transacted.revision), outcomes.collect::<String>())
            }
            Step::Grant(ttl_s) => {
                let granted = self.store().grant(*ttl_s).await?;
                self.leases.push(granted.lease);
                format!("@{} lease {} of {} s", self.relative(granted.revision), self.leases.len() - 1, granted.ttl_s)
            }
            Step::KeepAlive(lease) => {
                let kept = self.store().keep_alive(self.lease(*lease)).await?;
                format!("@{} {} s", self.relative(kept.revision), kept.ttl_s)
            }
            Step::Revoke(lease) => {
                let revoked = self.store().revoke(self.lease(*lease)).await?;
                format!("@{}", self.relative(revoked.revision))
            }
            Step::Watch(span, from) => {
                let watcher = self.store().watch(span, Revision(from + self.base)).await?;
                self.watchers.push(Some(watcher));
                format!("watcher {}", self.watchers.len() - 1)
            }
            Step::Changes(watcher, count) => self.changes(*watcher, *count).await?,
            Step::Unwatch(watcher) => {
                self.watchers[*watcher] = None;
                String::new()
            }
            Step::Advance(seconds) => {
                match self.kind {
                    StoreKind::Other => tokio::time::sleep(Duration::from_secs(*seconds)).await,
                    _ => self.clock.advance(Duration::from_secs(*seconds)),
                }
                String::new()
            }
            Step::Reopen => {
                self.reopen().await?;
                String::new()
            }
        })
    }

    async fn reopen(&mut self) -> Result<(), MetaError> {
        self.watchers.clear();
        match &self.kind {
            // Reopening restarts the leases' periods.
            StoreKind::Memory => {
                for lease in &self.leases {
                    let _ = self.store().keep_alive(*lease).await;
                }
            }
            StoreKind::Redb { folder } => {
                self.redb.take().unwrap().close().await;
                let path = folder.path().join("meta");
                let clock: Arc<dyn Clock> = self.clock.clone();
                self.redb = Some(RedbStore::open(&path, self.limits, clock).await?);
            }
            StoreKind::Other => {}
        }
        Ok(())
    }

    async fn changes(&mut self, watcher: usize, count: Option<usize>) -> Result<String, MetaError> {
        let base = self.base;
        let Some(watcher) = &mut self.watchers[watcher] else { return Ok("no watcher".to_owned()) };
        let mut changes = Vec::new();
        while count.is_none_or(|count| changes.len() < count) {
            let next = match count {
                None => match watcher.next().now_or_never() {
                    Some(next) => next,
                    None => break,
                },
                Some(_) => match tokio::time::timeout(CHANGE_TIME_MAX, watcher.next()).await {
                    Ok(next) => next,
                    Err(_) => return Ok(format!("nothing after {} of {count:?} changes", changes.len())),
                },
            };
            match next {
                Ok(more) => changes.extend(more),
                Err(e) if changes.is_empty() => return Err(e),
                // Changes before the error are delivered first; the next call returns the error again.
                Err(_) => break,
            }
        }
        let text = changes.iter().map(|change| match change {
            Change::Put(entry) => show(entry, base),
            Change::Deleted { key, revision } => format!("{key}-@{}", revision.0 - base),
        });
        Ok(text.collect::<Vec<_>>().join(" "))
    }

    fn lease(&self, number: usize) -> LeaseId {
        self.leases.get(number).copied().unwrap_or(LeaseId(0x7fff_ffff_ffff))
    }

    fn transaction(&self, when: &[Condition], then: &[Op], otherwise: &[Op]) -> Transaction {
        let revision = |revision: &Revision| Revision(if revision.0 == 0 { 0 } else { revision.0 + self.base });
        let condition = |condition: &Condition| {
            let test = match &condition.test {
                Predicate::CreateRevision(is, than) => Predicate::CreateRevision(*is, revision(than)),
                Predicate::ModRevision(is, than) => Predicate::ModRevision(*is, revision(than)),
                other => other.clone(),
            };
            Condition { key: condition.key.clone(), test }
        };
        let operation = |op: &Op| match op {
            Op::Put(key, value, lease) => {
                let lease = lease.map(|lease| self.lease(lease));
                Operation::Put { key: key.clone(), value: value.clone(), lease }
            }
            Op::Delete(span) => Operation::Delete(span.clone()),
        };
        Transaction {
            conditions: when.iter().map(condition).collect(),
            then: then.iter().map(operation).collect(),
            otherwise: otherwise.iter().map(operation).collect(),
        }
    }

    fn relative(&self, revision: Revision) -> u64 {
        revision.0 - self.base
    }

    fn entry(&self, entry: &Entry) -> String {
        show(entry, self.base)
    }
}

/// Formats key, value, create revision, mod revision and version: `a=1(2,3,2)`, with a lease `a=1(2,3,2)L`.
fn show(entry: &Entry, base: u64) -> String {
    let value = entry.value.as_bytes();
    let value = if value.len() > 40 { format!("{} bytes", value.len()) } else { value.escape_ascii().to_string() };
    format!(
        "{}={value}({},{},{}){}",
        entry.key,
        entry.create_revision.0 - base,
        entry.mod_revision.0 - base,
        entry.version,
        if entry.lease.is_some() { "L" } else { "" }
    )
}

/// Short forms.
pub fn test(name: &str, test: Predicate) -> Condition {
    Condition { key: key(name), test }
}
