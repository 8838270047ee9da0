//! Items of streams: yielded by generators of this worker, or taken by its tasks.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Code, ObjectId};
use sandbar_sandbox::{NextItem, Refusal};

use super::WorkerRuntime;
use super::context::WaitState;
use super::limits::check_contained;
use super::memory::no_memory;
use super::streams::ITEMS_MAX;
use super::tasks::task_ended;
use crate::program::messages::WorkerMessage;
use crate::program::objects::{LocalValue, ObjectKey, TaskSlot, Waiter};

impl WorkerRuntime {
    pub(super) fn yielded(&mut self, slot: TaskSlot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        check_contained(contained)?;
        let own = self.tasks.require(slot)?;
        let (task, attempt) = (own.id, own.attempt);
        let Some(flow) = &mut own.generator else {
            return Err(Refusal::bad_request("it yields an item, but is not a generator"));
        };
        let too_many =
            || Refusal { code: Code::OutputLimit, message: format!("it yields more than {ITEMS_MAX} items") };
        let index = flow.add_item().ok_or_else(too_many)?;
        let value = self.store_value(parts)?;
        let object = self.take_ids(1)?;
        let value = self.send_value(&value).map_err(no_memory)?;
        self.node.send(&WorkerMessage::Yield { task, attempt, index, object, value, refs: contained.to_vec() });
        self.node.publish_in_time();
        Ok(())
    }

    pub(super) fn poll_yielded(&mut self, slot: TaskSlot) -> Poll<Result<(), Refusal>> {
        let Some(flow) = self.tasks.get_mut(slot).and_then(|own| own.generator.as_mut()) else {
            return Poll::Ready(Err(task_ended()));
        };
        if flow.must_wait() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Sets the number of a generator's items that were taken.
    pub(in crate::program) fn credit(&mut self, slot: TaskSlot, taken: u64) {
        let Some(flow) = self.tasks.get_mut(slot).and_then(|own| own.generator.as_mut()) else { return };
        if flow.credit(taken) {
            self.tasks.wake(slot);
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
        match self.streams.receive(stream, key.object) {
            None => self.release_needed(key),
            Some(Some(Waiter { slot, task })) => {
                if self.tasks.get(slot).is_some_and(|own| own.id == task && own.waiting.is_some()) {
                    self.tasks.wake(slot);
                }
            }
            Some(None) => {}
        }
    }

    pub(super) fn begin_item(&mut self, slot: TaskSlot, stream: u64, nanos: Option<u64>) -> Result<(), Refusal> {
        let own = self.tasks.require(slot)?;
        let (id, job, is_held) = (own.id, own.job, own.holds.contains(&stream));
        let Some(flow) = self.streams.get_mut(job, stream).filter(|_| is_held) else {
            return Err(Refusal::bad_request(format!("object {stream} is not a stream that it holds")));
        };
        if flow.has_items() || self.objects.is_there(ObjectKey::new(job, stream), false) {
            return Ok(());
        }
        let waiter = Waiter { slot, task: id };
        flow.set_waiter(Some(waiter));
        self.objects.entry(ObjectKey::new(job, stream)).add_waiter(waiter);
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        let objects = vec![stream];
        self.tasks.begin_wait(slot, WaitState { objects, count: 1, is_get: false, missing: 1, deadline });
        Ok(())
    }

    pub(super) fn poll_item(&mut self, slot: TaskSlot, stream: u64) -> Poll<Result<NextItem, Refusal>> {
        let Some(own) = self.tasks.get_mut(slot) else { return Poll::Ready(Err(task_ended())) };
        let Some(flow) = self.streams.get_mut(own.job, stream) else { return Poll::Ready(Err(task_ended())) };
        let key = ObjectKey::new(own.job, stream);
        let following = match flow.take_item() {
            Some(item) => {
                if !own.holds.insert(item) {
                    // The task already held the item.
                    self.objects.release(ObjectKey::new(own.job, item));
                }
                NextItem::Item(ObjectId(item))
            }
            None if self.objects.is_there(key, false) => NextItem::Ended,
            None => match own.waiting.as_ref().and_then(|waiting| waiting.deadline) {
                Some(deadline) if deadline <= Instant::now() => NextItem::TimeOut,
                _ => {
                    flow.set_waiter(Some(Waiter { slot, task: own.id }));
                    return Poll::Pending;
                }
            },
        };
        flow.set_waiter(None);
        if own.waiting.take().is_some() {
            let waiter = Waiter { slot, task: own.id };
            self.objects.entry(key).waiters.retain(|other| *other != waiter);
        }
        if let NextItem::Item(_) = following
            && let Some(taken) = self.streams.report_in_time(stream)
        {
            self.node.send(&WorkerMessage::ItemsTaken(stream, taken));
            self.node.publish_in_time();
        }
        Poll::Ready(Ok(following))
    }

    /// Tells the node of all taken items: their consumer waits, possibly for a result that depends on them.
    pub(in crate::program) fn report_taken(&mut self) {
        while let Some((stream, taken)) = self.streams.next_unreported() {
            self.node.send(&WorkerMessage::ItemsTaken(stream, taken));
        }
    }
}
