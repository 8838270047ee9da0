//! Actors: made by a task that lasts as long as they do, begun anew when they die, and gone with their handles.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sandbar_core::{ActorId, Attempt, Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, TenantId, WorkerId};

use crate::cluster::Given;
use crate::event::{Action, ActorSpec, Outcome, Role, Submission, Work};
use crate::places::{ActorAt, JobAt, ObjectAt, TaskAt, WorkerAt};
use crate::refs::{Object, Value};
use crate::scheduler::Scheduler;
use crate::tasks::{End, State, Stop, Task, end_of};

/// What made it ends with it, but is kept track of by itself: its record goes with its last handle.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) id: ActorId,
    pub(crate) job: JobAt,
    pub(crate) spec: ActorSpec,
    /// The task that makes it, until it has died.
    pub(crate) maker: Option<TaskAt>,
    /// Where it is, once it is made.
    pub(crate) worker: Option<WorkerAt>,
    /// Calls that can be given, by number.
    pub(crate) line: BTreeMap<u64, TaskAt>,
    /// Calls that its worker has, in the order in which it got them.
    pub(crate) given: VecDeque<TaskAt>,
    /// Of callers of which a call waits for an object, that call and the later ones, by number.
    pub(crate) gates: BTreeMap<TaskAt, BTreeMap<u64, TaskAt>>,
    /// Calls that have not ended.
    pub(crate) calls: u64,
    /// What it begins anew with.
    pub(crate) saved: Option<ObjectAt>,
    /// Why it is not there any more.
    pub(crate) died: Option<Arc<TaskError>>,
    /// Where a worker of its own was asked for.
    pub(crate) hired_on: Option<NodeId>,
    /// It is another scheduler's: nothing made it here, and its worker stands for that.
    pub(crate) is_borrowed: bool,
}

impl Actor {
    /// One that nothing makes.
    pub(crate) fn new(id: ActorId, job: JobAt, spec: ActorSpec) -> Actor {
        Actor {
            id,
            job,
            spec,
            maker: None,
            worker: None,
            line: BTreeMap::new(),
            given: VecDeque::new(),
            gates: BTreeMap::new(),
            calls: 0,
            saved: None,
            died: None,
            hired_on: None,
            is_borrowed: false,
        }
    }
}

/// Actors by name: those of a job, and those of a tenant.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<(TenantId, Option<JobId>, Arc<str>), ActorId>);

impl Names {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<C, V> Scheduler<C, V> {
    /// The actor that a task makes, or made.
    pub(crate) fn made_by(&self, at: TaskAt) -> Option<ActorAt> {
        let actor = self.tasks[at].actor?;
        (self.actors[actor].maker == Some(at)).then_some(actor)
    }

    /// Whether a task is a call of a method.
    pub(crate) fn is_method(&self, at: TaskAt) -> bool {
        self.tasks[at].actor.is_some_and(|actor| self.actors[actor].maker != Some(at))
    }

    /// Whether what a task of a job is to do with an actor can be done.
    pub(crate) fn admit_actor(&self, job: JobAt, submission: &Submission<C>) -> Result<(), Fault> {
        match &submission.work {
            Work::Task | Work::Stream(_) => Ok(()),
            Work::Method(actor) => self.callable(job, *actor).map(|_| ()),
            Work::Actor(spec) => {
                if submission.returns != 1 {
                    return Err(Fault::new(
                        Code::BadRequest,
                        "what makes an actor returns its handle, and nothing else",
                    ));
                }
                if spec.detached.is_some() && !(submission.needs.is_empty() && submission.refs.is_empty()) {
                    let message = "outlives its job, and is made with objects of that: pass values";
                    return Err(Fault::new(Code::BadRequest, message));
                }
                let taken = spec.name.as_ref().filter(|name| self.names.0.contains_key(&self.key(job, spec, name)));
                let message = |name: &Arc<str>| format!("there is an actor `{name}` already");
                taken.map_or(Ok(()), |name| Err(Fault::new(Code::NameTaken, message(name))))
            }
        }
    }

    fn key(&self, job: JobAt, spec: &ActorSpec, name: &Arc<str>) -> (TenantId, Option<JobId>, Arc<str>) {
        let job = &self.jobs[job];
        (job.tenant, spec.detached.is_none().then_some(job.id), name.clone())
    }

    /// The actor of this name that tasks of a job find.
    pub fn actor_named(&self, job: JobId, name: &str) -> Option<ActorId> {
        let tenant = self.jobs[*self.job_ids.get(&job)?].tenant;
        let find = |job: Option<JobId>| self.names.0.get(&(tenant, job, name.into())).copied();
        find(Some(job)).or_else(|| find(None))
    }

