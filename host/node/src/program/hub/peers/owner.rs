//! Tasks of this node that others run.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use sandbar_core::{Attempt, JobId, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::{Event, Failure, Outcome};

use super::super::{State, Stored};
use super::away::{AwayKey, Wanted};
use super::lent::{ATTACHED_BYTES_MAX, Lender, Sending};
use crate::jobs::Said as Line;
use crate::program::peer::{Errand, Returns, Said, Sent, ToHelper, ToOwner};
use crate::program::records::Ran;

impl State {
    /// Gives a task to another node.
    pub(in super::super) fn delegate(&mut self, slot: WorkerId, task: TaskId) {
        let Some(node) = self.peers.slots.get(&slot).copied() else { return };
        let Some(needs) = self.sched.call(task).map(|call| call.needs.clone()) else { return };
        let (mut values, mut room) = (Vec::new(), ATTACHED_BYTES_MAX);
        for need in &needs {
            // What it contains is lent when it is asked for.
            if self.sched.contained(*need).next().is_none()
                && let Some(value) = self.sending_within(*need, &mut room)
            {
                values.push((need.0, value));
            }
        }
        let (Some(call), Some(view)) = (self.sched.call(task), self.sched.task(task)) else { return };
        let Some(peer) = self.peers.all.get_mut(&node) else { return };
        let (anchor, program) = (peer.anchor, call.program.compiled.number());
        peer.jobs.insert(view.job);
        if peer.told.insert(program) {
            let (component, limits) = (call.program.compiled.id(), call.program.limits);
            self.peers.say(node, &Said::Owner(ToHelper::Program { program, component, limits }));
        }
        let refs: Vec<u64> = self.sched.refs(task).map(|object| object.0).collect();
        for object in needs.iter().copied().chain(refs.iter().copied().map(ObjectId)) {
            self.events.push_back(Event::Held { object, worker: anchor, task });
        }
        let custom = view.demand.custom.iter().map(|(name, of)| (Cow::Borrowed(&**name), *of));
        let errand = Errand {
            task: task.0,
            attempt: view.attempt.0,
            slot: slot.0,
            job: view.job.0,
            program,
            function: call.function,
            seed: call.seed,
            name: Cow::Borrowed(view.name),
            returns: view.returns,
            demand: (view.demand.cpus, view.demand.gpus, view.demand.memory, custom.collect()),
            priority: view.priority,
            depth: view.depth,
            timeout_ms: call.timeout_ms.map(Into::into),
            needs: needs.iter().map(|object| object.0).collect(),
            refs,
            values: values.iter().map(|(object, value)| (*object, value.as_sent())).collect(),
            arguments: &call.arguments,
        };
        self.peers.say(node, &Said::Owner(ToHelper::Begin(errand)));
    }

    /// Asks for what was given and is not begun.
    pub(in super::super) fn recall_slot(&mut self, slot: WorkerId) {
        if let Some(node) = self.peers.slots.get(&slot).copied() {
            self.peers.say(node, &Said::Owner(ToHelper::Recall(slot.0)));
        }
    }

    /// Ends an attempt that was given to another node.
    pub(in super::super) fn cancel_at(&mut self, slot: WorkerId, task: TaskId, attempt: Attempt) {
        if let Some(node) = self.peers.slots.get(&slot).copied() {
            self.peers.say(node, &Said::Owner(ToHelper::Cancel(task.0, attempt.0)));
        }
    }

    /// A job of this node has ended.
    pub(in super::super) fn tell_job_ended(&mut self, job: JobId) {
        let with = |(_, peer): &(&NodeId, &mut super::Peer)| peer.jobs.contains(&job);
        let nodes: Vec<NodeId> = self.peers.all.iter_mut().filter(with).map(|(node, _)| *node).collect();
        for node in nodes {
            self.peers.say(node, &Said::Owner(ToHelper::JobEnded(job.0)));
            if let Some(peer) = self.peers.all.get_mut(&node) {
                peer.jobs.remove(&job);
            }
        }
    }

