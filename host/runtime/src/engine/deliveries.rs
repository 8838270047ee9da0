//! Delivery of values to workers, and handling of deliveries whose value is lost. This module has no state.

use std::io;

use sandbar_core::{JobId, ObjectId, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{LendResult, ValueKey};
use sandbar_worker::program::{Delivery, NodeMessage};

use super::context::Context;
use super::values::Recipient;
use crate::worker::Worker;

/// A delivery of a value that the store has lent.
pub(super) struct LentDelivery {
    pub(super) job: JobId,
    pub(super) object: ObjectId,
    pub(super) key: Option<ValueKey>,
    pub(super) lent: LendResult,
    /// Objects that the value contains.
    pub(super) contains: Vec<u64>,
    /// Whether a task of the worker has requested the object.
    pub(super) requested: bool,
}

/// Delivers a value to a worker that the store has lent it to.
pub(super) fn deliver_lent(worker: &mut Worker, delivery: LentDelivery) -> io::Result<()> {
    let LentDelivery { job, object, key, lent, contains, requested } = delivery;
    let file = key.map_or(0, |key| key.0);
    let message = |value, contains| NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested };
    match lent {
        LendResult::Bytes(bytes) => worker.link.send(&message(Delivery::Value(&bytes), contains)),
        LendResult::File(object) => {
            worker.link.send_with_file(&message(Delivery::File(object.bytes(), file), contains), &object)?;
        }
        LendResult::AlreadyLent => worker.link.send(&message(Delivery::LentFile(file), contains)),
        LendResult::Pending | LendResult::Lost(_) => worker.link.send(&message(Delivery::Pending, Vec::new())),
    }
    Ok(())
}

/// Splits the recipients of a lost value into the workers that wait for tasks of its job, and those of other jobs, whose
/// tasks request it again.
pub(super) fn split_by_job(
    cx: &Context,
    object: ObjectId,
    recipients: Vec<Recipient>,
) -> (Vec<WorkerId>, Vec<Recipient>) {
    let job = cx.scheduler.job_of_object(object);
    let (own, visitors): (Vec<_>, Vec<_>) = recipients.into_iter().partition(|recipient| Some(recipient.job) == job);
    (own.iter().map(|recipient| recipient.worker).collect(), visitors)
}

/// Requests an object for a worker that waits for a value which the object no longer has.
pub(super) fn request_again(cx: &mut Context, recipient: Recipient) {
    let Recipient { worker, job, object, contains } = recipient;
    let task = cx.scheduler.workers().find(|view| view.id == worker).and_then(|view| {
        let actors = view.actors.into_iter().map(|actor| actor.creation_task());
        let mut tasks = view.blocked.into_iter().chain(view.assigned).chain(actors);
        tasks.find(|task| cx.scheduler.job_of(*task) == Some(job))
    });
    // The worker was to hold what the old value contained.
    for content in contains {
        cx.step_later(Event::ReferencesReleased { object: ObjectId(content), worker, count: 1 });
    }
    if let Some(task) = task {
        cx.step_later(Event::ObjectRequested { object, worker, task });
    }
}
