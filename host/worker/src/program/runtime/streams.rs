//! Streams: items that generators of this worker yield, and items that its tasks receive.
//!
//! Items are forwarded as they are yielded, whether or not a task waits for them; the stream's buffer bounds their
//! number. The worker reports taken items to the node by half a buffer, or when their consumer waits for anything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Code, ObjectId};
use sandbar_sandbox::{NextItem, Refusal};

use super::memory::no_memory;
use super::objects::check_contained;
use super::{OutputValue, WaitState, WorkerRuntime, task_gone};
use crate::program::messages::{SentValue, WorkerMessage};
use crate::program::objects::{LocalValue, ObjectKey, TaskSlot};

/// Maximum number of items of one stream.
const ITEMS_MAX: u64 = 1 << 32;

/// Yielded items of a generator.
#[derive(Debug)]
pub(in crate::program) struct GeneratorStream {
    buffer: u64,
    yielded: u64,
    taken: u64,
    /// Whether the generator waits for credit.
    is_held: bool,
}

/// Received items of a stream.
#[derive(Debug)]
pub(super) struct ReceivedStream {
    job: u32,
    buffer: u64,
    /// Items that were not taken, which are held for the stream.
    items: VecDeque<u64>,
    taken: u64,
    /// Number of taken items reported to the node.
    reported: u64,
    /// The task that waits for the next item: slot and task number.
    waiter: Option<(TaskSlot, u64)>,
}

impl GeneratorStream {
    pub(in crate::program) fn new(buffer: u32) -> GeneratorStream {
        GeneratorStream { buffer: buffer.max(1).into(), yielded: 0, taken: 0, is_held: false }
    }

    fn has_room(&self) -> bool {
        self.yielded < self.taken.saturating_add(self.buffer)
    }
}

impl ReceivedStream {
    pub(super) fn new(job: u32, buffer: u32) -> ReceivedStream {
        ReceivedStream {
            job,
            buffer: buffer.max(1).into(),
            items: VecDeque::new(),
            taken: 0,
            reported: 0,
            waiter: None,
        }
    }
}

