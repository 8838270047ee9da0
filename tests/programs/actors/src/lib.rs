//! Actors for tests. A task without parameters, or with numbers only, is the root task of a test and returns what it
//! observed.

mod circles;

use std::time::Duration;

use sandbar_guest::prelude::*;

/// A counter that can be made to fail in several ways.
struct Counter {
    count: u64,
    kept: Vec<ObjectRef<u64>>,
}

#[actor]
impl Counter {
    pub fn new(start: u64) -> Result<Counter, String> {
        if start == 13 { Err("13 is no start".to_owned()) } else { Ok(Counter { count: start, kept: Vec::new() }) }
    }

    pub fn add(&mut self, number: u64) -> u64 {
        self.count += number;
        self.count
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn keep(&mut self, object: ObjectRef<u64>) -> u64 {
        self.kept.push(object);
        self.kept.len() as u64
    }

    /// Returns the sum of the objects kept by earlier calls.
    pub fn sum_of_kept(&self) -> Result<u64, TaskError> {
        Ok(get_all(&self.kept)?.iter().sum())
    }

    pub fn refuses(&mut self) -> Result<u64, String> {
        self.count += 1000;
        Err("on purpose".to_owned())
    }

    pub fn panics(&mut self) -> u64 {
        panic!("on purpose")
    }

    pub fn spins(&mut self) -> u64 {
        spin()
    }

    /// Computes for about `steps` steps.
    pub fn computes(&mut self, steps: u64) -> u64 {
        computes(steps)
    }

    /// Blocks until the object is available.
    pub fn waits(&mut self, object: ObjectRef<u64>) -> Result<u64, TaskError> {
        object.get()
    }

    /// Submits a task, and blocks until it returns.
    pub fn adds_double(&mut self, number: u64) -> Result<u64, TaskError> {
        self.count += double::submit(number).get()?;
        Ok(self.count)
    }
}

/// A counter that is checkpointed after each call.
struct Saved {
    count: u64,
}

#[actor]
impl Saved {
    pub fn new() -> Saved {
        Saved { count: 0 }
    }

    pub fn add(&mut self, number: u64) -> u64 {
        self.count += number;
        self.count
    }

    pub fn panics(&mut self) -> u64 {
        self.count += 1_000_000;
        panic!("on purpose")
    }

    pub fn spins(&mut self) -> u64 {
        self.count += 1_000_000;
        spin()
    }

    pub fn waits(&mut self, object: ObjectRef<u64>) -> Result<u64, TaskError> {
        self.count += 1_000_000;
        object.get()
    }

    pub fn checkpoint(&self) -> u64 {
        self.count
    }

    pub fn restore(count: u64) -> Saved {
        Saved { count }
    }
}

/// Keeps objects, and the numbers below its constructor's argument; checkpoints include both.
struct Hoard {
    objects: Vec<ObjectRef<u64>>,
    numbers: Vec<u64>,
}

#[actor]
impl Hoard {
    pub fn new(numbers: u64) -> Hoard {
        Hoard { objects: Vec::new(), numbers: (0..numbers).collect() }
    }

    pub fn keep(&mut self, objects: Vec<ObjectRef<u64>>) -> u64 {
        self.objects.extend(objects);
        self.objects.len() as u64
    }

    /// Returns the sums of the objects and of the numbers.
    pub fn sums(&self) -> Result<(u64, u64), TaskError> {
        Ok((get_all(&self.objects)?.iter().sum(), self.numbers.iter().sum()))
    }

    pub fn panics(&mut self) -> u64 {
        self.objects.clear();
        panic!("on purpose")
    }

    pub fn checkpoint(&self) -> (Vec<ObjectRef<u64>>, Vec<u64>) {
        (self.objects.clone(), self.numbers.clone())
    }

    pub fn restore((objects, numbers): (Vec<ObjectRef<u64>>, Vec<u64>)) -> Hoard {
        Hoard { objects, numbers }
    }
}

/// An actor whose waiting calls a later call releases.
struct Signal {
    waited: std::cell::Cell<u64>,
}

#[actor]
impl Signal {
    pub fn new() -> Signal {
        Signal { waited: std::cell::Cell::new(0) }
    }

    /// Returns how many calls waited before this one, and the value of the object.
    pub async fn waits(&self, object: ObjectRef<u64>) -> Result<(u64, u64), TaskError> {
        let before = self.waited.replace(self.waited.get() + 1);
        let value = object.await?;
        Ok((before, value))
    }

