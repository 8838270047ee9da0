//! Requests for things that don't exist or belong to others.

use std::arch::wasm32;

use crate::bindings::{data, groups, log};
use crate::{Attack, Behavior};

const PAGE: usize = 4096;

pub const ATTACKS: &[Attack] = &[
    ("read-beyond-input", Behavior::Process(|header| read(body_bytes(header), 64))),
    ("read-before-zero", Behavior::Process(|_| read(u64::MAX - 7, 64))),
    ("read-outside-memory", Behavior::Process(|_| data::read(0, outside()))),
    (
        "map-beyond-input",
        Behavior::Process(|header| data::map_pages(body_bytes(header).next_multiple_of(PAGE as u64), pages(1))),
    ),
    ("map-more-than-input", Behavior::Process(|_| data::map_pages(0, pages(4096)))),
    ("map-offset-not-aligned", Behavior::Process(|_| data::map_pages(8, pages(1)))),
    ("map-region-not-aligned", Behavior::Process(|_| data::map_pages(0, &pages(2)[8..PAGE + 8]))),
    ("map-half-a-page", Behavior::Process(|_| data::map_pages(0, &pages(1)[..100]))),
    ("map-nothing", Behavior::Process(|_| data::map_pages(0, &[]))),
    ("map-over-own-data", Behavior::Fit(|| data::map_pages(0, own_data()))),
    ("map-over-own-stack", Behavior::Fit(|| data::map_pages(0, own_stack()))),
    ("map-outside-memory", Behavior::Fit(|| data::map_pages(0, outside()))),
    ("map-thousands-of-regions", Behavior::Fit(|| pages(3000).chunks(PAGE).for_each(|page| data::map_pages(0, page)))),
    ("emit-outside-memory", Behavior::Process(|_| data::emit(outside(), &[outside()]))),
    ("emit-while-fitting", Behavior::Fit(|| data::emit(&[], &[]))),
    (
        "next-while-processing",
        Behavior::Process(|_| {
            let _ = groups::next();
        }),
    ),
    ("model-while-processing", Behavior::Process(|_| drop(groups::model()))),
    ("settle-while-processing", Behavior::Process(|_| groups::failed("none"))),
    ("log-outside-memory", Behavior::Process(|_| log::write(log::Level::Info, text(outside())))),
    ("log-not-utf8", Behavior::Process(|_| log::write(log::Level::Info, text(&[0xff, 0xfe])))),
    ("print-outside-memory", Behavior::Process(|_| log::print(log::Level::Info, outside()))),
    ("panic-and-go-on", Behavior::Process(|_| log::panic("this is no panic"))),
    (
        "log-flood",
        Behavior::Fit(|| {
            flood();
            crate::trainers::honest_fit()
        }),
    ),
    ("scribble-over-input", Behavior::Fit(scribble)),
    ("hide-secrets", Behavior::Fit(hide)),
    ("seek-secrets", Behavior::Fit(seek)),
];

/// Returns the length of the input's body in its header.
fn body_bytes(header: &[u8]) -> u64 {
    u64::from_le_bytes(header[24..32].try_into().expect("a header has 32 bytes"))
}

fn read(offset: u64, len: usize) {
    data::read(offset, &vec![0; len]);
}

/// Returns fresh pages of this memory.
fn pages(count: usize) -> &'static mut [u8] {
    let bytes = count * PAGE;
    let at = wasm32::memory_grow::<0>(bytes.div_ceil(64 << 10)) * (64 << 10);
    // SAFETY: the memory has just grown by these bytes, and nothing else refers to them.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) }
}

/// Returns a page outside this memory.
fn outside() -> &'static [u8] {
    let end = wasm32::memory_size::<0>() * (64 << 10);
    // SAFETY: the guest never reads the slice; the attack is that the page does not exist.
    unsafe { std::slice::from_raw_parts(end as *const u8, PAGE) }
}

/// Returns a page of the component's initialised data.
fn own_data() -> &'static [u8] {
    static DATA: [u8; 3 * PAGE] = [7; 3 * PAGE];
    let start = DATA.as_ptr().align_offset(PAGE);
    &DATA[start..start + PAGE]
}

/// Returns the page of the stack in use.
fn own_stack() -> &'static [u8] {
    let here = 0u8;
    let page = (&raw const here as usize) & !(PAGE - 1);
    // SAFETY: the stack exists, and nothing reads it through this slice.
    unsafe { std::slice::from_raw_parts(page as *const u8, PAGE) }
}

fn text(bytes: &[u8]) -> &str {
    // SAFETY: the guest never reads the text; the attack is that it is not UTF-8.
    unsafe { std::str::from_utf8_unchecked(bytes) }
}

fn flood() {
    let line = "x".repeat(1000);
    for _ in 0..20_000 {
        log::write(log::Level::Error, &line);
    }
    for _ in 0..200_000 {
        log::write(log::Level::Debug, "");
        log::print(log::Level::Error, &[0xff, b'\n']);
    }
}

/// Maps the input's first pages and overwrites them: other calls read the same input.
fn scribble() {
    let pages = pages(32);
    data::map_pages(0, pages);
    pages.fill(0xa5);
    crate::trainers::honest_fit();
}

/// Leaves a secret, and the input, in fresh memory.
fn hide() {
    pages(2048).fill(0x5a);
    data::map_pages(0, pages(1));
    crate::trainers::honest_fit();
}

/// Searches fresh memory for data of other calls.
fn seek() {
    let found = pages(4096).iter().filter(|byte| **byte != 0).count();
    while let Some(group) = groups::next() {
        match found {
            0 => crate::trainers::settle(&group),
            found => groups::failed(&format!("found {found} bytes of somebody's")),
        }
    }
}
