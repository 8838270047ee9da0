//! Actors on the in-process test host.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::Duration;

use futures::future::{join_all, select};
use futures::stream::{FuturesUnordered, StreamExt};
use sandbar_guest::prelude::*;
use sandbar_guest::{Code, testing};

#[derive(Debug)]
struct Counter {
    count: i64,
    last: Option<ObjectRef<i64>>,
}

#[actor]
impl Counter {
    /// Starts at a number that is not negative.
    pub fn new(start: i64) -> Result<Counter, String> {
        if start < 0 { Err(format!("{start} is negative")) } else { Ok(Counter { count: start, last: None }) }
    }

    /// Adds `n`, and returns the new count.
    pub fn add(&mut self, n: i64) -> i64 {
        self.count += n;
        self.doubled() / 2
    }

    pub fn total(&self) -> i64 {
        self.count
    }

    /// Subtracts `n`.
    pub fn take(&mut self, n: i64) -> Result<i64, String> {
        if n > self.count {
            return Err(format!("{n} is more than {}", self.count));
        }
        self.count -= n;
        Ok(n)
    }

    pub fn set_from(&mut self, other: CounterHandle) -> Result<i64, TaskError> {
        self.count = other.total().get()?;
        Ok(self.count)
    }

    pub fn keep(&mut self, object: ObjectRef<i64>) {
        self.last = Some(object);
    }

    pub fn kept(&self) -> Option<ObjectRef<i64>> {
        self.last.clone()
    }

    pub fn boom(&mut self) -> i64 {
        panic!("at {}", self.count)
    }

    fn doubled(&self) -> i64 {
        2 * self.count
    }
}

#[task]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Calls an actor through a handle in its arguments.
#[task]
fn adds(counter: CounterHandle, n: i64) -> Result<i64, TaskError> {
    let calls: Vec<_> = (0..n).map(|_| counter.add(1)).collect();
    calls.last().map_or(Ok(0), ObjectRef::get)
}

/// Creates an actor, and returns its handle.
#[task]
fn creates(start: i64) -> BTreeMap<String, CounterHandle> {
    BTreeMap::from([("it".to_owned(), Counter::submit(start))])
}

/// Checks the error of a failed call.
fn check_error<T: std::fmt::Debug>(result: Result<T, TaskError>, code: Code, expected: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.fault.code, error.to_string().as_str()), (code, expected));
}

#[test]
fn calls() {
    let counter = Counter::submit(5);
    assert_eq!(counter.ready(), Ok(()));
    let now = counter.add(1);
    assert_eq!(now.get(), Ok(6));
    assert_eq!(counter.add(&now).get(), Ok(12));
    assert_eq!((counter.total().get(), counter.take(2).get()), (Ok(12), Ok(2)));
    assert_eq!(adds::submit(&counter, 3).get(), Ok(13));
    let counters = creates::submit(add::submit(1, 2)).get().unwrap();
    assert_eq!((counters["it"].add(1).get(), counter.total().get()), (Ok(4), Ok(13)));
    assert_eq!(counter.set_from(&counters["it"]).get(), Ok(4));
    assert_eq!(counter.with(CallOptions::new().name("x").timeout(Duration::from_secs(1))).add(1).get(), Ok(5));
    // The `impl` itself still works.
    assert_eq!(Counter::new(1).unwrap().add(1), 2);
}

#[test]
fn errors() {
    let counter = Counter::submit(1);
    check_error(counter.take(2).get(), Code::Refused, "Counter.take: 2 is more than 1 [refused]");
    assert_eq!(counter.total().get(), Ok(1));
    check_error(
        counter.with(CallOptions::new().name("x")).take(9).get(),
        Code::Refused,
        "x: 9 is more than 1 [refused]",
    );
    let none = Counter::submit(-1);
    let died = "Counter.new: actor `Counter.new` has died: -1 is negative [actor-died]";
    check_error(none.ready(), Code::ActorDied, died);
    let died = "Counter.add: actor `Counter.new` has died: -1 is negative [actor-died]";
    check_error(none.add(1).get(), Code::ActorDied, died);
    // Another task's error keeps its code and chain.
    check_error(counter.set_from(&none).get(), Code::ActorDied, &died.replace(".add", ".set_from > Counter.total"));
    // A failed argument.
    check_error(counter.add(counter.take(5)).get(), Code::Refused, "Counter.take: 5 is more than 1 [refused]");

    check_error(counter.boom().get(), Code::Panic, "Counter.boom: at 1 [panic]");
    let died = "Counter.total: actor `Counter.new` has died: at 1 [actor-died]";
    check_error(counter.total().get(), Code::ActorDied, died);
}

