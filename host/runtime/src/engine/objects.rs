//! The values of objects: taken in, lent, brought back from disk.
//!
//! What comes over the quota goes to disk by a thread of its own; a worker whose values find no room is not heard until
//! they have, or the disk is full: then they are errors. Who wants what is on disk is told once it is back.

use std::io;
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use rustix::process::{Resource, getrlimit};
use sandbar_core::{Code, Fault, JobId, ObjectId, TaskId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{
    Disk, LendResult, SpillFolder, StoreAction, StoreLimits, UnsealedValue, ValueKey, ValueMemory, ValueStore,
    WriterAction,
};
use sandbar_worker::program::{Delivery, Doorbell, NodeMessage, ReturnedValues, SentValue, SubmitTask, WorkerMessage};

use super::act::hand_over;
use super::{State, Stored};

/// Values in messages that are shorter stay where their objects are: they take less than to keep a record of them.
const KEPT_BYTES_MIN: usize = 4 << 10;
/// Open files that are left for all else.
const OTHER_FILES: u64 = 1000;
/// Open files, where nothing bounds them.
const FILES_MAX: u64 = 1 << 20;

/// How values are kept.
#[derive(Debug, Clone)]
pub(crate) struct StoreOptions {
    /// Memory for them, in bytes.
    pub(crate) memory_bytes_max: u64,
    /// Bytes of one job, in memory and on disk.
    pub(crate) job_bytes_max: u64,
    /// The folder of those that go to disk.
    pub(crate) folder: PathBuf,
    /// Bytes of that disk that are left free; a usual share of it otherwise.
    pub(crate) reserve_bytes: Option<u64>,
}

/// The values, their disk, and who waits for it.
pub(super) struct Store {
    pub(super) values: ValueStore,
    disk: Disk,
    /// Who is to be told once a value is back.
    awaited: FxHashMap<ValueKey, Vec<Awaited>>,
    /// Workers that are not heard for now.
    held: Vec<WorkerId>,
}

#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) worker: WorkerId,
    job: JobId,
    object: ObjectId,
    contains: Vec<u64>,
}

/// What a message brings.
pub(super) enum Arrived {
    /// Is taken in, or is why it can't be.
    All,
    /// Is more than there is room for now.
    TooMany,
}

/// Whether a value in a message is kept by the store.
pub(super) fn is_kept(bytes: &[u8]) -> bool {
    bytes.len() >= KEPT_BYTES_MIN
}

impl Store {
    pub(super) fn start(options: &StoreOptions, doorbell: Doorbell) -> io::Result<Store> {
        let files = getrlimit(Resource::Nofile).maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
        let limits = StoreLimits {
            memory_bytes_max: options.memory_bytes_max,
            files_max: files.saturating_sub(OTHER_FILES).max(files / 2) as usize,
            job_bytes_max: options.job_bytes_max,
        };
        let folder = SpillFolder::new(options.folder.clone(), options.reserve_bytes);
        let disk = Disk::start(folder, move || doorbell.ring())?;
        Ok(Store { values: ValueStore::new(limits), disk, awaited: FxHashMap::default(), held: Vec::new() })
    }

    pub(super) fn lose_worker(&mut self, worker: WorkerId) {
        self.values.remove_worker(worker);
        self.awaited.values_mut().for_each(|all| all.retain(|awaited| awaited.worker != worker));
        self.held.retain(|held| *held != worker);
    }
}

