//! Routing of effects: actions of the scheduler, and requests of the engine's parts to each other.

use std::sync::Arc;

use sandbar_core::{Attempt, Code, Fault, JobId, TaskError, TaskId, WorkerId};
use sandbar_sched::{Action, Event, Submission};
use sandbar_worker::program::{Delivery, NodeMessage};

use super::effects::Effect;
use super::peers::Peers;
use super::refs::{AttemptRef, ReservationRef};
use super::values::StoredValue;
use super::workers::Workers;
use super::{Engine, actors};
use crate::calls::TaskPayload;
use crate::encoding::AlwaysEncodes;

impl Engine {
    /// Handles all effects of an input, and the events that follow from them.
    pub(super) fn run_effects(&mut self) {
        loop {
            while let Some(effect) = self.cx.effects.queue.pop_front() {
                self.handle_effect(effect);
            }
            self.peers.send_ended_actors(&mut self.cx);
            self.end_jobs();
            self.workers.start_requested(&mut self.cx);
            if !self.cx.effects.queue.is_empty() {
                continue;
            }
            let Some(event) = self.cx.effects.events.pop_front() else {
                return self.leases.report_contention(&self.cx);
            };
            if let Event::Recalled { worker, tasks } = &event {
                // Until now, the scheduler could still have them interrupted.
                for task in tasks {
                    self.end_interrupt(*worker, *task);
                    self.deadlines.recalled(*task);
                }
            }
            self.cx.step(event);
        }
    }

    fn handle_effect(&mut self, effect: Effect) {
        let cx = &mut self.cx;
        match effect {
            Effect::Action(action) => self.handle_action(action),
            Effect::Step(event) => cx.step(*event),
            Effect::Submit(worker, task) => self.submit(worker, *task),
            Effect::FindActor { worker, object, task, attempt, name } => {
                if !self.peers.find_actor(cx, task, worker, object.returns(0), &name) {
                    actors::find(cx, worker, object, AttemptRef { task, attempt }, &name);
                }
            }
            Effect::OpenFile(opened) => self.files.open(cx, |job| self.jobs.files(job), opened),
            Effect::KillActor(worker, actor, restart) => {
                if actors::holds_handle(cx, worker, actor) && !self.peers.kill_actor(cx, actor, restart) {
                    cx.step(Event::Killed { actor, restart });
                }
            }
            Effect::Interrupt { worker, task, attempt, reason } => self.interrupt(worker, task, attempt, reason),
            Effect::EndCall(task) => {
                if cx.scheduler.actor_of(task).is_some()
                    && let Some(worker) = cx.scheduler.task(task).and_then(|view| view.worker)
                {
                    self.deadlines.end_call(task, worker, Fault::new(Code::Cancelled, "it was cancelled"));
                }
            }
            Effect::Limit(task, duration) => self.deadlines.limit(task, duration),
            Effect::ForgetLimit(task) => self.deadlines.forget(task),
            Effect::Job(effect) => self.jobs.handle(effect),
            Effect::Deliver(key, recipient) => self.objects.deliver_stored(cx, key, recipient),
            Effect::DeliverRemote(key, recipient) => Peers::deliver_remote(cx, key, recipient),
            Effect::DropRemoteValue(key) => self.peers.drop_remote(cx, key),
            Effect::WorkerAdded(worker) => {
                if let Some(worker) = cx.workers.get_mut(&worker) {
                    self.backpressure.worker_added(worker);
                }
            }
            Effect::WorkerDisconnected(worker) => {
                self.objects.worker_disconnected(cx, worker);
                self.deadlines.forget_worker(worker);
            }
            Effect::Disconnect(node) => self.peers.disconnect(cx, node),
            Effect::FetchLocally(number, object) => {
                let reply = cx.driver.on_fetched(number);
                self.share(object, reply);
            }
        }
    }

