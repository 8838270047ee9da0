//! What a task asks of its worker.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use sandbar_core::{Argument, Code, Ids, ObjectId, Request, Seed, TaskError, TaskId, VALUE_INLINE_BYTES_MAX};
use sandbar_sandbox::{Got, Input, Level, Refusal, Services, runs_on_behalf_of};
use sandbar_store::{Object, Scratch};
use serde::Serialize;

use super::link::{Bell, Packet, places, words};
use super::messages::{Submit, Up, ValueUp};
use super::objects::{Key, Objects, Slot, Value};
use super::ring::Sender;
use crate::socket;

/// Messages are the node's to read when there are so many, or when the first of them waits so long.
const UNPUBLISHED_MAX: u32 = 16;
const UNPUBLISHED_TIME_MAX: Duration = Duration::from_micros(50);
/// A task may submit with so many bytes of arguments; more goes into objects.
const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Results of one task.
const RETURNS_MAX: u32 = 10_000;
/// Objects in one question.
const OBJECTS_MAX: usize = 10_000_000;
/// Tasks that an error may name.
const CHAIN_MAX: usize = 10_000;

/// What all tasks of a worker share with its loop.
pub(super) struct Desk {
    pub up: Sender,
    memory: Arc<Scratch>,
    /// The node's.
    pub bell: Bell,
    pub ids: Ids,
    pub objects: Objects,
    /// The tasks here, by their places.
    pub tasks: Vec<Option<TaskDesk>>,
    /// Tasks that can go on.
    pub woken: Vec<Slot>,
    /// The frame that was written last, if it is of a task that was submitted and can be taken back.
    pub child: Option<Child>,
    /// A task that its parent waits for, to be run here: the parent, and what it submitted.
    pub inline: Option<(Slot, Vec<u8>)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
    unpublished: u32,
    unpublished_since: Instant,
    /// How many tasks there may be at once.
    pub room: usize,
    pub alive: usize,
    /// When the first of those is over who wait for so long only.
    first_deadline: Option<Instant>,
}

/// What a task has.
pub(super) struct TaskDesk {
    pub id: u64,
    pub attempt: u32,
    pub job: u32,
    pub seed: u64,
    /// How many tasks its program has.
    pub tasks: u32,
    children: u64,
    /// Objects that it holds.
    pub holds: FxHashSet<u64>,
    /// Objects that it needs, which the node keeps for it.
    pub needs: Vec<u64>,
    pub returned: Vec<(Returned, Vec<u64>)>,
    /// What another failed with, if it is going to fail with that.
    pub fails_with: Option<Box<TaskError>>,
    pub waiting: Option<Waiting>,
    pub log_left: u64,
    /// Whether the node was told that it waits.
    pub blocked: bool,
    /// A task that its parent, which is there, had run here, and that the node was not told of: its [`Up::Submit`].
    pub unannounced: Option<(Slot, Vec<u8>)>,
}

pub(super) enum Returned {
    Inline(Vec<u8>),
    File(Object),
}

#[derive(Debug)]
pub(super) struct Waiting {
    objects: Vec<u64>,
    count: usize,
    /// How many more must come before it is worth looking.
    pub missing: usize,
    pub deadline: Option<Instant>,
}

/// A task that was submitted last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    at: u32,
    parent: Slot,
    task: u64,
}

impl Desk {
    pub(super) fn new(memory: Arc<Scratch>, bell: Bell, ids: Ids, room: usize) -> Desk {
        Desk {
            up: Sender::new(places(&memory).0),
            memory,
            bell,
            ids,
            objects: Objects::default(),
            tasks: Vec::new(),
            woken: Vec::new(),
            child: None,
            inline: None,
            frame: Vec::new(),
            packet: Vec::new(),
            unpublished: 0,
            unpublished_since: Instant::now(),
            room,
            alive: 0,
            first_deadline: None,
        }
    }

    /// Writes a message, which the node gets with others. Gives where it stands.
    pub(super) fn say(&mut self, message: &Up<'_>) -> u32 {
        self.child = None;
        let frame = encode(message, &mut self.frame);
        let at = loop {
            match self.up.write(frame) {
                Some(at) => break at,
                None => {
                    // The node reads, or is gone and takes this process with it.
                    self.up.publish();
                    self.bell.ring();
                    std::thread::yield_now();
                }
            }
        };
        if self.unpublished == 0 {
            self.unpublished_since = Instant::now();
        }
        self.unpublished += 1;
        at
    }

