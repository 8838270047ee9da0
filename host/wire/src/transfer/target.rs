//! Memory that objects are fetched into.

use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that an object is fetched into. Nothing else may use it meanwhile.
///
/// Peers read verified parts while others are still being written. Writing and reading use separate addresses, so that
/// the memory can be sealed once it is complete although such readers remain: dropping the target unmaps the writable
/// mapping, and the readable one lives as long as its [`TargetView`]. Both may be the same if the memory is not sealed.
///
/// # Safety
/// While the target lives, [`start`](FetchTarget::start) points to [`bytes`](FetchTarget::bytes) initialised, writable
/// bytes that nothing else reads or writes. While a view of it lives, the view's address points to the same bytes,
/// readable, and only the target's owner writes them.
pub unsafe trait FetchTarget: Send + Sync + 'static {
    /// Returns the length in bytes.
    fn bytes(&self) -> u64;
    /// Returns the address for writing. Any address if the length is zero.
    fn start(&self) -> NonNull<u8>;
    /// Returns a view of the same bytes for reading.
    fn view(&self) -> Arc<dyn TargetView>;
}

/// A target's bytes, for reading.
///
/// # Safety
/// See [`FetchTarget`].
pub unsafe trait TargetView: Send + Sync + 'static {
    /// Returns the address for reading.
    fn start(&self) -> NonNull<u8>;
}

/// A target on this process's heap.
#[derive(Clone)]
pub struct HeapTarget(Arc<Heap>);

struct Heap {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owned memory like a `Vec`'s; users of `FetchTarget` keep reads and writes apart.
unsafe impl Send for Heap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Heap {}

impl HeapTarget {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(bytes: u64) -> io::Result<HeapTarget> {
        let none = || io::Error::new(io::ErrorKind::OutOfMemory, format!("can't allocate {bytes} bytes"));
        let allocation = Heap::allocation(usize::try_from(bytes).map_err(|_| none())?).ok_or_else(none)?;
        // SAFETY: the size is at least one byte.
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

    /// Returns the bytes, once all have been written.
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
            // SAFETY: `HeapTarget::new` allocated it with the same layout, and this is the last reference.
            unsafe { dealloc(self.at.as_ptr(), allocation) };
        }
    }
}

impl fmt::Debug for HeapTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapTarget({} bytes)", self.0.bytes)
    }
}

// SAFETY: the memory is allocated and zeroed, and freed after the last target or view. Only `into_bytes`, which
// consumes the target, exposes it otherwise.
unsafe impl FetchTarget for HeapTarget {
    fn bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.0.at
    }

    fn view(&self) -> Arc<dyn TargetView> {
        self.0.clone()
    }
}

// SAFETY: as for the target.
unsafe impl TargetView for Heap {
    fn start(&self) -> NonNull<u8> {
        self.at
    }
}

struct HeapBytes(Arc<Heap>);

impl AsRef<[u8]> for HeapBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the target is dropped, so no writer remains.
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
    fn written_bytes_outlive_the_target() {
        for bytes in [0, 1, 100_000] {
            let target = HeapTarget::new(bytes).unwrap();
            let view = target.view();
            if bytes > 0 {
                // SAFETY: in bounds, and nothing else accesses the memory.
                unsafe { target.start().as_ptr().add(bytes as usize - 1).write(7) };
            }
            let whole = target.into_bytes();
            assert_eq!(whole.as_ref().len() as u64, bytes);
            assert_eq!(whole.as_ref().last().copied().unwrap_or(7), 7);
            drop(whole);
            if bytes > 0 {
                // SAFETY: in bounds, and no writer exists.
                assert_eq!(unsafe { view.start().as_ptr().add(bytes as usize - 1).read() }, 7);
            }
        }
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        assert_eq!(HeapTarget::new(u64::MAX / 4).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
