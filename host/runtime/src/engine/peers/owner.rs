//! Tasks of this node that others run, and actors that others keep for it.

use std::borrow::Cow;
use std::sync::Arc;

use sandbar_core::{ActorId, Attempt, Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_jobs::AttemptRecord;
use sandbar_sched::{Event, Failure, Outcome, TaskView};
use sandbar_worker::program::AttemptUsage;

use super::super::hear::too_large;
use super::super::{State, Stored};
use super::away::AwayKey;
use super::lent::{ATTACHED_BYTES_MAX, Sending};
use crate::Program;
use crate::calls::Call;
use crate::peer::{Amounts, PeerMessage, PeerValue, RemoteResults, RemoteTaskSpec, RemoteWork};

impl State {
    /// Gives a task to another node.
    pub(in super::super) fn delegate(&mut self, worker: WorkerId, task: TaskId) {
        let Some(node) = self.peers.far.get(&worker).copied() else { return };
        let Some(call) = self.sched.call(task).cloned() else { return };
        let Some(work) = self.errand_work(worker, task, &call) else { return };
        let Some(view) = self.sched.task(task) else { return };
        let needs = self.needs_of(task, &call);
        let objects = needs.len() + self.sched.refs(task).count();
        if let Some(fault) = too_large(view.returns, objects, call.arguments.len()) {
            // Calls go to where their actor is, whatever they take along.
            let outcome =
                Outcome::Failed(Failure { error: Arc::new(TaskError { fault, chain: Vec::new() }), system: false });
            self.events.push_back(Event::AttemptFinished { task, attempt: view.attempt, worker, outcome, nanos: 0 });
            return;
        }
        let values = self.attached(&needs);
        self.tell_program(node, &call.program);
        let Some(job) = self.sched.job_of(task) else { return };
        self.introduce(node, job);
        let (Some(view), Some(anchor)) = (self.sched.task(task), self.peers.anchor(node)) else { return };
        let (name, refs) = (view.name.clone(), self.sched.refs(task).collect::<Vec<ObjectId>>());
        let held = needs.iter().chain(&refs);
        self.events.extend(held.map(|object| Event::ReferenceAdded { object: *object, worker: anchor, task }));
        let errand = RemoteTaskSpec {
            task,
            attempt: view.attempt,
            slot: worker,
            returns: view.returns,
            demand: Amounts::of(view.demand),
            priority: view.priority,
            depth: view.depth,
            bundle: self.sched.bundle_of(task),
            refs,
            needs,
            values: values.iter().map(|(object, value)| (*object, value.as_sent())).collect(),
            work,
            ..self.errand(job, &name, &call)
        };
        self.peers.say(node, &PeerMessage::Submit(errand));
    }

    /// Objects that a task needs: what an actor was saved as, beside its arguments.
    fn needs_of(&self, task: TaskId, call: &Call) -> Vec<ObjectId> {
        let saved = call.make.as_ref().and_then(|_| self.sched.actor(ActorId(task.0))?.checkpoint);
        call.needs.iter().copied().chain(saved).collect()
    }

    /// What of an errand is known by its call.
    pub(super) fn errand<'a>(&self, job: JobId, name: &'a str, call: &'a Call) -> RemoteTaskSpec<'a> {
        RemoteTaskSpec {
            task: TaskId(0),
            attempt: Attempt(0),
            slot: WorkerId(0),
            job: self.root(job),
            program: call.program.compiled.number(),
            function: call.function,
            seed: call.seed,
            lineage: call.lineage,
            name: Cow::Borrowed(name),
            returns: 1,
            demand: Amounts::default(),
            priority: 0,
            depth: 1,
            bundle: None,
            timeout_ms: call.timeout_ms.map(Into::into),
            needs: call.needs.to_vec(),
            refs: Vec::new(),
            values: Vec::new(),
            arguments: &call.arguments,
            work: RemoteWork::Task,
        }
    }

    /// What there is of objects that go with a message.
    fn attached(&mut self, needs: &[ObjectId]) -> Vec<(ObjectId, Sending)> {
        let (mut values, mut room) = (Vec::new(), ATTACHED_BYTES_MAX);
        for need in needs {
            // What it contains is lent when it is asked for.
            if self.sched.contained_objects(*need).next().is_none()
                && let Some(value) = self.sending_within(*need, &mut room)
            {
                values.push((*need, value));
            }
        }
        values
    }

    /// A node learns of a program before the first of its tasks.
    pub(super) fn tell_program(&mut self, node: NodeId, program: &Program) {
        let (component, limits) = (program.compiled.id(), program.limits);
        let program = program.compiled.number();
        if self.peers.all.get_mut(&node).is_some_and(|peer| peer.told.insert(program)) {
            self.peers.say(node, &PeerMessage::Program { program, component, limits });
        }
    }

    /// Asks for what was given and is not begun.
    pub(in super::super) fn recall_at(&mut self, slot: WorkerId) {
        if let Some(node) = self.peers.far.get(&slot).copied() {
            self.peers.say(node, &PeerMessage::Recall(slot));
        }
    }

    /// Ends an attempt that was given to another node, or that stands for it.
    pub(in super::super) fn cancel_at(&mut self, worker: WorkerId, task: TaskId, attempt: Attempt) {
        let Some(node) = self.peers.far.get(&worker).copied() else { return };
        if !self.peers.seats.end(task) {
            return self.peers.say(node, &PeerMessage::Cancel(task, attempt, self.deadlines.must_end_call(task)));
        }
        let error = Arc::new(TaskError { fault: Fault::new(Code::Cancelled, "it was cancelled"), chain: Vec::new() });
        let outcome = Outcome::Failed(Failure { error, system: false });
        self.events.push_back(Event::AttemptFinished { task, attempt, worker, outcome, nanos: 0 });
    }

    /// An attempt has ended on another node, or an actor.
    pub(super) fn ended_at(
        &mut self,
        (node, worker): (NodeId, WorkerId),
        (task, attempt): (TaskId, Attempt),
        returned: Result<RemoteResults<'_>, Box<TaskError>>,
        system: bool,
        took: &AttemptUsage,
    ) {
        if self.peers.far.get(&worker) != Some(&node) {
            return;
        }
        let job = self.sched.task(task).filter(|view| is_at(view, worker, attempt)).map(|view| view.job);
        let mut held = Vec::new();
        let outcome = match (returned, job) {
            (Ok(values), Some(job)) => {
                let mut all = Vec::with_capacity(values.len());
                let mut failed = None;
                for ((sent, refs), index) in values.into_iter().zip(0u64..) {
                    refs.iter().for_each(|content| self.borrow(node, *content, task, worker));
                    held.extend(refs.iter().copied());
                    match self.received(job, ObjectId(task.0 + index), sent, Some(node)) {
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
            // The job has ended, or the attempt is another's by now.
            (Ok(values), None) => {
                values.into_iter().for_each(|(value, contains)| self.release_sent(node, value, contains));
                Outcome::Succeeded(Vec::new())
            }
            (Err(error), job) => {
                self.count_failed(job);
                Outcome::Failed(Failure { error: Arc::new(self.with_names(task, *error)), system })
            }
        };
        self.ran = Some(self.ran_at(worker, task, &outcome, took));
        // What was given counts until this is said, whatever has become of it.
        self.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos: took.nanos });
        self.ran = None;
        self.steps(held.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
    }

    /// A generator that another node runs has yielded an item.
    pub(super) fn yielded_at(
        &mut self,
        (node, worker): (NodeId, WorkerId),
        (task, attempt): (TaskId, Attempt),
        (index, object): (u64, ObjectId),
        value: PeerValue<'_>,
        refs: Vec<ObjectId>,
    ) {
        let is_new = !self.is_own_number(object.0);
        let is_so =
            |view: &TaskView<'_>| is_new && is_at(view, worker, attempt) && self.peers.far.get(&worker) == Some(&node);
        let Some(job) = self.sched.task(task).filter(is_so).map(|view| view.job) else {
            return self.release_sent(node, value, refs);
        };
        refs.iter().for_each(|content| self.borrow(node, *content, task, worker));
        let value = self.received(job, object, value, Some(node)).map_err(|error| error.fault.clone());
        self.step(Event::Yielded { task, attempt, worker, index, object, value, refs: refs.clone() });
        self.steps(refs.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
    }

    /// What a node has lent is not wanted.
    pub(super) fn release_sent(&mut self, node: NodeId, value: PeerValue<'_>, contains: Vec<ObjectId>) {
        let own = if let PeerValue::Remote { object, .. } = value { Some(object) } else { None };
        for object in contains.into_iter().chain(own) {
            self.peers.say(node, &PeerMessage::Release(object, 1));
        }
    }

    /// A generator learns how much of what it has yielded was taken.
    pub(in super::super) fn credit_at(&mut self, slot: WorkerId, task: TaskId, taken: u64) {
        if let Some(node) = self.peers.far.get(&slot).copied() {
            self.peers.say(node, &PeerMessage::ItemsTaken(task, taken));
        }
    }

    /// An error of what was done elsewhere for a task, with the names of those on whose behalf it was begun here.
    pub(super) fn with_names(&self, task: TaskId, error: TaskError) -> TaskError {
        if error.chain.is_empty() {
            return error;
        }
        let mut chain = self.sched.ancestor_names(task);
        chain.extend(error.chain.into_iter().skip(1));
        TaskError { chain, ..error }
    }

    fn ran_at(&self, worker: WorkerId, task: TaskId, outcome: &Outcome<Stored>, took: &AttemptUsage) -> AttemptRecord {
        let call = self.sched.call(task);
        let ended = took.started.saturating_add(took.nanos).saturating_add(took.waited_nanos).min(self.clock);
        AttemptRecord {
            task,
            worker,
            submitted_ns: call.map_or(took.started, |call| call.submitted.min(took.started)),
            started_ns: took.started,
            finished_ns: ended,
            compute_ns: took.nanos,
            gpu_ns: took.gpu_nanos,
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

/// Whether it is this attempt of a task, in that worker.
pub(super) fn is_at(view: &TaskView<'_>, worker: WorkerId, attempt: Attempt) -> bool {
    view.worker == Some(worker) && view.attempt == attempt
}