    /// Has the node read what there is, if that is much or old.
    pub(super) fn publish_in_time(&mut self) {
        if self.unpublished >= UNPUBLISHED_MAX || self.unpublished_since.elapsed() > UNPUBLISHED_TIME_MAX {
            self.publish();
        }
    }

    /// Has the node read what there is.
    pub(super) fn publish(&mut self) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.child = None;
            self.up.publish();
            self.bell.ring();
        }
    }

    /// Takes the task back that was submitted last, if it is that one, and whoever submitted it can have it run here.
    fn take_child(&mut self, parent: Slot, task: u64) -> Option<Vec<u8>> {
        let child = self.child.filter(|child| child.parent == parent && child.task == task)?;
        if self.alive >= self.room || !self.up.take_back(child.at) {
            return None;
        }
        (self.child, self.unpublished) = (None, self.unpublished.saturating_sub(1));
        // It is what was encoded last.
        let frame = std::mem::take(&mut self.frame);
        let is_plain = |submit: &Submit<'_>| {
            let request = postcard::from_bytes::<Request<'_>>(submit.request);
            request.is_ok_and(|request| {
                request.options.is_none() && !request.arguments.iter().any(|a| matches!(a, Argument::Object(_)))
            })
        };
        match postcard::from_bytes(&frame) {
            Ok(Up::Submit(submit)) if is_plain(&submit) => Some(frame),
            Ok(message) => {
                self.say(&message);
                None
            }
            Err(_) => None,
        }
    }

    /// Tells the node of a task that was begun without it, before the first thing of which it has to know who did it.
    fn announce(&mut self, slot: Slot) {
        let Some((parent, frame)) = self.task(slot).and_then(|task| task.unannounced.take()) else { return };
        self.block(parent);
        if let Some(task) = self.task(slot) {
            let id = task.id;
            runs_on_behalf_of(TaskId(id));
            self.memory.atomic(words::AT_HAND).store(id, SeqCst);
        }
        if let Ok(Up::Submit(submit)) = postcard::from_bytes(&frame) {
            self.say(&Up::Began(submit));
        }
    }

    /// Tells the node that a task waits.
    pub(super) fn block(&mut self, slot: Slot) {
        self.announce(slot);
        if let Some(task) = self.task(slot) {
            task.blocked = true;
            let id = task.id;
            self.say(&Up::Blocked(id, true));
        }
    }

    /// Tells the node that a task goes on, if it was told that it waits.
    pub(super) fn unblock(&mut self, slot: Slot) {
        if let Some(task) = self.task(slot)
            && std::mem::take(&mut task.blocked)
        {
            let id = task.id;
            self.say(&Up::Blocked(id, false));
        }
    }

    pub(super) fn task(&mut self, slot: Slot) -> Option<&mut TaskDesk> {
        self.tasks.get_mut(slot)?.as_mut()
    }

    /// A task begins at a place.
    pub(super) fn seat(&mut self, slot: Slot, mut task: TaskDesk, log_bytes_max: u64) {
        task.log_left = log_bytes_max;
        if slot >= self.tasks.len() {
            self.tasks.resize_with(slot + 1, || None);
        }
        self.tasks[slot] = Some(task);
        self.alive += 1;
    }

    /// The task there has ended.
    pub(super) fn leave(&mut self, slot: Slot) -> Option<TaskDesk> {
        let task = self.tasks.get_mut(slot)?.take();
        self.alive -= usize::from(task.is_some());
        task
    }

    /// When the first of those is over who wait for so long only.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// Wakes those that have waited as long as they wanted to.
    pub(super) fn wake_late(&mut self) {
        let Some(first) = self.first_deadline else { return };
        let now = Instant::now();
        if now < first {
            return;
        }
        self.first_deadline = None;
        for (slot, task) in self.tasks.iter().enumerate() {
            let deadline = task.as_ref().and_then(|task| task.waiting.as_ref()?.deadline);
            match deadline {
                Some(deadline) if deadline <= now => self.woken.push(slot),
                Some(deadline) => {
                    self.first_deadline = Some(self.first_deadline.map_or(deadline, |first| first.min(deadline)));
                }
                None => {}
            }
        }
    }

    /// Whether somebody here waits for an object, and the node was not asked for it.
    pub(super) fn is_awaited(&mut self, job: u32, object: u64) -> bool {
        self.objects.get((job, object)).is_some_and(|entry| !entry.wanted && !entry.waiters.is_empty())
    }

    /// Asks the node for what was to be had here.
    pub(super) fn want(&mut self, job: u32, object: u64) {
        let entry = self.objects.entry((job, object));
        entry.wanted = true;
        if let Some((_, task)) = entry.waiters.first().copied() {
            self.say(&Up::Want(object, task));
        }
    }

    /// What the node delivers: to who wanted it, or for a task that is begun later, which then holds it.
    pub(super) fn delivered(&mut self, key: Key, value: Arc<Value>, contains: Vec<u64>, wanted: bool) {
        self.objects.hold(key);
        if self.objects.value(key).is_none() {
            self.objects.contains(key, contains, wanted);
            self.arrived(key, value);
        } else if wanted {
            contains.iter().for_each(|object| self.objects.entry((key.0, *object)).held += 1);
        }
        if wanted {
            // Perhaps it is not wanted any more.
            self.unneeded(key);
        }
    }

    /// A task that needs an object does not hold it, or not any more.
    pub(super) fn unneeded(&mut self, key: Key) {
        self.objects.release(key);
        self.let_go();
    }

    /// An object's value, or its error, has come.
    pub(super) fn arrived(&mut self, key: Key, value: Arc<Value>) {
        for (slot, id) in self.objects.arrived(key, value) {
            let task = self.tasks.get_mut(slot).and_then(Option::as_mut).filter(|task| task.id == id);
            if let Some(waiting) = task.and_then(|task| task.waiting.as_mut()) {
                waiting.missing = waiting.missing.saturating_sub(1);
                if waiting.missing == 0 {
                    self.woken.push(slot);
                }
            }
        }
    }

    fn submit(&mut self, slot: Slot, function: u32, returns: u32, request: &[u8]) -> Result<ObjectId, Refusal> {
        if returns == 0 || returns > RETURNS_MAX || request.len() > REQUEST_BYTES_MAX {
            return Err(Refusal::bad_request(format!(
                "it submits a task with {returns} results and {} bytes of arguments; 1 to {RETURNS_MAX} and {REQUEST_BYTES_MAX} are allowed: `put` what is larger",
                request.len()
            )));
        }
        if !is_request(request) {
            return Err(Refusal::bad_request("it submits a task by a request that makes no sense"));
        }
        let tasks = self.task(slot).map_or(0, |task| task.tasks);
        if function >= tasks {
            return Err(Refusal::bad_request(format!("it submits task {function} of {tasks}")));
        }
        self.announce(slot);
        let first = self.take_ids(returns)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        let seed = Seed::new(task.seed).with(&task.children.to_le_bytes()).value();
        task.children += 1;
        let (parent, attempt, job) = (task.id, task.attempt, task.job);
        task.holds.extend(first..first + u64::from(returns));
        (first..first + u64::from(returns)).for_each(|object| self.objects.made((job, object)));
        let at = self.say(&Up::Submit(Submit { task: first, parent, attempt, function, returns, seed, request }));
        self.child = (returns == 1).then_some(Child { at, parent: slot, task: first });
        self.publish_in_time();
        Ok(ObjectId(first))
    }

    fn take_ids(&mut self, count: u32) -> Result<u64, Refusal> {
        let none = || Refusal { code: Code::TaskLimit, message: "its worker has no more numbers to give".into() };
        self.ids.take(count).ok_or_else(none)
    }

    fn put(&mut self, slot: Slot, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        self.announce(slot);
        let object = self.take_ids(1)?;
        let value = kept(parts)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        task.holds.insert(object);
        let (id, job) = (task.id, task.job);
        let refs = contained.to_vec();
        let value = match value {
            Returned::Inline(bytes) => {
                self.say(&Up::Put { object, task: id, value: ValueUp::Inline(&bytes), refs });
                Some(Value::inline(&bytes, false))
            }
            Returned::File(file) => {
                let bytes = file.bytes();
                // Before the message that names it.
                send_file(&file, &mut self.packet).map_err(no_memory)?;
                self.say(&Up::Put { object, task: id, value: ValueUp::File(bytes), refs });
                // Who wants it here asks for it: many do not.
                None
            }
        };
        self.objects.made((job, object));
        if value.is_some() {
            self.objects.contains((job, object), contained.to_vec(), false);
        }
        self.objects.entry((job, object)).value = value;
        self.publish_in_time();
        Ok(ObjectId(object))
    }

    fn begin_wait(&mut self, slot: Slot, objects: &[u64], count: usize, nanos: Option<u64>) -> Result<(), Refusal> {
        if objects.len() > OBJECTS_MAX || count > objects.len() {
            return Err(Refusal::bad_request(format!("it waits for {count} of {} objects", objects.len())));
        }
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return Err(gone()) };
        let (id, job) = (task.id, task.job);
        // What it waits for stays until it has it, also if it was only lent it.
        for object in objects.iter().filter(|object| task.holds.insert(**object)) {
            self.objects.hold((job, *object));
        }
        let missing: Vec<u64> =
            objects.iter().copied().filter(|object| self.objects.value((job, *object)).is_none()).collect();
        let there = objects.len() - missing.len();
        let deadline = nanos.map(|nanos| Instant::now() + Duration::from_nanos(nanos));
        let waiting = Waiting { objects: objects.to_vec(), count, missing: count.saturating_sub(there), deadline };
        let waits = waiting.missing > 0;
        if let Some(task) = self.task(slot) {
            task.waiting = Some(waiting);
        }
        if !waits {
            return Ok(());
        }
        if let Some(deadline) = deadline {
            self.first_deadline = Some(self.first_deadline.map_or(deadline, |first| first.min(deadline)));
        }
        if let [only] = missing[..]
            && nanos.is_none()
            && let Some(frame) = self.take_child(slot, only)
        {
            self.inline = Some((slot, frame));
            self.objects.entry((job, only)).waiters.push((slot, id));
            return Ok(());
        }
        self.announce(slot);
        for object in missing {
            let entry = self.objects.entry((job, object));
            if entry.waiters.last() != Some(&(slot, id)) {
                entry.waiters.push((slot, id));
            }
            if !std::mem::replace(&mut entry.wanted, true) {
                self.say(&Up::Want(object, id));
            }
        }
        Ok(())
    }

    fn poll_wait(&mut self, slot: Slot) -> Poll<Result<Vec<bool>, Refusal>> {
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else {
            return Poll::Ready(Err(gone()));
        };
        let Some(waiting) = &mut task.waiting else { return Poll::Ready(Err(gone())) };
        let over = waiting.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if waiting.missing > 0 && !over {
            return Poll::Pending;
        }
        let mut left = waiting.count;
        let is_there = |object: &u64| {
            let there = left > 0 && self.objects.value((task.job, *object)).is_some();
            left -= usize::from(there);
            there
        };
        let ready: Vec<bool> = waiting.objects.iter().map(is_there).collect();
        if left > 0 && !over {
            // Some of those that came were asked for before.
            waiting.missing = left;
            return Poll::Pending;
        }
        task.waiting = None;
        Poll::Ready(Ok(ready))
    }

    /// A task gets a value: it holds what that contains.
    fn hold_contained(&mut self, slot: Slot, object: u64) {
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return };
        let job = task.job;
        let contained = self.objects.contained((job, object));
        let new: Vec<u64> = contained.iter().copied().filter(|object| task.holds.insert(*object)).collect();
        new.into_iter().for_each(|object| self.objects.hold((job, object)));
    }

    fn release(&mut self, slot: Slot, objects: &[u64]) {
        self.announce(slot);
        for object in objects {
            let Some(task) = self.task(slot) else { return };
            let (job, held) = (task.job, task.holds.remove(object));
            if held {
                self.objects.release((job, *object));
            }
        }
        self.let_go();
    }

    /// A task that has ended holds and needs nothing.
    pub(super) fn release_all(&mut self, task: &TaskDesk) {
        for object in task.needs.iter().chain(&task.holds) {
            self.objects.release((task.job, *object));
        }
        self.let_go();
    }

    /// Tells the node what is not held here any more.
    fn let_go(&mut self) {
        for (object, times) in std::mem::take(&mut self.objects.gone) {
            self.say(&Up::Released(object, times));
        }
    }
}