    /// Actions for remote workers go to peers.
    fn handle_action(&mut self, action: Action<StoredValue>) {
        let cx = &mut self.cx;
        match action {
            Action::Run { worker, task, .. } if cx.peers.is_remote(worker) => self.peers.assign(cx, worker, task),
            Action::Run { worker, task, .. } if self.leases.is_worker(worker) => self.leases.granted(task),
            Action::Run { worker, task, attempt } => {
                // Each attempt has the whole time.
                if attempt.0 > 0
                    && let Some(limit) = cx.scheduler.call(task).and_then(TaskPayload::timeout)
                {
                    self.deadlines.limit(task, limit);
                }
                Workers::assign(cx, worker, task);
            }
            Action::Recall { worker } if cx.peers.is_remote(worker) => Peers::recall(cx, worker),
            Action::Recall { worker } => Workers::recall(cx, worker),
            Action::Interrupt { worker, task, attempt } | Action::Withdraw { worker, task, attempt }
                if cx.peers.is_remote(worker) =>
            {
                let ends_call = self.deadlines.must_end_call(task);
                self.peers.cancel(cx, worker, AttemptRef { task, attempt }, ends_call);
            }
            // Its job has ended: it is returned soon.
            Action::Interrupt { worker, .. } if self.leases.is_worker(worker) => {}
            Action::Interrupt { worker, task, attempt } => self.interrupt(worker, task, attempt, None),
            Action::Withdraw { worker, task, attempt } => {
                if !Workers::cancel_overflow(cx, worker, AttemptRef { task, attempt }, None) {
                    actors::withdraw(cx, worker, task, attempt);
                }
            }
            Action::StartWorker { kind, .. } => self.workers.request(kind),
            Action::DeliverItem { worker, stream, object } if cx.peers.is_remote(worker) => {
                self.peers.deliver_item(cx, worker, stream, object);
            }
            Action::DeliverItem { worker, stream, object } => self.objects.deliver_item(cx, worker, stream, object),
            Action::Credit { worker, task, consumed } if cx.peers.is_remote(worker) => {
                Peers::send_credit(cx, worker, task, consumed);
            }
            Action::Credit { worker, task, consumed } => cx.send(worker, &NodeMessage::Credit(task.0, consumed)),
            Action::Deliver { worker, object, .. } if cx.peers.is_remote(worker) => {
                self.peers.deliver(cx, worker, object);
            }
            Action::Deliver { worker, object, job } => self.objects.deliver(cx, worker, object, job),
            Action::Refuse { worker, object, error, .. } if cx.peers.is_remote(worker) => {
                Peers::refuse(cx, worker, object, &error);
            }
            Action::Refuse { worker, object, job, error } => {
                let Some(job) = job else { return };
                let error = error.encode();
                let (job, object, value, contains) = (job.0, object.0, Delivery::Failed(&error), Vec::new());
                cx.send(worker, &NodeMessage::Deliver { job, object, value, contains, requested: true });
            }
            Action::FetchBorrowed { object } => self.peers.request_object(cx, object),
            Action::ReleaseBorrow { object } => self.peers.release_object(cx, object),
            Action::Drop { object, value } => {
                if let Some(value) = self.jobs.keep_result(cx, object, value) {
                    cx.discard(&value);
                }
            }
            Action::TaskFinished { task, job, error, rerun } => self.task_finished(task, job, error, rerun),
            Action::ReserveBundles { group, node, attempt, bundles } => {
                self.peers.reserve_bundles(cx, node, ReservationRef { group, attempt }, &bundles);
            }
            Action::ReleaseBundles { group, node, attempt } => Peers::release_bundles(cx, node, group, attempt),
            Action::JobDone { job, result } => self.jobs.end_later(job, result),
        }
    }

    /// Submits a task of a worker.
    pub(super) fn submit(&mut self, worker: WorkerId, task: Submission<TaskPayload>) {
        let cx = &mut self.cx;
        // A peer decides first: an actor of its job is created there.
        let task = self.peers.submit(cx, worker, task).and_then(|task| actors::reuse_named(cx, worker, task));
        if let Some(task) = task {
            cx.step(Event::Submitted { task });
        }
    }

    fn task_finished(&mut self, task: TaskId, job: JobId, error: Option<Arc<TaskError>>, rerun: bool) {
        if !self.peers.is_of_other_node(&self.cx, task) {
            self.cx.usage.book(job, |amounts| amounts.tasks += 1);
        }
        self.peers.task_ended(task, error.as_deref());
        self.jobs.task_finished(&self.cx, task, job, error, rerun);
        // It may never have run.
        self.deadlines.forget(task);
        self.workers.actor_ended(&mut self.cx, sandbar_core::ActorId(task.0));
    }

    /// Ends an attempt on a worker, whether it has started or not.
    fn interrupt(&mut self, worker: WorkerId, task: TaskId, attempt: Attempt, reason: Option<Fault>) {
        if Workers::cancel_overflow(&mut self.cx, worker, AttemptRef { task, attempt }, reason.clone()) {
            return;
        }
        let Some(connected) = self.cx.workers.get_mut(&worker) else { return };
        connected.link.send(&NodeMessage::Cancel(task.0, attempt.0));
        connected.link.interrupt(task.0);
        self.deadlines.ending(task, worker, reason, self.cx.time.now);
    }

    /// Ends the interruption of an attempt, before its task may run again in the same worker.
    pub(super) fn end_interrupt(&self, worker: WorkerId, task: TaskId) {
        if self.deadlines.is_ending(task)
            && let Some(connected) = self.cx.workers.get(&worker)
        {
            connected.link.end_interrupt(task.0);
        }
    }

    fn end_jobs(&mut self) {
        while let Some((job, driver)) = self.jobs.end_next(&mut self.cx) {
            self.cx.step_later(Event::JobEnded { job });
            self.peers.job_ended(&mut self.cx, job);
            Workers::dismiss(&mut self.cx, driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::TenantId;
    use sandbar_sched::WorkerKind;

    use super::super::simulation::idle_engine;
    use super::*;

    /// The scheduler has an attempt interrupted, and learns then that its worker has returned the task.
    #[test]
    fn a_worker_is_not_awaited_for_a_task_that_it_has_returned() {
        let mut engine = idle_engine(1);
        let worker = engine.workers.start(&mut engine.cx, WorkerKind::Tasks(TenantId::DEFAULT)).unwrap();
        let task = TaskId(1);
        engine.cx.step_later(Event::Recalled { worker, tasks: vec![task] });
        engine.interrupt(worker, task, Attempt(0), None);
        assert!(!engine.deadlines.is_empty());
        engine.run_effects();
        assert!(engine.deadlines.is_empty());
    }

    /// The scheduler assigns a task of a job that ends before the assignment is handled, and has it interrupted.
    #[test]
    fn an_attempt_of_an_ended_job_ends_without_its_worker() {
        let mut engine = idle_engine(1);
        let worker = engine.workers.start(&mut engine.cx, WorkerKind::Tasks(TenantId::DEFAULT)).unwrap();
        Workers::assign(&mut engine.cx, worker, TaskId(1));
        engine.interrupt(worker, TaskId(1), Attempt(0), None);
        assert!(engine.deadlines.is_empty());
        let reported = engine.cx.effects.events.pop_back();
        assert!(matches!(reported, Some(Event::AttemptFinished { task: TaskId(1), .. })), "{reported:?}");
    }
}