    /// A node is to be told of an object that it wanted.
    pub(in super::super) fn lend(&mut self, anchor: WorkerId, object: ObjectId) {
        let Some(node) = self.peers.anchors.get(&anchor).copied() else { return };
        let Some(value) = self.sending(object) else { return };
        let contains = self.sched.contained(object).map(|content| content.0).collect();
        let (value, contains) = self.sendable(value, contains);
        self.peers.say(node, &Said::Owner(ToHelper::Value { object: object.0, value: value.as_sent(), contains }));
    }

    /// As above: it can't have it.
    pub(in super::super) fn refuse_peer(&mut self, anchor: WorkerId, object: ObjectId, error: &TaskError) {
        let Some(node) = self.peers.anchors.get(&anchor).copied() else { return };
        let value = Sending::Failed(postcard::to_stdvec(error).unwrap_or_default());
        let contains = Vec::new();
        self.peers.say(node, &Said::Owner(ToHelper::Value { object: object.0, value: value.as_sent(), contains }));
    }

    /// A node that runs tasks for this one says something.
    pub(super) fn hear_helper(&mut self, node: NodeId, said: ToOwner<'_>) -> io::Result<()> {
        let Some(anchor) = self.peers.all.get(&node).map(|peer| peer.anchor) else { return Ok(()) };
        match said {
            ToOwner::Ended { task, attempt, returned, system, nanos, memory_bytes, begun_nanos_ago, waited } => {
                let (task, attempt) = (TaskId(task), Attempt(attempt));
                let begun = self.clock.saturating_sub(begun_nanos_ago);
                let took = super::super::keep::Took { nanos, memory_bytes, begun, waited };
                self.ended_at(node, (task, attempt), returned, system, &took);
            }
            ToOwner::Recalled(slot, tasks) => {
                let worker = WorkerId(slot);
                if self.peers.slots.get(&worker) == Some(&node) {
                    self.step(Event::Recalled { worker, tasks: tasks.into_iter().map(TaskId).collect() });
                }
            }
            ToOwner::Blocked(task, blocked) => {
                let task = TaskId(task);
                if let Some(worker) = self.slot_of(node, task) {
                    self.step(Event::Blocked { task, worker, blocked });
                }
            }
            ToOwner::Want(object, missed) => {
                // It has it of some task, or had.
                self.want_for(Wanted { object: ObjectId(object), worker: anchor, task: TaskId(0) }, missed);
            }
            ToOwner::Release(object, times) => {
                self.step(Event::Released { object: ObjectId(object), worker: anchor, times });
            }
            ToOwner::Value { job, object, value, contains } => {
                self.arrived(Lender::Helper(node, JobId(job)), ObjectId(object), value, &contains);
            }
            ToOwner::Log { job, task, name, worker, level, line } => {
                if let Some(job) = self.jobs.get(&JobId(job)) {
                    let name: Arc<str> = name.as_ref().into();
                    job.log.say(Line { task: Some((TaskId(task), &name, WorkerId(worker))), level, line });
                }
            }
            ToOwner::Progress { job, task, name, done, total } => {
                if let Some(job) = self.jobs.get(&JobId(job)) {
                    job.bars.say(TaskId(task), name, done, total);
                }
            }
        }
        Ok(())
    }

    /// The slot of a node that has a task.
    fn slot_of(&self, node: NodeId, task: TaskId) -> Option<WorkerId> {
        let worker = self.sched.task(task)?.worker?;
        (self.peers.slots.get(&worker) == Some(&node)).then_some(worker)
    }

