//! Memory files that are written before they are sealed, and used again by their writer where nobody else had them.
//!
//! A new file costs the kernel a cleared page for each 4 KiB, more than the copy into it. What is written here lies in
//! huge pages where the kernel makes them, which are mapped for as long as the writing takes: so mapping costs next to
//! nothing, and when it is over nobody can write to the file by what it has mapped. Whoever keeps the value
//! [takes](Taken::of) the file unsealed, seals it before another process than the writer gets it, and tells the writer
//! to use the memory again if none ever did. Bytes past the value's end are the writer's older ones: they are cut off
//! when the file is sealed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, munmap};
use sandbar_core::copy_for_others;

use crate::Object;
use crate::mapping::{HUGE_PAGE_BYTES, PAGE_BYTES, gather, huge_bytes, map};
use crate::object::{OWN_SEALS, SEALS, new_file, retry_while_busy};

/// A memory file that is written.
#[derive(Debug)]
pub struct Unsealed {
    file: Arc<OwnedFd>,
    room: usize,
}

impl Unsealed {
    /// A file with room for `bytes` bytes, or somewhat more.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(bytes: usize) -> io::Result<Unsealed> {
        let file = new_file()?;
        let room = bytes.next_multiple_of(PAGE_BYTES).max(huge_bytes(bytes)).max(PAGE_BYTES);
        ftruncate(&file, room as u64)?;
        let unsealed = Unsealed { file: Arc::new(file), room };
        unsealed.with_pages(|at| {
            let huge = huge_bytes(room).min(room) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // SAFETY: just mapped, of a file that nobody else has.
            unsafe { gather(at, huge) };
            Ok(())
        })?;
        Ok(unsealed)
    }

    /// How many bytes it has room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Writes parts, one behind another, and zeros up to the end of the last page.
    ///
    /// # Errors
    /// When there is no room or no memory.
    pub fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        self.has_room(bytes)?;
        self.with_pages(|at| {
            let mut end = at.as_ptr();
            for part in parts {
                // SAFETY: all parts together have room; nobody else has the file mapped.
                unsafe {
                    copy_for_others(part.as_ptr(), end, part.len());
                    end = end.add(part.len());
                }
            }
            // SAFETY: the room is whole pages.
            unsafe { end.write_bytes(0, bytes.next_multiple_of(PAGE_BYTES) - bytes) };
            Ok(())
        })
    }

    /// Has `fill` write its first `bytes` bytes, which are some before.
    ///
    /// # Errors
    /// Those of `fill`, and when there is no room or no memory.
    pub fn fill(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        self.has_room(bytes)?;
        // SAFETY: mapped, and nobody else has the file mapped; any bytes are bytes.
        self.with_pages(|at| fill(unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) }))
    }

    fn has_room(&self, bytes: usize) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes in {}", self.room));
        (bytes <= self.room).then_some(()).ok_or_else(wrong)
    }

    /// Maps the file for as long as `act` takes.
    fn with_pages(&self, act: impl FnOnce(NonNull<u8>) -> io::Result<()>) -> io::Result<()> {
        let _allowed = (self.room >= HUGE_PAGE_BYTES).then(HugePages::allow);
        let at = map(self.file.as_fd(), 0, self.room, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
        let done = act(at);
        // SAFETY: mapped above, and nothing of it is referred to any more.
        unsafe { munmap(at.as_ptr().cast(), self.room)? };
        done
    }

    /// Seals the file: its first `bytes` bytes are an object of this process.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn seal(self, bytes: u64) -> io::Result<Object> {
        Taken { file: self.file, bytes }.seal_with(OWN_SEALS)
    }

    /// Seals the file so that a process which does not trust this one can check that nothing writes to it any more.
    ///
    /// # Errors
    /// Kernel errors.
    pub fn seal_verifiably(self, bytes: u64) -> io::Result<Object> {
        let taken = Taken { file: self.file, bytes };
        retry_while_busy(|| taken.seal())
    }
}

/// Whether this process may have huge pages is as it was before when this is dropped. A worker wants none for sandboxes.
#[derive(Debug)]
struct HugePages {
    were_disabled: bool,
}

impl HugePages {
    fn allow() -> HugePages {
        // SAFETY: this asks for a number, and the next sets it; no memory of this process is given to the kernel.
        let were_disabled = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 1;
        if were_disabled {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
        }
        HugePages { were_disabled }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.were_disabled {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        }
    }
}

