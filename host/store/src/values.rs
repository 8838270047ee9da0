//! Which values there are, where each lies, and what goes to disk when they are more than memory is to hold.
//!
//! Values are bytes in this process's memory, sealed files, or files that nobody but their writer has had. Files are
//! lent to workers, each once: a worker keeps what it was lent until it is told to forget it, and says when no task of
//! it has it in use any more. Until then its memory is not free, whatever is done here, and counts.
//!
//! Above four fifths of what memory may hold, values go to disk until three fifths and a half are left: the biggest and
//! coldest first, a file full at once, but for what workers have in use. What comes back stays on disk as well, so that
//! it can go again for nothing. This decides, and does nothing by itself: what is to be done are [`Order`]s.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{Code, Fault, JobId, ObjectId, WorkerId};

use crate::disk::{DiskDone, DiskTask};
use crate::spill::{Restored, Source, Spilled};
use crate::{Object, Taken};

/// Values go to disk in pieces of so many bytes, or of one that is larger.
const BATCH_BYTES: u64 = 64 << 20;
/// Files that one worker may have been lent at once.
const LENT_MAX: usize = 1024;
const PAGE_BYTES: u64 = 4096;

/// A value. No two have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueKey(pub u64);

/// What values may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Bytes of memory.
    pub memory_bytes_max: u64,
    /// Files that are open at once.
    pub files_max: usize,
    /// Bytes of one job, in memory and on disk.
    pub job_bytes_max: u64,
}

/// Where a value lies that is in memory.
#[derive(Debug)]
pub enum Memory {
    /// In this process's own.
    Bytes(Arc<[u8]>),
    /// In a sealed file.
    Object(Object),
    /// In a file that its writer could still write to: which worker, and its number for this memory.
    Taken(Taken, (WorkerId, u32)),
}

/// What is to be done.
#[derive(Debug)]
pub enum Order {
    /// Tell a worker to forget a value's file.
    Forget(WorkerId, ValueKey),
    /// Tell a writer what becomes of its memory of this number.
    Writer(WorkerId, u32, Fate),
    /// Something with the disk.
    Disk(DiskTask),
}

/// What becomes of memory that a worker wrote a value to.
#[derive(Debug)]
pub enum Fate {
    /// Nobody else had it: it may be written again.
    Reuse,
    /// It is to be taken back and [forgotten](Taken::forget), unless it is being written again.
    Trim(Taken),
    /// It is to be given up.
    Close,
}

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

/// Where values are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUse {
    /// In memory, and what is kept for the next values.
    pub memory_bytes: u64,
    /// On disk, those that are in memory as well among them.
    pub disk_bytes: u64,
    /// Values.
    pub values: usize,
    /// What was ever written to disk, and read from it.
    pub spilled_bytes: u64,
    /// As above.
    pub restored_bytes: u64,
}

/// A value, as it can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueView {
    /// Whose value it is.
    pub object: ObjectId,
    /// And of which job.
    pub job: JobId,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether it is in memory.
    pub in_memory: bool,
    /// Whether it is on disk.
    pub on_disk: bool,
    /// Workers that have its file.
    pub lent: Vec<WorkerId>,
}

#[derive(Debug)]
struct Value {
    job: JobId,
    object: ObjectId,
    bytes: u64,
    /// What it counts for in memory.
    charge: u64,
    memory: Option<Memory>,
    disk: Option<Arc<Spilled>>,
    doing: Doing,
    /// When it was last asked for.
    touched: u64,
    lent: Vec<Lent>,
    /// Who has it was told to forget it.
    is_asked: bool,
    /// Nobody needs it any more.
    is_dropped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Writing,
    Reading,
}

#[derive(Debug)]
struct Warm {
    writer: WorkerId,
    number: u32,
    charge: u64,
    memory: Taken,
}

#[derive(Debug)]
struct Lent {
    worker: WorkerId,
    /// How often it was lent the file and did not give it back.
    times: u32,
    /// Whether it still keeps it.
    has: bool,
}

