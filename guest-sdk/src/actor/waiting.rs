//! The objects that calls wait for: each has a future that completes when the object is ready.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sandbar_core::TaskError;

use crate::host;
use crate::task::{ObjectRef, Value, fetch, fetch_now};

thread_local! {
    static WAITING: RefCell<Waiting> = const { RefCell::new(Waiting { at_hand: None, last: 0, all: BTreeMap::new() }) };
}

struct Waiting {
    /// The call that is being polled.
    at_hand: Option<u64>,
    /// The last key in use.
    last: u64,
    /// Waiters by call and by the key of their future.
    all: BTreeMap<(u64, u64), For>,
}

/// An object that a future waits for, and the future's waker.
struct For {
    object: u64,
    waker: Waker,
}

/// A future for the value of an object. In an async method of an actor, other calls run while it waits. Elsewhere it
/// blocks like [`ObjectRef::get`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct Awaited<T> {
    object: ObjectRef<T>,
    /// Key of its waiter.
    key: Option<(u64, u64)>,
}

impl<T: Value> IntoFuture for ObjectRef<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Awaited<T>;

    fn into_future(self) -> Awaited<T> {
        Awaited { object: self, key: None }
    }
}

impl<T: Value> IntoFuture for &ObjectRef<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Awaited<T>;

    fn into_future(self) -> Awaited<T> {
        self.clone().into_future()
    }
}

impl<T: Value> Future for Awaited<T> {
    type Output = Result<T, TaskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let object = self.object.number();
        let Some(call) = WAITING.with_borrow(|waiting| waiting.at_hand) else {
            return Poll::Ready(fetch(object, None));
        };
        forget(self.key.take());
        match fetch_now(object) {
            Some(value) => Poll::Ready(value),
            None => {
                let waits = For { object, waker: context.waker().clone() };
                self.key = Some(WAITING.with_borrow_mut(|waiting| waiting.add(call, waits)));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        forget(self.key.take());
    }
}

impl Waiting {
    fn add(&mut self, call: u64, waits: For) -> (u64, u64) {
        self.last += 1;
        self.all.insert((call, self.last), waits);
        (call, self.last)
    }
}

fn forget(key: Option<(u64, u64)>) {
    // The waker is dropped while nothing is borrowed. At a thread's end, the thread-local may be gone already.
    let forgotten = key.map(|key| WAITING.try_with(|waiting| waiting.borrow_mut().all.remove(&key)));
    drop(forgotten);
}

/// Sets the current call. Returns the previous one.
pub(super) fn on_behalf_of(call: Option<u64>) -> Option<u64> {
    WAITING.with_borrow_mut(|waiting| std::mem::replace(&mut waiting.at_hand, call))
}

/// The objects that a call waits for.
pub(super) fn awaited(call: u64) -> Vec<u64> {
    WAITING.with_borrow(|waiting| waiting.all.range(of(call)).map(|(_, waits)| waits.object).collect())
}

/// Wakes the futures of a call whose objects are ready.
pub(super) fn tell(call: u64) {
    let objects = awaited(call);
    let mut ready = vec![1; objects.len()];
    // A single object is certainly ready: the host resumes the call for it.
    if objects.len() > 1 {
        host::wait(&objects, objects.len() as u32, Some(0), &mut ready);
    }
    tell_ready(call, &ready);
}

/// Waits for one of a call's objects, and wakes its future.
pub(super) fn wait(call: u64) {
    let objects = awaited(call);
    let mut ready = vec![0; objects.len()];
    host::wait(&objects, 1, None, &mut ready);
    tell_ready(call, &ready);
}

/// Wakes a call's futures whose flag in `ready` is 1.
fn tell_ready(call: u64, ready: &[u8]) {
    let ready = |waiting: &mut Waiting| {
        let all = waiting.all.range(of(call)).zip(ready).filter(|(_, ready)| **ready == 1);
        all.map(|((_, waits), _)| waits.waker.clone()).collect::<Vec<_>>()
    };
    WAITING.with_borrow_mut(ready).into_iter().for_each(Waker::wake);
}

fn of(call: u64) -> std::ops::RangeInclusive<(u64, u64)> {
    (call, 0)..=(call, u64::MAX)
}
