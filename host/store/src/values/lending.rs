//! Lending of values' files to workers.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::memory::charge;
use super::value::DiskState;
use super::{StoreAction, ValueKey, ValueMemory, ValueStore, WriterAction};
use crate::SealedFile;
use crate::disk::DiskTask;

/// Maximum number of files that one worker may have at once.
pub(super) const FILES_PER_WORKER_MAX: usize = 1024;

/// Reply to a worker's request for a value.
#[derive(Debug)]
pub enum LendResult {
    /// The bytes.
    Bytes(Arc<[u8]>),
    /// The value's file, which the worker does not have yet.
    File(SealedFile),
    /// The worker already has the file.
    AlreadyLent,
    /// The value is being read from disk.
    Pending,
    /// The value is lost, for this reason.
    Lost(String),
}

impl ValueStore {
    /// Lends a value to a worker.
    pub fn lend(&mut self, key: ValueKey, worker: WorkerId) -> LendResult {
        let now = self.tick();
        let Some(value) = self.all.get_mut(&key) else { return LendResult::Lost("there is no such value".into()) };
        value.touch(now);
        if let Some(ValueMemory::Unsealed(unsealed, (writer, number))) = &value.memory {
            self.actions.push(StoreAction::Writer(*writer, *number, WriterAction::Close));
            value.memory = match unsealed.seal_or_copy() {
                Ok(object) => Some(ValueMemory::Sealed(object)),
                Err(e) => {
                    let message = format!("its file can't be sealed: {e}");
                    self.release_memory(key);
                    return LendResult::Lost(message);
                }
            };
        }
        match &value.memory {
            Some(ValueMemory::Bytes(bytes)) => LendResult::Bytes(bytes.clone()),
            Some(ValueMemory::Sealed(object)) => {
                let object = object.clone();
                if value.lend(worker) {
                    self.record_loan(worker, key);
                    LendResult::File(object)
                } else {
                    LendResult::AlreadyLent
                }
            }
            Some(ValueMemory::Unsealed(..)) | None => self.restore(key),
        }
    }

    /// Lends a value for a moment to a caller that is not a worker and keeps no file. The store does not wait for its
    /// memory.
    pub fn share(&mut self, key: ValueKey) -> LendResult {
        // No worker has this id; its loan is removed at once.
        let lending = self.lend(key, WorkerId(u32::MAX));
        self.return_file(key, WorkerId(u32::MAX));
        self.worker_files.remove(&WorkerId(u32::MAX));
        lending
    }

    /// Starts reading a value from disk, if it is not in memory.
    pub fn restore(&mut self, key: ValueKey) -> LendResult {
        let lost = || LendResult::Lost("its bytes are neither in memory nor on disk".into());
        let Some(value) = self.all.get_mut(&key) else { return lost() };
        if value.memory.is_some() || value.disk_state == DiskState::Reading {
            return LendResult::Pending;
        }
        let Some(spilled) = value.disk.clone() else { return lost() };
        value.disk_state = DiskState::Reading;
        // Reserves the memory for the value in advance.
        value.charge = charge(value.bytes);
        self.memory.reserve(value.charge);
        self.actions.push(StoreAction::Disk(DiskTask::Read(key, spilled)));
        self.make_room();
        LendResult::Pending
    }

    /// Handles a worker's return of a value's file.
    pub fn return_file(&mut self, key: ValueKey, worker: WorkerId) {
        if self.all.get_mut(&key).is_some_and(|value| value.return_from(worker)) {
            self.handle_return(key);
            self.make_room();
        }
    }

    /// Removes a dead worker, with all files that it was lent and all memory that it wrote.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        let mut back = Vec::new();
        for (key, value) in &mut self.all {
            if value.remove_worker(worker) {
                back.push(*key);
            }
            if let Some(ValueMemory::Unsealed(unsealed, (writer, _))) = &value.memory
                && *writer == worker
                && let Ok(object) = unsealed.seal()
            {
                value.memory = Some(ValueMemory::Sealed(object));
            }
        }
        back.sort_unstable();
        back.into_iter().for_each(|key| self.handle_return(key));
        self.memory.release(self.reusable.remove_worker(worker));
        self.worker_files.remove(&worker);
    }

    /// Records a new loan to a worker. Recalls the worker's oldest file if it has more than [`FILES_PER_WORKER_MAX`].
    fn record_loan(&mut self, worker: WorkerId, key: ValueKey) {
        let lent = self.worker_files.entry(worker).or_default();
        lent.push_back(key);
        if lent.len() > FILES_PER_WORKER_MAX
            && let Some(first) = lent.pop_front()
            && self.all.get_mut(&first).is_some_and(|value| value.recall_from(worker))
        {
            self.actions.push(StoreAction::Forget(worker, first));
        }
    }

    /// Handles the return of a value's file.
    fn handle_return(&mut self, key: ValueKey) {
        self.memory.clear_stuck();
        if let Some(value) = self.all.get_mut(&key)
            && !value.is_lent()
        {
            value.all_returned();
            if value.is_dropped {
                self.remove_if_unused(key);
            }
        }
    }
}