#[test]
fn ends() {
    let counter = Counter::submit(1);
    let total = counter.total();
    counter.kill();
    let died = "Counter.total: actor `Counter.new` was killed, or its last handle was dropped [actor-died]";
    check_error(counter.total().get(), Code::ActorDied, died);
    assert_eq!((total.get(), counter.ready()), (Ok(1), Ok(())));
    counter.kill();
    // The actor has no restarts.
    let counter = Counter::submit(1);
    counter.restart();
    assert_eq!(counter.total().get().unwrap_err().fault.code, Code::ActorDied);

    let counter = Counter::options().max_restarts(2).submit(add::submit(1, 0));
    counter.add(5);
    counter.restart();
    assert_eq!(counter.add(1).get(), Ok(2));
    check_error(counter.boom().get(), Code::Panic, "Counter.boom: at 2 [panic]");
    assert_eq!(counter.add(1).get(), Ok(2));
    check_error(counter.boom().get(), Code::Panic, "Counter.boom: at 2 [panic]");
    assert_eq!(counter.add(1).get().unwrap_err().fault.code, Code::ActorDied);
}

#[test]
fn names() {
    let missing = CounterHandle::find("counter").unwrap_err();
    assert_eq!(
        (missing.fault.code, missing.to_string().as_str()),
        (Code::NoActor, "find: there is no actor `counter` [no-actor]")
    );
    let named = || Counter::options().name("counter");
    let counter = named().submit(3);
    let found = CounterHandle::find("counter").unwrap();
    assert_eq!((found.add(1).get(), counter.total().get()), (Ok(4), Ok(4)));
    let again = named().submit(7);
    check_error(again.ready(), Code::NameTaken, "counter: there is an actor `counter` already [name-taken]");
    let same = named().get_if_exists().submit(7);
    assert_eq!((same.ready(), same.add(1).get(), counter.total().get()), (Ok(()), Ok(5), Ok(5)));
    let wrong = GateHandle::find("counter").unwrap().open().get().unwrap_err();
    assert_eq!(wrong.fault.code, Code::NoActor);
    drop((counter, found, again));
    assert_eq!(same.total().get(), Ok(5));
    drop(same);
    assert_eq!(CounterHandle::find("counter").unwrap_err().fault.code, Code::NoActor);
    assert_eq!(named().get_if_exists().submit(7).total().get(), Ok(7));

    named().detached().submit(1);
    assert_eq!(CounterHandle::find("counter").unwrap().add(1).get(), Ok(2));
    CounterHandle::find("counter").unwrap().kill();
    assert_eq!(CounterHandle::find("counter").unwrap_err().fault.code, Code::NoActor);
}

/// The test host panics when an object is released twice or too early.
#[test]
fn they_go_with_their_last_handle() {
    let counter = Counter::submit(add::submit(1, 1));
    counter.add(add::submit(1, 1));
    counter.keep(add::submit(1, 1));
    assert_eq!(counter.kept().get().unwrap().unwrap().get(), Ok(2));
    let same = counter.clone();
    drop(counter);
    assert_eq!(same.total().get(), Ok(4));
    let kept = put(&vec![same]);
    assert_eq!(kept.get().unwrap()[0].total().get(), Ok(4));
    drop(kept);
    assert_eq!(testing::objects(), 0);
    // Calls outlive the handle through which they were submitted.
    assert_eq!(Counter::submit(1).add(1).get(), Ok(2));
    assert_eq!(adds::submit(Counter::submit(1), 2).get(), Ok(3));
    assert_eq!(creates::submit(1).get().map(|counters| counters["it"].clone()).unwrap().total().get(), Ok(1));
    Counter::submit(-1);
    Counter::submit(1).kill();
    Counter::submit(1).boom().get().unwrap_err();
    Counter::options().max_restarts(1).submit(1).boom().get().unwrap_err();
    let detached = Counter::options().detached().submit(1);
    detached.kill();
    drop(detached);
    assert_eq!(testing::objects(), 0);
    assert_eq!(
        serde_json::to_string(&Counter::submit(1)).unwrap_err().to_string(),
        "an ObjectRef can only be serialised inside a value of a task or an object"
    );
    assert!(format!("{:?}", Counter::submit(1)).starts_with("CounterHandle("));
}

/// An actor with concurrent calls.
#[derive(Default)]
struct Gate {
    log: RefCell<Vec<String>>,
    closed: Cell<u32>,
}

