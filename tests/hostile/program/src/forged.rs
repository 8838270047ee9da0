//! Numbers and bytes that the host has not given out.

use std::time::Duration;

use sandbar_guest::prelude::*;
use serde::de::DeserializeOwned;

use crate::actors::VictimHandle;
use crate::{Attack, distinct, imports, outcome};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("gets-objects-of-others", || each_guess("get")),
    ("reads-objects-of-others", || each_guess("read")),
    ("maps-objects-of-others", || each_guess("map")),
    ("passes-objects-of-others", || each_guess("pass")),
    ("stores-objects-of-others", || each_guess("store")),
    ("returns-objects-of-others", || each_guess("return")),
    ("releases-objects-of-others", || each_guess("release")),
    ("cancels-tasks-of-others", || each_guess("cancel")),
    ("takes-items-of-others", || each_guess("next")),
    ("kills-actors-of-others", || each_guess("kill")),
    ("calls-actors-of-others", || each_guess("call")),
    ("removes-groups-of-others", || each_guess("remove-group")),
    ("opens-files-of-others", || each_guess("open")),
    ("awaits-objects-of-others", || each_guess("await")),
    ("submits-garbage", || each_garbage("submit")),
    ("reserves-by-garbage", || each_garbage("group")),
    ("fails-with-garbage", || each_garbage("fail")),
    ("submits-unknown-functions", || {
        Ok(distinct([0, 1, u32::MAX].map(|returns| outcome(unknown_function::submit(returns).get()))))
    }),
    ("returns-and-yields-wrongly", || {
        let kinds = ["yield", "twice", "beyond", "over-data"];
        Ok(distinct(kinds.map(|kind| format!("{kind} {}", outcome(returns_wrongly::submit(kind.to_owned()).get())))))
    }),
];

/// Sequence numbers that are guessed for each of the processes that create objects, and the number of these processes.
const SEQUENCES: u64 = 12;
const PROCESSES: u64 = 48;
/// Bits of the sequence number: see `IdAllocator` of `sandbar-core`.
const SEQUENCE_BITS: u32 = 36;

/// Returns numbers of objects, actors, groups and files of other jobs, and some that can't exist. `own` is a number of this
/// job: those of the same process are left out.
fn guesses(own: u64) -> impl Iterator<Item = u64> {
    let process = own >> SEQUENCE_BITS;
    let low = (1..PROCESSES).flat_map(|process| (0..SEQUENCES).map(move |at| process << SEQUENCE_BITS | at));
    low.chain([u64::MAX, 1 << 63, 1 << 62]).filter(move |number| number >> SEQUENCE_BITS != process)
}

/// Makes a handle of any number.
fn forge<T: DeserializeOwned>(number: u64) -> T {
    let bytes = postcard::to_stdvec(&number).expect("a number is encoded");
    postcard::from_bytes(&bytes).expect("a handle is a number")
}

/// Returns the number of an object.
fn number_of<T>(object: &ObjectRef<T>) -> u64 {
    let text = format!("{object:?}");
    text.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a handle shows its number")
}

/// Tries all numbers, some per task, and returns the distinct outcomes, without the number.
fn each_guess(how: &str) -> Result<String, String> {
    let numbers: Vec<u64> = guesses(number_of(&put(&1))).collect();
    // A task that must not try ends at its first try.
    let each = ["read", "map", "next", "kill", "remove-group", "await"].contains(&how);
    let chunks = numbers.chunks(if each { 16 } else { 200 });
    let tasks: Vec<_> = chunks.map(|numbers| tries::submit(how.to_owned(), numbers.to_vec())).collect();
    let texts = tasks.iter().map(|task| task.get().unwrap_or_else(|error| outcome::<()>(Err(error))));
    Ok(distinct(texts.flat_map(|text| text.split("; ").map(without_numbers).collect::<Vec<_>>())))
}

/// Replaces each number by `#`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            c => out.push(c),
        }
    }
    out
}

#[task]
fn tries(how: String, numbers: Vec<u64>) -> String {
    distinct(numbers.into_iter().map(|number| try_one(&how, number)))
}