/// All values of a node.
#[derive(Debug)]
pub struct Values {
    limits: StoreLimits,
    all: FxHashMap<ValueKey, Value>,
    next: u64,
    clock: u64,
    used: u64,
    on_disk: u64,
    spilled: u64,
    restored: u64,
    /// Those that have memory, and how many of these are files.
    resident: FxHashSet<ValueKey>,
    files: usize,
    of_job: FxHashMap<JobId, u64>,
    of_worker: FxHashMap<WorkerId, VecDeque<ValueKey>>,
    /// Memory that waits to be written again.
    warm: VecDeque<Warm>,
    /// Some are being written.
    is_writing: bool,
    /// There is too much, and there was since it was more than four fifths.
    is_draining: bool,
    /// Nothing can be done before this is more than so much.
    stuck_at: Option<u64>,
    full: Option<Fault>,
    orders: Vec<Order>,
}

impl Values {
    /// None.
    pub fn new(limits: StoreLimits) -> Values {
        Values {
            limits,
            all: FxHashMap::default(),
            next: 0,
            clock: 0,
            used: 0,
            on_disk: 0,
            spilled: 0,
            restored: 0,
            resident: FxHashSet::default(),
            files: 0,
            of_job: FxHashMap::default(),
            of_worker: FxHashMap::default(),
            warm: VecDeque::new(),
            is_writing: false,
            is_draining: false,
            stuck_at: None,
            full: None,
            orders: Vec::new(),
        }
    }

