//! What workers say of actors, and what is to be done with these.

use std::borrow::Cow;
use std::sync::Arc;

use sandbar_core::{
    ActorId, ActorOptions, Argument, Attempt, Code, Fault, JobId, ObjectId, TaskError, TaskId, WorkerId,
};
use sandbar_sched::{
    ActorSpec, Event, Failure, Outcome, ResourceSet, Scheduler, Submission, SubmissionKind, TaskState,
};
use sandbar_worker::program::{NodeMessage, TaskRole};

use super::{State, Stored};
use crate::calls::{Call, Make};

/// The job of actors that outlive the jobs that made them.
pub(super) const HOME: JobId = JobId(0);

/// What is to be made with these options.
pub(super) fn actor_spec(name: Option<&str>, options: &ActorOptions) -> ActorSpec {
    ActorSpec {
        name: name.map(Arc::from),
        detached: options.detached.then_some(HOME),
        restarts_max: options.max_restarts,
        calls_max: options.max_pending_calls.unwrap_or(u64::MAX),
    }
}

/// How a worker begins a task.
pub(super) struct Beginning<'c> {
    pub(super) role: TaskRole,
    pub(super) function: u32,
    /// Objects that it is told before.
    pub(super) needs: Cow<'c, [ObjectId]>,
    /// Objects that its arguments contain, if it may keep them.
    pub(super) refs: &'c [ObjectId],
    pub(super) arguments: Cow<'c, [u8]>,
}

/// How a task is begun: an actor that was saved is made of that.
pub(super) fn beginning<'c>(sched: &Scheduler<Call, Stored>, task: TaskId, call: &'c Call) -> Beginning<'c> {
    let as_called = |role| Beginning {
        role,
        function: call.function,
        needs: Cow::Borrowed(&call.needs),
        refs: &call.refs,
        arguments: Cow::Borrowed(&call.arguments),
    };
    let Some(make) = &call.make else {
        if call.is_generator()
            && let Some(stream) = sched.stream(task.returns(0))
        {
            return as_called(TaskRole::Generator(stream.buffer));
        }
        let Some(actor) = sched.actor_of(task) else { return as_called(TaskRole::Plain) };
        let made_in = sched.task(actor.creation_task()).map_or(Attempt(0), |maker| maker.attempt);
        return as_called(TaskRole::ActorCall(actor.0, made_in.0, call.timeout().is_some()));
    };
    let role = TaskRole::MakeActor(make.options);
    let saved = sched.actor(ActorId(task.0)).and_then(|actor| actor.checkpoint).or(make.saved);
    match (saved, make.restore) {
        (Some(saved), Some(function)) => {
            let arguments = postcard::to_stdvec(&[Argument::Object(saved)][..]).unwrap_or_default();
            Beginning { role, function, needs: Cow::Owned(vec![saved]), refs: &[], arguments: Cow::Owned(arguments) }
        }
        _ => as_called(role),
    }
}

impl State {
    /// How an actor was made that has not ended.
    pub(super) fn made(&self, actor: ActorId) -> Option<&Make> {
        self.sched.call(actor.creation_task())?.make.as_deref()
    }

    /// A task is submitted. What is to make an actor may mean another one, which is there already.
    pub(super) fn submit(&mut self, worker: WorkerId, task: Submission<Call>) {
        if let Some(root) = self.maker_root(&task) {
            return self.make_at(root, worker, task);
        }
        let meant = match (&task.kind, &task.call.make) {
            (SubmissionKind::ActorCreation(spec), Some(make)) if make.actor.get_if_exists => {
                spec.name.as_ref().and_then(|name| self.sched.actor_named(task.job, name))
            }
            _ => None,
        };
        let Some(other) = meant else {
            let task = self.resume(worker, task);
            return task.into_iter().for_each(|task| self.step(Event::Submitted { task }));
        };
        let value = postcard::to_stdvec(&Some(other.0)).unwrap_or_default();
        let outcome = Outcome::Succeeded(vec![(Stored::Inline(value.into()), vec![other.handle()])]);
        let task = Submission { kind: SubmissionKind::Function, demand: ResourceSet::default(), ..task };
        self.step(Event::FinishedInline { task, worker, outcome, nanos: 0 });
    }

    /// A task looks for an actor: what it gets is as if it had run a task that returns its handle.
    pub(super) fn find(&mut self, worker: WorkerId, id: TaskId, (parent, attempt): (TaskId, Attempt), name: &str) {
        let Some(job) = self.sched.job_of(parent) else { return };
        if let Some(root) = self.root_elsewhere(job) {
            return self.find_at(root, (job, parent), worker, id.returns(0), name);
        }
        let Some(call) = self.sched.call(parent) else { return };
        let call = Call::of(call.program.clone(), call.function, call.seed, Box::default(), self.clock);
        let outcome = match self.sched.actor_named(job, name) {
            Some(actor) => {
                let value = postcard::to_stdvec(&actor.0).unwrap_or_default();
                Outcome::Succeeded(vec![(Stored::Inline(value.into()), vec![actor.handle()])])
            }
            None => {
                let fault = Fault::new(Code::NoActor, format!("there is no actor `{name}`"));
                let error = Arc::new(TaskError { fault, chain: Vec::new() });
                Outcome::Failed(Failure { error, system: false })
            }
        };
        let name = self.names.of("find".to_owned());
        let task = Submission { parent: Some((parent, attempt, worker)), ..Submission::bare(id, job, name, call) };
        self.step(Event::FinishedInline { task, worker, outcome, nanos: 0 });
    }

