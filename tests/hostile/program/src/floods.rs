//! Floods of calls, lines, errors, values and references.

use std::mem;
use std::time::Instant;

use sandbar_guest::prelude::*;
use sandbar_guest::{log, progress};

use crate::actors::VictimHandle;
use crate::{Attack, distinct, outcome, spins};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("calls-the-host-for-ever", || {
        loop {
            progress("calls", 1, None);
            std::hint::black_box(Instant::now());
        }
    }),
    ("finds-for-ever", || {
        loop {
            let _ = VictimHandle::find("nobody");
        }
    }),
    ("logs-for-ever", || {
        let line = "x".repeat(1000);
        loop {
            log::error!("{line}");
        }
    }),
    ("logs-huge-lines", || {
        let line = "x".repeat(4 << 20);
        (0..20).for_each(|_| log::warn!("{line}"));
        Ok("logged".to_owned())
    }),
    ("logs-tricks", || {
        for text in
            ["\u{1b}]0;owned\u{7}", "\r2026-01-01T00:00:00Z ada said so\n", "\u{202e}evil", "\u{2028}x", "\u{9b}2J"]
        {
            log::info!("{text}");
        }
        Ok("logged".to_owned())
    }),
    ("prints-without-lines", || {
        let text = "y".repeat(1 << 20);
        for _ in 0..64 {
            print(&text);
        }
        Ok("printed".to_owned())
    }),
    ("progresses-under-many-names", || {
        (0..50_000).for_each(|number| progress(&format!("name {number}"), number, Some(u64::MAX)));
        progress(&"n".repeat(1 << 20), u64::MAX, Some(0));
        Ok("reported".to_owned())
    }),
    ("fails-for-ever", || {
        loop {
            let all: Vec<_> = (0..50).map(|_| fails_long::submit(50_000)).collect();
            let _ = get_all(&all);
        }
    }),
    ("fails-with-much", || {
        let error = fails_long::submit(40_000_000).get().err().map(|error| error.fault.message.len());
        Ok(format!("{:?}", error.map(|bytes| bytes < 1 << 20)))
    }),
    ("returns-much", || Ok(outcome(returns_long::submit(3_000_000_000).get()).chars().take(40).collect())),
    ("results-in-much", || Ok("z".repeat(8_000_000))),
    ("passes-much", || {
        let text = "x".repeat(16_000_000);
        let all: Vec<_> = (0..32).map(|_| takes_long::submit(text.clone())).collect();
        Ok(distinct(
            all.iter().map(|task| task.get().map_or_else(|e| e.fault.code.as_str().to_owned(), |_| "ok".to_owned())),
        ))
    }),
    ("leaks-handles", || {
        let mut count = 0u64;
        loop {
            let object = put(&count);
            if count.is_multiple_of(1000)
                && let Err(error) = object.get()
            {
                return Ok(error.fault.code.as_str().to_owned());
            }
            mem::forget(object);
            count += 1;
        }
    }),
    ("leaks-results", || {
        let mut count = 0u64;
        loop {
            let all: Vec<_> = (0..1000).map(|_| returns_long::submit(3000)).collect();
            if let Err(error) = get_all(&all) {
                return Ok(error.fault.code.as_str().to_owned());
            }
            mem::forget(all);
            count += 1;
            if count == u64::MAX {
                return Ok("no limit".to_owned());
            }
        }
    }),
    ("fills-memory", || fills(4_000)),
    ("fills-disk", || fills(1 << 20)),
    ("nests-references", || {
        let mut last = put(&Nested { before: None });
        for _ in 0..50_000 {
            last = put(&Nested { before: Some(last) });
        }
        drop(last);
        Ok(outcome(put(&1u64).get()))
    }),
    ("refers-to-one-often", || {
        let one = put(&1u64);
        let many: Vec<ObjectRef<u64>> = (0..200_000).map(|_| one.clone()).collect();
        Ok(outcome(put(&many).get().map(|all: Vec<ObjectRef<u64>>| all.len())).chars().take(60).collect())
    }),
    ("submits-for-ever", || {
        loop {
            let all: Vec<_> = (0..10_000).map(|_| takes_long::submit(String::new())).collect();
            let _ = get_all(&all);
        }
    }),
    ("piles-tasks", || {
        let (never, text) = (spins::submit(), "x".repeat(3_000));
        let mut all = Vec::new();
        loop {
            all.push(follows::submit(&never, text.clone()));
            if all.len() == usize::MAX {
                return Ok(outcome(get_all(&all)));
            }
        }
    }),
    ("forks", || Ok(outcome(forks::submit(9, 4).get()))),
    ("digs", || Ok(outcome(digs::submit(0).get()).split(':').next().unwrap_or_default().to_owned())),
    ("streams-without-a-consumer", || {
        let all: Vec<_> = (0..200).map(|_| streams::options().buffer(65_536).submit(1_000)).collect();
        let never = spins::submit().get();
        drop(all);
        Ok(outcome(never))
    }),
    ("streams-without-end", || Ok(streams::submit(8).filter(|item| item.as_ref().is_err()).count().to_string())),
];

#[expect(clippy::print_stdout, reason = "it is the attack")]
fn print(text: &str) {
    print!("{text}");
}

/// Puts texts of this many bytes and keeps them, until one can't be had. Returns the code of its error.
fn fills(bytes: usize) -> Result<String, String> {
    let text = "x".repeat(bytes);
    let mut kept = Vec::new();
    loop {
        kept.push(put(&text));
        if kept.len().is_multiple_of(64)
            && let Err(error) = kept[kept.len() - 1].get()
        {
            // The result needs room as well.
            drop(kept);
            return Ok(error.fault.code.as_str().to_owned());
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Nested {
    before: Option<ObjectRef<Nested>>,
}

#[task]
fn fails_long(bytes: usize) -> Result<u64, String> {
    Err("e".repeat(bytes))
}

#[task]
fn returns_long(bytes: usize) -> String {
    "r".repeat(bytes)
}

#[task]
fn takes_long(text: String) -> u64 {
    text.len() as u64
}

#[task]
fn follows(_after: u64, text: String) -> u64 {
    text.len() as u64
}

#[task]
fn forks(depth: u32, width: u32) -> Result<u64, TaskError> {
    if depth == 0 {
        return Ok(spins());
    }
    let parts: Vec<_> = (0..width).map(|_| forks::submit(depth - 1, width)).collect();
    Ok(get_all(&parts)?.iter().sum())
}

#[task]
fn digs(depth: u64) -> Result<u64, TaskError> {
    digs::submit(depth + 1).get()
}

#[task]
fn streams(bytes: usize) -> impl Iterator<Item = String> {
    (0u64..).map(move |_| "s".repeat(bytes))
}
