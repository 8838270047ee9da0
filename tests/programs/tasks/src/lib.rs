//! Tasks for tests. A task without parameters, or with numbers only, is the root task of a test and returns what it
//! observed.

mod accounts;
mod hogs;
mod neighbours;
mod numbers;
mod retried;
mod seen;
mod sleeps;

use std::time::Duration;

use sandbar_guest::prelude::*;

#[task]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[task]
fn fails(message: String) -> Result<i64, String> {
    Err(message)
}

#[task]
fn panics() -> i64 {
    panic!("on purpose")
}

/// Loops endlessly without touching memory.
#[task]
fn spins() -> i64 {
    let mut number = 1u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(3) + 1);
        if number == 0 {
            return 0;
        }
    }
}

/// Computes for about `steps` steps.
#[task]
fn computes(steps: u64) -> u64 {
    (0..steps).fold(1, |number, step| std::hint::black_box((number ^ step).wrapping_mul(0x9e37_79b9)))
}

/// Counts the leaves of a tree of tasks, each of which computes a little.
#[task]
fn tree(depth: u32, width: u32, steps: u64) -> Result<u64, TaskError> {
    computes(steps);
    if depth == 0 {
        return Ok(1);
    }
    let parts: Vec<_> = (0..width).map(|_| tree::submit(depth - 1, width, steps)).collect();
    Ok(get_all(&parts)?.iter().sum())
}

/// As `tree`, of tasks that are retried as often as their workers die.
#[task]
fn tree_retried(depth: u32, width: u32, steps: u64) -> Result<u64, TaskError> {
    computes(steps);
    if depth == 0 {
        return Ok(1);
    }
    let often = tree_retried::options().max_retries(1000);
    let parts: Vec<_> = (0..width).map(|_| often.submit(depth - 1, width, steps)).collect();
    Ok(get_all(&parts)?.iter().sum())
}

/// Fails with the error of another task.
#[task]
fn passes_on() -> Result<i64, TaskError> {
    fails::submit("on purpose".to_owned()).get()
}

/// Sums tasks that take the results of others.
#[task]
fn chains(length: i64) -> Result<i64, TaskError> {
    let first = add::submit(0, 0);
    (0..length).fold(first, add::submit).get()
}

/// Returns a number of a list shared by many tasks; fails for odd numbers, and at the end of the list.
#[task]
fn picks((numbers, place): (ObjectRef<Vec<i64>>, usize)) -> Result<i64, String> {
    let number = numbers.get().map_err(|error| error.to_string())?[place];
    if number % 2 == 0 { Ok(number) } else { Err(format!("{number} is odd")) }
}

/// Runs a pool over `count` numbers and one more: returns the sum of the even ones, the number of odd ones, and the
/// last error.
#[task]
fn pools(count: usize, chunksize: usize) -> String {
    let numbers = put(&(0..count as i64).collect());
    let arguments = (0..=count).map(|place| (numbers.clone(), place));
    let mut results: Vec<_> = picks::pool().chunksize(chunksize).in_flight(8).imap(arguments).collect();
    let last = results.pop().map_or(Ok(0), |last| last).map_err(|error| error.fault.code.as_str());
    let unordered = picks::pool().chunksize(chunksize).imap_unordered((0..count).map(|place| (numbers.clone(), place)));
    let others: i64 = unordered.flatten().sum();
    let odd = results.iter().filter(|result| result.is_err()).count();
    format!("{} {others} {odd} {last:?}", results.into_iter().flatten().sum::<i64>())
}

/// Returns the errors of tasks that fail in different ways.
#[task]
fn failures() -> String {
    let outcome = |result: Result<i64, TaskError>| match result {
        Ok(value) => format!("{value}"),
        Err(error) => format!("{}: {}", error.chain.join(" > "), error.fault.code.as_str()),
    };
    let failed = fails::submit("no".to_owned());
    let late = spins::options().timeout(Duration::from_millis(30)).submit();
    [
        outcome(failed.get()),
        outcome(panics::submit().get()),
        outcome(add::submit(&failed, 1).get()),
        outcome(late.get()),
        outcome(spins::options().timeout(Duration::from_millis(30)).submit().get_timeout(Duration::from_millis(5))),
    ]
    .join("\n")
}

/// Cancels the third of four tasks, each of which takes the result of the one before.
#[task]
fn cancels_one() -> String {
    let first = add::submit(1, 1);
    let second = add::submit(&first, 1);
    let third = slow::submit(&second);
    let fourth = add::submit(&third, 1);
    let _ = second.get();
    cancel(&third, false);
    let outcome = |object: &ObjectRef<i64>| match object.get() {
        Ok(value) => value.to_string(),
        Err(error) => error.fault.code.as_str().to_owned(),
    };
    [outcome(&first), outcome(&second), outcome(&third), outcome(&fourth)].join(" ")
}

#[task]
fn slow(number: i64) -> i64 {
    number + spins()
}

/// Cancels a tree of tasks whose leaves never end.
#[task]
fn cancels_tree(width: u32) -> Result<String, TaskError> {
    let root = endless::submit(2, width);
    // Time for the tree to grow.
    computes::submit(30_000_000).get()?;
    cancel(&root, true);
    Ok(match root.get() {
        Ok(value) => value.to_string(),
        Err(error) => error.fault.code.as_str().to_owned(),
    })
}

