//! Handles to objects, and operations on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::marker::PhantomData;
use std::mem;
use std::time::Duration;

use sandbar_core::{Code, Fault, TaskError, VALUE_INLINE_BYTES_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::call_buffers::with_scratch;
use super::ref_capture::capture_ref;
use super::value::{Value, ValueBytes};
use crate::bindings::tasks::{Got, Outcome};
use crate::host;

/// Number of dropped objects that are released together. (Each wait also releases them.)
const RELEASE_BATCH: usize = 64;

/// A handle to an immutable value that exists or will exist: the result of a task, or a value stored by [`put`].
///
/// It is cheap to clone and a value like any other: tasks take and return it, alone or inside other values. The object
/// lives as long as a handle to it exists.
pub struct ObjectRef<T> {
    number: u64,
    // A raw pointer makes the type `!Send`: the handle counts belong to one thread.
    value_type: PhantomData<*const T>,
}

impl<T: Value> ObjectRef<T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// The error of the task that produces it, or of a task that it depends on.
    pub fn get(&self) -> Result<T, TaskError> {
        release_dropped();
        fetch(self.number, None)
    }

    /// Like [`ObjectRef::get`], with a timeout.
    ///
    /// # Errors
    /// The errors of `get`; [`Code::GetTimeOut`] when the object is not ready in time.
    pub fn get_timeout(&self, timeout: Duration) -> Result<T, TaskError> {
        release_dropped();
        fetch(self.number, Some(timeout))
    }
}

impl<T> ObjectRef<T> {
    /// Wraps an object to which the host has given this program a reference.
    pub(crate) fn from_number(number: u64) -> Self {
        HANDLES.with_borrow_mut(|handles| *handles.counts.entry(number).or_insert(0) += 1);
        ObjectRef { number, value_type: PhantomData }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl<T> Clone for ObjectRef<T> {
    fn clone(&self) -> Self {
        ObjectRef::from_number(self.number)
    }
}

impl<T> Drop for ObjectRef<T> {
    fn drop(&mut self) {
        // At a thread's end, the thread-local may be dropped already.
        let _ = HANDLES.try_with(|handles| handles.borrow_mut().drop_one(self.number));
    }
}

impl<T> PartialEq for ObjectRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for ObjectRef<T> {}

impl<T> Hash for ObjectRef<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl<T> fmt::Debug for ObjectRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRef({})", self.number)
    }
}

impl<T> Serialize for ObjectRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() || !capture_ref(self.number) {
            return Err(ser::Error::custom(
                "an ObjectRef can only be serialised inside a value of a task or an object",
            ));
        }
        self.number.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for ObjectRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Err(de::Error::custom(
                "an ObjectRef can only be deserialised inside a value of a task or an object",
            ));
        }
        u64::deserialize(deserializer).map(ObjectRef::from_number)
    }
}

/// Stores a value once, for any number of tasks.
///
/// # Panics
/// Panics when the value can't be encoded.
pub fn put<T: Value>(value: &T) -> ObjectRef<T> {
    release_if_many();
    let put = |parts: &[&[u8]], objects: &[u64]| {
        // Releases dropped objects before storing a large value, so that it can reuse their memory.
        if parts.iter().map(|part| part.len()).sum::<usize>() > VALUE_INLINE_BYTES_MAX {
            release_dropped();
        }
        host::put(parts, objects)
    };
    with_scratch(|scratch| match value.write(scratch, put) {
        Ok(number) => ObjectRef::from_number(number),
        Err(e) => panic!("the value can't be encoded: {e}"),
    })
}

/// Waits until `count` of these objects are ready (have a value or an error), or until the timeout. Returns the ready
/// objects, `count` at most, and the rest, both in the given order.
pub fn wait<T>(
    objects: &[ObjectRef<T>],
    count: usize,
    timeout: Option<Duration>,
) -> (Vec<ObjectRef<T>>, Vec<ObjectRef<T>>) {
    let mut ready = vec![0; objects.len()];
    let there = wait_for(objects, count, timeout, &mut ready);
    let (mut first, mut rest) = (Vec::with_capacity(there), Vec::with_capacity(objects.len() - there));
    for (object, ready) in objects.iter().zip(ready) {
        if ready == 1 { &mut first } else { &mut rest }.push(object.clone());
    }
    (first, rest)
}

/// Waits for all of these values.
///
/// # Errors
/// The first error, in the given order.
pub fn get_all<T: Value>(objects: &[ObjectRef<T>]) -> Result<Vec<T>, TaskError> {
    if objects.len() > 1 {
        wait_for(objects, objects.len(), None, &mut vec![0; objects.len()]);
    }
    objects.iter().map(ObjectRef::get).collect()
}

/// Cancels the task that produces an object and, if `recursive`, the tasks that it submitted: their objects fail with
/// [`Code::Cancelled`]. Has no effect on a ready object. Cancelling an actor's call that computes, or waits in `get`,
/// ends the actor, which restarts if its options allow it. A call that waits in `.await` is cancelled alone.
pub fn cancel<T>(object: &ObjectRef<T>, recursive: bool) {
    host::cancel(object.number, recursive);
}

/// Like [`wait`], but returns the number of ready objects.
pub(super) fn wait_for<T>(
    objects: &[ObjectRef<T>],
    count: usize,
    timeout: Option<Duration>,
    ready: &mut [u8],
) -> usize {
    release_dropped();
    let numbers: Vec<u64> = objects.iter().map(ObjectRef::number).collect();
    let count = u32::try_from(count.min(objects.len())).unwrap_or(u32::MAX);
    host::wait(&numbers, count, timeout.map(nanoseconds), ready) as usize
}

