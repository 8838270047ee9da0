//! The table of a job's objects on the client: references, waiters, and received stream items.
//!
//! The node's thread writes its deliveries into the table. It holds the lock during each write, and wakes waiters after
//! the last one.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, ObjectId, TaskError};
use sandbar_node::ObjectValue;

/// Outcome of an object.
pub(crate) type Outcome = Result<ObjectValue, Arc<TaskError>>;

/// Number of waiters of an object at which dropped ones are removed, and again at each doubling.
const PRUNE_WAITERS_FROM: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<Objects>);

#[derive(Debug, Default)]
struct Objects {
    entries: FxHashMap<u64, Entry>,
    streams: FxHashMap<u64, StreamState>,
    /// Streams with taken items that are not reported to the node yet.
    unreported: Vec<u64>,
    /// Wakers to call after the last delivery of a batch.
    woken: Vec<Waker>,
    has_ended: bool,
}

/// State of an object.
#[derive(Debug, Default)]
struct Entry {
    /// Number of references from the client's handles and values.
    local_refs: u32,
    /// Number of the client's references that the node has counted.
    node_refs: u32,
    /// Whether a request to the node is outstanding.
    is_requested: bool,
    /// Whether the object is ready, with a value or an error.
    is_ready: bool,
    /// The outcome, if it is small; large values are requested from the node again.
    outcome: Option<Outcome>,
    contains: Vec<ObjectId>,
    waiters: Vec<Weak<Waiter>>,
}

/// Received items of a stream.
#[derive(Debug)]
struct StreamState {
    buffer: u64,
    /// Untaken items, on each of which the stream has a reference. The node limits their number to `buffer`.
    items: VecDeque<ObjectId>,
    taken: u64,
    /// Number of taken items that the client has reported to the node.
    reported: u64,
    waker: Option<Waker>,
}

/// Objects that the client no longer refers to, each with the number of references that the node counts.
pub(crate) type ReleasedObjects = Vec<(ObjectId, u32)>;

impl Table {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new object with one handle, whose reference the node has counted.
    pub(crate) fn add_new(&self, object: ObjectId) {
        let mut objects = self.objects();
        let entry = objects.entry(object);
        entry.local_refs += 1;
        entry.node_refs += 1;
    }

    /// Adds a handle to an object that a value contains.
    pub(crate) fn hold(&self, object: ObjectId) {
        self.objects().entry(object).local_refs += 1;
    }

    /// Removes a handle. Returns the objects to release at the node.
    pub(crate) fn release(&self, object: ObjectId) -> ReleasedObjects {
        let mut released = Vec::new();
        self.objects().release(object, &mut released);
        released
    }

    /// Returns the outcome of an object, if the client has it.
    pub(crate) fn outcome(&self, object: ObjectId) -> Option<Outcome> {
        let objects = self.objects();
        let known = objects.entries.get(&object.0).and_then(|entry| entry.outcome.clone());
        known.or_else(|| objects.has_ended.then(|| Err(ended_error())))
    }

    /// Returns whether an object is ready.
    pub(crate) fn is_ready(&self, object: ObjectId) -> bool {
        let objects = self.objects();
        objects.has_ended || objects.entries.get(&object.0).is_some_and(|entry| entry.is_ready)
    }

    /// Registers a waiter for an object. Returns true if the object is ready already: for a waiter of a value, if the
    /// client has the value.
    pub(crate) fn watch(&self, object: ObjectId, waiter: &Arc<Waiter>) -> bool {
        let mut objects = self.objects();
        let has_ended = objects.has_ended;
        let entry = objects.entry(object);
        let is_ready = if waiter.takes_value { entry.outcome.is_some() } else { entry.is_ready };
        if is_ready || has_ended {
            let outcome = entry.outcome.clone().unwrap_or_else(|| Err(ended_error()));
            // The waiter is not polled yet, so it has no waker.
            let _ = waiter.notify(&outcome);
            return true;
        }
        if entry.waiters.len() >= PRUNE_WAITERS_FROM && entry.waiters.len().is_power_of_two() {
            entry.waiters.retain(|waiter| waiter.strong_count() > 0);
        }
        entry.waiters.push(Arc::downgrade(waiter));
        false
    }

    /// Returns whether to request an object from the node, and marks it as requested.
    pub(crate) fn mark_requested(&self, object: ObjectId) -> bool {
        let mut objects = self.objects();
        let entry = objects.entry(object);
        !entry.waiters.is_empty() && !std::mem::replace(&mut entry.is_requested, true)
    }