impl State {
    /// Takes in the values that come with a message.
    pub(super) fn take_in(&mut self, worker: WorkerId, message: &WorkerMessage<'_>) -> io::Result<Arrived> {
        match message {
            WorkerMessage::Put { object, task, value, .. } => {
                let job = self.sched.job_of(TaskId(*task));
                self.arrive(worker, job, ObjectId(*object), value)?;
            }
            WorkerMessage::Yield { task, object, value, .. } => {
                let job = self.sched.job_of(TaskId(*task));
                self.arrive(worker, job, ObjectId(*object), value)?;
            }
            WorkerMessage::Finished { task, returned: Ok(returned), .. } => {
                let job = self.sched.job_of(TaskId(*task));
                self.arrive_all(worker, job, TaskId(*task), returned)?;
            }
            WorkerMessage::FinishedInline {
                submit: SubmitTask { task, parent, .. }, returned: Ok(returned), ..
            } => {
                let job = self.sched.job_of(TaskId(*parent));
                self.arrive_all(worker, job, TaskId(*task), returned)?;
            }
            _ => return Ok(Arrived::All),
        }
        Ok(if self.is_over(worker) { Arrived::TooMany } else { Arrived::All })
    }

    fn arrive_all(
        &mut self,
        worker: WorkerId,
        job: Option<JobId>,
        task: TaskId,
        values: &ReturnedValues<'_>,
    ) -> io::Result<()> {
        let objects = (task.0..).map(ObjectId);
        objects.zip(values).try_for_each(|(object, (value, _))| self.arrive(worker, job, object, value))
    }

