//! Memory files that are written in any order, by several at once, and read meanwhile where they are written already.
//!
//! What is fetched lands here. Who reads what has come maps it without being able to write it, so that the file can be
//! sealed, when all of it is there, before the last of them is done.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, munmap};

use crate::mapping::map;
use crate::{Object, Unsealed};

/// A file of so many bytes, zeros at first, that is mapped to be written.
#[derive(Debug)]
pub struct Landing {
    written: Mapped,
    read: Arc<LandingView>,
    file: Unsealed,
    bytes: usize,
}

/// The bytes of a [`Landing`], mapped to be read.
#[derive(Debug)]
pub struct LandingView(Mapped);

#[derive(Debug)]
struct Mapped {
    at: NonNull<u8>,
    /// None of nothing.
    bytes: usize,
}

// SAFETY: it is an address; who reads and writes which of it is told apart by those who do.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: BorrowedFd<'_>, bytes: usize, protection: ProtFlags, flags: MapFlags) -> io::Result<Mapped> {
        let at = if bytes == 0 { NonNull::dangling() } else { map(file, 0, bytes, protection, flags)? };
        Ok(Mapped { at, bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped in `of`; who has the address does not use it any longer than this lives.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
        }
    }
}

impl Landing {
    /// Has room for so many bytes.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(bytes: usize) -> io::Result<Landing> {
        let file = Unsealed::new(bytes)?;
        let written = Mapped::of(file.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        // A private mapping of which nothing is written shows what the file has, and does not keep it from being sealed.
        let read = Mapped::of(file.as_fd(), bytes, ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(Landing { written, read: Arc::new(LandingView(read)), file, bytes })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it is written, as long as this lives.
    pub fn start(&self) -> NonNull<u8> {
        self.written.at
    }

    /// Where it is read.
    pub fn view(&self) -> Arc<LandingView> {
        self.read.clone()
    }

    /// Seals it: it is an object.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn seal(self) -> io::Result<Object> {
        let Landing { written, file, bytes, .. } = self;
        drop(written);
        file.seal(bytes as u64)
    }
}

impl LandingView {
    /// Where it is read, as long as this lives.
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
    fn what_is_written_is_read_before_and_after_it_is_sealed() {
        for bytes in [0, 1, PAGE_BYTES, 3 * PAGE_BYTES + 17, 5 << 20] {
            let landing = Landing::new(bytes).unwrap();
            let view = landing.view();
            let value: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            // SAFETY: as many bytes, which nobody else uses.
            unsafe { landing.start().as_ptr().copy_from_nonoverlapping(value.as_ptr(), bytes) };
            let seen = |view: &LandingView| {
                // SAFETY: as many bytes, which nobody writes now.
                unsafe { std::slice::from_raw_parts(view.start().as_ptr(), bytes) }.to_vec()
            };
            assert!(seen(&view) == value, "{bytes} bytes, before");
            let object = landing.seal().unwrap();
            assert!(seen(&view) == value, "{bytes} bytes, after");
            let mapping = Mapping::sealed(object.as_fd(), object.bytes()).unwrap();
            assert!(mapping[..] == value && object.bytes() == bytes as u64);
        }
    }
}
