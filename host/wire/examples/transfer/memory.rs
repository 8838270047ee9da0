//! Memory files as targets.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sandbar_wire::{Target, View};

/// A memory file that is mapped. Clones are the same memory: it is warm when it has been used before.
#[derive(Clone)]
pub struct File(Arc<Mapped>);

struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that anybody may use in turn.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl File {
    pub fn new(bytes: usize) -> File {
        let file = memfd_create("transfer", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes.max(1), protection, MapFlags::SHARED, &file, 0).unwrap() };
        File(Arc::new(Mapped { at: NonNull::new(at.cast()).unwrap(), bytes }))
    }

    /// Bytes that do not shrink.
    pub fn noise(bytes: usize) -> File {
        let file = File::new(bytes);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for word in file.write().chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        file
    }

    #[expect(clippy::mut_from_ref, reason = "benchmarks use the memory in turn")]
    pub fn write(&self) -> &mut [u8] {
        // SAFETY: mapped, and used by one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr(), self.0.bytes) }
    }
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped, and not written while it is read.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes.max(1)) };
    }
}

// SAFETY: mapped as long as a clone lives; the benchmark fetches into it once at a time.
unsafe impl Target for File {
    fn bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.at
    }

    fn view(&self) -> Arc<dyn View> {
        self.0.clone()
    }
}

// SAFETY: as of the target.
unsafe impl View for Mapped {
    fn start(&self) -> NonNull<u8> {
        self.at
    }
}