    /// Opens the stream of a generator before its submission.
    pub(crate) fn open_stream(&self, stream: ObjectId, buffer: u32) {
        let buffer = buffer.max(1).into();
        let stream_state = StreamState { buffer, items: VecDeque::new(), taken: 0, reported: 0, waker: None };
        self.objects().streams.insert(stream.0, stream_state);
    }

    /// Closes a stream. Returns the objects to release at the node.
    pub(crate) fn close_stream(&self, stream: ObjectId) -> ReleasedObjects {
        let mut released = Vec::new();
        let mut objects = self.objects();
        let items = objects.streams.remove(&stream.0).map(|stream_state| stream_state.items).unwrap_or_default();
        objects.unreported.retain(|other| *other != stream.0);
        items.into_iter().for_each(|item| objects.release(item, &mut released));
        released
    }

    /// Takes the next item of a stream, and passes the stream's reference to the caller. Returns `None` after the last
    /// item. Also returns whether to report [taken items](Table::unreported) to the node.
    pub(crate) fn poll_item(&self, stream: ObjectId, context: &Context<'_>) -> (Poll<Option<ObjectId>>, bool) {
        let mut objects = self.objects();
        let is_over = objects.has_ended || objects.entries.get(&stream.0).is_some_and(|entry| entry.is_ready);
        let Some(stream_state) = objects.streams.get_mut(&stream.0) else { return (Poll::Ready(None), false) };
        let Some(item) = stream_state.items.pop_front() else {
            if is_over {
                return (Poll::Ready(None), false);
            }
            stream_state.waker = Some(context.waker().clone());
            return (Poll::Pending, true);
        };
        stream_state.taken += 1;
        let unreported = stream_state.taken - stream_state.reported;
        let must_report = unreported >= stream_state.buffer.div_ceil(2);
        if unreported == 1 {
            objects.unreported.push(stream.0);
        }
        (Poll::Ready(Some(item)), must_report)
    }

    /// Returns the streams with unreported taken items and their counts, and marks them as reported.
    pub(crate) fn unreported(&self) -> Vec<(ObjectId, u64)> {
        let mut objects = self.objects();
        let Objects { streams, unreported, .. } = &mut *objects;
        let taken = unreported.drain(..).filter_map(|stream| {
            let stream_state = streams.get_mut(&stream)?;
            stream_state.reported = stream_state.taken;
            Some((ObjectId(stream), stream_state.taken))
        });
        taken.collect()
    }

    /// Adds a delivered object. Returns the objects to release at the node.
    pub(crate) fn add_delivery(&self, object: ObjectId, outcome: Outcome, contains: Vec<ObjectId>) -> ReleasedObjects {
        let mut released = Vec::new();
        self.objects().add_delivery(object, outcome, contains, &mut released);
        released
    }

    /// Adds a delivered item of a stream. Returns the objects to release at the node.
    pub(crate) fn add_item(
        &self,
        stream: ObjectId,
        item: ObjectId,
        outcome: Option<Outcome>,
        contains: Vec<ObjectId>,
    ) -> ReleasedObjects {
        let mut released = Vec::new();
        self.objects().add_item(stream, item, outcome, contains, &mut released);
        released
    }

    /// Wakes the waiters of delivered objects and items.
    pub(crate) fn wake(&self) {
        let woken = std::mem::take(&mut self.objects().woken);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ends the job: all waits end, with an error for unfinished objects.
    pub(crate) fn end(&self) {
        let mut objects = self.objects();
        objects.has_ended = true;
        let all: Vec<Weak<Waiter>> = objects.entries.values_mut().flat_map(|entry| entry.waiters.drain(..)).collect();
        let Objects { streams, woken, .. } = &mut *objects;
        woken.extend(streams.values_mut().filter_map(|stream_state| stream_state.waker.take()));
        drop(objects);
        let error = Err(ended_error());
        all.iter().filter_map(Weak::upgrade).filter_map(|waiter| waiter.notify(&error)).for_each(Waker::wake);
        self.wake();
    }
}

/// Returns the error of objects that are unfinished when their job ends.
fn ended_error() -> Arc<TaskError> {
    Arc::new(TaskError { fault: Fault::new(Code::Cancelled, "its job has ended"), chain: Vec::new() })
}

impl Objects {
    fn entry(&mut self, object: ObjectId) -> &mut Entry {
        self.entries.entry(object.0).or_default()
    }

