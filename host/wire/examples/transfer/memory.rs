//! Memory files as targets, the store's own: what a node fetches objects into.

use std::ptr::NonNull;
use std::sync::Arc;

use sandbar_store::{Landing, LandingView};
use sandbar_wire::{Target, View};

/// A memory file that is mapped. Clones are the same memory: it is warm when it has been used before.
#[derive(Clone)]
pub struct File(Arc<Landing>);

struct Seen(Arc<LandingView>);

impl File {
    pub fn new(bytes: usize) -> File {
        File(Arc::new(Landing::new(bytes).unwrap()))
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
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.bytes()) }
    }
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped, and not written while it is read.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr(), self.0.bytes()) }
    }
}

// SAFETY: mapped as long as a clone lives; the benchmark fetches into it once at a time.
unsafe impl Target for File {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn view(&self) -> Arc<dyn View> {
        Arc::new(Seen(self.0.view()))
    }
}

// SAFETY: as of the target.
unsafe impl View for Seen {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
