//! Memory: what other calls left in it, and more of it than allowed.

use std::hint::black_box;

use sandbar_guest::prelude::*;

use crate::forged::pages;
use crate::{Attack, distinct, outcome};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("probes-fresh-memory", || probes("fresh")),
    ("probes-the-stack", || probes("stack")),
    ("probes-mapped-pages", || probes("mapped")),
    ("writes-to-values", || {
        let shared = put(&vec![7u8; 1 << 20]);
        let writers: Vec<_> = (0..8).map(|_| scribbles::submit(Bytes::from(vec![7; 1 << 20]))).collect();
        let scribbled = put(&Bytes::from(vec![7; 1 << 20]));
        let more: Vec<_> = (0..8).map(|_| scribbles::submit(&scribbled)).collect();
        get_all(&writers).and_then(|_| get_all(&more)).map_err(|error| error.to_string())?;
        let is_same = |bytes: Result<bool, TaskError>| bytes.unwrap_or(false);
        let values = shared.get().map(|bytes| bytes.iter().all(|byte| *byte == 7));
        let bytes = scribbled.get().map(|bytes| bytes.iter().all(|byte| *byte == 7));
        Ok(format!("{} {}", is_same(values), is_same(bytes)))
    }),
    ("grows-over-maps", || {
        let value = put(&Bytes::from(vec![7; 8 << 20]));
        let all: Vec<_> = (0..16).map(|_| grows::submit(&value)).collect();
        Ok(distinct(all.iter().map(|task| task.get().map_or_else(|e| outcome::<()>(Err(e)), |seen| seen))))
    }),
    ("touches-much", || {
        let all: Vec<_> = (0..12).map(|_| touches::submit(32_000_000)).collect();
        Ok(outcome(get_all(&all)))
    }),
    ("allocates-without-end", || {
        let mut kept: Vec<Vec<u8>> = Vec::new();
        while kept.len() < usize::MAX {
            kept.push(black_box(vec![1; 1 << 20]));
        }
        Ok(kept.len().to_string())
    }),
    ("recurses", || Ok(recurses(1).to_string())),
    ("runs-into-traps", || {
        let kinds = ["unreachable", "outside", "exit", "abort"];
        Ok(kinds
            .map(|kind| outcome(traps::submit(kind.to_owned()).get()).split(':').next().unwrap_or_default().to_owned())
            .join(" "))
    }),
    ("polls-the-clock", || {
        let start = std::time::Instant::now();
        while black_box(start.elapsed().as_nanos()) < u128::MAX {}
        Ok("over".to_owned())
    }),
];

/// The byte that tasks leave behind.
const LEFT: u8 = 0x5a;

/// Runs tasks that leave bytes behind, and others that search for them. Returns what the latter found.
fn probes(place: &str) -> Result<String, String> {
    let mut found = Vec::new();
    for _ in 0..30 {
        let leaving: Vec<_> = (0..2).map(|_| leaves::submit(place.to_owned())).collect();
        get_all(&leaving).map_err(|error| error.to_string())?;
        let seeking: Vec<_> = (0..2).map(|_| seeks::submit(place.to_owned())).collect();
        found.extend(get_all(&seeking).map_err(|error| error.to_string())?);
    }
    Ok(distinct(found.into_iter().map(|bytes| bytes.to_string())))
}

#[task]
fn leaves(place: String) -> u64 {
    match place.as_str() {
        "stack" => fills_stack(40),
        "mapped" => {
            let bytes = put(&Bytes::from(vec![LEFT; 4 << 20])).get();
            bytes.map_or(0, |bytes| bytes.len() as u64)
        }
        _ => {
            let pages = pages(1024);
            pages.fill(LEFT);
            pages.len() as u64
        }
    }
}

/// Counts the bytes of others.
#[task]
fn seeks(place: String) -> u64 {
    let here = 0u8;
    if place == "stack" {
        // SAFETY: the stack lies below the data from address 0 on, and the part below this frame is in no use.
        let below = unsafe { std::slice::from_raw_parts(1024 as *const u8, (&raw const here as usize) - 16_384) };
        return below.iter().filter(|byte| **byte != 0).count() as u64;
    }
    pages(2048).iter().filter(|byte| **byte != 0).count() as u64
}

#[inline(never)]
fn fills_stack(depth: u32) -> u64 {
    let bytes = black_box([LEFT; 8192]);
    u64::from(bytes[depth as usize]) + if depth == 0 { 0 } else { fills_stack(depth - 1) }
}

/// Writes to the pages of a value.
#[task]
fn scribbles(bytes: Bytes) -> u64 {
    let (at, count) = (bytes.as_ptr().cast_mut(), bytes.len());
    for offset in (0..count).step_by(64) {
        // SAFETY: the bytes are this sandbox's own pages; the attack is that they were shared.
        unsafe { at.add(offset).write_volatile(0xa5) };
    }
    count as u64
}

/// Grows its memory while pages of a value are mapped, to its end. Returns what it sees then.
#[task]
fn grows(value: Bytes) -> String {
    let mut grown = 0usize;
    loop {
        let more = pages(4096);
        if more.is_empty() {
            break;
        }
        if more.iter().step_by(4096).any(|byte| *byte != 0) {
            return "bytes of others".to_owned();
        }
        grown += 1;
    }
    format!("{} {}", grown > 0, value.iter().all(|byte| *byte == 7))
}

/// Writes to this much memory, and sleeps.
#[task]
fn touches(bytes: usize) -> u64 {
    let all = black_box(vec![1u8; bytes]);
    u64::from(all[0]) + crate::sleeps()
}

#[expect(unconditional_recursion, reason = "it is the attack")]
#[inline(never)]
fn recurses(depth: u64) -> u64 {
    let held = black_box([depth; 64]);
    recurses(depth + 1) + held[(depth % 64) as usize]
}

#[task]
fn traps(kind: String) -> u64 {
    match kind.as_str() {
        "unreachable" => std::arch::wasm32::unreachable(),
        "outside" => {
            // SAFETY: the address lies outside the memory; the attack is to read it.
            u64::from(unsafe { ((usize::MAX - 8) as *const u8).read_volatile() })
        }
        "exit" => std::process::exit(7),
        _ => std::process::abort(),
    }
}
