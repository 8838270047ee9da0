//! Lending of values' files to workers.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::memory::charge;
use super::{DiskState, StoreAction, StoredValue, ValueKey, ValueMemory, ValueStore, WriterAction};
use crate::SealedFile;
use crate::disk::DiskTask;

/// Maximum number of files that one worker may have at once.
pub(super) const FILES_PER_WORKER_MAX: usize = 1024;

/// Reply to a worker that asks for a value.
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

#[derive(Debug)]
pub(super) struct Loan {
    pub(super) worker: WorkerId,
    /// Number of times that the worker was lent the file and did not return it.
    times: u32,
    /// Whether the worker still keeps the file.
    has: bool,
}

impl ValueStore {
    /// Lends a value to a worker.
    pub fn lend(&mut self, key: ValueKey, worker: WorkerId) -> LendResult {
        let now = self.tick();
        let Some(value) = self.all.get_mut(&key) else { return LendResult::Lost("there is no such value".into()) };
        value.touched = now;
        value.is_recalled = false;
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
        self.used += value.charge;
        self.actions.push(StoreAction::Disk(DiskTask::Read(key, spilled)));
        self.make_room();
        LendResult::Pending
    }

    /// Handles a worker's return of a value's file.
    pub fn return_file(&mut self, key: ValueKey, worker: WorkerId) {
        let Some(value) = self.all.get_mut(&key) else { return };
        let Some(at) = value.lent.iter().position(|lent| lent.worker == worker) else { return };
        value.lent[at].times = value.lent[at].times.saturating_sub(1);
        if value.lent[at].times == 0 {
            value.lent.swap_remove(at);
        }
        self.handle_return(key);
        self.make_room();
    }

    /// Removes a dead worker, with all files that it was lent and all memory that it wrote.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        let mut back = Vec::new();
        for (key, value) in &mut self.all {
            let before = value.lent.len();
            value.lent.retain(|lent| lent.worker != worker);
            if value.lent.len() < before {
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
        self.used -= self
            .reusable
            .iter()
            .filter(|reusable| reusable.writer == worker)
            .map(|reusable| reusable.charge)
            .sum::<u64>();
        self.reusable.retain(|reusable| reusable.writer != worker);
        self.worker_files.remove(&worker);
    }

    /// Records a new loan to a worker. Recalls the worker's oldest file if it has more than [`FILES_PER_WORKER_MAX`].
    fn record_loan(&mut self, worker: WorkerId, key: ValueKey) {
        let lent = self.worker_files.entry(worker).or_default();
        lent.push_back(key);
        if lent.len() > FILES_PER_WORKER_MAX
            && let Some(first) = lent.pop_front()
            && let Some(value) = self.all.get_mut(&first)
            && let Some(lent) = value.lent.iter_mut().find(|lent| lent.worker == worker && lent.has)
        {
            lent.has = false;
            self.actions.push(StoreAction::Forget(worker, first));
        }
    }

    /// Handles the return of a value's file.
    fn handle_return(&mut self, key: ValueKey) {
        self.stuck_at = None;
        if let Some(value) = self.all.get_mut(&key)
            && value.lent.is_empty()
        {
            value.is_recalled = false;
            if value.is_dropped {
                self.remove_if_unused(key);
            }
        }
    }
}

impl StoredValue {
    /// Lends the value to a worker. Returns whether the worker needs the file.
    fn lend(&mut self, worker: WorkerId) -> bool {
        match self.lent.iter_mut().find(|lent| lent.worker == worker) {
            Some(lent) if lent.has => false,
            Some(lent) => {
                (lent.times, lent.has) = (lent.times + 1, true);
                true
            }
            None => {
                self.lent.push(Loan { worker, times: 1, has: true });
                true
            }
        }
    }
}

/// Recalls a value's file from all workers.
pub(super) fn recall(key: ValueKey, value: &mut StoredValue, actions: &mut Vec<StoreAction>) {
    value.is_recalled = true;
    for lent in value.lent.iter_mut().filter(|lent| lent.has) {
        lent.has = false;
        actions.push(StoreAction::Forget(lent.worker, key));
    }
}
