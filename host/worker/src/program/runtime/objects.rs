//! Submitted tasks, stored values, and the references that tasks hold.

use std::sync::Arc;

use sandbar_core::{ObjectId, Seed, TaskKind, TaskRequest};
use sandbar_sandbox::Refusal;

use super::WorkerRuntime;
use super::context::TaskContext;
use super::limits::{RETURNS_MAX, STEP_OBJECTS, check_contained, refuse_interrupted};
use super::memory::{OutputValue, no_memory};
use crate::program::messages::{RANGE_OBJECTS_MAX, SubmitTask, WorkerMessage};
use crate::program::objects::{LocalValue, ObjectKey, ObjectRelease, TaskSlot};

/// Maximum bytes of a task's arguments; larger ones must be objects. Twice as many bytes fit into half of the task
/// ring, in which objects among the arguments are listed once more.
const REQUEST_BYTES_MAX: usize = 255 << 10;

impl WorkerRuntime {
    pub(super) fn submit(
        &mut self,
        slot: TaskSlot,
        function: u32,
        returns: u32,
        request: &[u8],
    ) -> Result<ObjectId, Refusal> {
        if !(1..=RETURNS_MAX).contains(&returns) {
            let message = format!("it submits a task with {returns} results, the limits are 1 and {RETURNS_MAX}");
            return Err(Refusal::bad_request(message));
        }
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Refusal::bad_request(format!(
                "it submits a task with {} bytes of arguments, the limit is {REQUEST_BYTES_MAX}: `put` larger values",
                request.len()
            )));
        }
        let Some(has_actor) = has_actor(request) else {
            return Err(Refusal::bad_request("its request for a task is malformed"));
        };
        let kinds = self.tasks.get(slot).map(|task| task.kinds.clone()).unwrap_or_default();
        let kind = kinds.get(function as usize).copied();
        let is_plain = match (kind, has_actor, returns) {
            (Some(TaskKind::Task), false, _) => true,
            (Some(TaskKind::Generator), false, 1) => false,
            (Some(TaskKind::Make), false, 1) | (Some(TaskKind::Method | TaskKind::Shared), true, _) => false,
            _ => {
                let count = kinds.len();
                return Err(Refusal::bad_request(format!(
                    "it submits function {function} of {count} as another kind of task"
                )));
            }
        };
        self.announce(slot);
        let first = self.take_ids(returns)?;
        let task = self.tasks.require(slot)?;
        let seed = Seed::new(task.seed).with(&task.children.to_le_bytes()).value();
        task.children += 1;
        let (parent, attempt, job) = (task.id, task.attempt, task.job);
        task.holds.extend(first..first + u64::from(returns));
        (first..first + u64::from(returns)).for_each(|object| self.objects.created(ObjectKey::new(job, object)));
        let submit = SubmitTask { task: first, parent, attempt, function, returns, seed, request };
        self.node.send_submission(submit, slot, returns == 1 && is_plain);
        if kind == Some(TaskKind::Generator) {
            self.streams.open(first, job, buffer_of(request));
            // Requests the end of the stream in advance.
            self.objects.entry(ObjectKey::new(job, first)).requested = true;
            self.node.send(&WorkerMessage::RequestObject(first, parent));
        }
        self.node.publish_in_time();
        Ok(ObjectId(first))
    }

    pub(super) fn put(&mut self, slot: TaskSlot, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        check_contained(contained)?;
        self.announce(slot);
        let object = self.take_ids(1)?;
        let value = self.store_value(parts)?;
        let task = self.tasks.require(slot)?;
        task.holds.insert(object);
        let (id, job) = (task.id, task.job);
        let sent = self.send_value(&value).map_err(no_memory)?;
        self.node.send(&WorkerMessage::Put { object, task: id, value: sent, refs: contained.to_vec() });
        self.objects.created(ObjectKey::new(job, object));
        // A value in a file is not kept in this worker: most tasks do not read what they store, and the others request
        // it.
        if let OutputValue::Inline(bytes) = value {
            self.objects.stored(ObjectKey::new(job, object), &bytes, contained.to_vec());
        }
        self.node.publish_in_time();
        Ok(ObjectId(object))
    }

    /// Opens a file of the job. The node reads it, and promises its content as an object.
    pub(super) fn open(&mut self, slot: TaskSlot, file: u64) -> Result<ObjectId, Refusal> {
        self.announce(slot);
        let object = self.take_ids(1)?;
        let task = self.tasks.require(slot)?;
        task.holds.insert(object);
        let (task, job) = (task.id, task.job);
        self.objects.created(ObjectKey::new(job, object));
        self.node.send(&WorkerMessage::OpenFile { object, task, file });
        self.node.publish_in_time();
        Ok(ObjectId(object))
    }

    /// Adds references of a task to the objects that a received value contains.
    pub(super) fn hold_contained(&mut self, slot: TaskSlot, object: u64) {
        let Some(task) = self.tasks.get_mut(slot) else { return };
        let job = task.job;
        let contained = self.objects.contained(ObjectKey::new(job, object));
        let new: Vec<u64> = contained.iter().copied().filter(|object| task.holds.insert(*object)).collect();
        if self.actors.contains_key(&slot) {
            task.lent.extend(&new);
        }
        new.into_iter().for_each(|object| self.objects.hold(ObjectKey::new(job, object)));
    }

    pub(super) fn release(&mut self, slot: TaskSlot, objects: &[u64]) -> Result<(), Refusal> {
        self.announce(slot);
        for objects in objects.chunks(STEP_OBJECTS) {
            refuse_interrupted()?;
            let task = self.tasks.require(slot)?;
            let job = task.job;
            for object in objects.iter().filter(|object| task.holds.remove(*object)) {
                self.objects.release(ObjectKey::new(job, *object));
            }
        }
        self.report_released();
        Ok(())
    }

    /// Drops all references of a finished task.
    pub(super) fn release_all(&mut self, task: &TaskContext) {
        for object in task.needs.iter().chain(&task.holds) {
            self.objects.release(ObjectKey::new(task.job, *object));
        }
        self.report_released();
    }

    /// Tells the node which files have been released at its request.
    pub(in crate::program) fn report_released_files(&mut self) {
        for file in self.objects.forgotten() {
            self.node.send(&WorkerMessage::FileReleased(file));
        }
    }

    /// Tells the node that a lent file is not in use in this worker.
    pub(in crate::program) fn file_released(&mut self, file: u64) {
        self.node.send(&WorkerMessage::FileReleased(file));
    }

    /// Tells the node which objects are no longer held in this worker.
    fn report_released(&mut self) {
        while !self.objects.released.is_empty() {
            let released = std::mem::take(&mut self.objects.released);
            let follows = |one: &ObjectRelease, next: &ObjectRelease| {
                next.object == one.object + 1 && next.times == 1 && one.times == 1
            };
            for run in released.chunk_by(follows).flat_map(|run| run.chunks(RANGE_OBJECTS_MAX)) {
                for release in run {
                    if let Some((job, items)) = self.streams.close(release.object) {
                        items.into_iter().for_each(|item| self.objects.release(ObjectKey::new(job, item)));
                    }
                }
                self.node.send(&match run {
                    [ObjectRelease { object, times }] => WorkerMessage::Release(*object, *times),
                    run => WorkerMessage::ReleaseRange(run[0].object, run.len() as u32),
                });
            }
        }
    }

    /// Returns whether a task of this worker waits for an object that was not requested from the node.
    pub(super) fn is_awaited(&mut self, job: u32, object: u64) -> bool {
        self.objects.get(ObjectKey::new(job, object)).is_some_and(|entry| !entry.requested && !entry.waiters.is_empty())
    }

    /// Requests an object from the node that was expected from a task of this worker.
    pub(super) fn request_object(&mut self, job: u32, object: u64) {
        let entry = self.objects.entry(ObjectKey::new(job, object));
        entry.requested = true;
        if let Some(waiter) = entry.waiters.first().copied() {
            self.node.send(&WorkerMessage::RequestObject(object, waiter.task));
        }
    }

    /// Handles a delivery: of a requested object, or for a task that starts later and then holds the object.
    pub(in crate::program) fn delivered(
        &mut self,
        key: ObjectKey,
        value: Option<Arc<LocalValue>>,
        contains: Vec<u64>,
        requested: bool,
    ) {
        self.objects.hold(key);
        if let Some(value) = value {
            let is_new = self.objects.value(key).is_none();
            self.objects.delivered(key, contains, requested, is_new);
            self.report_released();
            if is_new {
                self.arrived(key, value);
            }
        }
        if requested {
            // The object may not be requested any longer.
            self.release_needed(key);
        }
    }

    /// Drops the reference of a task that needed an object.
    pub(in crate::program) fn release_needed(&mut self, key: ObjectKey) {
        self.objects.release(key);
        self.report_released();
    }

    /// Stores an object's value or error, and wakes the tasks that wait for it.
    pub(super) fn arrived(&mut self, key: ObjectKey, value: Arc<LocalValue>) {
        for waiter in self.objects.arrived(key, value.clone()) {
            if !self.tasks.object_arrived(waiter, key.object, &value) {
                self.resume_call(waiter);
            }
        }
    }
}

/// Returns the number of items by which the submitted generator may be ahead.
fn buffer_of(bytes: &[u8]) -> u32 {
    let options = postcard::from_bytes::<TaskRequest<'_>>(bytes).ok().and_then(|request| request.options);
    options.unwrap_or_default().buffer()
}

/// Returns whether a request is for an actor; `None` if the guest's bytes are malformed.
fn has_actor(bytes: &[u8]) -> Option<bool> {
    // The common case: a task without arguments.
    if bytes == [0; 4] {
        return Some(false);
    }
    postcard::from_bytes::<TaskRequest<'_>>(bytes).ok().map(|request| request.actor.is_some())
}