    /// An attempt has ended on another node.
    fn ended_at(
        &mut self,
        node: NodeId,
        (task, attempt): (TaskId, Attempt),
        returned: Result<Returns<'_>, Box<TaskError>>,
        system: bool,
        took: &super::super::keep::Took,
    ) {
        let slot = self.slot_of(node, task);
        let job = self.sched.job_of(task);
        let is_so = self.sched.task(task).is_some_and(|view| view.attempt == attempt);
        let (Some(worker), Some(job)) = (slot.filter(|_| is_so), job) else {
            // The job has ended, or the attempt is another's by now.
            return self.release_returns(node, job, returned);
        };
        let lender = Lender::Helper(node, job);
        let mut held = Vec::new();
        let outcome = match returned {
            Ok(values) => {
                let mut all = Vec::with_capacity(values.len());
                let mut failed = None;
                for ((sent, contains), index) in values.into_iter().zip(0u64..) {
                    let refs: Vec<ObjectId> = contains.into_iter().map(ObjectId).collect();
                    refs.iter().for_each(|content| self.borrow(lender, *content, task, worker));
                    held.extend(refs.iter().copied());
                    match self.received(job, ObjectId(task.0 + index), sent, Some((node, job))) {
                        Ok(value) => all.push((value, refs)),
                        Err(error) => failed = Some(error),
                    }
                }
                match failed {
                    None => Outcome::Succeeded(all),
                    Some(error) => {
                        all.iter().for_each(|(value, _)| self.discard(value));
                        Outcome::Failed(Failure { error, system: true })
                    }
                }
            }
            Err(error) => {
                self.count_failed(Some(job));
                Outcome::Failed(Failure { error: Arc::new(self.of_this_job(task, *error)), system })
            }
        };
        self.ran = Some(self.ran_at(worker, task, &outcome, took));
        self.step(Event::Finished { task, attempt, worker, outcome, nanos: took.nanos });
        self.ran = None;
        self.steps(held.into_iter().map(|object| Event::Released { object, worker, times: 1 }));
    }

    /// What a node lends with what it returns is not wanted.
    fn release_returns(&mut self, node: NodeId, job: Option<JobId>, returned: Result<Returns<'_>, Box<TaskError>>) {
        // Of a job that has ended it was told that.
        let Some(job) = job else { return };
        for (sent, contains) in returned.into_iter().flatten() {
            let own = if let Sent::Away { object, .. } = sent { Some(object) } else { None };
            for object in contains.into_iter().chain(own) {
                self.peers.say(node, &Said::Owner(ToHelper::Release(job.0, object, 1)));
            }
        }
    }

    /// An error of a task elsewhere, with the names of those on whose behalf it was begun here.
    fn of_this_job(&self, task: TaskId, error: TaskError) -> TaskError {
        if error.chain.is_empty() {
            return error;
        }
        let mut chain = self.sched.names(task);
        chain.extend(error.chain.into_iter().skip(1));
        TaskError { chain, ..error }
    }

    fn ran_at(
        &self,
        worker: WorkerId,
        task: TaskId,
        outcome: &Outcome<Stored>,
        took: &super::super::keep::Took,
    ) -> Ran {
        let call = self.sched.call(task);
        let ended = took.begun.saturating_add(took.nanos).saturating_add(took.waited).min(self.clock);
        Ran {
            task,
            worker,
            submitted: call.map_or(took.begun, |call| call.submitted.min(took.begun)),
            begun: took.begun,
            ended,
            nanos: took.nanos,
            memory_bytes: took.memory_bytes,
            bytes_in: call.map_or(0, |call| self.bytes_of(call)),
            bytes_out: match outcome {
                Outcome::Succeeded(values) => values.iter().map(|(value, _)| self.bytes_of_value(value)).sum(),
                Outcome::Failed(_) => 0,
            },
        }
    }

    fn bytes_of_value(&self, value: &Stored) -> u64 {
        match value {
            Stored::Inline(bytes) => bytes.len() as u64,
            Stored::Kept(_, bytes) | Stored::Away(AwayKey { bytes, .. }) => *bytes,
        }
    }
}
