//! Streams of a worker: items that its generators have yielded, and items that its tasks have received.
//!
//! Items are forwarded as they are yielded, whether or not a task waits for them; the stream's buffer bounds their
//! number. The worker reports taken items to the node by half a buffer, or when their consumer waits for anything.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::program::objects::Waiter;

/// Maximum number of items of one stream.
pub(super) const ITEMS_MAX: u64 = 1 << 32;

/// Yielded items of a generator.
#[derive(Debug)]
pub(in crate::program) struct GeneratorStream {
    buffer: u64,
    yielded: u64,
    taken: u64,
    /// Whether the generator waits for credit.
    is_held: bool,
}

impl GeneratorStream {
    pub(in crate::program) fn new(buffer: u32) -> GeneratorStream {
        GeneratorStream { buffer: buffer.max(1).into(), yielded: 0, taken: 0, is_held: false }
    }

    fn has_room(&self) -> bool {
        self.yielded < self.taken.saturating_add(self.buffer)
    }

    /// Counts an item. Returns its index, or `None` if there are too many.
    pub(super) fn add_item(&mut self) -> Option<u64> {
        let index = self.yielded;
        (index < ITEMS_MAX).then(|| {
            self.yielded += 1;
            index
        })
    }

    /// Returns whether the generator must wait for credit.
    pub(super) fn must_wait(&mut self) -> bool {
        self.is_held = !self.has_room();
        self.is_held
    }

    /// Sets the number of items that were taken. Returns whether the generator has waited for that.
    pub(super) fn credit(&mut self, taken: u64) -> bool {
        self.taken = self.taken.max(taken);
        let is_released = self.is_held && self.has_room();
        self.is_held &= !is_released;
        is_released
    }
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
    /// The task that waits for the next item.
    waiter: Option<Waiter>,
}

impl ReceivedStream {
    pub(super) fn has_items(&self) -> bool {
        !self.items.is_empty()
    }

    /// Takes the next item.
    pub(super) fn take_item(&mut self) -> Option<u64> {
        let item = self.items.pop_front()?;
        self.taken += 1;
        Some(item)
    }

    pub(super) fn set_waiter(&mut self, waiter: Option<Waiter>) {
        self.waiter = waiter;
    }
}

/// Streams that tasks of this worker hold.
#[derive(Debug, Default)]
pub(super) struct ReceivedStreams {
    all: FxHashMap<u64, ReceivedStream>,
    /// Streams with taken items that the worker has not reported to the node.
    unreported: Vec<u64>,
}

impl ReceivedStreams {
    /// Adds a stream of a job with a buffer of that many items.
    pub(super) fn open(&mut self, stream: u64, job: u32, buffer: u32) {
        let (buffer, items) = (buffer.max(1).into(), VecDeque::new());
        self.all.insert(stream, ReceivedStream { job, buffer, items, taken: 0, reported: 0, waiter: None });
    }

    /// Returns a stream of a job. Those of other jobs are not there.
    pub(super) fn get_mut(&mut self, job: u32, stream: u64) -> Option<&mut ReceivedStream> {
        self.all.get_mut(&stream).filter(|flow| flow.job == job)
    }

    /// Adds an item. Returns the task that waits for it, if any; `None` if the stream does not exist any more.
    pub(super) fn receive(&mut self, stream: u64, item: u64) -> Option<Option<Waiter>> {
        let flow = self.all.get_mut(&stream)?;
        flow.items.push_back(item);
        Some(flow.waiter.take())
    }

    /// Decides whether the items taken from a stream are reported now. Returns their number if they are.
    pub(super) fn report_in_time(&mut self, stream: u64) -> Option<u64> {
        let flow = self.all.get_mut(&stream)?;
        let unreported = flow.taken - flow.reported;
        if unreported >= flow.buffer.div_ceil(2) {
            self.unreported.retain(|other| *other != stream);
            flow.reported = flow.taken;
            return Some(flow.taken);
        }
        if unreported == 1 {
            self.unreported.push(stream);
        }
        None
    }

    /// Returns a stream with unreported items, and the number of items taken from it, which is then reported.
    pub(super) fn next_unreported(&mut self) -> Option<(u64, u64)> {
        while let Some(stream) = self.unreported.pop() {
            if let Some(flow) = self.all.get_mut(&stream) {
                flow.reported = flow.taken;
                return Some((stream, flow.taken));
            }
        }
        None
    }

    /// Removes a stream that nothing in this worker holds any longer. Returns its job, and the items that were held
    /// for it.
    pub(super) fn close(&mut self, stream: u64) -> Option<(u32, VecDeque<u64>)> {
        // The common case: no streams.
        if self.all.is_empty() {
            return None;
        }
        self.all.remove(&stream).map(|flow| (flow.job, flow.items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs of a tenant share workers, and their tasks may name any number.
    #[test]
    fn a_stream_is_of_its_job() {
        let mut streams = ReceivedStreams::default();
        streams.open(7, 1, 4);
        let is_there = [(1, 7), (2, 7), (1, 8)].map(|(job, stream)| streams.get_mut(job, stream).is_some());
        assert_eq!(is_there, [true, false, false]);
    }
}
