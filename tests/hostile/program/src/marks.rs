//! Tasks that leave marks wherever they can, and search for those of others.

use std::arch::wasm32;
use std::hint::black_box;

use sandbar_guest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::forged::pages;

/// Tasks whose values are held at once. At most two times as many are.
const HELD: u64 = 250;
/// Words of each value.
const VALUE_WORDS: usize = 4096;
const STACK_WORDS: usize = 1024;
const HEAP_WORDS: usize = 16_384;
const GROWN_PAGES: usize = 16;
const WASM_PAGE_BYTES: usize = 64 << 10;
const TENANTS: u32 = 2;
/// Bits of a task's number.
const NUMBER_BITS: u32 = 20;
/// Start of the memory that is searched, in bytes.
const SEARCHED_FROM: usize = 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    /// Marks of others.
    marks: u64,
    /// Values that had other bytes when they came back.
    changed_values: u64,
}

/// Runs tasks that each leave marks and search for those of others, and gets the value of each after those of the next
/// tasks. Returns what they found.
#[task]
fn leave_marks(tenant: u64, tasks: u64) -> Result<Found, String> {
    let mut found = Found::default();
    let mut held: Vec<(u64, ObjectRef<Bytes>)> = Vec::new();
    for first in (0..tasks).step_by(HELD as usize) {
        let next: Vec<_> =
            (first..tasks.min(first + HELD)).map(|number| (number, leaves_mark::submit(tenant, number))).collect();
        check(tenant, &held, &mut found)?;
        held = next;
    }
    check(tenant, &held, &mut found)?;
    Ok(found)
}

fn check(tenant: u64, values: &[(u64, ObjectRef<Bytes>)], found: &mut Found) -> Result<(), String> {
    for (number, value) in values {
        let bytes = value.get().map_err(|error| error.to_string())?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        found.marks += words.next().unwrap_or(u64::MAX);
        let is_same = bytes.len() == 8 * VALUE_WORDS && words.all(|word| word == mark(tenant, *number));
        found.changed_values += u64::from(!is_same);
    }
    Ok(())
}

/// Returns the number of marks of others that it found, and its own mark many times.
#[task]
fn leaves_mark(tenant: u64, number: u64) -> Result<Bytes, String> {
    let own = mark(tenant, number);
    let mut marks = count_marks_of_others(own);
    let heap = black_box(vec![own; HEAP_WORDS]);
    pages(GROWN_PAGES).as_chunks_mut().0.fill(own.to_le_bytes());
    leaves_on_stack(own, 16);
    // Its pages are mapped behind what was written so far.
    let words: Vec<u8> = own.to_le_bytes().repeat(VALUE_WORDS);
    let stored = put(&Bytes::from(words)).get().map_err(|error| error.to_string())?;
    marks += count_marks_of_others(own);
    black_box((heap, stored));
    let mut value = own.to_le_bytes().repeat(VALUE_WORDS);
    value[..8].copy_from_slice(&marks.to_le_bytes());
    Ok(Bytes::from(value))
}

/// The lower half of a mark follows from the upper one, so that no mark is one that the allocator has overwritten in part.
/// It is computed, so that no constant of the component is a mark.
fn mark(tenant: u64, number: u64) -> u64 {
    let upper = (tenant as u32) << NUMBER_BITS | (number as u32 + 1);
    u64::from(upper) << 32 | u64::from(lower_half(upper))
}

fn lower_half(upper: u32) -> u32 {
    upper.wrapping_mul(0x9e37_79b1) ^ black_box(0x5a17_c0de)
}

fn is_mark(word: u64) -> bool {
    let upper = (word >> 32) as u32;
    upper != 0 && upper >> NUMBER_BITS < TENANTS && word as u32 == lower_half(upper)
}

/// Counts the marks of other tasks in all of this memory.
fn count_marks_of_others(own: u64) -> u64 {
    let end = wasm32::memory_size::<0>() * WASM_PAGE_BYTES;
    let mut count = 0;
    for at in (SEARCHED_FROM..end).step_by(8) {
        // SAFETY: the memory has this address, which is aligned; the attack is to read what lies there.
        let word = unsafe { (at as *const u64).read_volatile() };
        count += u64::from(word != own && is_mark(word));
    }
    count
}

#[inline(never)]
fn leaves_on_stack(own: u64, depth: usize) -> u64 {
    let words = black_box([own; STACK_WORDS]);
    words[depth] ^ if depth == 0 { 0 } else { leaves_on_stack(own, depth - 1) }
}