fn try_one(how: &str, number: u64) -> String {
    let object = || forge::<ObjectRef<Vec<u8>>>(number);
    let mut page = [0u8; 4096];
    match how {
        "get" => outcome(object().get_timeout(Duration::ZERO)),
        "read" => {
            imports::read(number, 0, &mut page);
            format!("read {:?}", page.iter().find(|byte| **byte != 0))
        }
        "map" => {
            imports::map_pages(number, 0, pages(1));
            "mapped".to_owned()
        }
        "pass" => outcome(bytes_of::submit(&object()).get()),
        "store" => outcome(first_of::submit(&put(&vec![object()])).get()),
        "return" => outcome(returns_forged::submit(number).get().map(|all| all.len())),
        "release" => {
            imports::release(&[number]);
            "released".to_owned()
        }
        "cancel" => {
            cancel(&object(), true);
            "cancelled".to_owned()
        }
        "next" => format!("item {}", imports::next(number)),
        "kill" => {
            imports::kill(number, number % 2 == 0);
            "killed".to_owned()
        }
        "call" => outcome(forge::<VictimHandle>(number).add(1).get_timeout(Duration::from_secs(20))),
        "remove-group" => {
            imports::remove_group(number);
            "removed".to_owned()
        }
        "open" => outcome(forge::<ObjectRef<Bytes>>(imports::open(number)).get()),
        "await" => {
            imports::awaits(&[number]);
            "awaited".to_owned()
        }
        _ => format!("nobody knows `{how}`"),
    }
}

/// Returns fresh pages of this memory.
pub fn pages(count: usize) -> &'static mut [u8] {
    const PAGE_BYTES: usize = 4096;
    const GROWTH_BYTES: usize = 64 << 10;
    let bytes = count * PAGE_BYTES;
    let at = std::arch::wasm32::memory_grow::<0>(bytes.div_ceil(GROWTH_BYTES));
    if at == usize::MAX {
        return &mut [];
    }
    // SAFETY: the memory has just grown by these bytes, and nothing else refers to them.
    unsafe { std::slice::from_raw_parts_mut((at * GROWTH_BYTES) as *mut u8, bytes) }
}

#[task]
fn bytes_of(bytes: Vec<u8>) -> u64 {
    bytes.len() as u64
}

#[task]
fn first_of(all: Vec<ObjectRef<Vec<u8>>>) -> Result<u64, TaskError> {
    all[0].get_timeout(Duration::ZERO).map(|bytes| bytes.len() as u64)
}

#[task]
fn returns_forged(number: u64) -> Vec<ObjectRef<Vec<u8>>> {
    vec![forge(number)]
}

/// Bytes that are no request.
const GARBAGE: [&[u8]; 8] = [
    b"",
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x01\x01\xff\xff\xff\xff\x0f",
    b"\0\0\xff\xff\xff\xff\x0f",
    b"\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0",
    &[0x80; 4096],
    b"{\"options\":null}",
];

fn each_garbage(how: &str) -> Result<String, String> {
    let tasks: Vec<_> = (0..GARBAGE.len()).map(|at| sends_garbage::submit(how.to_owned(), at)).collect();
    let code = |task: &ObjectRef<String>| match task.get() {
        Ok(text) => text,
        Err(error) => error.fault.code.as_str().to_owned(),
    };
    Ok(distinct(tasks.iter().map(code)))
}

#[task]
fn sends_garbage(how: String, at: usize) -> Result<String, String> {
    match how.as_str() {
        // Function 0 may be any task: its result does not matter.
        "submit" => Ok(format!("outcome {}", imports::get(imports::submit(0, 1, GARBAGE[at])))),
        "group" => Ok(format!("outcome {}", imports::get(imports::group(GARBAGE[at])))),
        _ => {
            imports::failed(GARBAGE[at]);
            Err("on purpose".to_owned())
        }
    }
}

#[task]
fn unknown_function(returns: u32) -> u64 {
    imports::submit(u32::MAX, returns, b"\0\0\0\0")
}

#[task]
fn returns_wrongly(kind: String) -> u64 {
    match kind.as_str() {
        "yield" => imports::yielded(&[]),
        "twice" => (0..3).for_each(|_| imports::returned(&[])),
        "beyond" => {
            let own = number_of(&put(&7));
            imports::get(own);
            imports::read(own, u64::MAX - 3, &mut [0; 8]);
        }
        _ => {
            static DATA: [u8; 3 * 4096] = [7; 3 * 4096];
            let own = put(&vec![1u8; 1 << 20]);
            // SAFETY: the slice is used by the host alone, which must refuse it.
            let region = unsafe {
                let start = DATA.as_ptr().add(DATA.as_ptr().align_offset(4096)).cast_mut();
                std::slice::from_raw_parts_mut(start, 4096)
            };
            imports::get(number_of(&own));
            imports::map_pages(number_of(&own), 0, region);
        }
    }
    1
}

/// Asks for objects and actors of these numbers. Returns the distinct answers, without the numbers.
#[task]
fn asks(numbers: Vec<u64>) -> String {
    distinct(
        ["get", "pass", "call"].into_iter().flat_map(|how| {
            numbers.iter().map(move |number| format!("{how} {}", without_numbers(&try_one(how, *number))))
        }),
    )
}