    pub async fn waited(&self) -> u64 {
        self.waited.get()
    }

    pub fn alone(&mut self) -> u64 {
        self.waited.get()
    }
}

#[task]
fn double(number: u64) -> u64 {
    2 * number
}

#[task]
fn computes(steps: u64) -> u64 {
    (0..steps).fold(1, |number, step| std::hint::black_box((number ^ step).wrapping_mul(0x9e37_79b9)))
}

/// Loops endlessly without touching memory.
fn spin() -> u64 {
    let mut number = 1u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(3) + 1);
        if number == 0 {
            return 0;
        }
    }
}

fn outcome<T: std::fmt::Display>(result: Result<T, TaskError>) -> String {
    result.map_or_else(|error| error.to_string(), |value| value.to_string())
}

/// Makes calls from one caller, which run in order and keep their effects.
#[task]
fn counts(calls: u64) -> Result<u64, TaskError> {
    let counter = Counter::submit(0);
    let all: Vec<_> = (0..calls).map(|_| counter.add(1)).collect();
    let all = get_all(&all)?;
    assert!(all.iter().copied().eq(1..=calls), "in order");
    counter.count().get()
}

/// Calls one actor from many callers at once; each caller's calls run in order.
#[task]
fn shared(callers: u64, calls: u64) -> Result<u64, TaskError> {
    let counter = Counter::submit(0);
    let all: Vec<_> = (0..callers).map(|_| calls_often::submit(&counter, calls)).collect();
    get_all(&all)?;
    counter.count().get()
}

#[task]
fn calls_often(counter: CounterHandle, calls: u64) -> Result<u64, TaskError> {
    let all: Vec<_> = (0..calls).map(|_| counter.add(1)).collect();
    let all = get_all(&all)?;
    assert!(all.is_sorted());
    Ok(calls)
}

/// Calls the actor of this name.
#[task]
fn finds(name: String, number: u64) -> Result<u64, TaskError> {
    CounterHandle::find(&name)?.add(number).get()
}

/// Calls the actor of this name, and creates it if it does not exist.
#[task]
fn meets(name: String, number: u64) -> Result<u64, TaskError> {
    Counter::options().name(&name).detached().get_if_exists().submit(0).add(number).get()
}

/// Creates actors that outlive the job, each with a processor of its own. Returns the sum of their numbers.
#[task]
fn occupies(actors: u64) -> Result<u64, TaskError> {
    let hires = |start: u64| Counter::options().name(format!("hog {start}")).detached().cpus(1.0).submit(start);
    let all: Vec<_> = (0..actors).map(hires).collect();
    all.iter().map(|actor| actor.add(0).get()).sum()
}

/// Creates an actor that outlives its creator.
#[task]
fn hires(start: u64) -> CounterHandle {
    Counter::submit(start)
}

/// Creates actors, and returns their handles within a value, with names.
#[task]
fn hires_many(actors: u64) -> Vec<(String, CounterHandle)> {
    (0..actors).map(|start| (format!("counter {start}"), Counter::submit(start))).collect()
}

/// Makes a call that waits for its argument, and later calls that wait for it.
#[task]
fn in_order() -> Result<String, TaskError> {
    let counter = Counter::submit(0);
    let slow = computes::submit(20_000_000);
    let first = counter.add(&slow);
    let second = counter.add(1);
    let (slow, first, second) = (slow.get()?, first.get()?, second.get()?);
    Ok(format!("{} {}", first == slow, second == slow + 1))
}

/// Keeps objects in an actor between calls without any other reference to them.
#[task]
fn keeps(objects: u64) -> Result<u64, TaskError> {
    let counter = Counter::submit(0);
    for number in 0..objects {
        let object = double::submit(number);
        counter.keep(object).get()?;
    }
    counter.sum_of_kept().get()
}

/// Runs actors in parallel that submit tasks and wait for them.
#[task]
fn asking(actors: u64) -> Result<u64, TaskError> {
    let all: Vec<_> = (0..actors).map(Counter::submit_with).collect();
    let pending: Vec<_> = all.iter().map(|counter| counter.adds_double(1)).collect();
    Ok(get_all(&pending)?.iter().sum())
}

impl Counter {
    fn submit_with(start: u64) -> CounterHandle {
        Counter::submit(if start == 13 { 113 } else { start })
    }
}

