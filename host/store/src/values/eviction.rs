//! Eviction of values from memory, to disk if they are not there yet.

use sandbar_core::Fault;

use super::lending::recall;
use super::memory::ReusableMemory;
use super::{DiskState, StoreAction, StoredValue, ValueKey, ValueMemory, ValueStore, WriterAction};
use crate::disk::DiskTask;
use crate::spill::SpillSource;

/// Maximum bytes per write to disk, except for a single larger value.
const BATCH_BYTES: u64 = 64 << 20;

impl ValueStore {
    /// Whether memory or open files exceed their limits and this value takes some of them.
    pub fn exceeds_limit(&self, key: ValueKey) -> bool {
        let is_file = || self.all.get(&key).and_then(|value| value.memory.as_ref()).is_some_and(ValueMemory::is_file);
        self.used > self.limits.memory_bytes_max && self.resident.contains(&key)
            || self.files > self.limits.files_max && is_file()
    }

    /// Returns why the last attempt to write to disk failed, if it did.
    pub fn full(&self) -> Option<&Fault> {
        self.full.as_ref().filter(|_| !self.is_writing)
    }

    /// Retries after a full disk.
    pub fn retry_spill(&mut self) {
        self.full = None;
        self.stuck_at = None;
        self.make_room();
    }

    pub(super) fn high_watermark(&self) -> u64 {
        self.limits.memory_bytes_max / 5 * 4
    }

    fn low_watermark(&self) -> u64 {
        self.limits.memory_bytes_max / 10 * 7
    }

    /// Starts evicting values if memory or open files exceed the high watermark.
    pub(super) fn make_room(&mut self) {
        let files = self.files;
        let (files_high, files_low) = (self.limits.files_max / 5 * 4, self.limits.files_max / 10 * 7);
        self.is_draining |= self.used > self.high_watermark() || files > files_high;
        self.is_draining &= self.used > self.low_watermark() || files > files_low;
        if !self.is_draining || self.is_writing || self.stuck_at.is_some_and(|at| self.used < at) {
            return;
        }
        while self.used > self.low_watermark()
            && let Some(ReusableMemory { writer, number, charge, memory }) = self.reusable.pop_front()
        {
            self.used -= charge;
            self.actions.push(StoreAction::Writer(writer, number, WriterAction::Trim(memory)));
        }
        let bytes = self.used.saturating_sub(self.low_watermark());
        if !self.evict(bytes, files.saturating_sub(files_low)) {
            self.stuck_at = Some(self.used + self.limits.memory_bytes_max / 32);
        }
    }

    /// Evicts values until `bytes` bytes and `files` files are freed, the largest and coldest first. Returns whether it
    /// found any.
    fn evict(&mut self, mut bytes: u64, mut files: usize) -> bool {
        let now = self.clock + 1;
        let rank = |key: &ValueKey| {
            let value = &self.all[key];
            let is_free = value.disk_state == DiskState::Idle
                && !value.is_dropped
                && (!value.is_recalled || value.lent.is_empty());
            let score = u128::from(value.charge) * u128::from(now - value.touched);
            is_free.then_some((score, *key))
        };
        let mut ranked: Vec<(u128, ValueKey)> = self.resident.iter().filter_map(rank).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let (mut batch, mut batch_bytes, mut found) = (Vec::new(), 0, false);
        for (_, key) in ranked {
            if bytes == 0 && files == 0 {
                break;
            }
            let Some(value) = self.all.get_mut(&key) else { continue };
            let charge = value.charge;
            if !value.lent.is_empty() {
                recall(key, value, &mut self.actions);
            } else if value.disk.is_some() {
                self.release_memory(key);
            } else if self.full.is_none() && (batch.is_empty() || batch_bytes + value.bytes <= BATCH_BYTES) {
                batch_bytes += value.bytes;
                value.disk_state = DiskState::Writing;
                batch.extend(value.source().map(|source| (key, source)));
            } else {
                continue;
            }
            found = true;
            (bytes, files) = (bytes.saturating_sub(charge), files.saturating_sub(1));
        }
        if !batch.is_empty() {
            self.is_writing = true;
            self.actions.push(StoreAction::Disk(DiskTask::Write(batch)));
        }
        found
    }
}

impl StoredValue {
    fn source(&self) -> Option<SpillSource> {
        Some(match self.memory.as_ref()? {
            ValueMemory::Bytes(bytes) => SpillSource::Bytes(bytes.clone()),
            ValueMemory::Sealed(object) => SpillSource::Sealed(object.clone()),
            ValueMemory::Unsealed(unsealed, _) => SpillSource::Unsealed(unsealed.clone()),
        })
    }
}
