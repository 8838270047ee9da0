//! What programs were given, as objects: read when a task opens it, by a thread of its own, a few at a time, and no more
//! while what was read finds no room.

use std::collections::VecDeque;
use std::io;

use sandbar_core::{Code, Fault, ObjectId, TaskId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{ValueKey, ValueMemory};
use sandbar_worker::program::Doorbell;

use super::store::is_kept;
use super::{State, Stored};
use crate::files::{Content, unknown};
use crate::reader::{Read, Reader, Wanted};

/// What is being read at once: so many, and so many bytes, or one that is larger.
const AHEAD_MAX: usize = 64;
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// What was opened.
pub(super) struct Opened {
    reader: Reader,
    waiting: VecDeque<Wanted>,
    reading: usize,
    reading_bytes: u64,
    /// A value that was read, and for which there is no room yet.
    over: Option<(ObjectId, ValueKey)>,
}

impl Opened {
    pub(super) fn start(bytes_max: u64, doorbell: Doorbell) -> io::Result<Opened> {
        let reader = Reader::start(bytes_max, move || doorbell.ring())?;
        Ok(Opened { reader, waiting: VecDeque::new(), reading: 0, reading_bytes: 0, over: None })
    }

    /// Whether something was read that can be taken in.
    pub(super) fn has_some(&self) -> bool {
        self.over.is_none() && self.reader.has_some()
    }
}

impl State {
    /// A task opens what its job was given under this number.
    pub(super) fn open(&mut self, worker: WorkerId, object: ObjectId, task: TaskId, number: u64) {
        self.step(Event::Promised { object, task, worker });
        let Some(job) = self.sched.job_of_object(object).filter(|_| self.sched.is_promise_referenced(object)) else {
            return;
        };
        let given = self.jobs.get(&job).map(|job| job.given.clone());
        match given.filter(|given| given.bytes(number).is_some()) {
            Some(given) => {
                self.opened.waiting.push_back(Wanted { object, job, given, number });
                self.read_files();
            }
            None => self.step(Event::Fulfilled { object, value: Err(unknown(number)) }),
        }
    }

    /// Takes in what was read. Says whether it was anything.
    pub(super) fn hear_files(&mut self) -> bool {
        let mut heard = false;
        while self.find_room() {
            let Some(Read { wanted, content }) = self.opened.reader.next_read() else { break };
            heard = true;
            self.opened.reading -= 1;
            self.opened.reading_bytes -= size(&wanted);
            let object = wanted.object;
            match content.and_then(|content| self.take_in_file(&wanted, content)) {
                Ok(Stored::Kept(key, _)) if self.store.values.exceeds_limit(key) => {
                    self.opened.over = Some((object, key));
                    self.store.values.retry_spill();
                }
                value => self.step(Event::Fulfilled { object, value }),
            }
        }
        self.read_files();
        heard
    }

    fn take_in_file(&mut self, wanted: &Wanted, content: Content) -> Result<Stored, Fault> {
        let memory = match content {
            Content::Bytes(bytes) if !is_kept(&bytes) => return Ok(Stored::Inline(bytes.into())),
            Content::Bytes(bytes) => ValueMemory::Bytes(bytes.into()),
            Content::Object(object) => ValueMemory::Sealed(object),
        };
        self.store.values.add(wanted.job, wanted.object, memory).map(|key| self.kept(key))
    }

    /// Whether what was read last has found room, or will find none.
    fn find_room(&mut self) -> bool {
        let Some((object, key)) = self.opened.over else { return true };
        let value = match self.store.values.full().cloned() {
            _ if !self.store.values.exceeds_limit(key) => Ok(self.kept(key)),
            Some(full) => {
                self.store.values.drop_value(key);
                Err(full)
            }
            None => return false,
        };
        self.opened.over = None;
        self.step(Event::Fulfilled { object, value });
        true
    }

    /// Has as much read as may be at once, of what somebody still wants.
    fn read_files(&mut self) {
        while self.opened.over.is_none() && self.opened.reading < AHEAD_MAX {
            let Some(next) = self.opened.waiting.front() else { break };
            let (object, bytes) = (next.object, size(next));
            if self.opened.reading > 0 && self.opened.reading_bytes.saturating_add(bytes) > AHEAD_BYTES_MAX {
                break;
            }
            let Some(next) = self.opened.waiting.pop_front() else { break };
            if !self.sched.is_promise_referenced(object) {
                let fault = Fault::new(Code::Cancelled, "nobody wants it any more");
                self.step(Event::Fulfilled { object, value: Err(fault) });
                continue;
            }
            self.opened.reading += 1;
            self.opened.reading_bytes += bytes;
            self.opened.reader.ask(next);
        }
    }
}

fn size(wanted: &Wanted) -> u64 {
    wanted.given.bytes(wanted.number).unwrap_or(0)
}
