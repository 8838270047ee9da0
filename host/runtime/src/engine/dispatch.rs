//! What the scheduler wants done.

use std::io;

use sandbar_core::{Attempt, Fault, IdAllocator, JobId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::{Action, Event, Scheduler};
use sandbar_store::{LendResult, ValueKey};
use sandbar_worker::program::{Delivery, NodeMessage, StartTask};

use super::actors::{Beginning, beginning};
use super::store::Store;
use super::{State, Stored};
use crate::calls::Call;
use crate::members::Member;

impl State {
    /// Has the scheduler decide, and does what it wants done.
    pub(super) fn step(&mut self, event: Event<Call, Stored>) {
        let mut next = Some(event);
        while let Some(event) = next {
            if let Event::Submitted { task } | Event::StartedInline { task, .. } | Event::FinishedInline { task, .. } =
                &event
                && let Some(job) = self.jobs.get_mut(&task.job)
            {
                job.counts.submitted += 1;
            }
            if let Event::ObjectRequested { task, .. } = &event {
                self.asking = self.sched.job_of(*task);
            }
            let mut actions = std::mem::take(&mut self.actions);
            self.sched.step(event, &mut actions);
            actions.drain(..).for_each(|action| self.act(action));
            self.actions = actions;
            self.tell_dead();
            self.end_jobs();
            self.hire();
            next = self.events.pop_front();
        }
    }

    fn act(&mut self, action: Action<Stored>) {
        match action {
            Action::Run { worker, task, .. } if self.peers.is_far(worker) => self.delegate(worker, task),
            Action::Run { worker, task, attempt } => {
                if attempt.0 > 0 {
                    self.time_again(task);
                }
                self.give(worker, task);
            }
            Action::Recall { worker } if self.peers.is_far(worker) => self.recall_at(worker),
            Action::Recall { worker } => {
                if let Some(member) = self.members.get_mut(&worker) {
                    let mut tasks = member.take_back();
                    for task in &tasks {
                        unneeded(member, &self.sched, *task);
                    }
                    tasks.extend(member.waiting.drain(..));
                    self.events.push_back(Event::Recalled { worker, tasks });
                }
            }
            Action::Interrupt { worker, task, attempt } | Action::Withdraw { worker, task, attempt }
                if self.peers.is_far(worker) =>
            {
                self.cancel_at(worker, task, attempt);
            }
            Action::Interrupt { worker, task, attempt } => self.interrupt(worker, task, attempt, None),
            Action::Withdraw { worker, task, attempt } => self.withdraw(worker, task, attempt),
            Action::StartWorker { kind: role, .. } => self.wanted.push(role),
            Action::DeliverItem { worker, stream, object } if self.peers.is_far(worker) => {
                self.send_item_on(worker, stream, object);
            }
            Action::DeliverItem { worker, stream, object } => self.send_item(worker, stream, object),
            Action::Credit { worker, task, consumed: taken } if self.peers.is_far(worker) => {
                self.credit_at(worker, task, taken)
            }
            Action::Credit { worker, task, consumed: taken } => self.tell(worker, &NodeMessage::Credit(task.0, taken)),
            Action::Deliver { worker, object, .. } if self.peers.is_far(worker) => self.lend(worker, object),
            Action::Deliver { worker, object, job } => self.deliver(worker, object, job),
            Action::Refuse { worker, object, error } if self.peers.is_far(worker) => {
                self.refuse_peer(worker, object, &error);
            }
            Action::Refuse { worker, object, error } => self.refuse(worker, object, &error),
            Action::FetchBorrowed { object } => self.ask(object),
            Action::ReleaseBorrow { object } => self.returned(object),
            // Nobody holds what a job's first task returns, but whoever submitted the job.
            Action::Drop { object, value } if self.is_result(object) => drop(self.results.insert(object, value)),
            Action::Drop { value, .. } => self.discard(&value),
            Action::TaskFinished { task, job, error, rerun: again } => {
                self.note_ended(task, error.as_deref());
                self.keep(task, job, error, again);
                // Of one that ended before any worker had it.
                self.deadlines.forget(task);
                self.actor_ended(task);
            }
            Action::ReserveBundles { group, node, attempt, bundles } => {
                self.ask_aside(node, (group, attempt), &bundles)
            }
            Action::ReleaseBundles { group, node, attempt } => self.give_back(node, group, attempt),
            Action::JobDone { job, result } => self.done.push((job, result)),
        }
    }

    /// Whether an object is what a job's first task returned. Workers may name their objects as they like.
    fn is_result(&self, object: ObjectId) -> bool {
        IdAllocator::issuer(object.0) == self.own && self.jobs.values().any(|job| job.first.returns(0) == object)
    }

    /// Tells a worker why it can't have the object that it has just asked for.
    fn refuse(&mut self, worker: WorkerId, object: ObjectId, error: &TaskError) {
        let (Some(member), Some(job)) = (self.members.get_mut(&worker), self.asking) else { return };
        let bytes = postcard::to_stdvec(error).unwrap_or_default();
        let (value, contains) = (Delivery::Failed(&bytes), Vec::new());
        member.link.tell(&NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: true });
    }

    fn give(&mut self, worker: WorkerId, task: TaskId) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        if !member.waiting.is_empty() {
            member.waiting.push_back(task);
            return;
        }
        match give(member, &self.sched, &mut self.store, task) {
            Ok(true) => {}
            Ok(false) => member.waiting.push_back(task),
            Err(e) => drop(member.broken.get_or_insert_with(|| e.to_string())),
        }
    }

    /// Another attempt may take as long as the first.
    fn time_again(&mut self, task: TaskId) {
        if let Some(limit) = self.sched.call(task).and_then(Call::timeout) {
            self.deadlines.limit(task, limit);
        }
    }

    /// Ends an attempt, begun or not.
    pub(super) fn interrupt(&mut self, worker: WorkerId, task: TaskId, attempt: Attempt, why: Option<Fault>) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.link.tell(&NodeMessage::Cancel(task.0, attempt.0));
        member.link.interrupt(task.0);
        self.deadlines.ending(task, worker, why);
    }
}