impl TaskDesk {
    pub(super) fn new(
        id: u64,
        attempt: u32,
        job: u32,
        seed: u64,
        tasks: u32,
        needs: Vec<u64>,
        unannounced: Option<(Slot, Vec<u8>)>,
    ) -> TaskDesk {
        TaskDesk {
            id,
            attempt,
            job,
            seed,
            tasks,
            children: 0,
            holds: FxHashSet::default(),
            needs,
            returned: Vec::new(),
            fails_with: None,
            waiting: None,
            log_left: 0,
            blocked: false,
            unannounced,
        }
    }
}

/// Sends a value's file over the socket: the next message that names one means it.
pub(super) fn send_file(file: &Object, packet: &mut Vec<u8>) -> io::Result<()> {
    socket::send(io::stdin().as_fd(), socket::frame(&Packet::File, packet)?, &[file.as_fd()])
}

/// Whether bytes of a guest are a request.
fn is_request(bytes: &[u8]) -> bool {
    bytes == [0, 0, 0] || postcard::from_bytes::<Request<'_>>(bytes).is_ok()
}

fn encode<'b>(message: &impl Serialize, buffer: &'b mut Vec<u8>) -> &'b [u8] {
    buffer.clear();
    // To memory, which grows.
    let _ = postcard::to_io(message, &mut *buffer);
    buffer
}

