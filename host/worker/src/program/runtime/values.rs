//! Values that tasks store: inside messages while they are small, in files otherwise.

use std::io;

use sandbar_core::VALUE_INLINE_BYTES_MAX;
use sandbar_sandbox::Refusal;

use super::WorkerRuntime;
use super::memory::{OutputValue, no_memory};
use crate::program::messages::SentValue;

impl WorkerRuntime {
    /// Stores the parts of a value, as one value.
    pub(super) fn store_value(&mut self, parts: &[&[u8]]) -> Result<OutputValue, Refusal> {
        self.store_value_within(parts, VALUE_INLINE_BYTES_MAX)
    }

    /// Like [`WorkerRuntime::store_value`], with at most `room` bytes inside a message.
    pub(super) fn store_value_within(&mut self, parts: &[&[u8]], room: usize) -> Result<OutputValue, Refusal> {
        // Saturating, because the same part may be listed many times.
        let bytes = parts.iter().fold(0_usize, |bytes, part| bytes.saturating_add(part.len()));
        if bytes <= VALUE_INLINE_BYTES_MAX.min(room) {
            return Ok(OutputValue::Inline(parts.concat()));
        }
        self.memory_pool.check_bytes(bytes)?;
        // Releases published now may free memory for the next value.
        self.node.publish();
        self.node.wait_for_credit()?;
        let file = self.memory_pool.write(parts, bytes, self.node.free_memory()).map_err(no_memory)?;
        Ok(OutputValue::File(file))
    }

    /// Returns a value for the next message, before which its file is sent.
    pub(super) fn send_value<'v>(&mut self, value: &'v OutputValue) -> io::Result<SentValue<'v>> {
        Ok(match value {
            OutputValue::Inline(bytes) => SentValue::Inline(bytes),
            OutputValue::File(file) => {
                let (fd, bytes) = self.memory_pool.file(file)?;
                self.node.send_file(fd, bytes)?;
                file.named()
            }
        })
    }

    /// Drops the files of results that are not sent.
    pub(super) fn discard_results(&mut self, returned: &[(OutputValue, Vec<u64>)]) {
        for (value, _) in returned {
            if let OutputValue::File(file) = value {
                self.memory_pool.discard(file);
            }
        }
    }

    /// Drops memory that holds a value, at the request of the node.
    pub(in crate::program) fn drop_memory(&mut self, number: u32) {
        self.memory_pool.close(number);
    }
}