    /// What is to be done since this was asked last.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Takes the value of an object in.
    ///
    /// # Errors
    /// [`Code::StoreFull`] when it is larger than memory may be, or its job has too much. Its memory is let go of then.
    pub fn add(&mut self, job: JobId, object: ObjectId, memory: Memory) -> Result<ValueKey, Fault> {
        let bytes = memory.bytes();
        let of_job = self.of_job.get(&job).copied().unwrap_or(0).saturating_add(bytes);
        let refused = if bytes > self.limits.memory_bytes_max {
            let max = self.limits.memory_bytes_max;
            Some(format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory (--object-memory)"))
        } else if of_job > self.limits.job_bytes_max {
            Some(format!("its job would have {of_job} bytes of objects, the limit is {}", self.limits.job_bytes_max))
        } else {
            None
        };
        if let Memory::Taken(_, (worker, number)) = &memory {
            self.take_warm(*worker, *number);
        }
        if let Some(message) = refused {
            if let Memory::Taken(_, (worker, number)) = memory {
                self.orders.push(Order::Writer(worker, number, Fate::Close));
            }
            return Err(Fault::new(Code::StoreFull, message));
        }
        self.of_job.insert(job, of_job);
        let key = ValueKey(self.next);
        self.next += 1;
        let charge = memory.charge();
        self.used += charge;
        self.resident.insert(key);
        self.files += usize::from(memory.is_file());
        let value = Value {
            job,
            object,
            bytes,
            charge,
            memory: Some(memory),
            disk: None,
            doing: Doing::Nothing,
            touched: self.tick(),
            lent: Vec::new(),
            is_asked: false,
            is_dropped: false,
        };
        self.all.insert(key, value);
        self.make_room();
        Ok(key)
    }

    /// Nobody needs a value any more.
    pub fn drop_value(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        if std::mem::replace(&mut value.is_dropped, true) {
            return;
        }
        ask_back(key, value, &mut self.orders);
        let (job, bytes) = (value.job, value.bytes);
        if let Some(of_job) = self.of_job.get_mut(&job) {
            *of_job -= bytes;
            if *of_job == 0 {
                self.of_job.remove(&job);
            }
        }
        self.end_dropped(key);
        self.stuck_at = None;
    }

    /// Lends a value to a worker that asks for it.
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

    /// Takes in what a disk has done. Gives the value that was read, or why it can't be.
    pub fn disk_done(&mut self, done: DiskDone) -> Option<(ValueKey, Result<(), String>)> {
        let read = match done {
            DiskDone::Written(keys, result) => {
                self.written(keys, result);
                None
            }
            DiskDone::Read(key, result) => Some((key, self.read(key, result))),
        };
        self.make_room();
        read
    }

    fn written(&mut self, keys: Vec<ValueKey>, result: Result<Vec<Spilled>, Fault>) {
        self.is_writing = false;
        let mut spilled = match result {
            Ok(spilled) => {
                self.full = None;
                spilled
            }
            Err(fault) => {
                self.full = Some(fault);
                Vec::new()
            }
        }
        .into_iter();
        for key in keys {
            let spilled = spilled.next().map(Arc::new);
            let Some(value) = self.all.get_mut(&key) else { continue };
            value.doing = Doing::Nothing;
            let bytes = spilled.as_ref().map_or(0, |_| value.bytes);
            (self.on_disk, self.spilled) = (self.on_disk + bytes, self.spilled + bytes);
            value.disk = spilled;
            if value.is_dropped {
                self.end_dropped(key);
            } else if value.disk.is_some() && value.lent.is_empty() {
                self.let_go(key);
            }
        }
    }

    fn read(&mut self, key: ValueKey, result: io::Result<Restored>) -> Result<(), String> {
        let Some(value) = self.all.get_mut(&key) else { return Ok(()) };
        value.doing = Doing::Nothing;
        let error = match result {
            Ok(restored) => {
                let memory = match restored {
                    Restored::Bytes(bytes) => Memory::Bytes(bytes),
                    Restored::Object(object) => Memory::Object(object),
                };
                self.resident.insert(key);
                self.files += usize::from(memory.is_file());
                self.restored += value.bytes;
                value.memory = Some(memory);
                None
            }
            Err(e) => {
                self.used -= std::mem::take(&mut value.charge);
                Some(e.to_string())
            }
        };
        if value.is_dropped {
            self.end_dropped(key);
        }
        error.map_or(Ok(()), Err)
    }

    /// Whether there is more in memory than may be, and this value is some of it.
    pub fn is_over(&self, key: ValueKey) -> bool {
        self.used > self.limits.memory_bytes_max && self.resident.contains(&key)
    }

    /// Why nothing more can go to disk, if it could not when that was tried last.
    pub fn full(&self) -> Option<&Fault> {
        self.full.as_ref().filter(|_| !self.is_writing)
    }

    /// Tries again what the disk had no room for.
    pub fn try_again(&mut self) {
        self.full = None;
        self.stuck_at = None;
        self.make_room();
    }

    /// The bytes of a value, at most so many. Waits for the disk.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn bytes(&self, key: ValueKey, max: u64) -> io::Result<Vec<u8>> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let value = self.all.get(&key).ok_or_else(missing)?;
        if value.bytes > max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {} bytes", value.bytes)));
        }
        let of_object =
            |object: &Object| Ok(crate::Mapping::sealed(std::os::fd::AsFd::as_fd(object), value.bytes)?.to_vec());
        match &value.memory {
            Some(Memory::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(Memory::Object(object)) => of_object(object),
            Some(Memory::Taken(taken, _)) => of_object(&taken.seal()?),
            None => match value.disk.as_ref().ok_or_else(missing)?.read()? {
                Restored::Bytes(bytes) => Ok(bytes.to_vec()),
                Restored::Object(object) => of_object(&object),
            },
        }
    }

    /// What all of them take.
    pub fn usage(&self) -> StoreUse {
        StoreUse {
            memory_bytes: self.used,
            disk_bytes: self.on_disk,
            values: self.all.len(),
            spilled_bytes: self.spilled,
            restored_bytes: self.restored,
        }
    }