/// Returns the errors of calls that fail in different ways.
#[task]
fn failures() -> String {
    let counter = Counter::submit(5);
    let none = Counter::submit(13);
    let refused = counter.refuses();
    let mut lines = vec![
        outcome(none.ready().map(|()| "ready")),
        outcome(none.add(1).get()),
        outcome(refused.get()),
        outcome(counter.count().get()),
    ];
    let spins = counter.with(CallOptions::new().timeout(Duration::from_millis(30))).spins();
    let after = counter.add(1);
    lines.push(outcome(spins.get()));
    lines.push(outcome(after.get()));
    let killed = Counter::submit(1);
    let endless = killed.spins();
    killed.kill();
    lines.push(outcome(endless.get()));
    lines.push(outcome(CounterHandle::find("nobody").map(|_| "somebody")));
    lines.join("\n")
}

/// Makes an actor panic: it restarts with its initial state, and calls that have not started continue.
#[task]
fn begins_anew() -> Result<String, TaskError> {
    let counter = Counter::options().max_restarts(2).submit(5);
    let all = [
        counter.add(1),
        counter.panics(),
        counter.add(2),
        counter.panics(),
        counter.add(3),
        counter.panics(),
        counter.add(4),
    ];
    Ok(all.iter().map(|call| outcome(call.get())).collect::<Vec<_>>().join("\n"))
}

/// Makes a hundred calls while the actor's process is killed from outside: the effect of each call counts once.
#[task]
fn survives(calls: u64, steps: u64) -> Result<u64, TaskError> {
    let counter = Saved::options().max_restarts(1000).max_task_retries(1000).submit();
    for call in 0..calls {
        let own = computes::options().max_retries(1000).submit(steps);
        own.get()?;
        let now = counter.add(1).get()?;
        assert_eq!(now, call + 1);
    }
    counter.add(0).get()
}

/// Returns the state of a checkpointed actor after its death.
#[task]
fn restored() -> Result<String, TaskError> {
    let counter = Saved::options().max_restarts(2).submit();
    let first = counter.add(5).get()?;
    let died = outcome(counter.panics().get());
    let then = counter.add(1).get()?;
    counter.restart();
    let last = counter.add(1).get()?;
    Ok(format!("{first} {then} {last}\n{died}"))
}

/// Cancels calls: one that computes, one that blocks, one that waits concurrently with others, and one not started.
#[task]
fn cancels() -> Result<String, TaskError> {
    let late = computes::submit(2_000_000_000);
    let saved = Saved::options().max_restarts(2).submit();
    let signal = Signal::submit();
    let mortal = Counter::submit(0);
    let mut lines = vec![outcome(saved.add(5).get())];
    lines.push(ended(&saved.spins()));
    lines.push(outcome(saved.add(1).get()));
    lines.push(ended(&saved.waits(handed(&late))));
    lines.push(outcome(saved.add(1).get()));
    signal.ready()?;
    let waits = signal.waits(handed(&late));
    let behind = signal.alone();
    lines.push(ended(&waits));
    lines.push(outcome(behind.get()));
    mortal.ready()?;
    let (spins, behind) = (mortal.spins(), mortal.add(1));
    cancel(&behind, false);
    lines.push(ended(&spins));
    lines.push(outcome(behind.get()));
    lines.push(outcome(mortal.add(1).get()));
    cancel(&late, false);
    Ok(lines.join("\n"))
}

/// Returns how a cancelled call ended.
fn ended<T: sandbar_guest::Value>(call: &ObjectRef<T>) -> String {
    let begins = Duration::from_millis(300);
    let (ready, _) = wait(std::slice::from_ref(call), 1, Some(begins));
    cancel(call, false);
    call.get().map_or_else(|error| error.to_string(), |_| format!("{} there", ready.len()))
}

/// Times calls: the limit of a quick call behind a slow one starts with the call itself; a call that waits too long
/// ends, and its actor continues if the call was concurrent.
#[task]
fn timed() -> Result<String, TaskError> {
    let quickly = || CallOptions::new().timeout(Duration::from_millis(100));
    let (counter, signal, other) = (Counter::submit(0), Signal::submit(), Counter::submit(0));
    counter.ready()?;
    let slow = counter.computes(1_000_000_000);
    let quick = counter.with(quickly()).add(1);
    slow.get()?;
    let mut lines = vec![outcome(quick.get())];
    let late = computes::submit(200_000_000_000);
    lines.push(outcome(signal.with(quickly()).waits(handed(&late)).get().map(|(_, value)| value)));
    lines.push(outcome(signal.waited().get()));
    let waits = counter.with(quickly()).waits(handed(&late));
    // Another actor of the same worker.
    lines.push(outcome(other.add(1).get()));
    lines.push(outcome(waits.get()));
    cancel(&late, false);
    Ok(lines.join("\n"))
}

