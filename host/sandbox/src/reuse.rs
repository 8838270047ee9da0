//! Sandboxes that are used again: put back to what a new one is, at a third of the price.
//!
//! To make a sandbox takes longer than most of what small tasks do in it. What a call leaves behind is known, though: in
//! the host, [`State`]; in the guest, its memory and its globals, of which the code itself puts the globals back (see
//! `relink`). The kernel says which pages of the memory were written; they get what a new sandbox has there. It is done
//! right after a call, so that nothing of it stays behind, and only for calls of one job: what belongs to another gets
//! a sandbox that was never used.
//!
//! To ask the kernel takes as long as all the rest. But a page that was not written before is written with a page fault,
//! and it counts those of each thread for less: while there was none, the pages are those that were found the last time.
//! That is so but for huge pages that it makes of small ones behind our backs; it is told to make none there.
//!
//! A sandbox is given up instead if its call did not end well, if its memory grew, if so much of it was written that the
//! kernel gives new pages for less, if it still has handles of WASI's or of tensors, or if its code changes more than memory and globals.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use sandbar_core::JobId;
use wasmtime::Store;

use crate::engine::{KEEP_RESIDENT_BYTES, Program};
use crate::memory::PAGE_BYTES;
use crate::relink::Initial;
use crate::running::Calls;
use crate::services::{NoServices, Services};
use crate::state::State;

/// Sandboxes kept for later tasks: as many as are left by tasks that wait for each other, a few deep.
pub(crate) const KEPT_MAX: usize = 4;

/// The sandboxes of one thread that are kept for the next tasks.
#[derive(Clone, Default)]
pub struct IdleSandboxes(Rc<RefCell<VecDeque<Kept>>>);

/// A sandbox, as new.
struct Kept {
    job: JobId,
    program: Arc<Program>,
    sandbox: Sandbox,
}

/// A sandbox, and what it exports.
pub(crate) struct Sandbox {
    pub(crate) store: Store<State>,
    pub(crate) calls: Calls,
    written: Option<Written>,
}

/// What is known of a sandbox's memory.
struct Written {
    /// Faults of this thread before it was asked for.
    faults: Faults,
    /// All that was ever written.
    regions: Vec<PageRegion>,
}

impl Sandbox {
    pub(crate) fn new(store: Store<State>, calls: Calls) -> Sandbox {
        Sandbox { store, calls, written: None }
    }
}

impl IdleSandboxes {
    /// How many are kept.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// One for a task of a job.
    pub(crate) fn take(&self, job: JobId, program: &Arc<Program>) -> Option<Sandbox> {
        let mut kept = self.0.borrow_mut();
        let is_it = |kept: &Kept| kept.job == job && Arc::ptr_eq(&kept.program, program);
        let at = kept.iter().rposition(is_it)?;
        Some(kept.remove(at)?.sandbox)
    }

    /// Keeps one whose call has ended well, if it can be put back.
    pub(crate) fn keep(&self, job: JobId, program: &Arc<Program>, mut sandbox: Sandbox) {
        let Some(reuse) = program.reuse.as_ref() else { return };
        let state = sandbox.store.data_mut();
        if !state.overlays.is_empty() {
            // Other pages are there now.
            sandbox.written = None;
        }
        if !state.put_back() || reuse.put_back(state, &mut sandbox.written).is_none() {
            return;
        }
        let mut kept = self.0.borrow_mut();
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Kept { job, program: program.clone(), sandbox });
    }
}

impl State {
    /// Serves another task.
    pub(crate) fn serve(&mut self, services: Box<dyn Services>, seed: u64) {
        self.services = services;
        self.seed = seed;
    }

    /// Is as if it had served nobody. Says whether it can be.
    fn put_back(&mut self) -> bool {
        self.services = Box::new(NoServices);
        self.overlays.clear();
        self.limiter.begin();
        self.panic = None;
        self.output = None;
        // Without the handles of its own, WASI is made anew for who asks for it.
        self.wasi.take().is_none_or(|wasi| wasi.has_no_handles()) && self.handles == 0
    }
}

/// Puts memory back.
pub(crate) struct Reuse {
    initial: Initial<Box<dyn Deref<Target = [u8]> + Send + Sync>>,
    pages: Arc<File>,
}

impl Reuse {
    /// None where the kernel does not say what was written.
    pub(crate) fn new(
        initial: Initial<Box<dyn Deref<Target = [u8]> + Send + Sync>>,
        pages: Option<Arc<File>>,
    ) -> Option<Reuse> {
        Some(Reuse { initial, pages: pages? })
    }

