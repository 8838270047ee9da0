//! Values of objects: admission, delivery to workers, and restoring from disk.
//!
//! Values beyond the memory limit are written to disk by a thread of its own. A worker whose values find no memory is not
//! polled until there is some, or until the disk is full: then its values are errors. A consumer of a value on disk gets it
//! once it is restored.

use std::fmt::Display;
use std::io;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, JobId, ObjectId, TaskId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{LendResult, SealedFile, UnsealedValue, ValueKey, ValueMemory};
use sandbar_worker::program::{Delivery, NodeMessage, ReturnedValues, SentValue, SubmitTask, WorkerMessage};

use super::context::Context;
use super::deliveries::{LentDelivery, deliver_lent, request_again, split_by_job};
use super::effects::Effect;
use super::values::{Recipient, StoredValue, is_stored};
use crate::encoding::AlwaysEncodes;
use crate::peer::Callback;

/// Deliveries that wait for the disk, and workers that wait for memory.
#[derive(Default)]
pub(super) struct Objects {
    /// Workers that get a value once it is restored.
    recipients: FxHashMap<ValueKey, Vec<Recipient>>,
    /// Other nodes that get a value once it is restored.
    sharing: FxHashMap<ValueKey, Vec<Callback<Result<SealedFile, Fault>>>>,
    /// Workers whose messages wait for memory.
    held: Vec<WorkerId>,
}

/// Result of the admission of a message's values.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Each value is in the store, or was refused.
    Admitted,
    /// The values exceed the memory for now.
    MustWait,
}

impl Objects {
    pub(super) fn len(&self) -> usize {
        self.recipients.len() + self.sharing.len()
    }

    /// Admits the values of a message to the value store.
    ///
    /// # Errors
    /// The message lacks a value's file, or describes it wrongly.
    pub(super) fn admit(cx: &mut Context, worker: WorkerId, message: &WorkerMessage<'_>) -> io::Result<Admission> {
        match message {
            WorkerMessage::Put { object, task, value, .. } | WorkerMessage::Yield { task, object, value, .. } => {
                let job = cx.scheduler.job_of(TaskId(*task));
                admit_value(cx, worker, job, ObjectId(*object), value)?;
            }
            WorkerMessage::Finished { task, returned: Ok(returned), .. } => {
                let job = cx.scheduler.job_of(TaskId(*task));
                admit_returned(cx, worker, job, TaskId(*task), returned)?;
            }
            WorkerMessage::FinishedInline {
                submit: SubmitTask { task, parent, .. }, returned: Ok(returned), ..
            } => {
                let job = cx.scheduler.job_of(TaskId(*parent));
                admit_returned(cx, worker, job, TaskId(*task), returned)?;
            }
            _ => return Ok(Admission::Admitted),
        }
        Ok(if exceeds_memory(cx, worker) { Admission::MustWait } else { Admission::Admitted })
    }

    /// Holds a message until there is memory for its values.
    pub(super) fn hold(&mut self, cx: &mut Context, worker: WorkerId, message: Vec<u8>) {
        if let Some(held) = cx.workers.get_mut(&worker) {
            held.held_message = Some(message);
            self.held.push(worker);
            cx.values.retry_spill();
            cx.run_store_actions();
        }
    }

    /// Makes room for messages that wait. A worker whose message waits can't return files: others must leave memory.
    pub(super) fn tick(&self, cx: &mut Context) {
        if !self.held.is_empty() {
            cx.values.make_room();
            cx.run_store_actions();
        }
    }

    /// Returns the workers whose messages wait, to be passed to [`Objects::release`] one after another.
    pub(super) fn take_held(&mut self) -> Vec<WorkerId> {
        std::mem::take(&mut self.held)
    }

    /// Returns a held message if there is memory for its values, or never will be: then they are refused.
    pub(super) fn release(&mut self, cx: &mut Context, worker: WorkerId) -> Option<Vec<u8>> {
        let full = cx.values.full().cloned();
        if exceeds_memory(cx, worker) && full.is_none() {
            self.held.push(worker);
            return None;
        }
        let Context { workers, values, .. } = cx;
        let worker = workers.get_mut(&worker)?;
        for admitted in &mut worker.admitted {
            if let (Ok(key), Some(full)) = (&admitted, &full)
                && values.exceeds_limit(*key)
            {
                values.drop_value(*key);
                *admitted = Err(full.clone());
            }
        }
        worker.held_message.take()
    }

    /// Handles completions of the disk. Returns whether there were any.
    pub(super) fn poll_disk(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while let Some(completion) = cx.driver.next_disk_completion() {
            worked = true;
            if let Some((key, restored)) = cx.values.handle_disk_completion(completion) {
                for reply in self.sharing.remove(&key).unwrap_or_default() {
                    reply(match &restored {
                        Ok(()) => share_stored(cx, key),
                        Err(reason) => Err(not_shared(reason)),
                    });
                }
                let recipients = self.recipients.remove(&key).unwrap_or_default();
                match restored {
                    Ok(()) => recipients.into_iter().for_each(|recipient| self.deliver_stored(cx, key, recipient)),
                    Err(_) => value_lost(cx, key, recipients),
                }
            }
            cx.run_store_actions();
        }
        worked
    }

