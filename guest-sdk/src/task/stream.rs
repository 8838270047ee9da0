//! Streams: generator tasks, and their consumers.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use sandbar_core::{Code, TaskError};

use super::call_buffers::with_scratch;
use super::object::{Handles, ObjectRef, failure, fetch, nanoseconds, release_if_many, release_now};
use super::options::Submission;
#[cfg(target_family = "wasm")]
use super::task_result::return_value;
use super::value::Value;
use crate::bindings::tasks::Following;
use crate::host;
use crate::registry::GeneratorItems;

/// The items of a generator: a task that returns `impl Iterator<Item = T>`, or one of `Result<T, E>`.
///
/// Each item is a ready object. The generator runs elsewhere while the consumer takes items, and waits while its buffer
/// is full. An error is the last item: the generator's own, or the reason for its end. GeneratorItems that were taken remain
/// valid. Dropping the stream cancels the generator.
///
/// A stream is not a value: only the task that submitted the generator can take its items, and it can pass the items
/// on.
#[must_use = "dropping it ends its generator"]
pub struct ObjectStream<T> {
    /// The generator's result, which is ready after the last item: the number of items.
    end: ObjectRef<u64>,
    is_over: bool,
    items: PhantomData<fn() -> T>,
}

impl<T: Value> ObjectStream<T> {
    /// Like [`Iterator::next`], with a timeout: returns an error of [`Code::GetTimeOut`] when no item is ready in time.
    /// The stream continues.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<ObjectRef<T>, TaskError>> {
        self.next_item(Some(timeout))
    }

    fn next_item(&mut self, timeout: Option<Duration>) -> Option<Result<ObjectRef<T>, TaskError>> {
        if self.is_over {
            return None;
        }
        release_if_many();
        match host::next_item(self.end.number(), timeout.map(nanoseconds)) {
            Following::Item(object) => Some(Ok(ObjectRef::from_number(object))),
            Following::TimeOut => {
                let waited = timeout.unwrap_or_default();
                Some(Err(failure(Code::GetTimeOut, format!("no item was ready within {waited:?}"))))
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
        self.next_item(None)
    }
}

impl<T: Value> std::iter::FusedIterator for ObjectStream<T> {}

impl<T> Drop for ObjectStream<T> {
    fn drop(&mut self) {
        // Other handles are released later, but the generator runs until its stream is released.
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
        ObjectStream { end: ObjectRef::from_number(number), is_over: false, items: PhantomData }
    }
}

impl<F, T> Submission<F, ObjectStream<T>> {
    /// Maximum number of items that were not taken yet; the generator waits at this limit. 64 by default, 65,536 at
    /// most.
    pub fn buffer(self, items: u32) -> Self {
        self.with(|options| options.buffer = Some(items))
    }
}

/// Passes the next item of the current generator to the host.
///
/// # Errors
/// Reports why the item can't be encoded.
pub fn yield_item<T: Value>(item: T) -> Result<(), String> {
    release_if_many();
    with_scratch(|scratch| item.write(scratch, host::yielded)).map_err(|e| format!("an item can't be encoded: {e}"))
}

/// Runs a generator to its end. Returns whether it has finished.
#[cfg(target_family = "wasm")]
pub(super) fn run(_call: u64, items: GeneratorItems) -> Result<bool, String> {
    let mut count: u64 = 0;
    for item in items {
        item?;
        count += 1;
    }
    return_value(count).map(|()| true)
}

/// Registers the generator with the test host, which resumes it for each item.
#[cfg(not(target_family = "wasm"))]
pub(super) fn run(call: u64, items: GeneratorItems) -> Result<bool, String> {
    host::add_generator(call, items);
    Ok(false)
}