    /// One of them.
    pub fn view(&self, key: ValueKey) -> Option<ValueView> {
        let value = self.all.get(&key)?;
        Some(ValueView {
            object: value.object,
            job: value.job,
            bytes: value.bytes,
            in_memory: value.memory.is_some(),
            on_disk: value.disk.is_some(),
            lent: value.lent.iter().map(|lent| lent.worker).collect(),
        })
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
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

    /// Gives up the memory of a value that nobody has.
    fn let_go(&mut self, key: ValueKey) {
        let Some(value) = self.all.get_mut(&key) else { return };
        self.used -= std::mem::take(&mut value.charge);
        self.resident.remove(&key);
        let memory = value.memory.take();
        self.files -= usize::from(memory.as_ref().is_some_and(Memory::is_file));
        if let Some(Memory::Taken(taken, (writer, number))) = memory {
            // Its writer has the file, too, and may compute on for a while.
            let _ = taken.forget();
            self.orders.push(Order::Writer(writer, number, Fate::Close));
        }
    }

    /// Forgets a value that nobody needs and nobody has.
    fn end_dropped(&mut self, key: ValueKey) {
        let is_left = |value: &Value| value.is_dropped && value.lent.is_empty() && value.doing == Doing::Nothing;
        if !self.all.get(&key).is_some_and(is_left) {
            return;
        }
        self.keep_warm(key);
        self.let_go(key);
        if let Some(spilled) = self.all.remove(&key).and_then(|value| value.disk) {
            self.on_disk -= spilled.bytes();
            self.orders.push(Order::Disk(DiskTask::Free(spilled)));
        }
    }

    /// Memory that only its writer had is its to write again, if there is enough.
    fn keep_warm(&mut self, key: ValueKey) {
        let high = self.high();
        let warm: u64 = self.warm.iter().map(|warm| warm.charge).sum();
        let Some(value) = self.all.get_mut(&key) else { return };
        let is_little = self.used <= high && warm + value.charge <= self.limits.memory_bytes_max / 4;
        if !is_little {
            return;
        }
        if let Some(Memory::Taken(memory, (writer, number))) =
            value.memory.take_if(|memory| matches!(memory, Memory::Taken(..)))
        {
            self.files -= 1;
            self.warm.push_back(Warm { writer, number, charge: std::mem::take(&mut value.charge), memory });
            self.orders.push(Order::Writer(writer, number, Fate::Reuse));
        }
    }

    /// A worker has written again to memory that waited for that.
    fn take_warm(&mut self, worker: WorkerId, number: u32) {
        if let Some(at) = self.warm.iter().position(|warm| (warm.writer, warm.number) == (worker, number))
            && let Some(warm) = self.warm.remove(at)
        {
            self.used -= warm.charge;
        }
    }

    fn high(&self) -> u64 {
        self.limits.memory_bytes_max / 5 * 4
    }

    fn low(&self) -> u64 {
        self.limits.memory_bytes_max / 10 * 7
    }

    /// Sees to it that there is room.
    fn make_room(&mut self) {
        let files = self.files;
        let (files_high, files_low) = (self.limits.files_max / 5 * 4, self.limits.files_max / 10 * 7);
        self.is_draining |= self.used > self.high() || files > files_high;
        self.is_draining &= self.used > self.low() || files > files_low;
        if !self.is_draining || self.is_writing || self.stuck_at.is_some_and(|at| self.used < at) {
            return;
        }
        while self.used > self.low()
            && let Some(Warm { writer, number, charge, memory }) = self.warm.pop_front()
        {
            self.used -= charge;
            self.orders.push(Order::Writer(writer, number, Fate::Trim(memory)));
        }
        let bytes = self.used.saturating_sub(self.low());
        if !self.choose(bytes, files.saturating_sub(files_low)) {
            self.stuck_at = Some(self.used + self.limits.memory_bytes_max / 32);
        }
    }

    /// Chooses values of so many bytes or as many as this, the biggest and coldest first. Says whether there are any.
    fn choose(&mut self, mut bytes: u64, mut files: usize) -> bool {
        let now = self.clock + 1;
        let rank = |key: &ValueKey| {
            let value = &self.all[key];
            let is_free =
                value.doing == Doing::Nothing && !value.is_dropped && (!value.is_asked || value.lent.is_empty());
            let score = u128::from(value.charge) * u128::from(now - value.touched);
            is_free.then_some((score, *key))
        };
        let mut ranked: Vec<(u128, ValueKey)> = self.resident.iter().filter_map(rank).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let (mut batch, mut batch_bytes, mut found) = (Vec::new(), 0, false);
        for (_, key) in ranked {
            if bytes == 0 && files == 0 {
                break;
            }
            let Some(value) = self.all.get_mut(&key) else { continue };
            let charge = value.charge;
            if !value.lent.is_empty() {
                ask_back(key, value, &mut self.orders);
            } else if value.disk.is_some() {
                self.let_go(key);
            } else if self.full.is_none() && (batch.is_empty() || batch_bytes + value.bytes <= BATCH_BYTES) {
                batch_bytes += value.bytes;
                value.doing = Doing::Writing;
                batch.extend(value.source().map(|source| (key, source)));
            } else {
                continue;
            }
            found = true;
            (bytes, files) = (bytes.saturating_sub(charge), files.saturating_sub(1));
        }
        if !batch.is_empty() {
            self.is_writing = true;
            self.orders.push(Order::Disk(DiskTask::Write(batch)));
        }
        found
    }
}

/// Has everybody let go of a value's file.
fn ask_back(key: ValueKey, value: &mut Value, orders: &mut Vec<Order>) {
    value.is_asked = true;
    for lent in value.lent.iter_mut().filter(|lent| lent.has) {
        lent.has = false;
        orders.push(Order::Forget(lent.worker, key));
    }
}

fn charge(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
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

    fn source(&self) -> Option<Source> {
        Some(match self.memory.as_ref()? {
            Memory::Bytes(bytes) => Source::Bytes(bytes.clone()),
            Memory::Object(object) => Source::Object(object.clone()),
            Memory::Taken(taken, _) => Source::Taken(taken.clone()),
        })
    }
}

impl Memory {
    fn bytes(&self) -> u64 {
        match self {
            Memory::Bytes(bytes) => bytes.len() as u64,
            Memory::Object(object) => object.bytes(),
            Memory::Taken(taken, _) => taken.bytes(),
        }
    }

