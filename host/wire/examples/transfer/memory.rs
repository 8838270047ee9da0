//! Memory files of `sandbar-store` as fetch targets, as a node uses them.

use std::ptr::NonNull;
use std::sync::Arc;

use sandbar_store::{ReceiveBuffer, ReceiveBufferView};
use sandbar_wire::{FetchTarget, TargetView};

/// A mapped memory file. Clones share the memory, which is warm once it has been used.
#[derive(Clone)]
pub struct File(Arc<ReceiveBuffer>);

struct FileView(Arc<ReceiveBufferView>);

impl File {
    pub fn new(bytes: usize) -> File {
        File(Arc::new(ReceiveBuffer::new(bytes).unwrap()))
    }

    /// Incompressible bytes.
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
        // SAFETY: the memory is mapped, and the benchmark uses it from one place at a time.
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.bytes()) }
    }
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory is mapped, and not written while it is read.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr(), self.0.bytes()) }
    }
}

// SAFETY: the memory stays mapped while a clone lives; the benchmark runs one fetch into it at a time.
unsafe impl FetchTarget for File {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn view(&self) -> Arc<dyn TargetView> {
        Arc::new(FileView(self.0.view()))
    }
}

// SAFETY: as for the target.
unsafe impl TargetView for FileView {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
