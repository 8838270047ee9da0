//! What tasks submit and store, and the objects that they hold.

use std::sync::Arc;

use sandbar_core::{Code, ObjectId, Seed, TaskKind, TaskRequest};
use sandbar_sandbox::Refusal;

use super::memory::no_memory;
use super::streams::Inflow;
use super::{Child, Desk, RETURNS_MAX, Returned, TaskDesk, gone};
use crate::program::messages::{RUN_MAX, Submit, Up, ValueUp};
use crate::program::objects::{Key, Slot, Value};

/// A task may submit with so many bytes of arguments; more goes into objects. Twice as many fit into half of the ring of
/// tasks: objects among them are named once more there.
const REQUEST_BYTES_MAX: usize = 255 << 10;

/// Objects that the values of one message may contain: their numbers fit into half of a ring with all else of it. What does
/// not never finds room where a ring's end is in the way.
pub(super) const CONTAINED_MAX: usize = 40_000;

impl Desk {
    pub(super) fn submit(
        &mut self,
        slot: Slot,
        function: u32,
        returns: u32,
        request: &[u8],
    ) -> Result<ObjectId, Refusal> {
        if returns == 0 || returns > RETURNS_MAX || request.len() > REQUEST_BYTES_MAX {
            return Err(Refusal::bad_request(format!(
                "it submits a task with {returns} results and {} bytes of arguments; 1 to {RETURNS_MAX} and {REQUEST_BYTES_MAX} are allowed: `put` what is larger",
                request.len()
            )));
        }
        let Some(has_actor) = has_actor(request) else {
            return Err(Refusal::bad_request("it submits a task by a request that makes no sense"));
        };
        let kinds = self.task(slot).map(|task| task.kinds.clone()).unwrap_or_default();
        let kind = kinds.get(function as usize).copied();
        let is_plain = match (kind, has_actor, returns) {
            (Some(TaskKind::Task), false, _) => true,
            (Some(TaskKind::Generator), false, 1) => false,
            (Some(TaskKind::Make), false, 1) | (Some(TaskKind::Method | TaskKind::Shared), true, _) => false,
            _ => {
                let of = kinds.len();
                return Err(Refusal::bad_request(format!("it submits task {function} of {of} as what that is not")));
            }
        };
        self.announce(slot);
        let first = self.take_ids(returns)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        let seed = Seed::new(task.seed).with(&task.children.to_le_bytes()).value();
        task.children += 1;
        let (parent, attempt, job) = (task.id, task.attempt, task.job);
        task.holds.extend(first..first + u64::from(returns));
        (first..first + u64::from(returns)).for_each(|object| self.objects.made((job, object)));
        let at = self.say(&Up::Submit(Submit { task: first, parent, attempt, function, returns, seed, request }));
        if kind == Some(TaskKind::Generator) {
            self.streams.insert(first, Inflow::new(job, buffer_of(request)));
            // It is told of the end when that comes.
            self.objects.entry((job, first)).wanted = true;
            self.say(&Up::Want(first, parent));
        }
        self.child = (returns == 1 && is_plain).then_some(Child { at, parent: slot, task: first });
        self.publish_in_time();
        Ok(ObjectId(first))
    }

    pub(super) fn take_ids(&mut self, count: u32) -> Result<u64, Refusal> {
        let none = || Refusal { code: Code::TaskLimit, message: "its worker has no more numbers to give".into() };
        self.ids.take(count).ok_or_else(none)
    }

    pub(super) fn put(&mut self, slot: Slot, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        check_contained(contained)?;
        self.announce(slot);
        let object = self.take_ids(1)?;
        let value = self.keep(parts)?;
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
                // Before the message that names it.
                self.send_file(&file).map_err(no_memory)?;
                self.say(&Up::Put { object, task: id, value: file.named(), refs });
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

    /// The node reads what a task was given under this number, and promises it.
    pub(super) fn open(&mut self, slot: Slot, file: u64) -> Result<ObjectId, Refusal> {
        self.announce(slot);
        let object = self.take_ids(1)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        task.holds.insert(object);
        let (task, job) = (task.id, task.job);
        self.objects.made((job, object));
        self.say(&Up::Open { object, task, file });
        self.publish_in_time();
        Ok(ObjectId(object))
    }

    /// A task gets a value: it holds what that contains.
    pub(super) fn hold_contained(&mut self, slot: Slot, object: u64) {
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return };
        let job = task.job;
        let contained = self.objects.contained((job, object));
        let new: Vec<u64> = contained.iter().copied().filter(|object| task.holds.insert(*object)).collect();
        if self.residents.contains_key(&slot) {
            task.lent.extend(&new);
        }
        new.into_iter().for_each(|object| self.objects.hold((job, object)));
    }