    /// Delivers an object to a worker, for a task of a job that requested it.
    pub(super) fn deliver(&mut self, cx: &mut Context, worker: WorkerId, object: ObjectId, job: JobId) {
        let contains: Vec<u64> = cx.scheduler.contained_objects(object).map(|object| object.0).collect();
        let Some(to) = cx.workers.get_mut(&worker) else { return };
        let mut send = |value, contains| {
            to.link.send(&NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: true });
        };
        match cx.scheduler.value(object) {
            Some(Ok(StoredValue::Inline(bytes))) => send(Delivery::Value(bytes), contains),
            Some(Ok(StoredValue::Local(key, _))) => {
                let key = *key;
                self.deliver_stored(cx, key, Recipient { worker, job, object, contains });
            }
            Some(Ok(StoredValue::Remote(key))) => {
                let key = *key;
                cx.push(Effect::DeliverRemote(key, Recipient { worker, job, object, contains }));
            }
            Some(Err(failed)) => {
                let error = failed.encode();
                send(Delivery::Failed(&error), contains);
            }
            None => {}
        }
    }

    /// Delivers the next item of a stream to a worker. It requests the item's value if that is stored.
    pub(super) fn deliver_item(&self, cx: &mut Context, worker: WorkerId, stream: ObjectId, object: ObjectId) {
        let Some(job) = cx.scheduler.job_of_object(object) else { return };
        let contains: Vec<u64> = cx.scheduler.contained_objects(object).map(|object| object.0).collect();
        let Some(to) = cx.workers.get_mut(&worker) else { return };
        let send = |value| {
            let (job, stream, object) = (job.0, stream.0, object.0);
            to.link.send(&NodeMessage::DeliverItem { job, stream, object, value, contains });
        };
        match cx.scheduler.value(object) {
            Some(Ok(StoredValue::Inline(bytes))) => send(Delivery::Value(bytes)),
            Some(Ok(StoredValue::Local(..) | StoredValue::Remote(_))) | None => send(Delivery::Pending),
            Some(Err(failed)) => send(Delivery::Failed(&failed.encode())),
        }
    }

    /// Delivers a stored value to a worker, now or once it is restored.
    pub(super) fn deliver_stored(&mut self, cx: &mut Context, key: ValueKey, recipient: Recipient) {
        match cx.lend(key, recipient.worker) {
            LendResult::Pending => self.recipients.entry(key).or_default().push(recipient),
            // Dropped meanwhile, or lost.
            LendResult::Lost(_) => value_lost(cx, key, vec![recipient]),
            lent => {
                let Recipient { worker, job, object, contains } = recipient;
                let Some(worker) = cx.workers.get_mut(&worker) else { return };
                if let Err(e) =
                    deliver_lent(worker, LentDelivery { job, object, key: Some(key), lent, contains, requested: true })
                {
                    worker.fail(e);
                }
            }
        }
    }

    /// Shares an object's value with another node, now or once it is restored. Returns the callback if this node does not
    /// have the object.
    pub(super) fn share(
        &mut self,
        cx: &mut Context,
        object: ObjectId,
        reply: Callback<Result<SealedFile, Fault>>,
    ) -> Option<Callback<Result<SealedFile, Fault>>> {
        let value = match cx.scheduler.value(object) {
            Some(Ok(StoredValue::Local(key, _))) => {
                let key = *key;
                match cx.values.share(key) {
                    LendResult::Bytes(bytes) => SealedFile::new(&bytes).map_err(not_shared),
                    LendResult::File(file) => Ok(file),
                    LendResult::Pending => {
                        self.sharing.entry(key).or_default().push(reply);
                        cx.run_store_actions();
                        return None;
                    }
                    LendResult::AlreadyLent => Err(not_shared("it is not available")),
                    LendResult::Lost(why) => Err(not_shared(why)),
                }
            }
            Some(Ok(StoredValue::Inline(bytes))) => SealedFile::new(bytes).map_err(not_shared),
            Some(Ok(StoredValue::Remote(key))) => match cx.remote_values.local_copy(*key) {
                Some(copy) => share_stored(cx, copy),
                None => Err(not_shared("it is on another node")),
            },
            Some(Err(_)) | None => return Some(reply),
        };
        reply(value);
        None
    }

    /// Forgets a worker.
    pub(super) fn worker_disconnected(&mut self, cx: &mut Context, worker: WorkerId) {
        cx.values.remove_worker(worker);
        self.recipients.values_mut().for_each(|all| all.retain(|recipient| recipient.worker != worker));
        self.held.retain(|held| *held != worker);
    }
}