    fn charge(&self) -> u64 {
        charge(self.bytes())
    }

    fn is_file(&self) -> bool {
        !matches!(self, Memory::Bytes(_))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::{SpillFolder, Unsealed};

    const MIB: u64 = 1 << 20;

    /// Values, with a disk that does at once what it is asked to.
    struct World {
        values: Values,
        folder: SpillFolder,
        _kept: tempfile::TempDir,
        /// What was ordered, but for the disk.
        said: Vec<String>,
        /// Values that could not be read.
        lost: Vec<ValueKey>,
    }

    impl World {
        fn new(memory: u64, reserve: u64) -> World {
            let kept = tempfile::tempdir().unwrap();
            let folder = SpillFolder::new(kept.path().to_owned(), Some(reserve));
            let limits = StoreLimits { memory_bytes_max: memory, files_max: 100, job_bytes_max: 1 << 40 };
            World { values: Values::new(limits), folder, _kept: kept, said: Vec::new(), lost: Vec::new() }
        }

        fn settle(&mut self) -> &mut World {
            loop {
                let orders = self.values.orders();
                if orders.is_empty() {
                    return self;
                }
                for order in orders {
                    match order {
                        Order::Forget(worker, key) => self.said.push(format!("forget w{worker} v{}", key.0)),
                        Order::Writer(worker, number, fate) => {
                            let fate = format!("{fate:?}");
                            let word = fate.split('(').next().unwrap_or_default();
                            self.said.push(format!("{word} w{worker} m{number}"));
                        }
                        Order::Disk(DiskTask::Write(all)) => {
                            let (keys, sources): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                            let written = self.folder.write(&sources);
                            assert!(self.values.disk_done(DiskDone::Written(keys, written)).is_none());
                        }
                        Order::Disk(DiskTask::Read(key, spilled)) => {
                            if let Some((key, Err(_))) = self.values.disk_done(DiskDone::Read(key, spilled.read())) {
                                self.lost.push(key);
                            }
                        }
                        Order::Disk(DiskTask::Free(_)) => {}
                    }
                }
            }
        }

        fn says(&mut self, expected: &str) -> &mut World {
            self.settle();
            assert_eq!(std::mem::take(&mut self.said).join(", "), expected);
            self
        }

        fn add(&mut self, memory: Memory) -> ValueKey {
            let key = self.values.add(JobId(1), ObjectId(1), memory).unwrap();
            self.settle();
            key
        }

        fn object(&mut self, mib: u64) -> ValueKey {
            self.add(Memory::Object(Object::new(&vec![mib as u8; (mib * MIB) as usize]).unwrap()))
        }

        fn taken(&mut self, mib: u64, writer: u32, number: u32) -> ValueKey {
            let unsealed = Unsealed::new((mib * MIB) as usize).unwrap();
            let file = unsealed.as_fd().try_clone_to_owned().unwrap();
            self.add(Memory::Taken(Taken::of(file, mib * MIB).unwrap(), (WorkerId(writer), number)))
        }

        fn lend(&mut self, key: ValueKey, worker: u32) -> &'static str {
            let lending = self.values.lend(key, WorkerId(worker));
            self.settle();
            match lending {
                Lending::Bytes(_) => "bytes",
                Lending::File(_) => "file",
                Lending::Same => "same",
                Lending::Later => "later",
                Lending::Gone(_) => "gone",
            }
        }

        /// Which are in memory and which are on disk.
        fn places(&self, keys: &[ValueKey]) -> String {
            let place = |key: &ValueKey| match self.values.view(*key).map(|view| (view.in_memory, view.on_disk)) {
                Some((true, false)) => 'm',
                Some((false, true)) => 'd',
                Some((true, true)) => 'b',
                _ => '-',
            };
            keys.iter().map(place).collect()
        }

        fn used(&self) -> u64 {
            self.values.usage().memory_bytes / MIB
        }
    }