    /// A task wants an actor ended, or begun anew. Who has no handle to it can't: whoever has holds it.
    pub(super) fn kill(&mut self, worker: WorkerId, actor: ActorId, restart: bool) {
        let holds = |(holder, _): &(WorkerId, u32)| *holder == worker;
        let is_so = self.sched.object(actor.handle()).is_some_and(|handle| handle.holders.iter().any(holds));
        if is_so && !self.kill_at(actor, restart) {
            self.step(Event::Killed { actor, restart });
        }
    }

    /// After a call an actor was saved in an object.
    pub(super) fn save(&mut self, worker: WorkerId, call: TaskId, object: ObjectId) {
        let Some(actor) = self.sched.actor_of(call) else { return };
        let attempt = self.sched.task(actor.creation_task()).map_or(Attempt(0), |maker| maker.attempt);
        self.step(Event::Checkpointed { actor, attempt, worker, object });
        self.tell_saved(actor, object);
    }

    /// A call runs from now on, which may do so for a limited time.
    pub(super) fn called(&mut self, worker: WorkerId, call: TaskId, attempt: Attempt) {
        let view = self.sched.task(call).filter(|view| view.worker == Some(worker) && view.attempt == attempt);
        if view.is_some() {
            self.deadlines.started(call);
        }
    }

    /// Takes a call of an actor back, unless it runs or waits where it stands.
    pub(super) fn withdraw(&mut self, worker: WorkerId, task: TaskId, attempt: Attempt) {
        let Some(actor) = self.sched.actor_of(task) else { return };
        if let Some(member) = self.members.get_mut(&worker) {
            member.link.tell(&NodeMessage::WithdrawCall(actor.0, task.0, attempt.0));
        }
    }

    /// A task does not want what an object of its job comes of. A call of an actor ends wherever it is, as one that is late
    /// does. But what is not wanted since its parent was cancelled, or died, goes on where it runs: others call that actor too.
    pub(super) fn cancel(&mut self, object: ObjectId, by: TaskId, recursive: bool) {
        let Some(task) = self.sched.producer(object) else { return };
        if self.sched.job_of(by).is_none_or(|job| self.sched.job_of(task) != Some(job)) {
            return;
        }
        self.end_call(task);
        self.step(Event::Cancelled { task, recursive });
    }

    /// A task is not wanted. If it is a call of an actor it ends wherever it is.
    pub(super) fn end_call(&mut self, task: TaskId) {
        if self.sched.actor_of(task).is_some()
            && let Some(worker) = self.sched.task(task).and_then(|view| view.worker)
        {
            let why = Fault::new(Code::Cancelled, "it was cancelled");
            self.deadlines.end_call(task, worker, why);
        }
    }

    /// Actors end whose call runs, or waits where it stands, and is late or not wanted: there is no other way out of its code.
    pub(super) fn end_late_calls(&mut self) {
        let State { deadlines, sched, members, peers, .. } = self;
        let runs = |call: TaskId, worker: WorkerId| {
            // Another node ends the calls of its actors.
            !peers.is_far(worker)
                && (members.get(&worker).is_some_and(|member| member.link.call_at_hand() == Some(call.0))
                    || sched.task(call).is_some_and(|view| view.state == TaskState::Blocked))
        };
        for (call, worker, reason) in deadlines.running_calls(|call| sched.task(call).is_some(), runs) {
            let creation = self.sched.actor_of(call).and_then(|actor| self.sched.task(actor.creation_task()));
            let Some((id, attempt)) = creation.map(|view| (view.id, view.attempt)) else { continue };
            if !self.deadlines.is_ending(id) {
                let message = format!("it was ended with a call of it: {}", reason.message);
                self.interrupt(worker, id, attempt, Some(Fault::new(Code::ActorDied, message)));
            }
        }
    }

    /// The worker of an actor that has one for itself goes with it.
    pub(super) fn actor_ended(&mut self, task: TaskId) {
        if let Some(worker) = self.of_actors.remove(&ActorId(task.0))
            && let Some(mut member) = self.members.remove(&worker)
        {
            member.link.kill();
            self.events.push_back(Event::WorkerLost { worker, started: Vec::new() });
        }
    }

    /// Starts workers that were asked for. Those that can't be started are tried again later.
    pub(super) fn hire(&mut self) {
        for role in std::mem::take(&mut self.wanted) {
            if self.start_worker(role).is_none() {
                self.wanted.push(role);
            }
        }
    }
}