/// Cancels a task that has called an actor: the call continues, because other tasks share the actor.
#[task]
fn spares() -> Result<String, TaskError> {
    let counter = Counter::submit(0);
    counter.ready()?;
    let caller = calls_slowly::submit(&counter);
    let (ready, _) = wait(std::slice::from_ref(&caller), 1, Some(Duration::from_millis(200)));
    cancel(&caller, true);
    Ok(format!("{} {} {}", ready.len(), outcome(caller.get()), outcome(counter.add(1).get())))
}

#[task]
fn calls_slowly(counter: CounterHandle) -> Result<u64, TaskError> {
    counter.computes(1_000_000_000).get()
}

/// Runs waiting calls concurrently, and an exclusive call after those before it.
#[task]
fn beside(waiting: u64) -> Result<String, TaskError> {
    let signal = Signal::submit();
    let late = computes::submit(50_000_000);
    let all: Vec<_> = (0..waiting).map(|_| signal.waits(handed(&late))).collect();
    let meanwhile = signal.waited().get()?;
    let alone = signal.alone();
    let (ready, _) = wait(std::slice::from_ref(&alone), 1, Some(Duration::ZERO));
    let value = late.get()?;
    let all = get_all(&all)?;
    let right = all.iter().enumerate().all(|(place, (before, stored))| (*before, *stored) == (place as u64, value));
    Ok(format!("{meanwhile} {} {right} {}", ready.len(), alone.get()?))
}

/// Passes the reference itself, not the value behind it.
fn handed(object: &ObjectRef<u64>) -> ObjectRef<u64> {
    object.clone()
}

/// Finds actors by name.
#[task]
fn named() -> Result<String, TaskError> {
    let first = Counter::options().name("one").submit(1);
    first.ready()?;
    let found = CounterHandle::find("one")?;
    let same = Counter::options().name("one").get_if_exists().submit(100);
    let (a, b) = (found.add(1).get()?, same.add(1).get()?);
    let twice = Counter::options().name("one").submit(1);
    let other = finds_one::submit().get()?;
    let taken = outcome(twice.ready().map(|()| "ready"));
    Ok(format!("{a} {b} {other}\n{taken}"))
}

#[task]
fn finds_one() -> Result<u64, TaskError> {
    CounterHandle::find("one")?.add(1).get()
}

/// Runs `actors` actors at once, each called `calls` times.
#[task]
fn many(actors: u64, calls: u64) -> Result<u64, TaskError> {
    let all: Vec<_> = (0..actors).map(Counter::submit_with).collect();
    let mut sum = 0;
    for _ in 0..calls {
        let calls: Vec<_> = all.iter().map(|counter| counter.add(1)).collect();
        sum = get_all(&calls)?.len() as u64;
    }
    Ok(sum)
}

/// Creates and drops actors one after another: at most one exists at a time.
#[task]
fn come_and_go(actors: u64) -> Result<u64, TaskError> {
    (0..actors).map(|number| Counter::submit_with(number).add(1).get()).sum()
}

/// Runs an actor with a CPU of its own.
#[task]
fn alone(calls: u64) -> Result<u64, TaskError> {
    let counter = Counter::options().cpus(1.0).submit(0);
    (0..calls).try_fold(0, |_, _| counter.add(1).get())
}

/// Finds a name while its actor lives, after the actor has ended, and when another actor has the name.
#[task]
fn named_again() -> Result<String, TaskError> {
    let first = Counter::options().name("one").submit(1);
    let found = CounterHandle::find("one")?.add(1).get()?;
    first.kill();
    let after = outcome(first.add(1).get());
    let missing = outcome(CounterHandle::find("one").map(|_| "somebody"));
    let second = Counter::options().name("one").get_if_exists().submit(10);
    let found_again = CounterHandle::find("one")?.add(1).get()?;
    drop(second);
    Ok(format!("{found} {found_again}\n{after}\n{missing}"))
}

/// Makes a call that never returns, in a shared worker or in one of the actor's own.
#[task]
fn never_returns(cpus: f64) -> Result<u64, TaskError> {
    Counter::options().cpus(cpus).submit(1).spins().get()
}