    #[test]
    fn the_biggest_and_coldest_go_first() {
        let mut world = World::new(100 * MIB, 0);
        let all = [world.object(10), world.object(40), world.object(10), world.object(15)];
        assert_eq!((world.places(&all), world.used()), ("mmmm".into(), 75));
        let last = world.object(10);
        assert_eq!((world.places(&all), world.places(&[last]), world.used()), ("mdmm".into(), "m".into(), 45));
        // What comes back stays on disk, and goes again for nothing.
        assert_eq!((world.lend(all[1], 1), world.places(&all)), ("later", "dbmd".into()));
        assert_eq!((world.lend(all[1], 1), world.lend(all[1], 1), world.lend(all[1], 2)), ("file", "same", "file"));
    }

    #[test]
    fn what_workers_have_is_asked_back_and_counts_until_then() {
        let mut world = World::new(100 * MIB, 0);
        let first = world.object(60);
        assert_eq!((world.lend(first, 1), world.lend(first, 2)), ("file", "file"));
        let second = world.object(30);
        world.says("forget w1 v0, forget w2 v0");
        assert_eq!((world.places(&[first, second]), world.used()), ("mm".into(), 90));
        // As long as one of them has it in use, others go.
        world.values.forgot(first, WorkerId(1));
        world.says("");
        assert_eq!((world.places(&[first, second]), world.used()), ("md".into(), 60));
        world.values.lose_worker(WorkerId(2));
        let third = world.object(30);
        assert_eq!((world.places(&[first, second, third]), world.used()), ("ddm".into(), 30));
        // As one that nobody needs any more.
        assert_eq!((world.lend(third, 1), world.used()), ("file", 30));
        world.values.drop_value(third);
        world.says("forget w1 v2");
        assert_eq!(world.used(), 30);
        world.values.forgot(third, WorkerId(1));
        assert_eq!((world.places(&[third]), world.used()), ("-".into(), 0));
    }

    #[test]
    fn what_only_its_writer_had_is_written_again() {
        let mut world = World::new(100 * MIB, 0);
        let first = world.taken(20, 1, 7);
        world.values.drop_value(first);
        world.says("Reuse w1 m7");
        assert_eq!(world.used(), 20);
        let again = world.taken(20, 1, 7);
        assert_eq!(world.used(), 20);
        assert_eq!(world.lend(again, 1), "file");
        world.says("Close w1 m7");
        world.values.drop_value(again);
        world.says("forget w1 v1");
        // What waits is given up before anything goes to disk.
        let waits = world.taken(20, 2, 8);
        world.values.drop_value(waits);
        world.says("Reuse w2 m8");
        let large = world.object(50);
        world.says("Trim w2 m8");
        assert_eq!((world.places(&[large]), world.used()), ("m".into(), 70));
    }

