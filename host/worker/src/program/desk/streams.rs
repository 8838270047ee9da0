//! Streams: what generators here have yielded, and the items that came for tasks here.
//!
//! Items are sent on as they come, whether somebody waits for them or not: a stream's buffer bounds how many. What was taken
//! the node hears of when that is half of a buffer, or when who takes them waits for whatever it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Code, ObjectId};
use sandbar_sandbox::{Following, Refusal};

use super::memory::no_memory;
use super::objects::check_contained;
use super::{Desk, Returned, Waiting, gone};
use crate::program::messages::{Up, ValueUp};
use crate::program::objects::{Key, Slot, Value};

/// Items of one stream.
const ITEMS_MAX: u64 = 1 << 32;

/// What a generator has yielded.
#[derive(Debug)]
pub(in crate::program) struct Outflow {
    buffer: u64,
    yielded: u64,
    taken: u64,
    /// It waits until more is taken.
    is_held: bool,
}

/// What has come of a stream.
#[derive(Debug)]
pub(super) struct Inflow {
    job: u32,
    buffer: u64,
    /// Items that were not taken, which are held here for the stream.
    items: VecDeque<u64>,
    taken: u64,
    /// How many were taken, as the node knows.
    told: u64,
    /// Who waits for the next: where it is, and which.
    waiter: Option<(Slot, u64)>,
}

impl Outflow {
    pub(in crate::program) fn new(buffer: u32) -> Outflow {
        Outflow { buffer: buffer.max(1).into(), yielded: 0, taken: 0, is_held: false }
    }

    fn has_room(&self) -> bool {
        self.yielded < self.taken.saturating_add(self.buffer)
    }
}

impl Inflow {
    pub(super) fn new(job: u32, buffer: u32) -> Inflow {
        Inflow { job, buffer: buffer.max(1).into(), items: VecDeque::new(), taken: 0, told: 0, waiter: None }
    }
}

impl Desk {
    pub(super) fn yielded(&mut self, slot: Slot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        check_contained(contained)?;
        let own = self.task(slot).ok_or_else(gone)?;
        let Some(flow) = &mut own.generator else {
            return Err(Refusal::bad_request("it yields an item, and is no generator"));
        };
        if flow.yielded == ITEMS_MAX {
            let message = format!("it yields more than {ITEMS_MAX} items");
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        let index = flow.yielded;
        flow.yielded += 1;
        let (task, attempt) = (own.id, own.attempt);
        let kept = self.keep(parts)?;
        let object = self.take_ids(1)?;
        let value = match &kept {
            Returned::Inline(bytes) => ValueUp::Inline(bytes),
            Returned::File(file) => {
                // Before the message that names it.
                self.send_file(file).map_err(no_memory)?;
                file.named()
            }
        };
        self.say(&Up::Yield { task, attempt, index, object, value, refs: contained.to_vec() });
        self.publish_in_time();
        Ok(())
    }

    pub(super) fn poll_yielded(&mut self, slot: Slot) -> Poll<Result<(), Refusal>> {
        let Some(flow) = self.task(slot).and_then(|own| own.generator.as_mut()) else {
            return Poll::Ready(Err(gone()));
        };
        flow.is_held = !flow.has_room();
        if flow.is_held { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// So many items of a generator were taken.
    pub(in crate::program) fn credit(&mut self, slot: Slot, taken: u64) {
        let Some(flow) = self.task(slot).and_then(|own| own.generator.as_mut()) else { return };
        flow.taken = flow.taken.max(taken);
        if flow.is_held && flow.has_room() {
            flow.is_held = false;
            self.woken.push(slot);
        }
    }

    /// The next item of a stream has come. It is held for the stream, if that is still wanted.
    pub(in crate::program) fn item_came(
        &mut self,
        stream: u64,
        key: Key,
        value: Option<Arc<Value>>,
        contains: Vec<u64>,
    ) {
        self.objects.made(key);
        self.objects.contains(key, contains, true);
        self.objects.entry(key).value = value;
        let Some(flow) = self.streams.get_mut(&stream) else { return self.unneeded(key) };
        flow.items.push_back(key.1);
        let waiter = flow.waiter.take();
        if let Some((slot, id)) = waiter
            && self.task(slot).is_some_and(|own| own.id == id && own.waiting.is_some())
        {
            self.woken.push(slot);
        }
    }

    pub(super) fn begin_item(&mut self, slot: Slot, stream: u64, nanos: Option<u64>) -> Result<(), Refusal> {
        let own = self.task(slot).ok_or_else(gone)?;
        let (id, job, is_held) = (own.id, own.job, own.holds.contains(&stream));
        let Some(flow) = self.streams.get_mut(&stream).filter(|_| is_held) else {
            return Err(Refusal::bad_request(format!("object {stream} is no stream of its own")));
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
        self.until(deadline);
        if let Some(own) = self.task(slot) {
            own.waiting = Some(Waiting { objects: vec![stream], count: 1, is_get: false, missing: 1, deadline });
        }
        Ok(())
    }

    pub(super) fn poll_item(&mut self, slot: Slot, stream: u64) -> Poll<Result<Following, Refusal>> {
        let Some(own) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return Poll::Ready(Err(gone())) };
        let Some(flow) = self.streams.get_mut(&stream) else { return Poll::Ready(Err(gone())) };
        let key = (own.job, stream);
        let following = match flow.items.pop_front() {
            Some(item) => {
                flow.taken += 1;
                if !own.holds.insert(item) {
                    // It held that before it had it.
                    self.objects.release((own.job, item));
                }
                Following::Item(ObjectId(item))
            }
            None if self.objects.is_there(key, false) => Following::Ended,
            None => match own.waiting.as_ref().and_then(|waiting| waiting.deadline) {
                Some(deadline) if deadline <= Instant::now() => Following::TimeOut,
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
        if let Following::Item(_) = following {
            self.took_one(stream);
        }
        Poll::Ready(Ok(following))
    }

    fn took_one(&mut self, stream: u64) {
        let Some(flow) = self.streams.get(&stream) else { return };
        let untold = flow.taken - flow.told;
        if untold >= flow.buffer.div_ceil(2) {
            self.untold.retain(|other| *other != stream);
            self.tell_taken_of(stream);
            self.publish_in_time();
        } else if untold == 1 {
            self.untold.push(stream);
        }
    }

    /// Tells the node all that was taken: who took it waits, perhaps for what comes of that.
    pub(in crate::program) fn tell_taken(&mut self) {
        while let Some(stream) = self.untold.pop() {
            self.tell_taken_of(stream);
        }
    }

    fn tell_taken_of(&mut self, stream: u64) {
        let Some(flow) = self.streams.get_mut(&stream) else { return };
        flow.told = flow.taken;
        let taken = flow.taken;
        self.say(&Up::Took(stream, taken));
    }

    /// Nobody here has an object any more: if it is a stream, nobody will take what has come of it.
    pub(super) fn close_stream(&mut self, object: u64) {
        // Mostly there are none.
        if !self.streams.is_empty()
            && let Some(Inflow { job, items, .. }) = self.streams.remove(&object)
        {
            items.into_iter().for_each(|item| self.objects.release((job, item)));
        }
    }
}
