//! A stored value: its memory, its copy on disk, and the workers that have its file.

use std::sync::Arc;

use sandbar_core::{JobId, ObjectId, WorkerId};

use super::memory::ValueMemory;
use crate::spill::{SpillSource, SpilledValue};

/// Unique key of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueKey(pub u64);

#[derive(Debug)]
pub(super) struct StoredValue {
    pub job: JobId,
    pub object: ObjectId,
    pub bytes: u64,
    /// Bytes that the value counts for in memory.
    pub charge: u64,
    pub memory: Option<ValueMemory>,
    pub disk: Option<Arc<SpilledValue>>,
    pub disk_state: DiskState,
    /// Logical time of the last access.
    pub touched: u64,
    loans: Vec<Loan>,
    /// Whether the store has requested the return of the file from its workers.
    is_recalled: bool,
    /// Its owner dropped the value.
    pub is_dropped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskState {
    Idle,
    Writing,
    Reading,
}

/// A worker that was lent the value's file.
#[derive(Debug)]
struct Loan {
    worker: WorkerId,
    /// Number of times that the worker was lent the file and did not return it.
    times: u32,
    /// Whether the worker still keeps the file.
    has: bool,
}

impl StoredValue {
    pub(super) fn new(job: JobId, object: ObjectId, memory: ValueMemory, now: u64) -> StoredValue {
        StoredValue {
            job,
            object,
            bytes: memory.bytes(),
            charge: memory.charge(),
            memory: Some(memory),
            disk: None,
            disk_state: DiskState::Idle,
            touched: now,
            loans: Vec::new(),
            is_recalled: false,
            is_dropped: false,
        }
    }

    /// Records an access.
    pub(super) fn touch(&mut self, now: u64) {
        self.touched = now;
        self.is_recalled = false;
    }

    /// Lends the value to a worker. Returns whether the worker needs the file.
    pub(super) fn lend(&mut self, worker: WorkerId) -> bool {
        match self.loans.iter_mut().find(|loan| loan.worker == worker) {
            Some(loan) if loan.has => false,
            Some(loan) => {
                (loan.times, loan.has) = (loan.times + 1, true);
                true
            }
            None => {
                self.loans.push(Loan { worker, times: 1, has: true });
                true
            }
        }
    }

    /// Records that a worker returned the file once. Returns whether the worker had it.
    pub(super) fn return_from(&mut self, worker: WorkerId) -> bool {
        let Some(at) = self.loans.iter().position(|loan| loan.worker == worker) else { return false };
        self.loans[at].times = self.loans[at].times.saturating_sub(1);
        if self.loans[at].times == 0 {
            self.loans.swap_remove(at);
        }
        true
    }

    /// Removes the loan of a dead worker. Returns whether it had one.
    pub(super) fn remove_worker(&mut self, worker: WorkerId) -> bool {
        let before = self.loans.len();
        self.loans.retain(|loan| loan.worker != worker);
        self.loans.len() < before
    }

    /// Recalls the file from a worker. Returns whether the worker still keeps it.
    pub(super) fn recall_from(&mut self, worker: WorkerId) -> bool {
        let loan = self.loans.iter_mut().find(|loan| loan.worker == worker && loan.has);
        loan.map(|loan| loan.has = false).is_some()
    }

    /// Recalls the file from all workers: calls `forget` for each that keeps it.
    pub(super) fn recall(&mut self, mut forget: impl FnMut(WorkerId)) {
        self.is_recalled = true;
        for loan in self.loans.iter_mut().filter(|loan| loan.has) {
            loan.has = false;
            forget(loan.worker);
        }
    }

    /// Handles the return of the file by its last worker.
    pub(super) fn all_returned(&mut self) {
        self.is_recalled = false;
    }

    pub(super) fn is_lent(&self) -> bool {
        !self.loans.is_empty()
    }

    /// Returns the workers that have not returned the file.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> {
        self.loans.iter().map(|loan| loan.worker)
    }

    /// Returns whether the value was dropped, and neither a worker nor the disk thread uses it.
    pub(super) fn is_unused(&self) -> bool {
        self.is_dropped && !self.is_lent() && self.disk_state == DiskState::Idle
    }

    /// Returns whether evicting the value, or recalling it for that, makes sense now.
    pub(super) fn is_evictable(&self) -> bool {
        self.disk_state == DiskState::Idle && !self.is_dropped && (!self.is_recalled || !self.is_lent())
    }

    /// Returns the bytes to write to disk.
    pub(super) fn spill_source(&self) -> Option<SpillSource> {
        Some(match self.memory.as_ref()? {
            ValueMemory::Bytes(bytes) => SpillSource::Bytes(bytes.clone()),
            ValueMemory::Sealed(object) => SpillSource::Sealed(object.clone()),
            ValueMemory::Unsealed(unsealed, _) => SpillSource::Unsealed(unsealed.clone()),
        })
    }
}