    /// An actor that tasks of a job may call.
    fn callable(&self, job: JobAt, id: ActorId) -> Result<ActorAt, Fault> {
        let unknown = || Fault::new(Code::ActorDied, format!("actor {id} is not there, or not any more"));
        let at = self.find_actor(id).ok_or_else(unknown)?;
        let actor = &self.actors[at];
        if actor.job != job && actor.spec.detached.is_none() {
            return Err(Fault::new(Code::BadRequest, format!("actor {id} is of another job")));
        }
        if let Some(died) = &actor.died {
            return Err(died.fault.clone());
        }
        if self.find_object(actor.id.handle()).is_none() {
            return Err(unknown());
        }
        if actor.calls >= actor.spec.calls_max {
            let message = format!("actor {id} has {} calls that have not ended, as many as it may", actor.calls);
            return Err(Fault::new(Code::PendingCalls, message));
        }
        Ok(at)
    }

    /// The actor behind a handle: its own, or one whose value is the handle of the actor that was meant.
    pub(crate) fn find_actor(&self, id: ActorId) -> Option<ActorAt> {
        if let Some(at) = self.actor_ids.get(&id) {
            return Some(*at);
        }
        match self.objects[self.find_object(id.handle())?].contents() {
            [meant] => self.actor_ids.get(&ActorId(self.objects[*meant].id.0)).copied(),
            _ => None,
        }
    }

    /// Whether tasks of all jobs may use an object: it is the handle of an actor that no job owns.
    pub(crate) fn is_of_all(&self, object: &Object<V>) -> bool {
        let actor = self.actor_ids.get(&ActorId(object.id.0)).map(|at| &self.actors[*at]);
        object.index == Some(0) && actor.is_some_and(|actor| actor.spec.detached.is_some())
    }

    /// A task was added that makes an actor.
    pub(crate) fn add_actor(&mut self, maker: TaskAt, spec: ActorSpec) {
        let (id, job) = (ActorId(self.tasks[maker].id.0), self.tasks[maker].job);
        if let Some(name) = &spec.name {
            self.names.0.insert(self.key(job, &spec, name), id);
        }
        if spec.detached.is_some()
            && let Some(handle) = self.find_object(id.handle())
        {
            self.pin(handle);
        }
        let at = self.actors.insert(Actor { maker: Some(maker), ..Actor::new(id, job, spec) });
        self.actor_ids.insert(id, at);
        self.tasks[maker].actor = Some(at);
    }