    /// None if it can't be.
    fn put_back(&self, state: &State, written: &mut Option<Written>) -> Option<()> {
        let bytes = self.initial.memory_bytes;
        let base = state.memory.filter(|_| state.limiter.memory_bytes == bytes)?;
        let faults = Faults::of_this_thread()?;
        let known = match written {
            Some(known) if known.faults == faults => known,
            _ => {
                if written.is_none() {
                    no_huge_pages(base, bytes as usize);
                }
                let regions = look(&self.pages, base, bytes as usize)?;
                if regions.iter().map(|region| region.end - region.start).sum::<u64>() > KEEP_RESIDENT_BYTES as u64 {
                    return None;
                }
                written.insert(Written { faults, regions })
            }
        };
        for region in &known.regions {
            // SAFETY: what the kernel found is in the memory of the sandbox at hand, which no code runs in and nothing
            // refers to, and can be written: it was.
            unsafe { self.restore(base, region.start as usize, region.end as usize) };
        }
        Some(())
    }

    /// # Safety
    /// From `start` to `end` there is memory to be written, of a sandbox whose memory begins at `base`.
    unsafe fn restore(&self, base: usize, start: usize, end: usize) {
        let Initial { image_start, image, .. } = &self.initial;
        let image_at = base + *image_start as usize;
        let (from, until) = (image_at.clamp(start, end), (image_at + image.len()).clamp(start, end));
        // SAFETY: as the caller says.
        unsafe {
            (start as *mut u8).write_bytes(0, from - start);
            if let Some(image) = image.get(from.wrapping_sub(image_at)..until.wrapping_sub(image_at)) {
                (from as *mut u8).copy_from_nonoverlapping(image.as_ptr(), image.len());
            }
            (until as *mut u8).write_bytes(0, end - until);
        }
    }
}

/// Page faults so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Faults(libc::c_long, libc::c_long);

impl Faults {
    fn of_this_thread() -> Option<Faults> {
        let mut usage = MaybeUninit::uninit();
        // SAFETY: the kernel fills it in.
        let usage: libc::rusage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return None;
            }
            usage.assume_init()
        };
        Some(Faults(usage.ru_minflt, usage.ru_majflt))
    }
}

fn no_huge_pages(at: usize, bytes: usize) {
    // A kernel that has none says that it can't be told.
    // SAFETY: it changes nothing of what is in the memory.
    let _ = unsafe { libc::madvise(at as *mut libc::c_void, bytes, libc::MADV_NOHUGEPAGE) };
}

/// Regions that are looked for at once.
const REGIONS_MAX: usize = 64;

/// All that was written of so much memory.
fn look(pages: &File, base: usize, bytes: usize) -> Option<Vec<PageRegion>> {
    let (mut all, mut from, end) = (Vec::new(), base, base + bytes);
    while from < end {
        let mut found = [const { MaybeUninit::uninit() }; REGIONS_MAX];
        let (regions, walked) = written(pages, from, end, &mut found)?;
        all.extend_from_slice(regions);
        from = walked;
    }
    Some(all)
}

/// `struct page_region` and `struct pm_scan_arg` of Linux (`include/uapi/linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// Whether the kernel tells which pages of a sandbox were written (from 6.7 on): others need not be reset.
pub fn tells_written_pages() -> bool {
    pages().is_some()
}

/// Who knows which pages of this process were written, if the kernel says so (from 6.7 on).
pub(crate) fn pages() -> Option<Arc<File>> {
    let pages = File::open("/proc/self/pagemap").ok()?;
    written(&pages, 0, PAGE_BYTES, &mut [const { MaybeUninit::uninit() }; 1])?;
    Some(Arc::new(pages))
}

/// Finds what was written between two addresses: pages that are there, and are neither of a file nor the one that all
/// share which is zero. Gives the regions, and how far it came. None if the kernel does not say.
fn written<'f>(
    pages: &File,
    start: usize,
    end: usize,
    found: &'f mut [MaybeUninit<PageRegion>],
) -> Option<(&'f [PageRegion], usize)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        flags: 0,
        start: start as u64,
        end: end as u64,
        walk_end: 0,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: 0,
        category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
        category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO | PAGE_IS_PRESENT,
        category_anyof_mask: 0,
        return_mask: 0,
    };
    // SAFETY: the kernel reads and writes the arguments, and writes as many regions as it is told there is room for.
    let count = unsafe { libc::ioctl(pages.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
    let count = usize::try_from(count).ok().filter(|count| *count <= found.len())?;
    let walked = arguments.walk_end as usize;
    if walked <= start || walked > end {
        return None;
    }
    // SAFETY: the kernel has written so many.
    Some((unsafe { std::slice::from_raw_parts(found.as_ptr().cast(), count) }, walked))
}
