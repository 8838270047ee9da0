//! Streams: tasks that are generators, and what takes their items.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use sandbar_core::{Code, TaskError};

use super::call::with_scratch;
#[cfg(target_family = "wasm")]
use super::hand_over;
use super::object::{Handles, ObjectRef, failure, fetch, nanoseconds, release_many, release_now};
use super::options::Submission;
use super::value::Value;
use crate::bindings::tasks::Following;
use crate::host;
use crate::registry::Items;

/// What a generator yields, item by item: a task that returns `impl Iterator<Item = T>`, or one of `Result<T, E>`.
///
/// Each item is an object that is there. The generator goes on elsewhere while items are taken, and waits when there are as
/// many as its buffer has room for that were not. An error is the last item: the generator's own, or why it was ended. Items
/// that were taken stay what they are. Dropping the stream ends the generator.
///
/// A stream is no value: who has submitted the generator takes its items, and passes on these.
#[must_use = "dropping it ends its generator"]
pub struct ObjectStream<T> {
    /// What is there when there are no more items: how many there were.
    end: ObjectRef<u64>,
    is_over: bool,
    items: PhantomData<fn() -> T>,
}

impl<T: Value> ObjectStream<T> {
    /// As [`Iterator::next`], for so long at most: it is an error of [`Code::GetTimeOut`] when there is no item by then, and
    /// the stream goes on.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<ObjectRef<T>, TaskError>> {
        self.following(Some(timeout))
    }

    fn following(&mut self, timeout: Option<Duration>) -> Option<Result<ObjectRef<T>, TaskError>> {
        if self.is_over {
            return None;
        }
        release_many();
        match host::next_item(self.end.number(), timeout.map(nanoseconds)) {
            Following::Item(object) => Some(Ok(ObjectRef::held(object))),
            Following::TimeOut => {
                let waited = timeout.unwrap_or_default();
                Some(Err(failure(Code::GetTimeOut, format!("there was no item within {waited:?}"))))
            }
            Following::Ended => {
                self.is_over = true;
                fetch::<u64>(self.end.number(), None).err().map(Err)
            }
        }
    }
}

impl<T: Value> Iterator for ObjectStream<T> {
    type Item = Result<ObjectRef<T>, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.following(None)
    }
}

impl<T: Value> std::iter::FusedIterator for ObjectStream<T> {}

impl<T> Drop for ObjectStream<T> {
    fn drop(&mut self) {
        // Whatever else is released later: the generator goes on until it is told.
        release_now(&self.end);
    }
}

impl<T> fmt::Debug for ObjectStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStream({})", self.end.number())
    }
}

impl<T> Handles for ObjectStream<T> {
    const COUNT: u32 = 1;

    fn from_first(number: u64) -> Self {
        ObjectStream { end: ObjectRef::held(number), is_over: false, items: PhantomData }
    }
}

impl<F, T> Submission<F, ObjectStream<T>> {
    /// How many items there may be that were not taken: then the generator waits. 64 otherwise, 65,536 at most.
    pub fn buffer(self, items: u32) -> Self {
        self.with(|options| options.buffer = Some(items))
    }
}

/// Hands over the next item of the generator at hand.
///
/// # Errors
/// When it can't be encoded, and why.
pub fn yield_item<T: Value>(item: T) -> Result<(), String> {
    release_many();
    with_scratch(|scratch| item.write(scratch, host::yielded)).map_err(|e| format!("what it yields: {e}"))
}

/// Runs a generator to its end. Gives whether it has ended.
#[cfg(target_family = "wasm")]
pub(super) fn run(_call: u64, items: Items) -> Result<bool, String> {
    let mut count: u64 = 0;
    for item in items {
        item?;
        count += 1;
    }
    hand_over(count).map(|()| true)
}

/// A generator goes on when its items are asked for.
#[cfg(not(target_family = "wasm"))]
pub(super) fn run(call: u64, items: Items) -> Result<bool, String> {
    host::generate(call, items);
    Ok(false)
}
