//! The objects that calls wait for: each has a future that completes when the object is ready.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sandbar_core::TaskError;

use crate::host;
use crate::task::{ObjectRef, Value, fetch, try_fetch};

thread_local! {
    static WAITERS: RefCell<Waiters> = const { RefCell::new(Waiters { current_call: None, last: 0, all: BTreeMap::new() }) };
}

struct Waiters {
    /// The call that is being polled.
    current_call: Option<u64>,
    /// The last key in use.
    last: u64,
    /// Waiters by call and by the key of their future.
    all: BTreeMap<(u64, u64), Waiter>,
}

/// An object that a future waits for, and the future's waker.
struct Waiter {
    object: u64,
    waker: Waker,
}

/// A future for the value of an object. In an async method of an actor, other calls run while it waits. Elsewhere it
/// blocks like [`ObjectRef::get`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct ObjectFuture<T> {
    object: ObjectRef<T>,
    /// Key of its waiter.
    key: Option<(u64, u64)>,
}

impl<T: Value> IntoFuture for ObjectRef<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = ObjectFuture<T>;

    fn into_future(self) -> ObjectFuture<T> {
        ObjectFuture { object: self, key: None }
    }
}

impl<T: Value> IntoFuture for &ObjectRef<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = ObjectFuture<T>;

    fn into_future(self) -> ObjectFuture<T> {
        self.clone().into_future()
    }
}

impl<T: Value> Future for ObjectFuture<T> {
    type Output = Result<T, TaskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let object = self.object.number();
        let Some(call) = WAITERS.with_borrow(|waiters| waiters.current_call) else {
            return Poll::Ready(fetch(object, None));
        };
        remove(self.key.take());
        match try_fetch(object) {
            Some(value) => Poll::Ready(value),
            None => {
                let waiter = Waiter { object, waker: context.waker().clone() };
                self.key = Some(WAITERS.with_borrow_mut(|waiters| waiters.add(call, waiter)));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for ObjectFuture<T> {
    fn drop(&mut self) {
        remove(self.key.take());
    }
}

impl Waiters {
    fn add(&mut self, call: u64, waiter: Waiter) -> (u64, u64) {
        self.last += 1;
        self.all.insert((call, self.last), waiter);
        (call, self.last)
    }
}

fn remove(key: Option<(u64, u64)>) {
    // The waker is dropped while nothing is borrowed. At the end of a thread, the thread-local may have been destroyed already.
    let removed = key.map(|key| WAITERS.try_with(|waiters| waiters.borrow_mut().all.remove(&key)));
    drop(removed);
}

/// Sets the current call. Returns the previous one.
pub(super) fn set_current_call(call: Option<u64>) -> Option<u64> {
    WAITERS.with_borrow_mut(|waiters| std::mem::replace(&mut waiters.current_call, call))
}

/// The objects that a call waits for.
pub(super) fn awaited_objects(call: u64) -> Vec<u64> {
    WAITERS.with_borrow(|waiters| waiters.all.range(range(call)).map(|(_, waiter)| waiter.object).collect())
}

/// Wakes the futures of a call whose objects are ready.
pub(super) fn wake_ready(call: u64) {
    let objects = awaited_objects(call);
    let mut ready = vec![1; objects.len()];
    // A single object is certainly ready: the host resumes the call for it.
    if objects.len() > 1 {
        host::wait(&objects, objects.len() as u32, Some(0), &mut ready);
    }
    wake(call, &ready);
}

/// Waits for one of a call's objects, and wakes its future.
pub(super) fn wait(call: u64) {
    let objects = awaited_objects(call);
    let mut ready = vec![0; objects.len()];
    host::wait(&objects, 1, None, &mut ready);
    wake(call, &ready);
}

/// Wakes a call's futures whose flag in `ready` is 1.
fn wake(call: u64, ready: &[u8]) {
    let ready = |waiters: &mut Waiters| {
        let all = waiters.all.range(range(call)).zip(ready).filter(|(_, ready)| **ready == 1);
        all.map(|((_, waiter), _)| waiter.waker.clone()).collect::<Vec<_>>()
    };
    WAITERS.with_borrow_mut(ready).into_iter().for_each(Waker::wake);
}

fn range(call: u64) -> std::ops::RangeInclusive<(u64, u64)> {
    (call, 0)..=(call, u64::MAX)
}
