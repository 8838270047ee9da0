//! Lending of values' files to workers.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::memory::charge;
use super::{Doing, Fate, Memory, Order, Value, ValueKey, Values};
use crate::Object;
use crate::disk::DiskTask;

/// Maximum number of files that one worker may have at once.
pub(super) const LENT_MAX: usize = 1024;

/// Reply to a worker that asks for a value.
#[derive(Debug)]
pub enum Lending {
    /// The bytes.
    Bytes(Arc<[u8]>),
    /// The value's file, which the worker does not have yet.
    File(Object),
    /// The worker already has the file.
    Same,
    /// The value is being read from disk.
    Later,
    /// The value is lost, for this reason.
    Gone(String),
}

#[derive(Debug)]
pub(super) struct Lent {
    pub(super) worker: WorkerId,
    /// Number of times that the worker was lent the file and did not return it.
    times: u32,
    /// Whether the worker still keeps the file.
    has: bool,
}

impl Values {
    /// Lends a value to a worker.
    pub fn lend(&mut self, key: ValueKey, worker: WorkerId) -> Lending {
        let now = self.tick();
        let Some(value) = self.all.get_mut(&key) else { return Lending::Gone("there is no such value".into()) };
        value.touched = now;
        value.is_asked = false;
        if let Some(Memory::Taken(taken, (writer, number))) = &value.memory {
            self.orders.push(Order::Writer(*writer, *number, Fate::Close));
            value.memory = match taken.seal() {
                Ok(object) => Some(Memory::Object(object)),
                Err(e) => {
                    let message = format!("its file can't be sealed: {e}");
                    self.let_go(key);
                    return Lending::Gone(message);
                }
            };
        }
        match &value.memory {
            Some(Memory::Bytes(bytes)) => Lending::Bytes(bytes.clone()),
            Some(Memory::Object(object)) => {
                let object = object.clone();
                if value.lend(worker) {
                    self.note_lent(worker, key);
                    Lending::File(object)
                } else {
                    Lending::Same
                }
            }
            Some(Memory::Taken(..)) | None => self.restore(key),
        }
    }

    /// Lends a value for a moment to a caller that is not a worker and keeps no file. The store does not wait for its
    /// memory.
    pub fn share(&mut self, key: ValueKey) -> Lending {
        // No worker has this id; its loan is removed at once.
        let lending = self.lend(key, WorkerId(u32::MAX));
        self.forgot(key, WorkerId(u32::MAX));
        self.of_worker.remove(&WorkerId(u32::MAX));
        lending
    }

    /// Starts reading a value from disk, if it is not in memory.
    pub fn restore(&mut self, key: ValueKey) -> Lending {
        let gone = || Lending::Gone("its bytes are neither in memory nor on disk".into());
        let Some(value) = self.all.get_mut(&key) else { return gone() };
        if value.memory.is_some() || value.doing == Doing::Reading {
            return Lending::Later;
        }
        let Some(spilled) = value.disk.clone() else { return gone() };
        value.doing = Doing::Reading;
        // Reserves the memory for the value in advance.
        value.charge = charge(value.bytes);
        self.used += value.charge;
        self.orders.push(Order::Disk(DiskTask::Read(key, spilled)));
        self.make_room();
        Lending::Later
    }

    /// Handles a worker's return of a value's file.
    pub fn forgot(&mut self, key: ValueKey, worker: WorkerId) {
        let Some(value) = self.all.get_mut(&key) else { return };
        let Some(at) = value.lent.iter().position(|lent| lent.worker == worker) else { return };
        value.lent[at].times = value.lent[at].times.saturating_sub(1);
        if value.lent[at].times == 0 {
            value.lent.swap_remove(at);
        }
        self.came_back(key);
        self.make_room();
    }

    /// Removes a dead worker, with all files that it was lent and all memory that it wrote.
    pub fn lose_worker(&mut self, worker: WorkerId) {
        let mut back = Vec::new();
        for (key, value) in &mut self.all {
            let before = value.lent.len();
            value.lent.retain(|lent| lent.worker != worker);
            if value.lent.len() < before {
                back.push(*key);
            }
            if let Some(Memory::Taken(taken, (writer, _))) = &value.memory
                && *writer == worker
                && let Ok(object) = taken.seal()
            {
                value.memory = Some(Memory::Object(object));
            }
        }
        back.sort_unstable();
        back.into_iter().for_each(|key| self.came_back(key));
        self.used -= self.warm.iter().filter(|warm| warm.writer == worker).map(|warm| warm.charge).sum::<u64>();
        self.warm.retain(|warm| warm.writer != worker);
        self.of_worker.remove(&worker);
    }

    /// Records a new loan to a worker. Recalls the worker's oldest file if it has more than [`LENT_MAX`].
    fn note_lent(&mut self, worker: WorkerId, key: ValueKey) {
        let lent = self.of_worker.entry(worker).or_default();
        lent.push_back(key);
        if lent.len() > LENT_MAX
            && let Some(first) = lent.pop_front()
            && let Some(value) = self.all.get_mut(&first)
            && let Some(lent) = value.lent.iter_mut().find(|lent| lent.worker == worker && lent.has)
        {
            lent.has = false;
            self.orders.push(Order::Forget(worker, first));
        }
    }

    /// Handles the return of a value's file.
    fn came_back(&mut self, key: ValueKey) {
        self.stuck_at = None;
        if let Some(value) = self.all.get_mut(&key)
            && value.lent.is_empty()
        {
            value.is_asked = false;
            if value.is_dropped {
                self.end_dropped(key);
            }
        }
    }
}

impl Value {
    /// Lends the value to a worker. Returns whether the worker needs the file.
    fn lend(&mut self, worker: WorkerId) -> bool {
        match self.lent.iter_mut().find(|lent| lent.worker == worker) {
            Some(lent) if lent.has => false,
            Some(lent) => {
                (lent.times, lent.has) = (lent.times + 1, true);
                true
            }
            None => {
                self.lent.push(Lent { worker, times: 1, has: true });
                true
            }
        }
    }
}

/// Recalls a value's file from all workers.
pub(super) fn ask_back(key: ValueKey, value: &mut Value, orders: &mut Vec<Order>) {
    value.is_asked = true;
    for lent in value.lent.iter_mut().filter(|lent| lent.has) {
        lent.has = false;
        orders.push(Order::Forget(lent.worker, key));
    }
}