impl AsFd for Unsealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A value in a file that its writer could still write to. It is read by copying, and judged by nobody: what its writer
/// makes of it harms its own program.
#[derive(Debug, Clone)]
pub struct Taken {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl Taken {
    /// A file that another process wrote.
    ///
    /// # Errors
    /// When it is no memory file, or shorter.
    pub fn of(file: OwnedFd, bytes: u64) -> io::Result<Taken> {
        fcntl_get_seals(&file)?;
        let taken = Taken { file: Arc::new(file), bytes };
        taken.has_bytes().map(|()| taken)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts off what is behind the value, and seals it: from here on it is an object.
    ///
    /// # Errors
    /// When its writer has it mapped, has cut it off, or sealed it otherwise.
    pub fn seal(&self) -> io::Result<Object> {
        self.seal_with(SEALS)
    }

    /// Like [`Taken::seal`], but returns a copy while the kernel refuses to seal the file.
    ///
    /// # Errors
    /// Fails if the writer has truncated the file, and if no memory is available.
    pub fn seal_or_copy(&self) -> io::Result<Object> {
        match self.seal() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Object::of_file(self.file.as_fd(), self.bytes),
            sealed => sealed,
        }
    }

    fn seal_with(&self, seals: SealFlags) -> io::Result<Object> {
        let bytes = usize::try_from(self.bytes).map_err(io::Error::other)?;
        let pages = bytes.next_multiple_of(PAGE_BYTES).max(huge_bytes(bytes));
        if fstat(&self.file)?.st_size as u64 > pages as u64 {
            ftruncate(&self.file, pages as u64)?;
        }
        fcntl_add_seals(&self.file, seals)?;
        // Nobody can cut it off from here on.
        self.has_bytes()?;
        Ok(Object::of_shared(self.file.clone(), self.bytes))
    }

    /// Gives all of its memory back, whoever has the file.
    ///
    /// # Errors
    /// When it is sealed.
    pub fn forget(&self) -> io::Result<()> {
        let all = fstat(&self.file)?.st_size as u64;
        if all > 0 {
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, all)?;
        }
        Ok(())
    }

    fn has_bytes(&self) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the file is shorter than was said");
        (fstat(&self.file)?.st_size as u64 >= self.bytes).then_some(()).ok_or_else(wrong)
    }
}

impl AsFd for Taken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    fn taken(unsealed: &Unsealed, bytes: u64) -> Taken {
        Taken::of(unsealed.as_fd().try_clone_to_owned().unwrap(), bytes).unwrap()
    }

    #[test]
    fn an_object_is_what_was_written_last_and_no_more() {
        let (half, whole) = (vec![7u8; 1_500_000], vec![9u8; 3_000_000]);
        for bytes in [1, 4096, 1_500_000, HUGE_PAGE_BYTES, 3_000_000] {
            let mut unsealed = Unsealed::new(whole.len()).unwrap();
            assert!(unsealed.room() >= whole.len());
            unsealed.write(&[&whole]).unwrap();
            let first = bytes.min(half.len());
            let rest = bytes - first;
            unsealed.write(&[&half[..first], &whole[..rest]]).unwrap();
            let object = taken(&unsealed, bytes as u64).seal().unwrap();
            let mapping = Mapping::sealed(object.as_fd(), bytes.next_multiple_of(PAGE_BYTES) as u64).unwrap();
            assert_eq!(mapping[..first], half[..first]);
            assert_eq!(mapping[first..bytes], whole[..rest]);
            assert!(mapping[bytes..].iter().all(|byte| *byte == 0), "behind {bytes} bytes");
            // What was there before is cut off.
            assert!(fstat(&object).unwrap().st_size as usize <= bytes.next_multiple_of(HUGE_PAGE_BYTES));
            assert!(unsealed.write(&[b"x"]).is_err(), "its writer writes no more");
            assert!(rustix::io::pwrite(&unsealed, b"x", 0).is_err());
        }
    }

    #[test]
    fn what_somebody_could_write_to_is_not_sealed() {
        let mut unsealed = Unsealed::new(PAGE_BYTES).unwrap();
        let held = taken(&unsealed, 10);
        let is_refused = |_: &mut [u8]| {
            assert!(held.seal().is_err());
            assert_eq!(held.seal_or_copy().unwrap().bytes(), 10);
            Ok(())
        };
        unsealed.fill(10, is_refused).unwrap();
        assert!(held.seal().is_ok());
    }

    #[test]
    fn what_was_cut_off_is_no_object() {
        let unsealed = Unsealed::new(PAGE_BYTES).unwrap();
        let held = taken(&unsealed, PAGE_BYTES as u64);
        ftruncate(&unsealed, 10).unwrap();
        assert!(held.seal().is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Taken::of(file.into(), 1).is_err(), "it is no memory file");
    }

    #[test]
    fn what_is_forgotten_takes_no_memory() {
        let mut unsealed = Unsealed::new(HUGE_PAGE_BYTES).unwrap();
        unsealed.write(&[&[1; HUGE_PAGE_BYTES]]).unwrap();
        assert!(fstat(&unsealed).unwrap().st_blocks > 0);
        taken(&unsealed, 10).forget().unwrap();
        assert_eq!(fstat(&unsealed).unwrap().st_blocks, 0);
        // And is there to be written again.
        unsealed.write(&[b"abc"]).unwrap();
        let object = unsealed.seal(3).unwrap();
        assert_eq!(&*Mapping::sealed(object.as_fd(), 3).unwrap(), b"abc");
    }
}
