//! Which worker has which value's file.

use std::sync::Arc;

use sandbar_core::WorkerId;

use super::memory::charge;
use super::{Doing, Fate, Memory, Order, Value, ValueKey, Values};
use crate::Object;
use crate::disk::DiskTask;

/// Files that one worker may have been lent at once.
pub(super) const LENT_MAX: usize = 1024;

/// What a worker gets that asks for a value.
#[derive(Debug)]
pub enum Lending {
    /// The bytes.
    Bytes(Arc<[u8]>),
    /// A file with so many bytes, which it has not got yet.
    File(Object),
    /// It has the file.
    Same,
    /// Nothing yet: it is on its way from disk.
    Later,
    /// Nothing any more.
    Gone(String),
}

#[derive(Debug)]
pub(super) struct Lent {
    pub(super) worker: WorkerId,
    /// How often it was lent the file and did not give it back.
    times: u32,
    /// Whether it still keeps it.
    has: bool,
}

impl Values {
    /// Lends a value to a worker that asks for it.
    pub fn lend(&mut self, key: ValueKey, worker: WorkerId) -> Lending {
        let now = self.tick();
        let Some(value) = self.all.get_mut(&key) else { return Lending::Gone("there is no such value".into()) };
        value.touched = now;
        value.is_asked = false;
        if let Some(Memory::Taken(taken, (writer, number))) = &value.memory {
            self.orders.push(Order::Writer(*writer, *number, Fate::Close));
            value.memory = match taken.seal_or_copy() {
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

    /// Lends a value for a moment to somebody who is no worker, and keeps no file: its memory is not waited for.
    pub fn share(&mut self, key: ValueKey) -> Lending {
        // Nobody is that worker: that it has the file is forgotten at once.
        let lending = self.lend(key, WorkerId(u32::MAX));
        self.forgot(key, WorkerId(u32::MAX));
        self.of_worker.remove(&WorkerId(u32::MAX));
        lending
    }

    /// Has a value come back from disk, if it is not in memory.
    pub fn restore(&mut self, key: ValueKey) -> Lending {
        let gone = || Lending::Gone("its bytes are neither in memory nor on disk".into());
        let Some(value) = self.all.get_mut(&key) else { return gone() };
        if value.memory.is_some() || value.doing == Doing::Reading {
            return Lending::Later;
        }
        let Some(spilled) = value.disk.clone() else { return gone() };
        value.doing = Doing::Reading;
        // There is to be room by then.
        value.charge = charge(value.bytes);
        self.used += value.charge;
        self.orders.push(Order::Disk(DiskTask::Read(key, spilled)));
        self.make_room();
        Lending::Later
    }

    /// A worker has let go of a value's file.
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

    /// A worker is gone, with all that it was lent and all memory that it wrote to.
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

    /// A worker has one file more. The first that it got goes, if these are too many.
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

    /// Somebody has let go of a value's file.
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
    /// Lends it to a worker. Says whether that did not have it.
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

/// Has everybody let go of a value's file.
pub(super) fn ask_back(key: ValueKey, value: &mut Value, orders: &mut Vec<Order>) {
    value.is_asked = true;
    for lent in value.lent.iter_mut().filter(|lent| lent.has) {
        lent.has = false;
        orders.push(Order::Forget(lent.worker, key));
    }
}