    /// What became of making an actor, in a worker that had just that to do.
    pub(crate) fn finished_making(
        &mut self,
        actor: ActorAt,
        maker: TaskAt,
        (worker, given): (WorkerAt, Given),
        outcome: Outcome<V>,
    ) {
        let is_good = |values: &[(V, Vec<ObjectId>)]| self.contents(maker, values).is_ok();
        match outcome {
            Outcome::Succeeded(values) if self.tasks[maker].stop == Stop::No && is_good(&values) => {
                let task = &mut self.tasks[maker];
                (task.state, task.worker) = (State::Resident, Some(worker));
                self.cluster.move_in(worker, given, &mut self.queue);
                self.actors[actor].worker = Some(worker);
                self.set_handle(actor, values);
                self.feed(actor);
            }
            outcome => {
                if matches!(outcome, Outcome::Succeeded(_)) {
                    // What it has is none of the scheduler's.
                    let (task, worker) = (&self.tasks[maker], self.cluster.workers[worker].id);
                    self.out.push(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
                }
                self.finish_in(maker, worker, outcome);
            }
        }
    }

    /// The handle is there once the actor is, and stays when it is begun anew.
    fn set_handle(&mut self, actor: ActorAt, values: Vec<(V, Vec<ObjectId>)>) {
        let id = self.actors[actor].id.handle();
        for (value, refs) in values {
            match self.find_object(id).filter(|at| self.objects[*at].is_pending()) {
                Some(at) => {
                    let contents = refs.iter().filter_map(|object| self.find_object(*object)).collect();
                    self.set_ready(at, value, contents);
                }
                None => self.out.push(Action::Drop { object: id, value }),
            }
        }
    }

    /// A worker says that an actor has ended. It has said before what became of the calls that were begun.
    pub(crate) fn finished_resident(&mut self, id: TaskId, worker: WorkerAt, outcome: Outcome<V>) {
        let given = self.cluster.move_out(worker, id, &mut self.queue);
        self.is_stale = true;
        let Some(maker) = given.and_then(|given| given.task) else { return self.discard(id, outcome) };
        let error = match outcome {
            Outcome::Failed(failure) => failure.error,
            outcome => {
                self.discard(id, outcome);
                self.error(maker, Fault::new(Code::ActorDied, "it has ended"))
            }
        };
        let calls = self.take_calls(maker);
        let may_help = self.cluster.workers[worker].role != Role::Peer;
        self.lose_actor(maker, (calls, &|_| false), error, may_help);
    }

    /// An actor is in no worker any more. Gives the calls that it had.
    pub(crate) fn take_calls(&mut self, maker: TaskAt) -> Vec<TaskAt> {
        let task = &mut self.tasks[maker];
        (task.state, task.worker) = (State::Waiting, None);
        task.actor.map_or_else(Vec::new, |actor| self.take_calls_of(actor))
    }

    /// The calls that an actor's worker had come back: in no line, and in no worker.
    pub(crate) fn take_calls_of(&mut self, actor: ActorAt) -> Vec<TaskAt> {
        let actor = &mut self.actors[actor];
        actor.worker = None;
        let calls: Vec<TaskAt> = actor.given.drain(..).collect();
        for call in &calls {
            let call = &mut self.tasks[*call];
            (call.state, call.worker) = (State::Waiting, None);
        }
        calls
    }

    /// An actor is not there any more. It had these calls, of which some were begun. It is begun anew if that `may_help`.
    pub(crate) fn lose_actor(
        &mut self,
        maker: TaskAt,
        (calls, is_begun): (Vec<TaskAt>, &dyn Fn(TaskId) -> bool),
        error: Arc<TaskError>,
        may_help: bool,
    ) {
        for call in calls {
            if is_begun(self.tasks[call].id) || self.tasks[call].child.is_some() {
                self.stop_descendants(call);
                let message = format!("the actor died while it was called: {}", error.fault.message);
                let error = TaskError { fault: Fault::new(Code::ActorDied, message), chain: Vec::new() };
                self.fail_attempt(call, Arc::new(error), true);
            } else {
                self.give_back(call);
            }
        }
        self.stop_descendants(maker);
        self.fail_attempt(maker, error, may_help);
    }

    /// An attempt to make an actor, or the actor itself, has come to nothing.
    pub(crate) fn fail_actor(&mut self, actor: ActorAt, maker: TaskAt, error: Arc<TaskError>, may_help: bool) {
        let task = &mut self.tasks[maker];
        if task.stop != Stop::No {
            let error = self.error(maker, self.stopped(maker));
            self.end_actor(actor, maker, &error, end_of(&error));
        } else if may_help && task.attempt.0 < self.actors[actor].spec.restarts_max {
            task.attempt.0 += 1;
            self.stop_descendants(maker);
            self.ready(maker);
        } else {
            let error = self.with_chain(maker, error);
            self.end_actor(actor, maker, &error, End::Failed);
        }
    }

    /// An actor has died for good, and all of its calls fail.
    pub(crate) fn end_actor(&mut self, actor: ActorAt, maker: TaskAt, error: &Arc<TaskError>, end: End) {
        let what = match end {
            End::Stopped => "was killed, or nobody referred to it any more".to_owned(),
            _ => format!("has died: {}", error.fault.message),
        };
        let name = self.classes.get(self.tasks[maker].class).kind.name.clone();
        let fault = Fault::new(Code::ActorDied, format!("actor `{name}` {what}"));
        let died = Arc::new(TaskError { fault, chain: error.chain.clone() });
        self.unname(actor);
        let record = &mut self.actors[actor];
        record.died = Some(died.clone());
        let (id, saved, detached) = (record.id, record.saved.take(), record.spec.detached.is_some());
        self.fail_calls(actor, &died);
        if let Some(saved) = saved {
            self.unpin(saved);
        }
        if let Some(handle) = self.find_object(id.handle()) {
            if self.objects[handle].is_pending() {
                self.set_failed(handle, &died);
            }
            if detached {
                self.unpin(handle);
            }
        }
        self.end(maker, end, Err(error.clone()));
    }

    /// The calls that wait for an actor fail, as it has died.
    pub(crate) fn fail_calls(&mut self, actor: ActorAt, died: &TaskError) {
        let record = &mut self.actors[actor];
        let (line, gates) = (std::mem::take(&mut record.line), std::mem::take(&mut record.gates));
        for call in line.into_values() {
            self.tasks[call].state = State::Waiting;
            self.fail_of_death(call, died);
        }
        for (number, call) in gates.into_values().flatten() {
            if let Some(task) = self.tasks.get_mut(call).filter(|task| task.number == number && !task.has_ended()) {
                (task.state, task.is_gated) = (State::Waiting, false);
                self.fail_of_death(call, died);
            }
        }
    }

    /// A call fails by the end of the step, as its actor has died.
    pub(crate) fn fail_of_death(&mut self, call: TaskAt, died: &TaskError) {
        let error = self.error(call, died.fault.clone());
        self.failing.push((call, error));
    }

    fn unname(&mut self, actor: ActorAt) {
        let record = &self.actors[actor];
        if let Some(name) = &record.spec.name {
            let key = self.key(record.job, &record.spec, name);
            self.names.0.remove(&key);
        }
    }

    /// What made an actor has ended, or a call of it.
    pub(crate) fn ended_of_actor(&mut self, at: TaskAt, actor: ActorAt) {
        if self.actors[actor].maker != Some(at) {
            return self.ended_call(at, actor);
        }
        let record = &mut self.actors[actor];
        record.maker = None;
        let id = record.id;
        // What made it is a task like others from here on: the record may go before it.
        self.tasks[at].actor = None;
        self.forget_if_gone(id);
    }

    /// The last handle to an actor has gone, and with it all calls that had not ended.
    pub(crate) fn drop_handle(&mut self, object: ObjectId) {
        let id = ActorId(object.0);
        let Some(actor) = self.actor_ids.get(&id) else { return };
        match self.actors[*actor].maker {
            Some(maker) => self.stop(maker, Stop::Alone),
            None => self.forget_if_gone(id),
        }
    }

    /// Forgets an actor that has died, that nobody has a handle to, and of which no call is left.
    pub(crate) fn forget_if_gone(&mut self, id: ActorId) {
        if self.find_object(id.handle()).is_some() {
            return;
        }
        let is_gone = |actor: &Actor| actor.maker.is_none() && actor.calls == 0;
        if let Some(at) = self.actor_ids.get(&id).copied().filter(|at| is_gone(&self.actors[*at])) {
            self.actor_ids.remove(&id);
            self.actors.remove(at);
        }
    }

    /// The actors of a job.
    pub(crate) fn actors_of(&self, job: JobAt) -> Vec<ActorId> {
        self.actors.iter().filter(|(_, actor)| actor.job == job).map(|(_, actor)| actor.id).collect()
    }

    /// An actor goes with its job, whose calls were forgotten. Those of other jobs fail.
    pub(crate) fn orphan(&mut self, at: ActorAt) {
        let Some(maker) = self.actors[at].maker else { return };
        self.unname(at);
        self.unplaced.remove(maker);
        self.tasks[maker].actor = None;
        let record = &mut self.actors[at];
        (record.maker, record.worker, record.saved) = (None, None, None);
        let fault = Fault::new(Code::ActorDied, format!("actor {} went with its job", record.id));
        let died = Arc::new(TaskError { fault, chain: Vec::new() });
        record.died = Some(died.clone());
        let gated = std::mem::take(&mut record.gates).into_values().flatten();
        // Those that were forgotten are none of its any more.
        let is_left = |task: &Task<C>, number: u64| task.number == number && task.actor == Some(at);
        let gated = gated.filter(|(number, call)| self.tasks.get(*call).is_some_and(|task| is_left(task, *number)));
        let line = std::mem::take(&mut record.line).into_values();
        let calls: Vec<TaskAt> = record.given.drain(..).chain(line).chain(gated.map(|(_, call)| call)).collect();
        for call in calls {
            let task = &mut self.tasks[call];
            if !task.has_ended() {
                (task.state, task.worker, task.is_gated) = (State::Waiting, None, false);
                self.fail_of_death(call, &died);
            }
        }
    }

    pub(crate) fn kill_actor(&mut self, id: ActorId, restart: bool) {
        let Some(maker) = self.find_actor(id).and_then(|at| self.actors[at].maker) else { return };
        if !restart {
            return self.stop(maker, Stop::Alone);
        }
        let task = &self.tasks[maker];
        if let (State::Resident, Some(worker), Stop::No) = (task.state, task.worker, task.stop) {
            let worker = self.cluster.workers[worker].id;
            self.out.push(Action::Interrupt { worker, task: task.id, attempt: task.attempt });
        }
    }

    pub(crate) fn save_actor(&mut self, id: ActorId, attempt: Attempt, worker: WorkerId, object: ObjectId) {
        let Some(worker) = self.cluster.find(worker) else { return };
        let Some(at) = self.actor_ids.get(&id).copied().filter(|at| self.actors[*at].worker == Some(worker)) else {
            return;
        };
        let is_now = self.actors[at].maker.is_some_and(|maker| self.tasks[maker].attempt == attempt);
        let job = self.actors[at].job;
        let is_there = |object: &Object<V>| object.job == job && matches!(object.value, Value::Ready(_));
        if let Ok(object) = self.usable(object, is_there)
            && is_now
        {
            self.pin(object);
            if let Some(before) = self.actors[at].saved.replace(object) {
                self.unpin(before);
            }
        }
    }
}