    #[test]
    fn what_only_its_writer_had_goes_to_disk_with_the_writers_memory() {
        let mut world = World::new(100 * MIB, 0);
        let (cold, warm) = (world.taken(60, 2, 9), world.object(30));
        world.says("Close w2 m9");
        assert_eq!((world.places(&[cold, warm]), world.used()), ("dm".into(), 30));
        assert_eq!((world.lend(cold, 1), world.lend(cold, 1)), ("later", "file"));
    }

    #[test]
    fn a_disk_that_is_full_is_said_and_tried_again() {
        let mut world = World::new(100 * MIB, u64::MAX / 2);
        let (first, second) = (world.object(60), world.object(50));
        assert!(world.values.is_over(second) && world.values.is_over(first));
        assert_eq!(world.values.full().map(|fault| fault.code), Some(Code::StoreFull));
        world.values.try_again();
        world.settle();
        assert!(world.values.full().is_some());
        world.values.drop_value(second);
        world.settle();
        assert!(!world.values.is_over(first));
        assert_eq!((world.places(&[first, second]), world.used()), ("m-".into(), 60));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let mut world = World::new(MIB, 0);
        let mut refused = |bytes: u64| {
            let memory = Memory::Bytes(vec![0; bytes as usize].into());
            world.values.add(JobId(1), ObjectId(1), memory).map_err(|fault| fault.code).err()
        };
        assert_eq!(refused(MIB + 1), Some(Code::StoreFull));
        assert_eq!(refused(1000), None);
        world.values.limits.job_bytes_max = 1500;
        let of =
            |world: &mut World, job| world.values.add(JobId(job), ObjectId(1), Memory::Bytes([0; 600].into())).is_ok();
        assert_eq!((of(&mut world, 1), of(&mut world, 2)), (false, true));
        world.values.drop_value(ValueKey(0));
        assert!(of(&mut world, 1));
    }

    #[test]
    fn files_are_few_enough() {
        let mut world = World::new(1000 * MIB, 0);
        let all: Vec<ValueKey> = (0..300).map(|_| world.add(Memory::Object(Object::new(&[1; 10]).unwrap()))).collect();
        let in_memory = world.places(&all).matches('m').count();
        assert!((50..=80).contains(&in_memory), "{in_memory}");
        assert_eq!(world.values.files, in_memory);
        all.iter().for_each(|key| assert_eq!(world.values.bytes(*key, 100).unwrap(), [1; 10]));
        all.iter().for_each(|key| world.values.drop_value(*key));
        world.settle();
        let StoreUse { memory_bytes, disk_bytes, values, .. } = world.values.usage();
        assert_eq!((memory_bytes, disk_bytes, values, world.values.files), (0, 0, 0, 0));
    }

    #[test]
    fn a_worker_has_only_so_many_files() {
        let mut world = World::new(1000 * MIB, 0);
        world.values.limits.files_max = 10_000;
        let lent = |world: &mut World| {
            let key = world.add(Memory::Object(Object::new(&[1; 10]).unwrap()));
            world.lend(key, 1)
        };
        (0..LENT_MAX).for_each(|_| assert_eq!(lent(&mut world), "file"));
        world.says("");
        lent(&mut world);
        world.says("forget w1 v0");
    }

    #[test]
    fn what_can_t_be_read_is_lost() {
        let mut world = World::new(100 * MIB, 0);
        let (first, _) = (world.object(60), world.object(30));
        assert_eq!(world.places(&[first]), "d");
        let unreadable = || Err(io::Error::other("no"));
        assert!(matches!(world.values.lend(first, WorkerId(1)), Lending::Later));
        world.values.orders();
        let (key, result) = world.values.disk_done(DiskDone::Read(first, unreadable())).unwrap();
        assert_eq!((key, result), (first, Err("no".into())));
        assert_eq!(world.used(), 30);
    }
}
