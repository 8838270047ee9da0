//! Memory files that several writers fill in any order while readers read completed parts.
//!
//! Transfers write received bytes here. A reader maps the file read-only, so that the file can be sealed, once
//! complete, before its readers finish.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, munmap};

use crate::mapping::map;
use crate::{SealedFile, UnsealedFile};

/// A memory file of a fixed size, initially zero, that is mapped for writing.
#[derive(Debug)]
pub struct ReceiveBuffer {
    written: MappedRange,
    read: Arc<ReceiveBufferView>,
    file: UnsealedFile,
    bytes: usize,
}

/// The bytes of a [`ReceiveBuffer`], mapped for reading.
#[derive(Debug)]
pub struct ReceiveBufferView(MappedRange);

#[derive(Debug)]
struct MappedRange {
    at: NonNull<u8>,
    /// Length of the mapping; 0 for no mapping.
    bytes: usize,
}

// SAFETY: the value is an address; the owners of writer and reader roles keep their ranges apart.
unsafe impl Send for MappedRange {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    fn map(file: BorrowedFd<'_>, bytes: usize, protection: ProtFlags, flags: MapFlags) -> io::Result<MappedRange> {
        let at = if bytes == 0 { NonNull::dangling() } else { map(file, 0, bytes, protection, flags)? };
        Ok(MappedRange { at, bytes })
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped in `of`; holders of the address do not use it after this value is dropped.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
        }
    }
}

impl ReceiveBuffer {
    /// Creates a buffer of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if no memory is available.
    pub fn new(bytes: usize) -> io::Result<ReceiveBuffer> {
        let file = UnsealedFile::new(bytes)?;
        let written = MappedRange::map(file.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        // A private mapping without writes shows the file's content, and does not prevent sealing.
        let read = MappedRange::map(file.as_fd(), bytes, ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(ReceiveBuffer { written, read: Arc::new(ReceiveBufferView(read)), file, bytes })
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address for writes, valid as long as `self` lives.
    pub fn start(&self) -> NonNull<u8> {
        self.written.at
    }

    /// Returns the read-only view.
    pub fn view(&self) -> Arc<ReceiveBufferView> {
        self.read.clone()
    }

    /// Seals the file.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn seal(self) -> io::Result<SealedFile> {
        let ReceiveBuffer { written, file, bytes, .. } = self;
        drop(written);
        file.seal(bytes as u64)
    }
}

impl ReceiveBufferView {
    /// Returns the address for reads, valid as long as `self` lives.
    pub fn start(&self) -> NonNull<u8> {
        self.0.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use crate::mapping::PAGE_BYTES;

    #[test]
    fn written_bytes_are_readable_before_and_after_sealing() {
        for bytes in [0, 1, PAGE_BYTES, 3 * PAGE_BYTES + 17, 5 << 20] {
            let buffer = ReceiveBuffer::new(bytes).unwrap();
            let view = buffer.view();
            let value: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            // SAFETY: the buffer holds `bytes` bytes, and nothing else accesses them.
            unsafe { buffer.start().as_ptr().copy_from_nonoverlapping(value.as_ptr(), bytes) };
            let seen = |view: &ReceiveBufferView| {
                // SAFETY: the view holds `bytes` bytes, and nothing writes them now.
                unsafe { std::slice::from_raw_parts(view.start().as_ptr(), bytes) }.to_vec()
            };
            assert!(seen(&view) == value, "{bytes} bytes, before");
            let object = buffer.seal().unwrap();
            assert!(seen(&view) == value, "{bytes} bytes, after");
            let mapping = Mapping::sealed(object.as_fd(), object.bytes()).unwrap();
            assert!(mapping[..] == value && object.bytes() == bytes as u64);
        }
    }
}
