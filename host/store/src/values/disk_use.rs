//! The disk space in use, and the state of writing.

use sandbar_core::{Fault, JobId};

use crate::spill::SpilledValue;

/// Disk space in use, and written and read bytes.
#[derive(Debug, Default)]
pub(super) struct DiskUse {
    /// Bytes of values on disk, including values that are in memory as well.
    pub bytes: u64,
    /// Total bytes ever written.
    pub spilled_bytes: u64,
    /// Total bytes ever read.
    pub restored_bytes: u64,
    /// Bytes that were written since they were last taken, by job.
    unbooked: Vec<(JobId, u64)>,
    is_writing: bool,
    /// Why the last write failed, if it did.
    failure: Option<Fault>,
}

impl DiskUse {
    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    pub(super) fn begin_write(&mut self) {
        self.is_writing = true;
    }

    /// Ends a write. Returns the written values, none if it failed.
    pub(super) fn end_write(&mut self, result: Result<Vec<SpilledValue>, Fault>) -> Vec<SpilledValue> {
        self.is_writing = false;
        let (spilled, failure) = match result {
            Ok(spilled) => (spilled, None),
            Err(fault) => (Vec::new(), Some(fault)),
        };
        self.failure = failure;
        spilled
    }

    /// Returns why the last write failed, if it did.
    pub(super) fn failure(&self) -> Option<&Fault> {
        self.failure.as_ref()
    }

    /// Forgets that the last write failed, so that another is tried.
    pub(super) fn clear_failure(&mut self) {
        self.failure = None;
    }

    /// Counts a value that was written.
    pub(super) fn add_spilled(&mut self, job: JobId, bytes: u64) {
        self.bytes += bytes;
        self.spilled_bytes += bytes;
        match self.unbooked.iter_mut().find(|(other, _)| *other == job) {
            Some((_, unbooked)) => *unbooked += bytes,
            None => self.unbooked.push((job, bytes)),
        }
    }

    /// Returns the bytes that were written since the last call, by job.
    pub(super) fn take_unbooked(&mut self) -> Vec<(JobId, u64)> {
        std::mem::take(&mut self.unbooked)
    }

    /// Counts a value that was read.
    pub(super) fn add_restored(&mut self, bytes: u64) {
        self.restored_bytes += bytes;
    }

    /// Counts a value that leaves the disk.
    pub(super) fn remove(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }
}