#[actor]
impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    /// Submits a call of another method, whose object becomes ready only while this call waits.
    pub async fn passes(&self, me: GateHandle, n: u32) -> Result<u32, TaskError> {
        let appended = me.append(format!("from {n}"));
        self.append(format!("{n} begins"));
        let length = appended.await?;
        self.append(format!("{n} ends"));
        Ok(length)
    }

    pub fn append(&self, line: String) -> u32 {
        self.log.borrow_mut().push(line);
        self.log.borrow().len() as u32
    }

    pub fn lines(&mut self) -> Vec<String> {
        self.log.get_mut().clone()
    }

    /// Waits for several calls that run while it waits.
    pub async fn joined(&self, me: GateHandle, n: u32) -> Result<Vec<u32>, TaskError> {
        let all: Vec<_> = (0..n).map(|i| me.append(format!("{i}"))).collect();
        join_all(all.iter().map(IntoFuture::into_future)).await.into_iter().collect()
    }

    /// Takes the results in order of completion.
    pub async fn streamed(&self, me: GateHandle, n: u32) -> Result<Vec<u32>, TaskError> {
        let mut all: FuturesUnordered<_> = (0..n).map(|i| me.append(format!("{i}")).into_future()).collect();
        let mut sums = Vec::new();
        while let Some(length) = all.next().await {
            sums.push(length?);
        }
        sums.sort_unstable();
        Ok(sums)
    }

    /// The first of two calls, one of which never finishes.
    pub async fn first(&self, me: GateHandle) -> Result<u32, TaskError> {
        let never = me.closed().into_future();
        let appended = me.append("first".to_owned()).into_future();
        select(never, appended).await.factor_first().0
    }

    /// Awaits a future that no object completes.
    pub async fn closed(&self) -> u32 {
        self.closed.set(self.closed.get() + 1);
        std::future::pending().await
    }

    pub fn open(&mut self) -> u32 {
        self.closed.get()
    }

    pub async fn polls_itself(&self, n: u32) -> u32 {
        let mut left = n;
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            left = left.saturating_sub(1);
            if left == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        n
    }

    /// A method with exclusive access waits for objects of other tasks.
    pub async fn alone(&mut self, inputs: Vec<ObjectRef<i64>>) -> Result<i64, TaskError> {
        let mut sum = 0;
        for object in &inputs {
            sum += object.await?;
        }
        self.log.get_mut().push(format!("{sum}"));
        Ok(sum)
    }

    pub async fn stuck(&mut self, me: GateHandle) -> Result<u32, TaskError> {
        me.append("never".to_owned()).await
    }

    /// A method with shared access waits for a method that needs exclusive access.
    pub async fn crossed(&self, me: GateHandle) -> Result<Vec<String>, TaskError> {
        me.lines().await
    }

    pub async fn fails(&self, inputs: ObjectRef<i64>) -> Result<i64, TaskError> {
        inputs.await
    }

    pub fn kills(&mut self, me: GateHandle) {
        me.kill();
    }
}

#[test]
fn methods_wait_beside_each_other() {
    let gate = Gate::submit();
    assert_eq!(gate.passes(&gate, 1).get(), Ok(2));
    assert_eq!(gate.lines().get().unwrap(), ["1 begins", "from 1", "1 ends"]);
    for n in [0, 1, 2, 100] {
        let gate = Gate::submit();
        assert_eq!(gate.joined(&gate, n).get(), Ok((1..=n).collect()));
        let gate = Gate::submit();
        assert_eq!(gate.streamed(&gate, n).get(), Ok((1..=n).collect()));
    }
    assert_eq!(gate.polls_itself(100).get(), Ok(100));
    assert_eq!(gate.alone(vec![add::submit(1, 2), add::submit(3, 4)]).get(), Ok(10));
    check_error(
        gate.fails(put(&vec![Counter::submit(1).take(2)]).get().unwrap().remove(0)).get(),
        Code::Refused,
        "Counter.take: 2 is more than 1 [refused]",
    );
}

#[test]
fn deadlocks_are_errors() {
    let gate = Gate::submit();
    let closed = "Gate.closed: the call awaits a future that no object completes, and the host could not resume it; await only `ObjectRef`s [refused]";
    check_error(gate.closed().get(), Code::Refused, closed);
    assert_eq!(gate.first(&gate).get().unwrap_err().fault.code, Code::Refused);
    assert_eq!(gate.open().get(), Ok(2));
    // The call has exclusive access, and waits for another call of the actor.
    let stuck = gate.stuck(&gate).get().unwrap_err();
    assert_eq!(stuck.fault.code, Code::Panic);
    assert!(
        stuck.fault.message.ends_with("will never be ready: its task waits for a task that waits for it"),
        "{stuck}"
    );
    let gate = Gate::submit();
    let died = "Gate.lines: actor `Gate.new` was killed, or its last handle was dropped [actor-died]";
    gate.kills(&gate).get().unwrap();
    check_error(gate.lines().get(), Code::ActorDied, died);
    drop((gate, stuck));
}