    pub(super) fn release(&mut self, slot: Slot, objects: &[u64]) {
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
    pub(in crate::program) fn release_all(&mut self, task: &TaskDesk) {
        for object in task.needs.iter().chain(&task.holds) {
            self.objects.release((task.job, *object));
        }
        self.let_go();
    }

    /// Tells the node of files that it wanted forgotten and that are.
    pub(in crate::program) fn tell_forgotten(&mut self) {
        for file in self.objects.forgotten() {
            self.say(&Up::Forgot(file));
        }
    }

    /// Tells the node that a file which it has lent is not here.
    pub(in crate::program) fn forgot(&mut self, file: u64) {
        self.say(&Up::Forgot(file));
    }

    /// Tells the node what is not held here any more.
    fn let_go(&mut self) {
        while !self.objects.gone.is_empty() {
            let gone = std::mem::take(&mut self.objects.gone);
            let follows = |object: &(u64, u32), next: &(u64, u32)| *next == (object.0 + 1, 1) && object.1 == 1;
            for run in gone.chunk_by(follows).flat_map(|run| run.chunks(RUN_MAX)) {
                run.iter().for_each(|(object, _)| self.close_stream(*object));
                self.say(&match run {
                    [(object, times)] => Up::Released(*object, *times),
                    run => Up::ReleasedRun(run[0].0, run.len() as u32),
                });
            }
        }
    }

    /// Whether somebody here waits for an object, and the node was not asked for it.
    pub(in crate::program) fn is_awaited(&mut self, job: u32, object: u64) -> bool {
        self.objects.get((job, object)).is_some_and(|entry| !entry.wanted && !entry.waiters.is_empty())
    }

    /// Asks the node for what was to be had here.
    pub(in crate::program) fn want(&mut self, job: u32, object: u64) {
        let entry = self.objects.entry((job, object));
        entry.wanted = true;
        if let Some((_, task)) = entry.waiters.first().copied() {
            self.say(&Up::Want(object, task));
        }
    }

    /// What the node delivers: to who wanted it, or for a task that is begun later, which then holds it.
    pub(in crate::program) fn delivered(
        &mut self,
        key: Key,
        value: Option<Arc<Value>>,
        contains: Vec<u64>,
        wanted: bool,
    ) {
        self.objects.hold(key);
        if let Some(value) = value {
            let is_new = self.objects.value(key).is_none();
            self.objects.delivered(key, contains, wanted, is_new);
            self.let_go();
            if is_new {
                self.arrived(key, value);
            }
        }
        if wanted {
            // Perhaps it is not wanted any more.
            self.unneeded(key);
        }
    }

    /// A task that needs an object does not hold it, or not any more.
    pub(in crate::program) fn unneeded(&mut self, key: Key) {
        self.objects.release(key);
        self.let_go();
    }

    /// An object's value, or its error, has come.
    pub(in crate::program) fn arrived(&mut self, key: Key, value: Arc<Value>) {
        for (slot, id) in self.objects.arrived(key, value.clone()) {
            let task = self.tasks.get_mut(slot).and_then(Option::as_mut).filter(|task| task.id == id);
            let Some((task, waiting)) = task.and_then(|task| Some((&mut task.got, task.waiting.as_mut()?))) else {
                self.can_resume(slot, id);
                continue;
            };
            if waiting.is_get && waiting.objects == [key.1] {
                // Whatever the node wants forgotten before the task goes on.
                *task = Some((key.1, value.clone()));
            }
            waiting.missing = waiting.missing.saturating_sub(1);
            if waiting.missing == 0 {
                self.woken.push(slot);
            }
        }
    }
}

/// Whether a value may contain so many objects.
pub(super) fn check_contained(contained: &[u64]) -> Result<(), Refusal> {
    if contained.len() <= CONTAINED_MAX {
        return Ok(());
    }
    let message = format!(
        "a value contains {} objects, the limit is {CONTAINED_MAX}: put them into several values, and these into one",
        contained.len()
    );
    Err(Refusal::bad_output(message))
}

/// How far ahead a generator may be that is submitted by these bytes.
fn buffer_of(bytes: &[u8]) -> u32 {
    let options = postcard::from_bytes::<TaskRequest<'_>>(bytes).ok().and_then(|request| request.options);
    options.unwrap_or_default().buffer()
}

/// Whether a request is of an actor; nothing if these bytes of a guest are no request.
fn has_actor(bytes: &[u8]) -> Option<bool> {
    // Mostly it is one without arguments.
    if bytes == [0; 4] {
        return Some(false);
    }
    postcard::from_bytes::<TaskRequest<'_>>(bytes).ok().map(|request| request.actor.is_some())
}
