//! Generators and consumers for tests. A task without parameters, or with numbers only, is the root task of a test and
//! returns what it observed.

use std::time::Duration;

use sandbar_guest::prelude::*;
use sandbar_guest::{Code, RetryOn};

/// Computes for about `steps` steps.
fn computes(steps: u64) -> u64 {
    (0..steps).fold(1, |number, step| std::hint::black_box((number ^ step).wrapping_mul(0x9e37_79b9)))
}

/// Yields squares, each after `steps` steps.
#[task]
fn squares(items: u64, steps: u64) -> impl Iterator<Item = u64> {
    (0..items).map(move |i| {
        computes(steps);
        i * i
    })
}

/// Returns the number of items, if they are squares in order.
fn count(stream: ObjectStream<u64>) -> Result<u64, TaskError> {
    let mut count = 0;
    for item in stream {
        assert_eq!(item?.get()?, count * count, "item {count}");
        count += 1;
    }
    Ok(count)
}

/// Takes items one after another.
#[task]
fn in_order(items: u64, buffer: u32) -> Result<u64, TaskError> {
    count(squares::options().buffer(buffer).submit(items, 0))
}

/// Yields lists of `numbers` numbers, each list one longer than the last.
#[task]
fn lists(items: u64, numbers: u64) -> impl Iterator<Item = Vec<u64>> {
    (0..items).map(move |i| (0..numbers + i).collect())
}

#[task]
fn length(list: Vec<u64>) -> u64 {
    list.len() as u64
}

/// Takes lists in this task, and passes others to tasks.
#[task]
fn large(items: u64, numbers: u64) -> Result<u64, TaskError> {
    let here: u64 =
        lists::submit(items, numbers).map(|item| Ok(item?.get()?.len() as u64)).sum::<Result<_, TaskError>>()?;
    let passed_on = lists::submit(items, numbers).map(|item| Ok(length::submit(item?)));
    let there: u64 = get_all(&passed_on.collect::<Result<Vec<_>, TaskError>>()?)?.iter().sum();
    assert_eq!(here, there);
    Ok(here)
}

/// Yields lists of object references: to a value and to a task's result.
#[task]
fn parts(items: u64) -> impl Iterator<Item = Vec<ObjectRef<u64>>> {
    (0..items).map(|i| vec![put(&i), length::submit(vec![0; i as usize])])
}

/// Yields sums of the items of another generator.
#[task]
fn sums(items: u64) -> impl Iterator<Item = Result<u64, TaskError>> {
    parts::submit(items).map(|item| Ok(get_all(&item?.get()?)?.iter().sum()))
}

/// Sums items of nested generators, and items whose streams are dropped by then.
#[task]
fn nested(items: u64) -> Result<u64, TaskError> {
    let kept: Vec<_> = parts::submit(items).take(items as usize / 2).collect::<Result<_, _>>()?;
    let mut sum = 0;
    for part in &kept {
        sum += get_all(&part.get()?)?.iter().sum::<u64>();
    }
    for item in sums::submit(items) {
        sum += item?.get()?;
    }
    Ok(sum)
}

/// Counts items yielded and items about to be taken.
#[derive(Default)]
struct Gauge {
    yielded: u64,
    taken: u64,
    max: u64,
}

#[actor]
impl Gauge {
    pub fn new() -> Gauge {
        Gauge::default()
    }

    pub fn count_item(&mut self) {
        self.yielded += 1;
        self.max = self.max.max(self.yielded.saturating_sub(self.taken));
    }

    pub fn take(&mut self) {
        self.taken += 1;
    }

    /// Returns the items yielded, and the maximum lead over those taken.
    pub fn read(&self) -> (u64, u64) {
        (self.yielded, self.max)
    }
}

/// Yields numbers and counts them.
#[task]
fn gauged(gauge: GaugeHandle, items: u64) -> impl Iterator<Item = Result<u64, TaskError>> {
    (0..items).map(move |i| gauge.count_item().get().map(|()| i))
}

/// Waits until no further item is yielded, and returns the number of items.
fn settled(gauge: &GaugeHandle, least: u64) -> Result<u64, TaskError> {
    let mut before = u64::MAX;
    loop {
        let (yielded, _) = gauge.read().get()?;
        if yielded >= least && yielded == before {
            return Ok(yielded);
        }
        before = yielded;
        computes(5_000_000);
    }
}

/// Returns how far a generator runs while nothing is taken, its maximum lead, and the number of items taken.
#[task]
fn ahead(items: u64, buffer: u32) -> Result<String, TaskError> {
    let gauge = Gauge::submit();
    let mut stream = gauged::options().buffer(buffer).submit(gauge.clone(), items);
    let first = settled(&gauge, u64::from(buffer))?;
    let mut taken = 0;
    loop {
        gauge.take().get()?;
        let Some(item) = stream.next() else { break };
        assert_eq!(item?.get()?, taken);
        taken += 1;
    }
    Ok(format!("{first} {} {taken}", gauge.read().get()?.1))
}