    fn add_delivery(
        &mut self,
        object: ObjectId,
        outcome: Outcome,
        contains: Vec<ObjectId>,
        released: &mut ReleasedObjects,
    ) {
        for inner in &contains {
            self.entry(*inner).node_refs += 1;
        }
        let entry = self.entry(object);
        entry.is_requested = false;
        let is_first = !std::mem::replace(&mut entry.is_ready, true);
        // Keeps the entry until the release below.
        entry.local_refs += 1;
        let waiters = std::mem::take(&mut entry.waiters);
        if outcome.as_ref().map_or(true, ObjectValue::is_inline) {
            entry.outcome = Some(outcome.clone());
        }
        if is_first {
            entry.contains.clone_from(&contains);
            contains.iter().for_each(|inner| self.entry(*inner).local_refs += 1);
        }
        self.woken.extend(waiters.iter().filter_map(Weak::upgrade).filter_map(|waiter| waiter.notify(&outcome)));
        // A ready stream object means that the stream has ended.
        self.woken.extend(self.streams.get_mut(&object.0).and_then(|stream_state| stream_state.waker.take()));
        self.release(object, released);
    }

    fn add_item(
        &mut self,
        stream: ObjectId,
        item: ObjectId,
        outcome: Option<Outcome>,
        contains: Vec<ObjectId>,
        released: &mut ReleasedObjects,
    ) {
        for inner in &contains {
            let entry = self.entry(*inner);
            entry.node_refs += 1;
            entry.local_refs += 1;
        }
        let entry = self.entry(item);
        entry.node_refs += 1;
        entry.local_refs += 1;
        entry.is_ready = true;
        entry.outcome = outcome.filter(|outcome| outcome.as_ref().map_or(true, ObjectValue::is_inline));
        entry.contains = contains;
        match self.streams.get_mut(&stream.0) {
            Some(stream_state) => {
                stream_state.items.push_back(item);
                self.woken.extend(stream_state.waker.take());
            }
            // The stream is closed.
            None => self.release(item, released),
        }
    }

    fn release(&mut self, object: ObjectId, released: &mut ReleasedObjects) {
        let mut left = vec![object];
        while let Some(object) = left.pop() {
            let Some(entry) = self.entries.get_mut(&object.0) else { continue };
            entry.local_refs = entry.local_refs.saturating_sub(1);
            if entry.local_refs > 0 {
                continue;
            }
            if let Some(entry) = self.entries.remove(&object.0) {
                if entry.node_refs > 0 {
                    released.push((object, entry.node_refs));
                }
                left.extend(entry.contains);
            }
        }
    }
}

/// A waiter for several objects, or for the value of one.
#[derive(Debug)]
pub(crate) struct Waiter {
    takes_value: bool,
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
struct WaiterState {
    missing: usize,
    value: Option<Outcome>,
    waker: Option<Waker>,
}

impl Waiter {
    /// Returns a waiter for `count` objects.
    pub(crate) fn for_objects(count: usize) -> Arc<Waiter> {
        Waiter::new(false, count)
    }

    /// Returns a waiter for the value of one object.
    pub(crate) fn for_value() -> Arc<Waiter> {
        Waiter::new(true, 1)
    }

    fn new(takes_value: bool, missing: usize) -> Arc<Waiter> {
        Arc::new(Waiter { takes_value, state: Mutex::new(WaiterState { missing, value: None, waker: None }) })
    }

    fn state(&self) -> MutexGuard<'_, WaiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more ready object. Returns the waker to call, if the waiter is done.
    fn notify(&self, outcome: &Outcome) -> Option<Waker> {
        let mut state = self.state();
        state.missing = state.missing.saturating_sub(1);
        if self.takes_value && state.value.is_none() {
            state.value = Some(outcome.clone());
        }
        if state.missing == 0 { state.waker.take() } else { None }
    }

    /// Returns whether all objects are ready.
    pub(crate) fn is_done(&self) -> bool {
        self.state().missing == 0
    }

