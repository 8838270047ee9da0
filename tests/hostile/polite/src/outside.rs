//! Access to resources that functions lack: files, other processes, a clock.

use std::time::{Duration, Instant, SystemTime};

use sandbar_guest::prelude::*;

use crate::trainers::Zero;

/// Exits with success.
#[trainer]
pub fn exits(_group: &Group<'_>) -> Result<Zero, String> {
    std::process::exit(0)
}

/// Exits with an error.
#[trainer]
pub fn exits_with_7(_group: &Group<'_>) -> Result<Zero, String> {
    std::process::exit(7)
}

/// Aborts.
#[trainer]
pub fn aborts(_group: &Group<'_>) -> Result<Zero, String> {
    std::process::abort()
}

/// Sleeps for an hour.
#[trainer]
pub fn sleeps(_group: &Group<'_>) -> Result<Zero, String> {
    std::thread::sleep(Duration::from_secs(3600));
    Ok(Zero {})
}

/// Polls the clock until it moves, which each reading makes it do.
#[trainer]
pub fn waits(_group: &Group<'_>) -> Result<Zero, String> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1) {}
    Ok(Zero {})
}

/// Prints endlessly on both streams.
#[trainer]
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "that is the attack")]
pub fn prints(_group: &Group<'_>) -> Result<Zero, String> {
    for line in 0..100_000 {
        println!("line {line} of too many");
        eprintln!("line {line} of too many");
    }
    Ok(Zero {})
}

/// Succeeds only if nothing of the machine can be seen or changed.
#[trainer]
pub fn probes_the_host(_group: &Group<'_>) -> Result<Zero, String> {
    let seen = [
        ("a file", std::fs::read("/etc/passwd").is_ok()),
        ("the folder", std::fs::read_dir(".").is_ok()),
        ("the root", std::fs::read_dir("/").is_ok()),
        ("a file of its own", std::fs::write("/tmp/hostile", "x").is_ok()),
        ("arguments", std::env::args().next().is_some()),
        ("the environment", std::env::vars().next().is_some()),
        ("the time", SystemTime::now() != SystemTime::UNIX_EPOCH),
        ("a thread", std::thread::Builder::new().spawn(|| ()).is_ok()),
        ("a process", std::process::Command::new("/bin/true").spawn().is_ok()),
        ("standard input", std::io::stdin().read_line(&mut String::new()).is_ok_and(|n| n > 0)),
    ];
    match seen.iter().find(|(_, is_seen)| *is_seen) {
        Some((thing, _)) => Err(format!("it got at {thing}")),
        None => Ok(Zero {}),
    }
}
