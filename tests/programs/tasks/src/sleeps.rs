//! Time in a sandbox, and other waits of the standard library.

use std::io::Read as _;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use sandbar_guest::prelude::*;

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Sleeps, and returns how many milliseconds that took by its own clock.
#[task]
pub fn sleeps(ms: u64) -> u64 {
    let before = Instant::now();
    sleep(ms);
    before.elapsed().as_millis() as u64
}

/// Runs tasks that sleep in parallel beside one that computes: returns the sum of their clocks.
#[task]
fn sleeps_beside(count: u64, ms: u64) -> Result<u64, TaskError> {
    let asleep: Vec<_> = (0..count).map(|_| sleeps::submit(ms)).collect();
    let beside = super::tree::submit(1, 100, 10);
    assert_eq!(beside.get()?, 100);
    assert!(wait(&asleep, 1, Some(Duration::ZERO)).0.is_empty(), "the others have not slept yet");
    Ok(get_all(&asleep)?.iter().sum())
}

/// Sleeps for too long: for the task's time limit, and for a waiting caller that then cancels it.
#[task]
fn sleeps_for_ever() -> String {
    let hour = 3_600_000;
    let late = sleeps::options().timeout(Duration::from_millis(50)).submit(hour);
    let cancelled = sleeps::submit(hour);
    let waited = cancelled.get_timeout(Duration::from_millis(50)).map_err(|error| error.fault.code.as_str());
    cancel(&cancelled, false);
    let ends = [late, cancelled].map(|task| task.get().map_err(|error| error.fault.code.as_str()));
    format!("{waited:?} {ends:?}")
}

/// Polls the clock in loops, which end, since reading the clock and sleeping advance it.
#[task]
fn clocks(ms: u64) -> String {
    let (start, wall_start) = (Instant::now(), SystemTime::now());
    while start.elapsed() < Duration::from_millis(ms) {}
    let end = Instant::now() + Duration::from_millis(ms);
    let mut times = 0;
    while Instant::now() < end {
        sleep(1);
        times += 1;
    }
    let by_wall = wall_start.elapsed().is_ok_and(|elapsed| elapsed >= Duration::from_millis(2 * ms));
    format!("{} {by_wall}", times <= ms)
}

/// Yields numbers, with a pause before each.
#[task]
fn numbers_in_time(count: u64, ms: u64) -> impl Iterator<Item = u64> {
    (0..count).inspect(move |_| sleep(ms))
}

#[task]
fn takes_in_time(count: u64, ms: u64) -> Result<u64, TaskError> {
    numbers_in_time::submit(count, ms).map(|number| number?.get()).sum()
}

/// Uses parts of the standard library that a sandbox lacks: each fails, and none waits.
#[task]
fn reads_input() -> String {
    let mut text = String::new();
    format!("{:?} {text:?}", std::io::stdin().read_to_string(&mut text).map_err(|e| e.kind()))
}

#[expect(clippy::print_stdout, reason = "what becomes of it is tested")]
#[task]
fn prints(lines: u64) -> u64 {
    (0..lines).for_each(|line| println!("{line:0100}"));
    lines
}

#[task]
fn spawns() -> String {
    std::thread::Builder::new().spawn(|| ()).map_or_else(|e| e.kind().to_string(), |_| "a thread".to_owned())
}

#[task]
fn locks_twice() -> u64 {
    let lock = Mutex::new(1);
    let held = lock.lock().expect("nobody has it");
    *lock.lock().expect("this thread has it") + *held
}

#[task]
fn waits_for_nobody() -> u64 {
    let (lock, condition) = (Mutex::new(1), Condvar::new());
    *condition.wait(lock.lock().expect("nobody has it")).expect("nobody notifies")
}

/// Parks the thread: does not block, since no other thread could unpark it.
#[task]
fn parks() -> u64 {
    std::thread::park();
    1
}

/// Returns how each of these tasks ends.
#[task]
fn waits_of_std() -> String {
    let all = [locks_twice::submit(), waits_for_nobody::submit(), parks::submit()];
    all.map(|task| task.get().map_or_else(|error| error.fault.code.as_str().to_owned(), |n| n.to_string())).join(" ")
}

/// Returns the bytes of its argument.
#[task]
fn takes(bytes: Vec<u8>) -> u64 {
    bytes.len() as u64
}

#[task]
fn submits_much(tasks: u64, bytes: u64) -> Result<u64, TaskError> {
    let argument = vec![7; bytes as usize];
    let all: Vec<_> = (0..tasks).map(|_| takes::submit(argument.clone())).collect();
    Ok(get_all(&all)?.iter().sum())
}

/// Submits tasks recursively that wait for their children, with arguments over the limit of all.
#[task]
fn submits_deep(bytes: Vec<u8>, depth: u32, width: u32) -> Result<u64, TaskError> {
    if depth == 0 {
        return Ok(bytes.len() as u64);
    }
    let parts: Vec<_> = (0..width).map(|_| submits_deep::submit(bytes.clone(), depth - 1, width)).collect();
    Ok(get_all(&parts)?.iter().sum())
}

#[task]
fn submits_much_deep(bytes: u64, depth: u32, width: u32) -> Result<u64, TaskError> {
    submits_deep::submit(vec![7; bytes as usize], depth, width).get()
}

/// Returns a value with `count` object references.
#[task]
fn contains(count: u64) -> Vec<ObjectRef<u64>> {
    let one = put(&1);
    (0..count).map(|_| one.clone()).collect()
}

#[task(returns = 4)]
fn returns_four(bytes: u64) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) {
    let value = vec![1; bytes as usize];
    (value.clone(), value.clone(), value.clone(), value)
}

#[task]
fn large_messages(objects: u64, bytes: u64) -> Result<String, TaskError> {
    let few = contains::submit(1000).get()?.len();
    let many = contains::submit(objects).get().map_err(|error| error.fault.code.as_str()).map(|all| all.len());
    let (a, b, c, d) = returns_four::submit(bytes);
    Ok(format!("{few} {many:?} {}", get_all(&[a, b, c, d])?.iter().map(Vec::len).sum::<usize>()))
}
