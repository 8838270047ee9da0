//! Dispatch of events to the steps that handle them.

use crate::event::{Event, SubmissionKind, WorkerKind};
use crate::records::streams::Item;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Applies an event.
    pub(crate) fn handle_event(&mut self, event: Event<C, V>) {
        match event {
            Event::NodeJoined { node, resources, remote, workers } => {
                if self.cluster.add_node(node, resources, remote, workers) {
                    self.fail_infeasible();
                }
            }
            Event::NodeDraining { node } => self.drain_node(node),
            Event::NodeLoad { node, external_usage } => self.load_node(node, &external_usage),
            Event::NodeLost { node } => self.lose_node(node),
            Event::WorkerReady { worker, node, kind } => {
                if let Some(at) = self.cluster.add_worker(worker, node, kind) {
                    match kind {
                        WorkerKind::Tasks(_) | WorkerKind::RemoteTasks => {}
                        WorkerKind::Driver(job) => self.add_driver(job, at),
                        WorkerKind::Actors(_) | WorkerKind::Actor(_) | WorkerKind::PeerProxy | WorkerKind::Leases => {
                            self.work.needs_dispatch = true;
                        }
                    }
                }
            }
            Event::WorkerLost { worker, started, culprit } => self.lose_worker(worker, &started, culprit),
            Event::TenantChanged { tenant, share, limits } => {
                self.cluster.tenants.set(tenant, share, limits);
                self.work.needs_dispatch = true;
            }
            Event::TenantCharged { tenant, used } => self.cluster.tenants.charge_daily(tenant, &used),
            Event::DayStarted => self.cluster.tenants.start_day(),
            Event::Tick => self.end_waits(),
            Event::JobStarted { job, tenant, limits } => self.start_job(job, tenant, limits),
            Event::JobEnded { job } => self.end_job(job),
            Event::Submitted { task } => self.submit(task, Some),
            Event::LeaseRequested { lease } => {
                if lease.kind == SubmissionKind::Lease {
                    self.submit(lease, |()| None);
                }
            }
            Event::ProxyTaskStarted { task, worker } => self.start_proxy_task(task, worker),
            Event::ActorBorrowed { actor, worker } => self.borrow_actor(actor, worker),
            Event::FinishedInline { task, worker, outcome, nanos } => {
                self.finished_inline(task, worker, outcome, nanos)
            }
            Event::StartedInline { task, worker } => self.started_inline(task, worker),
            Event::Put { object, task, worker, value, refs } => self.put(object, task, worker, value, &refs),
            Event::PutFailed { object, task, worker, fault } => self.put_failed(object, task, worker, fault),
            Event::Yielded { task, attempt, worker, index, object, value, refs } => {
                self.yielded(task, attempt, worker, Item { index, object, value, refs });
            }
            Event::ItemsConsumed { stream, worker, consumed } => self.consume_items(stream, worker, consumed),
            Event::Promised { object, task, worker } => self.promise(object, task, worker),
            Event::Fulfilled { object, value } => self.fulfil(object, value),
            Event::Borrowed { object, task, worker } => self.borrow(object, task, worker),
            Event::BorrowResolved { object, value, refs } => self.resolve_borrow(object, value, &refs),
            Event::AttemptFinished { task, attempt, worker, outcome, nanos } => {
                self.attempt_finished(task, attempt, worker, outcome, nanos);
            }
            Event::Blocked { task, worker, blocked } => self.block(task, worker, blocked),
            Event::ObjectRequested { object, worker, task } => self.request_object(object, worker, task),
            Event::ReferenceAdded { object, worker, task } => self.add_reference(object, worker, task),
            Event::ReferencesReleased { object, worker, count } => self.release(object, worker, count),
            Event::Cancelled { task, recursive } => self.cancel(task, recursive),
            Event::DeadlockDetected { call, fault } => self.fail_deadlocked(call, fault),
            Event::Recalled { worker, tasks } => self.recalled(worker, &tasks),
            Event::ObjectLost { object, waiters } => self.lose_object(object, &waiters),
            Event::Killed { actor, restart } => self.kill_actor(actor, restart),
            Event::GroupCreated { group, task, worker, spec, value } => {
                self.create_group(group, task, worker, spec, value);
            }
            Event::GroupRemoved { group, task, worker } => self.remove_group(group, task, worker),
            Event::ReserveReply { group, node, attempt, granted } => {
                self.handle_reserve_reply(group, node, attempt, granted)
            }
            Event::Checkpointed { actor, attempt, worker, object } => {
                self.checkpoint_actor(actor, attempt, worker, object)
            }
        }
    }
}
