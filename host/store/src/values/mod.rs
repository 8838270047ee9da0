//! The value store: tracks where each value is, and spills values to disk when memory runs short.
//!
//! Values are bytes in this process's memory, sealed files, or unsealed files that only their writer has had. The store
//! lends each file to a worker at most once: a worker keeps a lent file until the store sends [`StoreAction::Forget`], and
//! reports when none of its tasks uses it any more. Until then the file's memory is in use and counts, even if the store
//! drops the value.
//!
//! Above four fifths of the memory limit the store spills values until seven tenths are left: the largest and coldest
//! first, up to a file at once, except for those in use by workers. A restored value stays on disk as well, so that it
//! can be evicted without another write. The store decides and performs no IO itself: it returns [`StoreAction`]s.

mod eviction;
mod lending;
mod memory;

#[cfg(test)]
mod tests;
mod view;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{Code, Fault, JobId, ObjectId, WorkerId};

use crate::disk::{DiskCompletion, DiskTask};
use crate::spill::{RestoredValue, SpilledValue};

use lending::{Loan, recall};
use memory::ReusableMemory;

pub use lending::LendResult;
pub use memory::{ValueMemory, WriterAction};
pub use view::{StoreUse, ValueView};

/// Unique key of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueKey(pub u64);

/// Limits of a value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Bytes of memory.
    pub memory_bytes_max: u64,
    /// Number of open files.
    pub files_max: usize,
    /// Bytes of one job, in memory and on disk.
    pub job_bytes_max: u64,
}

/// An action that the store's owner performs.
#[derive(Debug)]
pub enum StoreAction {
    /// Tell a worker to forget a value's file.
    Forget(WorkerId, ValueKey),
    /// Tell a writer what to do with its memory of this number.
    Writer(WorkerId, u32, WriterAction),
    /// Run a disk task.
    Disk(DiskTask),
}

#[derive(Debug)]
struct StoredValue {
    job: JobId,
    object: ObjectId,
    bytes: u64,
    /// Bytes that the value counts for in memory.
    charge: u64,
    memory: Option<ValueMemory>,
    disk: Option<Arc<SpilledValue>>,
    disk_state: DiskState,
    /// Logical time of the last access.
    touched: u64,
    lent: Vec<Loan>,
    /// Whether the store has told the workers that have the file to forget it.
    is_recalled: bool,
    /// Its owner dropped the value.
    is_dropped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskState {
    Idle,
    Writing,
    Reading,
}

/// All values of a node.
#[derive(Debug)]
pub struct ValueStore {
    limits: StoreLimits,
    all: FxHashMap<ValueKey, StoredValue>,
    next: u64,
    clock: u64,
    used: u64,
    on_disk: u64,
    spilled: u64,
    restored: u64,
    /// Values in memory.
    resident: FxHashSet<ValueKey>,
    /// Number of resident values that are files.
    files: usize,
    job_bytes: FxHashMap<JobId, u64>,
    worker_files: FxHashMap<WorkerId, VecDeque<ValueKey>>,
    /// Memory that its writers may reuse.
    reusable: VecDeque<ReusableMemory>,
    /// A write is in progress.
    is_writing: bool,
    /// Memory use exceeded the high watermark, and is still above the low one.
    is_draining: bool,
    /// Memory use below which evicting more is known to be impossible.
    stuck_at: Option<u64>,
    full: Option<Fault>,
    actions: Vec<StoreAction>,
}

impl ValueStore {
    /// Creates an empty store.
    pub fn new(limits: StoreLimits) -> ValueStore {
        ValueStore {
            limits,
            all: FxHashMap::default(),
            next: 0,
            clock: 0,
            used: 0,
            on_disk: 0,
            spilled: 0,
            restored: 0,
            resident: FxHashSet::default(),
            files: 0,
            job_bytes: FxHashMap::default(),
            worker_files: FxHashMap::default(),
            reusable: VecDeque::new(),
            is_writing: false,
            is_draining: false,
            stuck_at: None,
            full: None,
            actions: Vec::new(),
        }
    }

    /// Returns the actions since the last call.
    pub fn take_actions(&mut self) -> Vec<StoreAction> {
        std::mem::take(&mut self.actions)
    }