#[task]
fn endless(depth: u32, width: u32) -> Result<i64, TaskError> {
    if depth == 0 {
        return Ok(spins());
    }
    let parts: Vec<_> = (0..width).map(|_| endless::submit(depth - 1, width)).collect();
    Ok(get_all(&parts)?.iter().sum())
}

/// Waits for the first of several tasks, for none within a time limit, and for all.
#[task]
fn waits() -> String {
    let quick: Vec<_> = (0..3).map(|number| add::submit(number, 0)).collect();
    let never = spins::options().timeout(Duration::from_millis(300)).submit();
    let mut all = quick.clone();
    all.insert(1, never.clone());
    let (ready, rest) = wait(&all, 3, None);
    let outcome = |all: &[ObjectRef<i64>]| {
        let place =
            |object: &ObjectRef<i64>| quick.iter().position(|q| q == object).map_or("-".into(), |p| p.to_string());
        all.iter().map(place).collect::<Vec<_>>().join(",")
    };
    let (none, all_left) = wait(std::slice::from_ref(&never), 1, Some(Duration::from_millis(5)));
    let (late, _) = wait(&[never], 1, None);
    format!("{} {} {} {} {}", outcome(&ready), outcome(&rest), none.len(), all_left.len(), late.len())
}

/// Submits itself one level deeper, endlessly.
#[task]
fn deeper(depth: u64) -> Result<u64, TaskError> {
    deeper::submit(depth + 1).get()
}

/// Submits tasks endlessly.
#[task]
fn floods() -> Result<u64, TaskError> {
    let mut last = add::submit(0, 0);
    loop {
        let next = add::submit(&last, 1);
        // A submission over the limit fails when its result is read.
        if let (ready, _) = wait(std::slice::from_ref(&next), 1, Some(Duration::ZERO))
            && !ready.is_empty()
        {
            next.get()?;
        }
        last = next;
    }
}

#[derive(Serialize, Deserialize)]
struct Shared {
    numbers: ObjectRef<Vec<u64>>,
    name: String,
}

#[task]
fn sums(numbers: Vec<u64>, times: u64) -> u64 {
    numbers.iter().sum::<u64>() * times
}

#[task]
fn sums_shared(shared: Shared) -> Result<u64, TaskError> {
    Ok(shared.numbers.get()?.iter().sum::<u64>() + shared.name.len() as u64)
}

/// As `sums_shared`, in a task on a node that provides `resource`.
#[task]
fn sums_on(shared: Shared, resource: String) -> Result<u64, TaskError> {
    sums_shared::options().resource(&resource, 1.0).submit(shared).get()
}

#[task]
fn makes(count: u64) -> Shared {
    Shared { numbers: put(&(0..count).collect::<Vec<u64>>()), name: "made".to_owned() }
}

/// Shares values: stored, passed as arguments, within other values, and returned.
#[task]
fn shares(count: u64) -> Result<String, TaskError> {
    let numbers = put(&(0..count).collect::<Vec<u64>>());
    let four: Vec<_> = (1..=4).map(|times| sums::submit(&numbers, times)).collect();
    let inside = sums_shared::submit(Shared { numbers: numbers.clone(), name: "four".to_owned() });
    drop(numbers);
    let created = makes::submit(count);
    let back = created.get()?;
    drop(created);
    Ok(format!("{:?} {} {}", get_all(&four)?, inside.get()?, back.numbers.get()?.len()))
}

/// Stores `values` values of `bytes` bytes, and never releases them.
#[task]
fn leaks(values: u32, bytes: u32) -> u64 {
    let kept: Vec<_> = (0..values).map(|value| put(&vec![value as u8; bytes as usize])).collect();
    std::mem::forget(kept);
    u64::from(values)
}

#[task]
fn half(number: i64) -> Result<i64, String> {
    if number % 2 == 0 { Ok(number / 2) } else { Err(format!("{number} is odd")) }
}

/// Runs a pool over `count` numbers, every second of which fails, and over one that ends its call.
#[task]
fn imaps(count: i64, chunksize: usize) -> String {
    // For a list of arguments, an error names the task only.
    let why = |error: TaskError| format!("{}: {}", error.chain.last().map_or("", |name| name), error.fault);
    let outcome = |result: Result<i64, TaskError>| result.map_or_else(why, |half| half.to_string());
    half::pool().chunksize(chunksize).in_flight(2).imap(0..count).map(outcome).collect::<Vec<_>>().join("\n")
}

/// Submits `count` tasks that wait for one that never ends, and keeps none of them.
#[task]
fn queues(count: u64) -> Result<i64, TaskError> {
    let never = spins::submit();
    (0..count).for_each(|_| drop(add::submit(&never, 1)));
    let last = add::submit(1, 1);
    never.get_timeout(Duration::from_millis(1)).map_or_else(|_| last.get(), Ok)
}

/// Stores values of `bytes` bytes endlessly, and keeps the last `kept` of them.
#[task]
fn stores(bytes: usize, kept: usize) -> u64 {
    let mut all = std::collections::VecDeque::new();
    loop {
        all.push_back(put(&vec![all.len() as u8; bytes]));
        if all.len() > kept {
            all.pop_front();
        }
    }
}