/// Tells a worker of an object that a task needs which it is given next. What is not at hand, the task asks for.
fn tell(member: &mut Member, sched: &Scheduler<Call, Stored>, store: &mut Store, object: ObjectId) -> io::Result<()> {
    let Some(job) = sched.job_of_object(object) else { return Ok(()) };
    let contains = sched.contained_objects(object).map(|object| object.0).collect();
    let lending = match sched.value(object) {
        Some(Ok(Stored::Kept(key, _))) => store.values.lend(*key, member.id),
        Some(Ok(Stored::Away(_))) => LendResult::Pending,
        Some(Ok(Stored::Inline(bytes))) => {
            let value = Delivery::Value(bytes);
            member.link.tell(&NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: false });
            return Ok(());
        }
        Some(Err(failed)) => {
            let error = postcard::to_stdvec(&**failed).map_err(io::Error::other)?;
            let value = Delivery::Failed(&error);
            member.link.tell(&NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: false });
            return Ok(());
        }
        None => LendResult::Pending,
    };
    let key = sched.value(object).and_then(|value| value.ok()?.key());
    hand_over(member, (job, object, key), lending, contains, false)
}

/// Hands over what a worker is lent of an object.
pub(super) fn hand_over(
    member: &mut Member,
    (job, object, key): (JobId, ObjectId, Option<ValueKey>),
    lending: LendResult,
    contains: Vec<u64>,
    wanted: bool,
) -> io::Result<()> {
    let file = key.map_or(0, |key| key.0);
    let message =
        |value, contains| NodeMessage::Deliver { job: job.0, object: object.0, value, contains, requested: wanted };
    match lending {
        LendResult::Bytes(bytes) => member.link.tell(&message(Delivery::Value(&bytes), contains)),
        LendResult::File(object) => {
            member.link.tell_with(&message(Delivery::File(object.bytes(), file), contains), &object)?
        }
        LendResult::AlreadyLent => member.link.tell(&message(Delivery::LentFile(file), contains)),
        LendResult::Pending | LendResult::Lost(_) => member.link.tell(&message(Delivery::Pending, Vec::new())),
    }
    Ok(())
}

/// A task was taken back: its worker does not need what it was told for it.
fn unneeded(member: &mut Member, sched: &Scheduler<Call, Stored>, task: TaskId) {
    let (Some(call), Some(job)) = (sched.call(task), sched.job_of(task)) else { return };
    for object in beginning(sched, task, call).needs.iter() {
        member.link.tell(&NodeMessage::DropDelivery(job.0, object.0));
    }
}

/// Gives a task to a worker, with what it needs. Says whether there was room.
pub(super) fn give(
    member: &mut Member,
    sched: &Scheduler<Call, Stored>,
    store: &mut Store,
    task: TaskId,
) -> io::Result<bool> {
    let (Some(call), Some(view)) = (sched.call(task), sched.task(task)) else { return Ok(true) };
    let program = call.program.compiled.number();
    if member.programs.insert(program) {
        member.link.send_program(&call.program.compiled, &call.program.limits, call.program.kinds())?;
    }
    let Beginning { role, function, needs, refs, arguments } = beginning(sched, task, call);
    for object in needs.iter() {
        tell(member, sched, store, *object)?;
    }
    let begin = StartTask {
        task: task.0,
        attempt: view.attempt.0,
        job: view.job.0,
        program,
        function,
        seed: call.seed,
        role,
        has_gpu: view.demand.gpus > 0,
        needs: needs.iter().map(|object| object.0).collect(),
        refs: refs.iter().map(|object| object.0).collect(),
        arguments: &arguments,
    };
    Ok(match member.link.give(&begin) {
        Some(given) => {
            member.gave(task, given);
            true
        }
        None => {
            unneeded(member, sched, task);
            false
        }
    })
}
