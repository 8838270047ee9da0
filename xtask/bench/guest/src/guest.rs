//! The guest, written against the contract without the SDK.

#![allow(missing_docs, clippy::all, reason = "generated")]

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::cell::{Cell, RefCell};

use exports::sandbar::udf::guest::{Function, Guest, Kind};
use sandbar::udf::data;

use crate::{CHUNK_BYTES, FUNCTIONS, sum};

wit_bindgen::generate!({
    path: "../../../wit/sandbar.wit",
    world: "udf",
    ownership: Borrowing { duplicate_if_necessary: false },
});
export!(Component);

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

thread_local! {
    static OPENED: Cell<u32> = const { Cell::new(0) };
    static KEPT: RefCell<Option<(*mut u8, usize)>> = const { RefCell::new(None) };
}

struct Component;

impl Guest for Component {
    fn describe() -> Vec<Function> {
        let function = |name: &&str| Function {
            name: (*name).to_owned(),
            kind: Kind::Batch,
            arguments: Vec::new(),
            returns: Vec::new(),
            about: String::new(),
        };
        FUNCTIONS.iter().map(function).collect()
    }

    fn open(function: u32, _params: String, _seed: u64) -> Result<(), String> {
        OPENED.set(function);
        Ok(())
    }

    fn process(header: Vec<u8>) -> Result<(), String> {
        if OPENED.get() == 0 {
            return Ok(());
        }
        let bytes = header.try_into().map(u64::from_le_bytes).map_err(|_| "the header is not a length")? as usize;
        match OPENED.get() {
            1 => emit_sum(sum(kept(bytes, |region| data::read(0, region)))),
            2 => {
                let chunks = (0..bytes).step_by(CHUNK_BYTES);
                emit_sum(chunks.fold(0, |all, at| {
                    let take = CHUNK_BYTES.min(bytes - at);
                    all.wrapping_add(sum(
                        &kept(CHUNK_BYTES, |region| data::read(at as u64, &region[..take]))[..take / 8]
                    ))
                }));
            }
            3 => emit_sum(sum(kept(bytes, |region| data::map_pages(0, region)))),
            _ => {
                // Unwritten memory would be one shared page of zeros.
                if KEPT.with_borrow(Option::is_none) {
                    kept(bytes, |region| data::read(0, region));
                }
                data::emit(&[], &[as_bytes(kept(bytes, |_| ()))]);
            }
        }
        Ok(())
    }

    fn fit(_: Vec<u8>) -> Result<(), String> {
        Err("there is no trainer here".to_owned())
    }

    fn predict(_: Vec<u8>) -> Result<(), String> {
        Err("there is no trainer here".to_owned())
    }
}

fn emit_sum(sum: u64) {
    data::emit(&sum.to_le_bytes(), &[]);
}

/// Returns the region that calls share, allocated by the first call, after `fill` has filled it.
fn kept(bytes: usize, fill: impl FnOnce(&[u8])) -> &'static [u64] {
    KEPT.with_borrow_mut(|kept| {
        let (at, _) = *kept.get_or_insert_with(|| {
            let align = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
            let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE_BYTES), align).expect("a size");
            // SAFETY: the layout is not empty.
            let at = unsafe { alloc(layout) };
            if at.is_null() {
                handle_alloc_error(layout);
            }
            (at, layout.size())
        });
        // SAFETY: the region is allocated above and never freed, and a component has one thread. Unwritten memory of a
        // sandbox holds valid bytes.
        fill(unsafe { std::slice::from_raw_parts(std::hint::black_box(at), bytes) });
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(std::hint::black_box(at).cast(), bytes / 8) }
    })
}

fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: words have no padding.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

/// Replaces libc's `write`, which would import WASI; `sandbar-guest` does the same for its guests.
#[unsafe(no_mangle)]
extern "C" fn write(_file: i32, _bytes: *const u8, _count: usize) -> isize {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn writev(_file: i32, _parts: *const u8, _count: i32) -> isize {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn getenv(_name: *const u8) -> *const u8 {
    std::ptr::null()
}