/// A value's parts, as one.
fn kept(parts: &[&[u8]]) -> Result<Returned, Refusal> {
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    if bytes <= VALUE_INLINE_BYTES_MAX {
        return Ok(Returned::Inline(parts.concat()));
    }
    Object::of_parts(parts).map(Returned::File).map_err(no_memory)
}

fn no_memory(error: io::Error) -> Refusal {
    Refusal { code: Code::Host, message: format!("there is no memory for a value: {error}") }
}

fn gone() -> Refusal {
    Refusal { code: Code::Host, message: "the task is not here any more".into() }
}

/// What one task gets.
pub(super) struct TaskServices {
    pub desk: Arc<Mutex<Desk>>,
    pub slot: Slot,
    /// The object that was asked for last.
    pub at_hand: Option<(u64, Arc<Value>)>,
}

pub(super) fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services for TaskServices {
    fn log(&mut self, level: Level, message: &str) {
        let mut desk = lock(&self.desk);
        let Some(task) = desk.task(self.slot) else { return };
        let cost = message.len() as u64 + 16;
        if cost > task.log_left {
            return;
        }
        task.log_left -= cost;
        let id = task.id;
        desk.announce(self.slot);
        desk.say(&Up::Log(id, level as u8, message));
    }

    fn submit(&mut self, task: u32, returns: u32, request: &[u8]) -> Result<ObjectId, Refusal> {
        lock(&self.desk).submit(self.slot, task, returns, request)
    }

    fn put(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        lock(&self.desk).put(self.slot, parts, contained)
    }

    fn begin_wait(&mut self, objects: &[u64], count: u32, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.desk).begin_wait(self.slot, objects, count as usize, nanos)
    }

    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        lock(&self.desk).poll_wait(self.slot)
    }

    fn object(&mut self, object: ObjectId) -> Result<(Got, Input<'_>), Refusal> {
        if self.at_hand.as_ref().is_none_or(|(number, _)| *number != object.0) {
            let mut desk = lock(&self.desk);
            let job = desk.task(self.slot).ok_or_else(gone)?.job;
            let value = desk.objects.value((job, object.0)).cloned();
            let unknown = || Refusal::bad_request(format!("object {object} is not there; `get` it first"));
            desk.hold_contained(self.slot, object.0);
            self.at_hand = Some((object.0, value.ok_or_else(unknown)?));
        }
        let (_, value) = self.at_hand.as_ref().ok_or_else(gone)?;
        Ok((value.got(), value.input()))
    }

    fn release(&mut self, objects: &[u64]) -> Result<(), Refusal> {
        self.at_hand = None;
        lock(&self.desk).release(self.slot, objects);
        Ok(())
    }

    fn cancel(&mut self, object: ObjectId, recursive: bool) -> Result<(), Refusal> {
        let mut desk = lock(&self.desk);
        desk.announce(self.slot);
        desk.say(&Up::Cancel(object.0, recursive));
        desk.publish();
        Ok(())
    }

    fn fails_with(&mut self, error: &[u8]) -> Result<(), Refusal> {
        let error = postcard::from_bytes::<TaskError>(error).ok().filter(|error| error.chain.len() <= CHAIN_MAX);
        let malformed = || Refusal::bad_request("it fails with what is no error");
        let error = error.ok_or_else(malformed)?;
        let mut desk = lock(&self.desk);
        desk.task(self.slot).ok_or_else(gone)?.fails_with = Some(Box::new(error));
        Ok(())
    }

    fn returned(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        let value = kept(parts)?;
        let mut desk = lock(&self.desk);
        let task = desk.task(self.slot).ok_or_else(gone)?;
        if task.returned.len() >= RETURNS_MAX as usize {
            return Err(Refusal::bad_output(format!("it returns more than {RETURNS_MAX} results")));
        }
        task.returned.push((value, contained.to_vec()));
        Ok(())
    }
}