    /// Adds the value of an object.
    ///
    /// # Errors
    /// [`Code::StoreFull`] if the value is larger than the memory limit, or its job exceeds its limit. The value's
    /// memory is released then.
    pub fn add(&mut self, job: JobId, object: ObjectId, memory: ValueMemory) -> Result<ValueKey, Fault> {
        let bytes = memory.bytes();
        let job_bytes = self.job_bytes.get(&job).copied().unwrap_or(0).saturating_add(bytes);
        let refused = if bytes > self.limits.memory_bytes_max {
            let max = self.limits.memory_bytes_max;
            Some(format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)"))
        } else if job_bytes > self.limits.job_bytes_max {
            Some(format!("its job would have {job_bytes} bytes of objects, the limit is {}", self.limits.job_bytes_max))
        } else {
            None
        };
        if let ValueMemory::Unsealed(_, (worker, number)) = &memory {
            self.take_reusable(*worker, *number);
        }
        if let Some(message) = refused {
            if let ValueMemory::Unsealed(_, (worker, number)) = memory {
                self.actions.push(StoreAction::Writer(worker, number, WriterAction::Close));
            }
            return Err(Fault::new(Code::StoreFull, message));
        }
        self.job_bytes.insert(job, job_bytes);
        let key = ValueKey(self.next);
        self.next += 1;
        let charge = memory.charge();
        self.used += charge;
        self.resident.insert(key);
        self.files += usize::from(memory.is_file());
        let value = StoredValue {
            job,
            object,
            bytes,
            charge,
            memory: Some(memory),
            disk: None,
            disk_state: DiskState::Idle,
            touched: self.tick(),
            lent: Vec::new(),
            is_recalled: false,
            is_dropped: false,
        };
        self.all.insert(key, value);
        self.make_room();
        Ok(key)
    }

    /// Drops a value that has no references left.
    pub fn drop_value(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        if std::mem::replace(&mut value.is_dropped, true) {
            return;
        }
        recall(key, value, &mut self.actions);
        let (job, bytes) = (value.job, value.bytes);
        if let Some(job_bytes) = self.job_bytes.get_mut(&job) {
            *job_bytes -= bytes;
            if *job_bytes == 0 {
                self.job_bytes.remove(&job);
            }
        }
        self.remove_if_unused(key);
        self.stuck_at = None;
    }

    /// Handles a completed disk task. Returns the value that was read, or the reason of the failure.
    pub fn handle_disk_completion(&mut self, done: DiskCompletion) -> Option<(ValueKey, Result<(), String>)> {
        let read = match done {
            DiskCompletion::Written(keys, result) => {
                self.handle_written(keys, result);
                None
            }
            DiskCompletion::Read(key, result) => Some((key, self.handle_read(key, result))),
        };
        self.make_room();
        read
    }

    fn handle_written(&mut self, keys: Vec<ValueKey>, result: Result<Vec<SpilledValue>, Fault>) {
        self.is_writing = false;
        let mut spilled = match result {
            Ok(spilled) => {
                self.full = None;
                spilled
            }
            Err(fault) => {
                self.full = Some(fault);
                Vec::new()
            }
        }
        .into_iter();
        for key in keys {
            let spilled = spilled.next().map(Arc::new);
            let Some(value) = self.all.get_mut(&key) else { continue };
            value.disk_state = DiskState::Idle;
            let bytes = spilled.as_ref().map_or(0, |_| value.bytes);
            (self.on_disk, self.spilled) = (self.on_disk + bytes, self.spilled + bytes);
            value.disk = spilled;
            if value.is_dropped {
                self.remove_if_unused(key);
            } else if value.disk.is_some() && value.lent.is_empty() {
                self.release_memory(key);
            }
        }
    }

    fn handle_read(&mut self, key: ValueKey, result: io::Result<RestoredValue>) -> Result<(), String> {
        let Some(value) = self.all.get_mut(&key) else { return Ok(()) };
        value.disk_state = DiskState::Idle;
        let error = match result {
            Ok(restored) => {
                let memory = match restored {
                    RestoredValue::Bytes(bytes) => ValueMemory::Bytes(bytes),
                    RestoredValue::Sealed(object) => ValueMemory::Sealed(object),
                };
                self.resident.insert(key);
                self.files += usize::from(memory.is_file());
                self.restored += value.bytes;
                value.memory = Some(memory);
                None
            }
            Err(e) => {
                self.used -= std::mem::take(&mut value.charge);
                Some(e.to_string())
            }
        };
        if value.is_dropped {
            self.remove_if_unused(key);
        }
        error.map_or(Ok(()), Err)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Releases the memory of a value that no worker has.
    fn release_memory(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        self.used -= std::mem::take(&mut value.charge);
        self.resident.remove(&key);
        let memory = value.memory.take();
        self.files -= usize::from(memory.as_ref().is_some_and(ValueMemory::is_file));
        if let Some(ValueMemory::Unsealed(unsealed, (writer, number))) = memory {
            // The writer has the file as well, and may keep it open for a while.
            let _ = unsealed.discard();
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Close));
        }
    }

    /// Removes a dropped value that no worker has.
    fn remove_if_unused(&mut self, key: ValueKey) {
        let is_unused =
            |value: &StoredValue| value.is_dropped && value.lent.is_empty() && value.disk_state == DiskState::Idle;
        if !self.all.get(&key).is_some_and(is_unused) {
            return;
        }
        self.keep_for_reuse(key);
        self.release_memory(key);
        if let Some(spilled) = self.all.remove(&key).and_then(|value| value.disk) {
            self.on_disk -= spilled.bytes();
            self.actions.push(StoreAction::Disk(DiskTask::Free(spilled)));
        }
    }
}