/// Returns the fault for a value that can't be shared.
fn not_shared(reason: impl Display) -> Fault {
    Fault::new(Code::Host, format!("the value can't be shared: {reason}"))
}

fn share_stored(cx: &mut Context, key: ValueKey) -> Result<SealedFile, Fault> {
    match cx.values.share(key) {
        LendResult::Bytes(bytes) => SealedFile::new(&bytes).map_err(not_shared),
        LendResult::File(file) => Ok(file),
        LendResult::AlreadyLent | LendResult::Pending => Err(not_shared("it is being read from disk")),
        LendResult::Lost(why) => Err(not_shared(why)),
    }
}

fn admit_returned(
    cx: &mut Context,
    worker: WorkerId,
    job: Option<JobId>,
    task: TaskId,
    values: &ReturnedValues<'_>,
) -> io::Result<()> {
    let objects = (task.0..).map(ObjectId);
    objects.zip(values).try_for_each(|(object, (value, _))| admit_value(cx, worker, job, object, value))
}

fn admit_value(
    cx: &mut Context,
    worker: WorkerId,
    job: Option<JobId>,
    object: ObjectId,
    value: &SentValue<'_>,
) -> io::Result<()> {
    let Some(from) = cx.workers.get_mut(&worker) else { return Ok(()) };
    let memory = match value {
        SentValue::Inline(bytes) if !is_stored(bytes) => return Ok(()),
        SentValue::Inline(bytes) => Ok(ValueMemory::Bytes((*bytes).into())),
        SentValue::File(bytes, None) => from.link.next_file(*bytes).map(ValueMemory::Sealed),
        SentValue::File(bytes, Some(number)) => {
            let file = from.link.next_writable_file();
            file.and_then(|file| Ok(ValueMemory::Unsealed(UnsealedValue::adopt(file, *bytes)?, (worker, *number))))
        }
    };
    let memory = match memory {
        Ok(memory) => memory,
        // This process has too many open files: the worker is not at fault, and the value is lost.
        Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
            from.admitted.push_back(Err(Fault::new(Code::StoreFull, format!("the node can't store it: {e}"))));
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    // The value of a task that no longer exists is dropped at once.
    let job = job.unwrap_or(JobId(0));
    let bytes = memory.bytes();
    cx.usage.book(job, |amounts| amounts.object_bytes = amounts.object_bytes.saturating_add(bytes));
    let admitted = cx.values.add(job, object, memory);
    from.admitted.push_back(admitted);
    Ok(())
}

/// Returns whether the values of a worker's current message exceed the memory.
fn exceeds_memory(cx: &Context, worker: WorkerId) -> bool {
    let Some(worker) = cx.workers.get(&worker) else { return false };
    worker.admitted.iter().flatten().any(|key| cx.values.exceeds_limit(*key))
}

/// Takes the next admitted value of a worker's current message, or the reason why it was refused.
///
/// # Errors
/// No such value was admitted.
pub(super) fn take_admitted(
    cx: &mut Context,
    worker: WorkerId,
    value: SentValue<'_>,
) -> io::Result<Result<StoredValue, Fault>> {
    if let SentValue::Inline(bytes) = value
        && !is_stored(bytes)
    {
        return Ok(Ok(StoredValue::Inline(bytes.into())));
    }
    let from = cx.workers.get_mut(&worker).ok_or(io::ErrorKind::NotFound)?;
    if let SentValue::File(bytes, _) = value {
        from.link.credit_file_bytes(bytes);
    }
    let admitted = from.admitted.pop_front().ok_or(io::ErrorKind::NotFound)?;
    Ok(admitted.map(|key| cx.stored(key)))
}

/// Reports a stored value as lost, with the workers that wait for it.
fn value_lost(cx: &mut Context, key: ValueKey, recipients: Vec<Recipient>) {
    let object = cx.values.view(key).map(|view| view.object);
    let has_it =
        |object: &ObjectId| matches!(cx.scheduler.value(*object), Some(Ok(StoredValue::Local(own, _))) if *own == key);
    match object.filter(has_it) {
        Some(object) => {
            let (waiters, visitors) = split_by_job(cx, object, recipients);
            // After the event, the object has another value, with other contents.
            let reported = cx.effects.events.iter_mut().find_map(|event| match event {
                Event::ObjectLost { object: other, waiters } if *other == object => Some(waiters),
                _ => None,
            });
            match reported {
                Some(reported) => reported.extend(waiters),
                None => cx.step_later(Event::ObjectLost { object, waiters }),
            }
            visitors.into_iter().for_each(|recipient| request_again(cx, recipient));
        }
        // The object was dropped, or has another value: it was reconstructed.
        None => recipients.into_iter().for_each(|recipient| request_again(cx, recipient)),
    }
}