impl WorkerRuntime {
    pub(super) fn yielded(&mut self, slot: TaskSlot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        check_contained(contained)?;
        let own = self.task(slot).ok_or_else(task_gone)?;
        let Some(flow) = &mut own.generator else {
            return Err(Refusal::bad_request("it yields an item, but is not a generator"));
        };
        if flow.yielded == ITEMS_MAX {
            let message = format!("it yields more than {ITEMS_MAX} items");
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        let index = flow.yielded;
        flow.yielded += 1;
        let (task, attempt) = (own.id, own.attempt);
        let kept = self.store_value(parts)?;
        let object = self.take_ids(1)?;
        let value = match &kept {
            OutputValue::Inline(bytes) => SentValue::Inline(bytes),
            OutputValue::File(file) => {
                // Files are sent before the message that refers to them.
                self.send_file(file).map_err(no_memory)?;
                file.named()
            }
        };
        self.send(&WorkerMessage::Yield { task, attempt, index, object, value, refs: contained.to_vec() });
        self.publish_in_time();
        Ok(())
    }

    pub(super) fn poll_yielded(&mut self, slot: TaskSlot) -> Poll<Result<(), Refusal>> {
        let Some(flow) = self.task(slot).and_then(|own| own.generator.as_mut()) else {
            return Poll::Ready(Err(task_gone()));
        };
        flow.is_held = !flow.has_room();
        if flow.is_held { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Sets the number of a generator's items that were taken.
    pub(in crate::program) fn credit(&mut self, slot: TaskSlot, taken: u64) {
        let Some(flow) = self.task(slot).and_then(|own| own.generator.as_mut()) else { return };
        flow.taken = flow.taken.max(taken);
        if flow.is_held && flow.has_room() {
            flow.is_held = false;
            self.woken.push(slot);
        }
    }

    /// Stores the next item of a stream, if the stream still exists.
    pub(in crate::program) fn receive_item(
        &mut self,
        stream: u64,
        key: ObjectKey,
        value: Option<Arc<LocalValue>>,
        contains: Vec<u64>,
    ) {
        self.objects.created(key);
        self.objects.set_contained(key, contains, true);
        self.objects.entry(key).value = value;
        let Some(flow) = self.streams.get_mut(&stream) else { return self.release_needed(key) };
        flow.items.push_back(key.1);
        let waiter = flow.waiter.take();
        if let Some((slot, id)) = waiter
            && self.task(slot).is_some_and(|own| own.id == id && own.waiting.is_some())
        {
            self.woken.push(slot);
        }
    }

    pub(super) fn begin_item(&mut self, slot: TaskSlot, stream: u64, nanos: Option<u64>) -> Result<(), Refusal> {
        let own = self.task(slot).ok_or_else(task_gone)?;
        let (id, job, is_held) = (own.id, own.job, own.holds.contains(&stream));
        let Some(flow) = self.streams.get_mut(&stream).filter(|_| is_held) else {
            return Err(Refusal::bad_request(format!("object {stream} is not a stream that it holds")));
        };
        if !flow.items.is_empty() || self.objects.is_there((job, stream), false) {
            return Ok(());
        }
        flow.waiter = Some((slot, id));
        let entry = self.objects.entry((job, stream));
        if entry.waiters.last() != Some(&(slot, id)) {
            entry.waiters.push((slot, id));
        }
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        self.note_deadline(deadline);
        if let Some(own) = self.task(slot) {
            own.waiting = Some(WaitState { objects: vec![stream], count: 1, is_get: false, missing: 1, deadline });
        }
        Ok(())
    }

    pub(super) fn poll_item(&mut self, slot: TaskSlot, stream: u64) -> Poll<Result<NextItem, Refusal>> {
        let Some(own) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return Poll::Ready(Err(task_gone())) };
        let Some(flow) = self.streams.get_mut(&stream) else { return Poll::Ready(Err(task_gone())) };
        let key = (own.job, stream);
        let following = match flow.items.pop_front() {
            Some(item) => {
                flow.taken += 1;
                if !own.holds.insert(item) {
                    // The task already held the item.
                    self.objects.release((own.job, item));
                }
                NextItem::Item(ObjectId(item))
            }
            None if self.objects.is_there(key, false) => NextItem::Ended,
            None => match own.waiting.as_ref().and_then(|waiting| waiting.deadline) {
                Some(deadline) if deadline <= Instant::now() => NextItem::TimeOut,
                _ => {
                    flow.waiter = Some((slot, own.id));
                    return Poll::Pending;
                }
            },
        };
        flow.waiter = None;
        if own.waiting.take().is_some() {
            let waiter = (slot, own.id);
            self.objects.entry(key).waiters.retain(|other| *other != waiter);
        }
        if let NextItem::Item(_) = following {
            self.item_taken(stream);
        }
        Poll::Ready(Ok(following))
    }

    fn item_taken(&mut self, stream: u64) {
        let Some(flow) = self.streams.get(&stream) else { return };
        let unreported = flow.taken - flow.reported;
        if unreported >= flow.buffer.div_ceil(2) {
            self.unreported_streams.retain(|other| *other != stream);
            self.report_taken_of(stream);
            self.publish_in_time();
        } else if unreported == 1 {
            self.unreported_streams.push(stream);
        }
    }

    /// Tells the node of all taken items: their consumer waits, possibly for a result that depends on them.
    pub(in crate::program) fn report_taken(&mut self) {
        while let Some(stream) = self.unreported_streams.pop() {
            self.report_taken_of(stream);
        }
    }

    fn report_taken_of(&mut self, stream: u64) {
        let Some(flow) = self.streams.get_mut(&stream) else { return };
        flow.reported = flow.taken;
        let taken = flow.taken;
        self.send(&WorkerMessage::ItemsTaken(stream, taken));
    }

    /// Drops the received items of an object that is a stream and that nothing in this worker holds any longer.
    pub(super) fn close_stream(&mut self, object: u64) {
        // The common case: no streams.
        if !self.streams.is_empty()
            && let Some(ReceivedStream { job, items, .. }) = self.streams.remove(&object)
        {
            items.into_iter().for_each(|item| self.objects.release((job, item)));
        }
    }
}
