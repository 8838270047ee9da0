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

mod actions;
mod disk_use;
mod eviction;
mod lending;
mod limits;
mod memory;
mod memory_use;
mod reuse;
mod value;
mod view;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, JobId, ObjectId, WorkerId};

use crate::disk::{DiskCompletion, DiskTask};
use crate::spill::{RestoredValue, SpilledValue};

use disk_use::DiskUse;
use memory_use::MemoryUse;
use reuse::{ReusableMemories, ReusableMemory};
use value::{DiskState, StoredValue};

pub use actions::StoreAction;
pub use lending::LendResult;
pub use limits::StoreLimits;
pub use memory::ValueMemory;
pub use reuse::WriterAction;
pub use value::ValueKey;
pub use view::{StoreUse, ValueView};

/// All values of a node.
#[derive(Debug)]
pub struct ValueStore {
    limits: StoreLimits,
    all: FxHashMap<ValueKey, StoredValue>,
    /// Key of the next value.
    next: u64,
    /// Logical time: number of accesses.
    clock: u64,
    memory: MemoryUse,
    disk: DiskUse,
    /// Files that each worker was lent, the oldest first.
    worker_files: FxHashMap<WorkerId, VecDeque<ValueKey>>,
    reusable: ReusableMemories,
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
            memory: MemoryUse::default(),
            disk: DiskUse::default(),
            worker_files: FxHashMap::default(),
            reusable: ReusableMemories::default(),
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
    /// [`Code::StoreFull`] if the value is larger than the memory limit. The value's memory is released then.
    pub fn add(&mut self, job: JobId, object: ObjectId, memory: ValueMemory) -> Result<ValueKey, Fault> {
        let bytes = memory.bytes();
        let max = self.limits.memory_bytes_max;
        if let ValueMemory::Unsealed(_, (worker, number)) = &memory
            && let Some(charge) = self.reusable.take(*worker, *number)
        {
            self.memory.release(charge);
        }
        if bytes > max {
            if let ValueMemory::Unsealed(_, (worker, number)) = memory {
                self.actions.push(StoreAction::Writer(worker, number, WriterAction::Close));
            }
            let message =
                format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)");
            return Err(Fault::new(Code::StoreFull, message));
        }
        let key = ValueKey(self.next);
        self.next += 1;
        self.memory.reserve(memory.charge());
        self.memory.add(key, &memory);
        let value = StoredValue::new(job, object, memory, self.tick());
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
        value.recall(|worker| self.actions.push(StoreAction::Forget(worker, key)));
        self.remove_if_unused(key);
        self.memory.clear_stuck();
    }

    /// Handles a completed disk task. Returns the value that was read, or why it could not be.
    pub fn handle_disk_completion(&mut self, done: DiskCompletion) -> Option<(ValueKey, io::Result<()>)> {
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
        let mut spilled = self.disk.end_write(result).into_iter();
        for key in keys {
            let spilled = spilled.next().map(Arc::new);
            let Some(value) = self.all.get_mut(&key) else { continue };
            value.disk_state = DiskState::Idle;
            if spilled.is_some() {
                self.disk.add_spilled(value.job, value.bytes);
            }
            value.disk = spilled;
            if value.is_dropped {
                self.remove_if_unused(key);
            } else if value.disk.is_some() && !value.is_lent() {
                self.release_memory(key);
            }
        }
    }

    fn handle_read(&mut self, key: ValueKey, result: io::Result<RestoredValue>) -> io::Result<()> {
        let Some(value) = self.all.get_mut(&key) else { return Ok(()) };
        value.disk_state = DiskState::Idle;
        let read = match result {
            Ok(restored) => {
                let memory = match restored {
                    RestoredValue::Bytes(bytes) => ValueMemory::Bytes(bytes),
                    RestoredValue::Sealed(object) => ValueMemory::Sealed(object),
                };
                self.memory.add(key, &memory);
                self.disk.add_restored(value.bytes);
                value.memory = Some(memory);
                Ok(())
            }
            Err(error) => {
                self.memory.release(std::mem::take(&mut value.charge));
                Err(error)
            }
        };
        if value.is_dropped {
            self.remove_if_unused(key);
        }
        read
    }

    /// Advances the logical time.
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Releases the memory of a value that no worker has.
    fn release_memory(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        let memory = value.memory.take();
        self.memory.release(std::mem::take(&mut value.charge));
        self.memory.remove(key, memory.as_ref());
        if let Some(ValueMemory::Unsealed(unsealed, (writer, number))) = memory {
            // The writer has the file as well, and may keep it open for a while.
            let _ = unsealed.discard();
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Close));
        }
    }

    /// Removes a dropped value that no worker has.
    fn remove_if_unused(&mut self, key: ValueKey) {
        if !self.all.get(&key).is_some_and(StoredValue::is_unused) {
            return;
        }
        self.keep_for_reuse(key);
        self.release_memory(key);
        if let Some(spilled) = self.all.remove(&key).and_then(|value| value.disk) {
            self.disk.remove(spilled.bytes());
            self.actions.push(StoreAction::Disk(DiskTask::Free(spilled)));
        }
    }

    /// Offers memory that only its writer has had for reuse, if enough memory is free.
    fn keep_for_reuse(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        if !matches!(value.memory, Some(ValueMemory::Unsealed(..))) {
            return;
        }
        let fits_budget = self.memory.bytes() <= self.limits.memory_high()
            && self.reusable.charge() + value.charge <= self.limits.reusable_max();
        if !fits_budget {
            return;
        }
        self.memory.remove(key, value.memory.as_ref());
        if let Some(ValueMemory::Unsealed(memory, (writer, number))) = value.memory.take() {
            // Its bytes stay in use.
            let charge = std::mem::take(&mut value.charge);
            self.reusable.add(ReusableMemory { writer, number, charge, memory });
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Reuse));
        }
    }
}

#[cfg(test)]
mod tests;
