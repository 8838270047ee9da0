//! Memory that objects are fetched into.

use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that an object is fetched into, and that belongs to nobody else meanwhile.
///
/// Parts that are verified are read by peers while others are still written. So that memory can be sealed when it is
/// whole, though the last of these readers may not be done by then, it is written by one address and read by another:
/// what the target has mapped for writing goes when the target is dropped, what is read goes with its [`View`]. They may
/// be the same where memory is not sealed.
///
/// # Safety
/// As long as the target lives, [`start`](Target::start) is that of [`bytes`](Target::bytes) initialised bytes that may
/// be written and that nobody else reads or writes. As long as a view of it lives, the view's address is that of as many
/// bytes that may be read, the same ones, and that nobody but the target's owner writes.
pub unsafe trait Target: Send + Sync + 'static {
    /// Length in bytes.
    fn bytes(&self) -> u64;
    /// Where it is written. Any address when it has no bytes.
    fn start(&self) -> NonNull<u8>;
    /// The same bytes, for reading.
    fn view(&self) -> Arc<dyn View>;
}

/// A target's bytes, for reading.
///
/// # Safety
/// See [`Target`].
pub unsafe trait View: Send + Sync + 'static {
    /// Where they are read.
    fn start(&self) -> NonNull<u8>;
}

/// A target in memory of this process.
#[derive(Clone)]
pub struct HeapTarget(Arc<Heap>);

struct Heap {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory like a `Vec`'s; who reads and writes which of it is told apart by those who use `Target`.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl HeapTarget {
    /// Zeros.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(bytes: u64) -> io::Result<HeapTarget> {
        let none = || io::Error::new(io::ErrorKind::OutOfMemory, format!("no {bytes} bytes"));
        let allocation = Heap::allocation(usize::try_from(bytes).map_err(|_| none())?).ok_or_else(none)?;
        // SAFETY: of at least one byte.
        let at = NonNull::new(unsafe { alloc_zeroed(allocation) }).ok_or_else(none)?;
        Ok(HeapTarget(Arc::new(Heap { at, bytes: bytes as usize })))
    }

    /// Like [`HeapTarget::new`], for [`Transfers::fetch`](super::Transfers::fetch).
    ///
    /// # Errors
    /// Out of memory.
    pub async fn reserve(bytes: u64) -> io::Result<HeapTarget> {
        HeapTarget::new(bytes)
    }

    /// Its bytes, when they have all been written.
    pub fn into_bytes(self) -> impl AsRef<[u8]> + Send + Sync + fmt::Debug {
        HeapBytes(self.0)
    }
}

impl Heap {
    fn allocation(bytes: usize) -> Option<Allocation> {
        Allocation::from_size_align(bytes.max(1), 64).ok()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Some(allocation) = Heap::allocation(self.bytes) {
            // SAFETY: allocated in `HeapTarget::new` as this, and nobody refers to it any more.
            unsafe { dealloc(self.at.as_ptr(), allocation) };
        }
    }
}

impl fmt::Debug for HeapTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapTarget({} bytes)", self.0.bytes)
    }
}

// SAFETY: allocated, zeroed, freed when neither target nor view is left. `HeapTarget` is private memory but for
// `into_bytes`, which takes the target.
unsafe impl Target for HeapTarget {
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
unsafe impl View for Heap {
    fn start(&self) -> NonNull<u8> {
        self.at
    }
}

struct HeapBytes(Arc<Heap>);

impl AsRef<[u8]> for HeapBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the target is gone, so nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.bytes) }
    }
}

impl fmt::Debug for HeapBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapBytes({} bytes)", self.0.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_outlives_the_target() {
        for bytes in [0, 1, 100_000] {
            let target = HeapTarget::new(bytes).unwrap();
            let view = target.view();
            if bytes > 0 {
                // SAFETY: in bounds, and this is the only one with the memory.
                unsafe { target.start().as_ptr().add(bytes as usize - 1).write(7) };
            }
            let whole = target.into_bytes();
            assert_eq!(whole.as_ref().len() as u64, bytes);
            assert_eq!(whole.as_ref().last().copied().unwrap_or(7), 7);
            drop(whole);
            if bytes > 0 {
                // SAFETY: in bounds, and nobody writes.
                assert_eq!(unsafe { view.start().as_ptr().add(bytes as usize - 1).read() }, 7);
            }
        }
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        assert_eq!(HeapTarget::new(u64::MAX / 4).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
