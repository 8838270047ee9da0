//! Read access to values, for inspection.

use std::io;
use std::os::fd::AsFd as _;

use sandbar_core::{JobId, ObjectId, WorkerId};

use super::{ValueKey, ValueMemory, ValueStore};
use crate::spill::RestoredValue;
use crate::{Mapping, SealedFile};

/// Use of memory and disk by values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUse {
    /// Bytes in memory, including memory kept for reuse.
    pub memory_bytes: u64,
    /// Bytes on disk, including values that are in memory as well.
    pub disk_bytes: u64,
    /// Number of values.
    pub values: usize,
    /// Total bytes ever written to disk.
    pub spilled_bytes: u64,
    /// Total bytes ever read from disk.
    pub restored_bytes: u64,
}

/// A value, for inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueView {
    /// Object of the value.
    pub object: ObjectId,
    /// Job of the object.
    pub job: JobId,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether the value is in memory.
    pub in_memory: bool,
    /// Whether the value is on disk.
    pub on_disk: bool,
    /// Workers that have its file.
    pub lent: Vec<WorkerId>,
}

impl ValueStore {
    /// Returns the bytes of a value, at most `max`. Blocks on the disk.
    ///
    /// # Errors
    /// Fails if the value is missing, larger than `max`, or unreadable.
    pub fn bytes(&self, key: ValueKey, max: u64) -> io::Result<Vec<u8>> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let value = self.all.get(&key).ok_or_else(missing)?;
        if value.bytes > max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {} bytes", value.bytes)));
        }
        let of_object = |object: &SealedFile| Ok(Mapping::sealed(object.as_fd(), value.bytes)?.to_vec());
        match &value.memory {
            Some(ValueMemory::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(ValueMemory::Sealed(object)) => of_object(object),
            Some(ValueMemory::Unsealed(unsealed, _)) => of_object(&unsealed.seal()?),
            None => match value.disk.as_ref().ok_or_else(missing)?.read()? {
                RestoredValue::Bytes(bytes) => Ok(bytes.to_vec()),
                RestoredValue::Sealed(object) => of_object(&object),
            },
        }
    }

    /// Returns the use of memory and disk.
    pub fn usage(&self) -> StoreUse {
        StoreUse {
            memory_bytes: self.memory.bytes(),
            disk_bytes: self.disk.bytes,
            values: self.all.len(),
            spilled_bytes: self.disk.spilled_bytes,
            restored_bytes: self.disk.restored_bytes,
        }
    }

    /// Returns the bytes that were written to disk since the last call, by job.
    pub fn take_spilled_bytes(&mut self) -> Vec<(JobId, u64)> {
        self.disk.take_unbooked()
    }

    /// Returns one value, for inspection.
    pub fn view(&self, key: ValueKey) -> Option<ValueView> {
        let value = self.all.get(&key)?;
        Some(ValueView {
            object: value.object,
            job: value.job,
            bytes: value.bytes,
            in_memory: value.memory.is_some(),
            on_disk: value.disk.is_some(),
            lent: value.workers().collect(),
        })
    }
}