/// Waits for the value of an object.
pub(crate) fn fetch<T: Value>(number: u64, timeout: Option<Duration>) -> Result<T, TaskError> {
    let response = host::get(number, timeout.map(nanoseconds));
    read(number, &response).unwrap_or_else(|| {
        let waited = timeout.unwrap_or_default();
        Err(failure(Code::GetTimeOut, format!("object {number} was not ready within {waited:?}")))
    })
}

/// Returns the value of an object if it is ready.
pub(crate) fn try_fetch<T: Value>(number: u64) -> Option<Result<T, TaskError>> {
    read(number, &host::get(number, Some(0)))
}

/// Decodes the value or error of an object if it is ready.
fn read<T: Value>(number: u64, response: &Got) -> Option<Result<T, TaskError>> {
    let bytes = ValueBytes::Object(number, usize::try_from(response.bytes).unwrap_or(usize::MAX));
    let unreadable = |value_kind: &str, e: String| {
        failure(Code::BadOutput, format!("object {number} can't be read as {value_kind}: {e}"))
    };
    match response.outcome {
        Outcome::Value => Some(T::read(bytes).map_err(|e| unreadable(std::any::type_name::<T>(), e))),
        Outcome::Failed => Some(Err(TaskError::read(bytes).unwrap_or_else(|e| unreadable("error", e)))),
        Outcome::TimeOut => None,
    }
}

pub(super) fn failure(code: Code, message: String) -> TaskError {
    TaskError { fault: Fault::new(code, message), chain: Vec::new() }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The result of `submit`: a handle for each result of the task, as one handle or a tuple.
pub trait Handles: Sized {
    /// Number of results.
    const COUNT: u32;

    /// Wraps the first object and those with the following numbers.
    #[doc(hidden)]
    fn from_first(number: u64) -> Self;
}

impl<T> Handles for ObjectRef<T> {
    const COUNT: u32 = 1;

    fn from_first(number: u64) -> Self {
        ObjectRef::from_number(number)
    }
}

macro_rules! several {
    ($($count:literal: $($type:ident $place:tt),*;)*) => {$(
        impl<$($type),*> Handles for ($(ObjectRef<$type>,)*) {
            const COUNT: u32 = $count;

            fn from_first(number: u64) -> Self {
                ($(ObjectRef::<$type>::from_number(number + $place),)*)
            }
        }
    )*};
}

sandbar_core::for_result_tuples!(several);

thread_local! {
    static HANDLES: RefCell<HandleCounts> = const { RefCell::new(HandleCounts::new()) };
}

/// Number of handles to each object.
struct HandleCounts {
    /// Zero for an object whose release the guest has not reported to the host yet.
    counts: HashMap<u64, u32, BuildHasherDefault<FibonacciHasher>>,
    /// Objects in the order in which their last handle was dropped. An object may have a new handle since, or be listed
    /// twice.
    dropped: Vec<u64>,
}

impl HandleCounts {
    const fn new() -> Self {
        HandleCounts { counts: HashMap::with_hasher(BuildHasherDefault::new()), dropped: Vec::new() }
    }

    fn drop_one(&mut self, number: u64) {
        if let Some(count) = self.counts.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.dropped.push(number);
            }
        }
    }

    /// Removes the objects of `dropped` that have no handle. Returns each once.
    fn take_unreferenced(&mut self) -> Vec<u64> {
        let mut dropped = mem::take(&mut self.dropped);
        dropped.retain(|number| self.counts.get(number) == Some(&0) && self.counts.remove(number).is_some());
        dropped
    }
}

/// Releases dropped objects if there are many.
pub(super) fn release_if_many() {
    if HANDLES.with_borrow(|handles| handles.dropped.len() >= RELEASE_BATCH) {
        release_dropped();
    }
}

/// Releases dropped objects on the host.
///
/// Must not run while a call is under construction: the call may refer to an object by its number alone.
pub(crate) fn release_dropped() {
    if HANDLES.with_borrow(|handles| handles.dropped.is_empty()) {
        return;
    }
    let mut dropped = HANDLES.with_borrow_mut(HandleCounts::take_unreferenced);
    if !dropped.is_empty() {
        host::release(&dropped);
    }
    dropped.clear();
    HANDLES.with_borrow_mut(|handles| {
        if handles.dropped.is_empty() {
            handles.dropped = dropped;
        }
    });
}

/// Releases an object at once if `object`, which the caller drops next, is its last handle.
pub(super) fn release_now<T>(object: &ObjectRef<T>) {
    // At a thread's end, the thread-local may be dropped already.
    let is_last = HANDLES.try_with(|handles| {
        let counts = &mut handles.borrow_mut().counts;
        counts.get(&object.number) == Some(&1) && counts.remove(&object.number).is_some()
    });
    if is_last == Ok(true) {
        host::release(&[object.number]);
    }
}

/// Forgets the handles of an earlier task of this instance: the host released its objects when it ended.
pub(crate) fn forget_handles() {
    HANDLES.with_borrow_mut(|handles| {
        handles.counts.clear();
        handles.dropped.clear();
    });
}

/// Hashes consecutive numbers: a multiplication spreads them over the bits that the map uses.
#[derive(Default)]
struct FibonacciHasher(u64);

impl Hasher for FibonacciHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing: 2^64 divided by the golden ratio. The map takes the bucket from the low bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
