//! Eviction of values from memory, to disk if they are not there yet.

use sandbar_core::Fault;

use super::reuse::ReusableMemory;
use super::value::DiskState;
use super::{StoreAction, ValueKey, ValueMemory, ValueStore, WriterAction};
use crate::disk::DiskTask;

/// Maximum bytes per write to disk, except for a single larger value.
const BATCH_BYTES: u64 = 64 << 20;

impl ValueStore {
    /// Whether memory or open files exceed their limits and this value takes some of them.
    pub fn exceeds_limit(&self, key: ValueKey) -> bool {
        let is_file = || self.all.get(&key).and_then(|value| value.memory.as_ref()).is_some_and(ValueMemory::is_file);
        self.memory.bytes() > self.limits.memory_bytes_max && self.memory.is_resident(key)
            || self.memory.files() > self.limits.files_max && is_file()
    }

    /// Returns why the last attempt to write to disk failed, if it did.
    pub fn full(&self) -> Option<&Fault> {
        self.disk.failure().filter(|_| !self.disk.is_writing())
    }

    /// Retries after a full disk.
    pub fn retry_spill(&mut self) {
        self.disk.clear_failure();
        self.memory.clear_stuck();
        self.make_room();
    }

    /// Starts evicting values if memory or open files exceed the high watermark, and evicts more if what was requested from
    /// workers before has not been returned.
    pub fn make_room(&mut self) {
        let files = self.memory.files();
        if !self.memory.must_shrink(&self.limits) || self.disk.is_writing() {
            return;
        }
        while self.memory.bytes() > self.limits.memory_low()
            && let Some(ReusableMemory { writer, number, charge, memory }) = self.reusable.take_oldest()
        {
            self.memory.release(charge);
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Trim(memory)));
        }
        let bytes = self.memory.bytes().saturating_sub(self.limits.memory_low());
        if !self.evict(bytes, files.saturating_sub(self.limits.files_low())) {
            self.memory.set_stuck(&self.limits);
        }
    }

    /// Evicts values until `bytes` bytes and `files` files are freed, the largest and coldest first. Returns whether it
    /// found any.
    fn evict(&mut self, mut bytes: u64, mut files: usize) -> bool {
        let now = self.clock + 1;
        let rank = |key: &ValueKey| {
            let value = &self.all[key];
            let score = u128::from(value.charge) * u128::from(now - value.touched);
            value.is_evictable().then_some((score, *key))
        };
        let mut ranked: Vec<(u128, ValueKey)> = self.memory.resident().filter_map(rank).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let (mut batch, mut batch_bytes, mut found) = (Vec::new(), 0, false);
        for (_, key) in ranked {
            if bytes == 0 && files == 0 {
                break;
            }
            let Some(value) = self.all.get_mut(&key) else { continue };
            let charge = value.charge;
            if value.is_lent() {
                value.recall(|worker| self.actions.push(StoreAction::Forget(worker, key)));
            } else if value.disk.is_some() {
                self.release_memory(key);
            } else if self.disk.failure().is_none() && (batch.is_empty() || batch_bytes + value.bytes <= BATCH_BYTES) {
                batch_bytes += value.bytes;
                value.disk_state = DiskState::Writing;
                batch.extend(value.spill_source().map(|source| (key, source)));
            } else {
                continue;
            }
            found = true;
            (bytes, files) = (bytes.saturating_sub(charge), files.saturating_sub(1));
        }
        if !batch.is_empty() {
            self.disk.begin_write();
            self.actions.push(StoreAction::Disk(DiskTask::Write(batch)));
        }
        found
    }
}