/// Takes three items of an endless generator and drops the stream. Returns whether the generator stopped in time.
#[task]
fn dropped(buffer: u32) -> Result<bool, TaskError> {
    let gauge = Gauge::submit();
    let mut stream = gauged::options().buffer(buffer).submit(gauge.clone(), u64::MAX);
    let taken: Vec<_> = stream.by_ref().take(3).collect::<Result<_, _>>()?;
    drop(stream);
    let yielded = settled(&gauge, 3)?;
    // A generator that never yields.
    drop(spins::submit());
    Ok(get_all(&taken)? == [0, 1, 2] && yielded <= 3 + u64::from(buffer))
}

#[task]
fn spins() -> impl Iterator<Item = u64> {
    (0..u64::MAX).filter(|number| std::hint::black_box(*number) == u64::MAX)
}

#[task]
fn fails_at(n: u64) -> impl Iterator<Item = Result<u64, String>> {
    (0..=n).map(move |i| if i < n { Ok(i) } else { Err("on purpose".to_owned()) })
}

#[task]
fn panics_at(n: u64) -> impl Iterator<Item = u64> {
    (0..).inspect(move |i| assert!(*i < n, "on purpose"))
}

/// Returns the errors of generators that fail in different ways.
#[task]
fn failures() -> Result<String, TaskError> {
    let outcome = |stream: ObjectStream<u64>, skipped: usize| -> String {
        let items: Vec<_> = stream.skip(skipped).collect();
        let outcome = items.iter().map(|item| match item.as_ref().map(ObjectRef::get) {
            Ok(Ok(value)) => value.to_string(),
            Ok(Err(error)) => format!("({error})"),
            Err(error) => error.to_string(),
        });
        outcome.collect::<Vec<_>>().join(", ")
    };
    let late = spins::options().timeout(Duration::from_millis(30)).submit();
    let none = squares::submit(fails::submit(), 0);
    let all = [
        outcome(fails_at::submit(2), 0),
        outcome(panics_at::submit(1000), 998),
        outcome(passes_on::submit(2), 0),
        outcome(late, 0),
        outcome(none, 0),
    ];
    Ok(all.join("\n"))
}

#[task]
fn fails() -> Result<u64, String> {
    Err("on purpose".to_owned())
}

#[task]
fn passes_on(n: u64) -> impl Iterator<Item = Result<u64, TaskError>> {
    fails_at::submit(n).map(|item| item?.get())
}

/// Waits for an item for too short a time, then long enough.
#[task]
fn late() -> Result<String, TaskError> {
    let mut stream = squares::submit(2, 50_000_000);
    let first = match stream.next_timeout(Duration::from_millis(1)) {
        Some(Err(error)) => error.fault.code == Code::GetTimeOut,
        _ => false,
    };
    let next = stream.next_timeout(Duration::from_secs(30)).is_some_and(|item| item.is_ok());
    Ok(format!("{first} {next} {}", stream.count()))
}

/// Counts attempts.
#[derive(Default)]
struct Attempts(u64);

#[actor]
impl Attempts {
    pub fn new() -> Attempts {
        Attempts::default()
    }

    pub fn begin(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Yields squares, up to a further end in each attempt.
#[task]
fn further(attempts: AttemptsHandle, items: u64) -> impl Iterator<Item = Result<u64, String>> {
    let attempt = attempts.begin().get().unwrap_or(0);
    let end = attempt * items / 3;
    (0..items).map(move |i| if i < end { Ok(i * i) } else { Err(format!("attempt {attempt} ends at {end}")) })
}

/// Takes items of a generator that needs three attempts.
#[task]
fn again(items: u64) -> Result<u64, TaskError> {
    let attempts = Attempts::submit();
    count(further::options().retry_on(RetryOn::All).submit(attempts, items))
}

/// Takes items of a generator; both may be retried as often as their workers die.
#[task]
fn takes(items: u64, steps: u64) -> Result<u64, TaskError> {
    count(squares::options().max_retries(1000).submit(items, steps))
}

/// Runs `tasks` tasks that take items in parallel.
#[task]
fn taken_by_many(tasks: u64, items: u64, steps: u64) -> Result<u64, TaskError> {
    let often = takes::options().max_retries(1000);
    let all: Vec<_> = (0..tasks).map(|_| often.submit(items, steps)).collect();
    Ok(takes(items, steps)? + get_all(&all)?.iter().sum::<u64>())
}