#[test]
fn calls_that_wait_are_ended() {
    let wait = || {
        let gate = Gate::options().max_restarts(1).submit();
        let crossed = gate.crossed(&gate);
        check_error(
            crossed.get_timeout(Duration::ZERO).map_err(|error| TaskError { chain: vec![], ..error }),
            Code::GetTimeOut,
            &format!("object {} was not ready within 0ns [get-time-out]", number(&crossed)),
        );
        (gate, crossed)
    };
    let (gate, crossed) = wait();
    cancel(&crossed, false);
    check_error(crossed.get(), Code::Cancelled, "Gate.crossed: it was cancelled [cancelled]");
    assert_eq!(gate.lines().get(), Ok(vec![]));
    drop((gate, crossed));
    assert_eq!(testing::objects(), 0);
    let (gate, crossed) = wait();
    gate.restart();
    let died = "Gate.crossed: the actor died during the call: a restart was requested [actor-died]";
    check_error(crossed.get(), Code::ActorDied, died);
    assert_eq!(gate.lines().get(), Ok(vec![]));
    drop((gate, crossed));
    assert_eq!(testing::objects(), 0);
    let (gate, crossed) = wait();
    let appended = gate.lines();
    gate.kill();
    assert_eq!([crossed.get().unwrap_err().fault.code, appended.get().unwrap_err().fault.code], [Code::ActorDied; 2]);
    drop((gate, crossed, appended));
    assert_eq!(testing::objects(), 0);
}

fn number<T>(object: &ObjectRef<T>) -> String {
    format!("{object:?}").trim_start_matches("ObjectRef(").trim_end_matches(')').to_owned()
}

#[test]
fn limits() {
    let gate = Gate::options().max_pending_calls(3).submit();
    // Each call waits for the other.
    let waits = [gate.crossed(&gate), gate.lines()];
    let over = gate.lines().get();
    assert_eq!(over.unwrap_err().fault.code, Code::PendingCalls);
    cancel(&waits[0], false);
    assert_eq!((waits[1].get(), gate.lines().get()), (Ok(vec![]), Ok(vec![])));
    // One call waits, and the other can't start.
    let gate = Gate::options().max_concurrency(1).submit();
    let passes = gate.passes(&gate, 1);
    assert_eq!(passes.get_timeout(Duration::ZERO).unwrap_err().fault.code, Code::GetTimeOut);
    gate.kill();
}

#[derive(Serialize, Deserialize)]
struct Saved {
    list: Vec<ObjectRef<i64>>,
}

struct ObjectList {
    list: Vec<ObjectRef<i64>>,
    restored: bool,
}

#[actor]
impl ObjectList {
    pub fn new(first: ObjectRef<i64>) -> Self {
        Self { list: vec![first], restored: false }
    }

    pub fn push(&mut self, object: ObjectRef<i64>) {
        self.list.push(object);
    }

    pub fn sum(&self) -> Result<(i64, bool), TaskError> {
        get_all(&self.list).map(|all| (all.iter().sum(), self.restored))
    }

    pub fn boom(&self) {
        panic!("of {}", self.list.len())
    }

    pub fn checkpoint(&self) -> Result<Saved, TaskError> {
        get_all(&self.list)?;
        Ok(Saved { list: self.list.clone() })
    }

    pub fn restore(saved: Saved) -> Result<Self, String> {
        Ok(Self { list: saved.list, restored: true })
    }
}

#[test]
fn checkpoints() {
    let check = |every: u32, expected: i64| {
        let object_list = ObjectList::options().max_restarts(1).checkpoint_every(every).submit(put(&1));
        (0..3).for_each(|_| drop(object_list.push(put(&10))));
        object_list.restart();
        assert_eq!(object_list.sum().get(), Ok((expected, every < 4)));
        object_list.kill();
    };
    check(1, 31);
    check(2, 21);
    check(3, 31);
    check(4, 1);
    assert_eq!(testing::objects(), 0);

    let object_list = ObjectList::options().max_restarts(1).submit(put(&1));
    object_list.push(put(&10));
    check_error(object_list.boom().get(), Code::Panic, "ObjectList.boom: of 2 [panic]");
    assert_eq!(object_list.sum().get(), Ok((11, true)));
    // An actor whose checkpoint fails can't continue.
    object_list.push(Counter::submit(1).take(2));
    let died = "ObjectList.sum: actor `ObjectList.new` has died: 2 is more than 1 [actor-died]";
    check_error(object_list.sum().get(), Code::ActorDied, died);
    drop(object_list);
    assert_eq!(testing::objects(), 0);
}