    /// Waits until all objects are ready.
    pub(crate) async fn all(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.missing == 0 {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for the value.
    pub(crate) async fn value(&self) -> Outcome {
        self.all().await;
        self.state().value.take().unwrap_or_else(|| Err(ended_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ObjectId = ObjectId(1);
    const TWO: ObjectId = ObjectId(2);

    fn failed() -> Outcome {
        Err(ended_error())
    }

    fn add_delivery(table: &Table, object: ObjectId, contains: Vec<ObjectId>) -> ReleasedObjects {
        table.add_delivery(object, failed(), contains)
    }

    #[test]
    fn unused_objects_release_all_their_references() {
        let table = Table::default();
        table.add_new(ONE);
        table.hold(ONE);
        // Two waiters can each request the value.
        assert_eq!(add_delivery(&table, ONE, vec![TWO]), []);
        assert_eq!(add_delivery(&table, ONE, vec![TWO]), []);
        assert_eq!(table.release(ONE), []);
        // A handle to an object that the value contains.
        table.hold(TWO);
        assert_eq!(table.release(ONE), [(ONE, 1)]);
        assert_eq!(table.release(TWO), [(TWO, 2)]);
    }

    #[test]
    fn an_object_dropped_before_its_delivery_releases_contained_objects() {
        let table = Table::default();
        table.add_new(ONE);
        assert_eq!(table.release(ONE), [(ONE, 1)]);
        assert_eq!(add_delivery(&table, ONE, vec![TWO]), [(TWO, 1)]);
        assert!(table.objects().entries.is_empty());
    }

    #[test]
    fn waiters_request_a_value_once() {
        let table = Table::default();
        table.add_new(ONE);
        let waiter = Waiter::for_value();
        assert!(!table.watch(ONE, &waiter) && table.mark_requested(ONE) && !table.mark_requested(ONE));
        add_delivery(&table, ONE, Vec::new());
        assert!(waiter.is_done() && table.is_ready(ONE) && !table.mark_requested(ONE));
        assert!(table.watch(ONE, &Waiter::for_objects(1)));
    }

    #[test]
    fn dropped_waiters_are_removed() {
        let table = Table::default();
        table.add_new(ONE);
        (0..10_000).for_each(|_| assert!(!table.watch(ONE, &Waiter::for_value())));
        assert!(table.objects().entry(ONE).waiters.len() <= PRUNE_WAITERS_FROM);
    }

    const STREAM: ObjectId = ObjectId(10);

    fn poll(table: &Table) -> (Poll<Option<ObjectId>>, bool) {
        table.poll_item(STREAM, &Context::from_waker(Waker::noop()))
    }

    fn item(table: &Table, item: ObjectId, contains: Vec<ObjectId>) -> ReleasedObjects {
        table.add_item(STREAM, item, Some(failed()), contains)
    }

    #[test]
    fn taken_items_are_reported_by_half_a_buffer_or_before_a_wait() {
        let table = Table::default();
        table.add_new(STREAM);
        table.open_stream(STREAM, 4);
        assert_eq!(poll(&table), (Poll::Pending, true));
        (1..=4).for_each(|i| assert_eq!(item(&table, ObjectId(i), Vec::new()), []));
        let taken = |i| Poll::Ready(Some(ObjectId(i)));
        assert_eq!((poll(&table), poll(&table)), ((taken(1), false), (taken(2), true)));
        assert_eq!((table.unreported(), table.unreported()), (vec![(STREAM, 2)], vec![]));
        assert_eq!((poll(&table), table.unreported()), ((taken(3), false), vec![(STREAM, 3)]));
        add_delivery(&table, STREAM, Vec::new());
        assert_eq!((poll(&table), poll(&table)), ((taken(4), false), (Poll::Ready(None), false)));
    }

    #[test]
    fn items_that_are_not_taken_are_released() {
        let table = Table::default();
        table.add_new(STREAM);
        table.open_stream(STREAM, 4);
        item(&table, ObjectId(3), Vec::new());
        item(&table, ONE, vec![TWO]);
        assert_eq!(poll(&table), (Poll::Ready(Some(ObjectId(3))), false));
        assert_eq!(table.close_stream(STREAM), [(ONE, 1), (TWO, 1)]);
        assert_eq!(item(&table, ONE, vec![TWO]), [(ONE, 1), (TWO, 1)]);
        assert_eq!(table.release(STREAM), [(STREAM, 1)]);
        // A taken item outlives its stream.
        assert_eq!(table.release(ObjectId(3)), [(ObjectId(3), 1)]);
        assert!(table.objects().entries.is_empty() && table.unreported().is_empty());
    }

    #[test]
    fn the_end_of_a_job_ends_all_waits() {
        let table = Table::default();
        table.add_new(ONE);
        let waiter = Waiter::for_objects(1);
        assert!(!table.watch(ONE, &waiter) && !waiter.is_done());
        table.open_stream(STREAM, 4);
        assert_eq!(poll(&table), (Poll::Pending, true));
        table.end();
        assert!(waiter.is_done() && table.is_ready(TWO));
        assert_eq!(poll(&table), (Poll::Ready(None), false));
        assert_eq!(table.outcome(ONE).unwrap().unwrap_err().fault.code, Code::Cancelled);
    }
}
