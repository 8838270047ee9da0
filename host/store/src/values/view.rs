//! What can be seen of values.

use std::io;

use sandbar_core::{JobId, ObjectId, WorkerId};

use super::{Memory, ValueKey, Values};
use crate::Object;
use crate::spill::Restored;

/// Where values are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUse {
    /// In memory, and what is kept for the next values.
    pub memory_bytes: u64,
    /// On disk, those that are in memory as well among them.
    pub disk_bytes: u64,
    /// Values.
    pub values: usize,
    /// What was ever written to disk, and read from it.
    pub spilled_bytes: u64,
    /// As above.
    pub restored_bytes: u64,
}

/// A value, as it can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueView {
    /// Whose value it is.
    pub object: ObjectId,
    /// And of which job.
    pub job: JobId,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether it is in memory.
    pub in_memory: bool,
    /// Whether it is on disk.
    pub on_disk: bool,
    /// Workers that have its file.
    pub lent: Vec<WorkerId>,
}

impl Values {
    /// The bytes of a value, at most so many. Waits for the disk.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn bytes(&self, key: ValueKey, max: u64) -> io::Result<Vec<u8>> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let value = self.all.get(&key).ok_or_else(missing)?;
        if value.bytes > max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {} bytes", value.bytes)));
        }
        let of_object =
            |object: &Object| Ok(crate::Mapping::sealed(std::os::fd::AsFd::as_fd(object), value.bytes)?.to_vec());
        match &value.memory {
            Some(Memory::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(Memory::Object(object)) => of_object(object),
            Some(Memory::Taken(taken, _)) => of_object(&taken.seal()?),
            None => match value.disk.as_ref().ok_or_else(missing)?.read()? {
                Restored::Bytes(bytes) => Ok(bytes.to_vec()),
                Restored::Object(object) => of_object(&object),
            },
        }
    }

    /// What all of them take.
    pub fn usage(&self) -> StoreUse {
        StoreUse {
            memory_bytes: self.used,
            disk_bytes: self.on_disk,
            values: self.all.len(),
            spilled_bytes: self.spilled,
            restored_bytes: self.restored,
        }
    }

    /// One of them.
    pub fn view(&self, key: ValueKey) -> Option<ValueView> {
        let value = self.all.get(&key)?;
        Some(ValueView {
            object: value.object,
            job: value.job,
            bytes: value.bytes,
            in_memory: value.memory.is_some(),
            on_disk: value.disk.is_some(),
            lent: value.lent.iter().map(|lent| lent.worker).collect(),
        })
    }
}