    fn arrive(
        &mut self,
        worker: WorkerId,
        job: Option<JobId>,
        object: ObjectId,
        value: &SentValue<'_>,
    ) -> io::Result<()> {
        let Some(member) = self.members.get_mut(&worker) else { return Ok(()) };
        let memory = match value {
            SentValue::Inline(bytes) if !is_kept(bytes) => return Ok(()),
            SentValue::Inline(bytes) => Ok(ValueMemory::Bytes((*bytes).into())),
            SentValue::File(bytes, None) => member.link.next_object(*bytes).map(ValueMemory::Sealed),
            SentValue::File(bytes, Some(number)) => {
                let file = member.link.as_process().ok_or(io::ErrorKind::InvalidData)?.next_file();
                file.and_then(|file| Ok(ValueMemory::Unsealed(UnsealedValue::of(file, *bytes)?, (worker, *number))))
            }
        };
        let memory = match memory {
            Ok(memory) => memory,
            // This process has too many files: its worker is not to blame, and the value is lost.
            Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
                member.arrived.push_back(Err(Fault::new(Code::StoreFull, format!("the node has no room for it: {e}"))));
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        // Of a task that is gone: it is dropped at once.
        let job = job.unwrap_or(JobId(0));
        let added = self.store.values.add(job, object, memory);
        member.arrived.push_back(added);
        Ok(())
    }

    /// Whether there is no room for what has come from a worker last.
    fn is_over(&self, worker: WorkerId) -> bool {
        let Some(member) = self.members.get(&worker) else { return false };
        member.arrived.iter().flatten().any(|key| self.store.values.exceeds_limit(*key))
    }

    /// A message waits until there is room for what comes with it.
    pub(super) fn hold(&mut self, worker: WorkerId, frame: Vec<u8>) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.held = Some(frame);
            self.store.held.push(worker);
            self.store.values.retry_spill();
            self.carry_out();
        }
    }

    /// Hears those again for whose values there is room now, or will be none.
    fn release_held(&mut self) {
        for worker in std::mem::take(&mut self.store.held) {
            let full = self.store.values.full().cloned();
            if self.is_over(worker) && full.is_none() {
                self.store.held.push(worker);
                continue;
            }
            let Some(member) = self.members.get_mut(&worker) else { continue };
            for arrived in &mut member.arrived {
                if let (Ok(key), Some(full)) = (&arrived, &full)
                    && self.store.values.exceeds_limit(*key)
                {
                    self.store.values.drop_value(*key);
                    *arrived = Err(full.clone());
                }
            }
            if let Some(frame) = member.held.take() {
                self.listen(worker, &frame, false);
            }
        }
    }

    /// A value that the store has.
    pub(super) fn kept(&self, key: ValueKey) -> Stored {
        Stored::Kept(key, self.store.values.view(key).map_or(0, |view| view.bytes))
    }

    /// Nobody needs a value any more.
    pub(super) fn discard(&mut self, value: &Stored) {
        match value {
            Stored::Inline(_) => {}
            Stored::Kept(key, _) => self.store.values.drop_value(*key),
            Stored::Away(key) => self.discard_away(*key),
        }
    }

    /// Does what the store wants done.
    pub(super) fn carry_out(&mut self) {
        for action in self.store.values.take_actions() {
            match action {
                StoreAction::Forget(worker, key) => self.tell(worker, &NodeMessage::ReleaseFile(key.0)),
                StoreAction::Writer(worker, number, fate) => self.decide(worker, number, fate),
                StoreAction::Disk(task) => self.store.disk.submit(task),
            }
        }
    }

    pub(super) fn tell(&mut self, worker: WorkerId, message: &NodeMessage<'_>) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.link.tell(message);
        }
    }

    /// What becomes of memory that a worker wrote a value to.
    fn decide(&mut self, worker: WorkerId, number: u32, fate: WriterAction) {
        let Some(process) = self.members.get_mut(&worker).and_then(|member| member.link.as_process()) else { return };
        match fate {
            WriterAction::Reuse => process.mark_memory_free(number),
            // The worker writes to it already.
            WriterAction::Trim(_) if !process.reclaim_memory(number) => {}
            WriterAction::Trim(memory) => {
                let _ = memory.discard();
                process.send(&NodeMessage::DropMemory(number));
            }
            WriterAction::Close => process.send(&NodeMessage::DropMemory(number)),
        }
    }

    /// Takes in what the disk has done. Says whether it was anything.
    pub(super) fn hear_disk(&mut self) -> bool {
        let mut heard = false;
        while let Some(done) = self.store.disk.next_completion() {
            heard = true;
            if let Some((key, read)) = self.store.values.handle_disk_completion(done) {
                let awaited = self.store.awaited.remove(&key).unwrap_or_default();
                self.share_restored(key, &read);
                match read {
                    Ok(()) => awaited.into_iter().for_each(|awaited| self.hand(key, awaited)),
                    Err(_) => self.lose_value(key, awaited),
                }
            }
            self.carry_out();
        }
        while let Some(event) = self.events.pop_front() {
            self.step(event);
        }
        if !self.store.held.is_empty() {
            self.release_held();
        }
        heard
    }

    /// Tells a worker of an object that a task of a job wanted there.
    pub(super) fn deliver(&mut self, worker: WorkerId, object: ObjectId, job: JobId) {
        let contains: Vec<u64> = self.sched.contained_objects(object).map(|object| object.0).collect();
        let Some(member) = self.members.get_mut(&worker) else { return };
        let mut tell = |value, contains| {
            member.link.tell(&NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: true });
        };
        match self.sched.value(object) {
            Some(Ok(Stored::Inline(bytes))) => tell(Delivery::Value(bytes), contains),
            Some(Ok(Stored::Kept(key, _))) => {
                let key = *key;
                self.hand(key, Awaited { worker, job, object, contains });
            }
            Some(Ok(Stored::Away(key))) => {
                let key = *key;
                self.hand_away(key, Awaited { worker, job, object, contains });
            }
            Some(Err(failed)) => {
                let error = postcard::to_stdvec(&**failed).unwrap_or_default();
                tell(Delivery::Failed(&error), contains);
            }
            None => {}
        }
    }

    /// Tells a worker of the next item of a stream. What the store keeps it asks for, if it wants that.
    pub(super) fn send_item(&mut self, worker: WorkerId, stream: ObjectId, object: ObjectId) {
        let Some(job) = self.sched.job_of_object(object) else { return };
        let contains: Vec<u64> = self.sched.contained_objects(object).map(|object| object.0).collect();
        let Some(member) = self.members.get_mut(&worker) else { return };
        let tell = |value| {
            let (job, stream, object) = (job.0, stream.0, object.0);
            member.link.tell(&NodeMessage::DeliverItem { job, stream, object, value, contains });
        };
        match self.sched.value(object) {
            Some(Ok(Stored::Inline(bytes))) => tell(Delivery::Value(bytes)),
            Some(Ok(Stored::Kept(..) | Stored::Away(_))) | None => tell(Delivery::Pending),
            Some(Err(failed)) => tell(Delivery::Failed(&postcard::to_stdvec(&**failed).unwrap_or_default())),
        }
    }

    /// Tells a worker of a value that it wanted, now or once it is back.
    pub(super) fn hand(&mut self, key: ValueKey, awaited: Awaited) {
        let lending = self.store.values.lend(key, awaited.worker);
        match lending {
            LendResult::Pending => self.store.awaited.entry(key).or_default().push(awaited),
            // Dropped meanwhile, or lost.
            LendResult::Lost(_) => self.lose_value(key, vec![awaited]),
            lending => {
                let Awaited { worker, job, object, contains } = awaited;
                let Some(member) = self.members.get_mut(&worker) else { return };
                if let Err(e) = hand_over(member, (job, object, Some(key)), lending, contains, true) {
                    member.broken.get_or_insert_with(|| e.to_string());
                }
            }
        }
    }

    /// A value can't be had any more. Who waits for it is told what comes of that.
    fn lose_value(&mut self, key: ValueKey, awaited: Vec<Awaited>) {
        let object = self.store.values.view(key).map(|view| view.object);
        let is_needed =
            |object: &ObjectId| matches!(self.sched.value(*object), Some(Ok(Stored::Kept(own, _))) if *own == key);
        match object.filter(is_needed) {
            Some(object) => {
                let (waiters, visitors) = self.split_visitors(object, awaited);
                // Once it is known the value is another, and so is what it contains.
                let known = self.events.iter_mut().find_map(|event| match event {
                    Event::ObjectLost { object: other, waiters } if *other == object => Some(waiters),
                    _ => None,
                });
                match known {
                    Some(known) => known.extend(waiters),
                    None => self.events.push_back(Event::ObjectLost { object, waiters }),
                }
                visitors.into_iter().for_each(|awaited| self.want_again(awaited));
            }
            // Its object is gone by now, or has another value: it was made again.
            None => awaited.into_iter().for_each(|awaited| self.want_again(awaited)),
        }
    }

    /// Workers that wait for a lost object for tasks of its job; and the waits of tasks of other jobs, which are to ask again.
    pub(super) fn split_visitors(&self, object: ObjectId, awaited: Vec<Awaited>) -> (Vec<WorkerId>, Vec<Awaited>) {
        let job = self.sched.job_of_object(object);
        let (own, visitors): (Vec<_>, Vec<_>) = awaited.into_iter().partition(|awaited| Some(awaited.job) == job);
        (own.iter().map(|awaited| awaited.worker).collect(), visitors)
    }

    /// A worker waits for a value that its object does not have any more.
    pub(super) fn want_again(&mut self, awaited: Awaited) {
        let Awaited { worker, job, object, contains } = awaited;
        let who = self.sched.workers().find(|view| view.id == worker).and_then(|view| {
            let actors = view.actors.into_iter().map(|actor| actor.creation_task());
            let mut all = view.blocked.into_iter().chain(view.assigned).chain(actors);
            all.find(|task| self.sched.job_of(*task) == Some(job))
        });
        // It was to hold what that value contained.
        let released =
            contains.iter().map(|content| Event::ReferencesReleased { object: ObjectId(*content), worker, count: 1 });
        self.events.extend(released);
        self.events.extend(who.map(|task| Event::ObjectRequested { object, worker, task }));
    }

    /// Bytes that went to disk so far, and that came back.
    pub(super) fn moved_bytes(&self) -> [u64; 2] {
        let usage = self.store.values.usage();
        [usage.spilled_bytes, usage.restored_bytes]
    }
}
