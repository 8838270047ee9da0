//! Tasks of other nodes that run here, and actors that are kept for them.

use std::io;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{
    ActorOptions, Attempt, Code, ComponentId, Fault, JobId, Limits, NodeId, ObjectId, RetryOn, STREAM_BUFFER_MAX,
    Strategy, TaskError, TaskId, TaskKind, WorkerId,
};
use sandbar_sched::{Event, ResourceSet, Submission, SubmissionKind, TaskState};
use sandbar_wire::Priority;
use sandbar_worker::program::AttemptUsage;

use super::super::actors::actor_spec;
use super::super::hear::RETURNS_FAR_MAX;
use super::super::{Command, State};
use super::lent::{ATTACHED_BYTES_MAX, Sending};
use crate::Program;
use crate::calls::{Call, Make};
use crate::peer::{Loaded, PeerMessage, RemoteTaskSpec, RemoteWork};

/// Something that another node has given this one to do.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) owner: NodeId,
    pub(super) job: JobId,
    /// The owner's number.
    task: TaskId,
    attempt: Attempt,
    slot: WorkerId,
    pub(super) returns: u32,
    /// Of which nothing is known yet.
    missing: u32,
    took: AttemptUsage,
    /// Of a generator: items that were told, and how many of them its owner has said were taken.
    yielded: u64,
    taken: u64,
    /// What it is in each run of its job.
    lineage: Option<NonZeroU64>,
    /// It is an actor, which is kept until it has ended.
    pub(super) is_kept: bool,
}

/// What the owner calls something, and under what it was given.
pub(super) type GivenAs = (TaskId, Attempt, WorkerId);

impl Given {
    pub(super) fn errand(&self) -> GivenAs {
        (self.task, self.attempt, self.slot)
    }
}

/// A program of another node.
pub(super) enum Known {
    /// Tasks that wait for it, as they came.
    Loading(Vec<Vec<u8>>),
    Loaded(Loaded),
}

impl State {
    /// A node gives this one something to do.
    pub(super) fn hear_errand(&mut self, node: NodeId, errand: RemoteTaskSpec<'_>, frame: &[u8]) -> io::Result<()> {
        let known = self.peers.all.get_mut(&node).and_then(|peer| peer.programs.get_mut(&errand.program));
        match known {
            Some(Known::Loading(waiting)) => waiting.push(frame.to_vec()),
            Some(Known::Loaded(Ok(program))) => {
                let program = program.clone();
                return self.begin_errand(node, errand, program);
            }
            Some(Known::Loaded(Err(fault))) => {
                let fault = fault.clone();
                self.refuse_errand(node, &errand, fault);
            }
            None => return Err(wrong("a task of a program that was not named before")),
        }
        Ok(())
    }

    pub(super) fn load_program(&mut self, node: NodeId, program: u32, component: ComponentId, limits: Limits) {
        // That of a job of this node is there: what its tasks elsewhere have made here is made before anything that follows it.
        let mut own = self.jobs.keys().filter_map(|job| self.program_of(*job));
        let own = own.find(|own| own.compiled.id() == component);
        let Some(peer) = self.peers.all.get_mut(&node) else { return };
        if peer.programs.contains_key(&program) {
            return;
        }
        if let Some(own) = own {
            peer.programs.insert(program, Known::Loaded(Ok(own)));
            return;
        }
        let asker = self.asker.clone();
        let told = move |loaded| asker.command(Command::Loaded(node, program, loaded));
        let limits = limits.within(&self.options.worker_options.limits);
        match &self.options.outside {
            Some(outside) => {
                peer.programs.insert(program, Known::Loading(Vec::new()));
                outside.load(node, component, limits, Box::new(told));
            }
            None => {
                let fault = Fault::new(Code::Host, "this node runs nothing for others");
                peer.programs.insert(program, Known::Loaded(Err(fault)));
            }
        }
    }

    /// A program is there, or can't be had.
    pub(in super::super) fn loaded(&mut self, node: NodeId, program: u32, loaded: Loaded) {
        let Some(peer) = self.peers.all.get_mut(&node) else { return };
        let before = peer.programs.insert(program, Known::Loaded(loaded));
        // Without it no room could be set aside.
        self.tell_load_soon(node);
        let Some(Known::Loading(waiting)) = before else { return };
        for frame in waiting {
            let Ok(PeerMessage::Submit(errand)) = postcard::from_bytes(&frame) else { continue };
            if self.hear_errand(node, errand, &frame).is_err() {
                self.lose_peer(node);
            }
        }
    }

    /// Takes some of what waits for its program out of that, with what was lent for it. Gives it.
    fn take_waiting(&mut self, node: NodeId, is_one: impl Fn(&RemoteTaskSpec<'_>) -> bool) -> Vec<GivenAs> {
        let (mut taken, mut lent) = (Vec::new(), Vec::new());
        let Some(peer) = self.peers.all.get_mut(&node) else { return taken };
        for known in peer.programs.values_mut() {
            let Known::Loading(waiting) = known else { continue };
            waiting.retain(|frame| match postcard::from_bytes(frame) {
                Ok(PeerMessage::Submit(errand)) if is_one(&errand) => {
                    taken.push((errand.task, errand.attempt, errand.slot));
                    lent.extend(errand.needs.into_iter().chain(errand.refs));
                    false
                }
                _ => true,
            });
        }
        lent.into_iter().for_each(|object| self.peers.say(node, &PeerMessage::Release(object, 1)));
        taken
    }

    /// An actor that was to be made, if it was not yet, is not wanted any more.
    pub(super) fn unmake(&mut self, node: NodeId, handle: ObjectId) {
        if self.sched.object(handle).is_none() {
            let is_it = |errand: &RemoteTaskSpec<'_>| {
                errand.task.returns(0) == handle && matches!(errand.work, RemoteWork::CreateActor { .. })
            };
            self.take_waiting(node, is_it);
        }
    }

    /// Some of what waits for its program is not wanted any more.
    pub(super) fn end_waiting(&mut self, node: NodeId, is_one: impl Fn(&RemoteTaskSpec<'_>) -> bool) {
        self.take_waiting(node, is_one).into_iter().for_each(|given| self.say_cancelled(node, given));
    }

    fn begin_errand(&mut self, node: NodeId, errand: RemoteTaskSpec<'_>, program: Arc<Program>) -> io::Result<()> {
        let kind = program.tasks.get(errand.function as usize).map(|known| known.kind);
        let is_so = match errand.work {
            RemoteWork::Task => kind == Some(TaskKind::Task),
            RemoteWork::Generator(_) => kind == Some(TaskKind::Generator) && errand.returns == 1,
            RemoteWork::Call { .. } => matches!(kind, Some(TaskKind::Method | TaskKind::Shared)),
            RemoteWork::HostActor(..) | RemoteWork::CreateActor { .. } => {
                kind == Some(TaskKind::Make) && errand.returns == 1
            }
        };
        let is_taken = matches!(errand.work, RemoteWork::CreateActor { .. }) && self.is_own_number(errand.task.0);
        if !is_so || is_taken || !(1..=RETURNS_FAR_MAX).contains(&errand.returns) {
            return Err(wrong("a task that is none of its program"));
        }
        let here = match errand.bundle.map(|bundle| self.aside(node, bundle)) {
            Some(Ok(aside)) => aside,
            Some(Err(fault)) => {
                self.refuse_errand(node, &errand, fault);
                return Ok(());
            }
            // Whoever has it tries another node, if this one is lost.
            None => Strategy::Node { node: self.options.node, soft: false },
        };
        let Some(job) = self.job_of_root(errand.job) else {
            self.refuse_errand(node, &errand, Fault::new(Code::Cancelled, "its job has ended"));
            return Ok(());
        };
        let (Some(seat), Some(worker)) = (self.seat_of(node, job, &program), self.peers.anchor(node)) else {
            return Err(wrong("there are no more numbers"));
        };
        let lent: Vec<ObjectId> = errand.needs.iter().chain(&errand.refs).copied().collect();
        lent.iter().for_each(|object| self.borrow(node, *object, seat, worker));
        for (object, value) in &errand.values {
            self.arrived(node, *object, (*value, Priority::Argument), Vec::new());
        }
        let is_made = matches!(errand.work, RemoteWork::CreateActor { .. });
        // What is made for a node outlives what else that has here, as long as somebody refers to it.
        let maker = self.jobs.get(&job).filter(|_| is_made).map_or((seat, worker), |job| (job.first, job.driver));
        if let Some(task) = self.errand_task(node, (maker, job), &errand, here, program) {
            if is_made {
                let object = task.id.returns(0);
                self.submit(maker.1, task);
                self.step(Event::ReferenceAdded { object, worker, task: seat });
                self.step(Event::ReferencesReleased { object, worker: maker.1, count: 1 });
            } else {
                self.begin_given(node, job, worker, &errand, task);
            }
        }
        self.steps(lent.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
        Ok(())
    }

    /// Runs a task, and tells its owner what comes of it.
    fn begin_given(
        &mut self,
        owner: NodeId,
        job: JobId,
        worker: WorkerId,
        errand: &RemoteTaskSpec<'_>,
        task: Submission<Call>,
    ) {
        let (id, seat) = (task.id, task.parent.map_or(task.id, |(seat, ..)| seat));
        if let Some(limit) = errand.timeout_ms {
            self.deadlines.limit(id, Duration::from_millis(limit.into()));
        }
        self.peers.theirs.insert((owner, errand.task), id);
        self.peers.returns.extend((0..errand.returns).map(|index| (id.returns(index), id)));
        let (attempt, slot, returns) = (errand.attempt, errand.slot, errand.returns);
        let given = Given {
            owner,
            job,
            task: errand.task,
            attempt,
            slot,
            returns,
            missing: returns,
            took: AttemptUsage::default(),
            yielded: 0,
            taken: 0,
            lineage: errand.lineage.filter(|_| matches!(errand.work, RemoteWork::Task)),
            is_kept: matches!(errand.work, RemoteWork::HostActor(..)),
        };
        self.peers.given.insert(id, given);
        self.step(Event::Submitted { task });
        (0..returns)
            .for_each(|index| self.step(Event::ObjectRequested { object: id.returns(index), worker, task: seat }));
    }

    /// What is to be done, as a task of this node. None if it is not to be done.
    fn errand_task(
        &mut self,
        node: NodeId,
        ((parent, worker), job): ((TaskId, WorkerId), JobId),
        errand: &RemoteTaskSpec<'_>,
        here: Strategy,
        program: Arc<Program>,
    ) -> Option<Submission<Call>> {
        let make = |options: &ActorOptions, name| Some(Box::new(program.make(errand.function, options.clone(), name)));
        let (work, make, strategy, retries_max, retry_on) = match &errand.work {
            RemoteWork::Task => (SubmissionKind::Function, None, here, 0, RetryOn::System),
            RemoteWork::Generator(buffer) => {
                (SubmissionKind::Generator((*buffer).min(STREAM_BUFFER_MAX)), None, here, 0, RetryOn::System)
            }
            RemoteWork::Call { actor, retries, retry_on } => {
                let actor = self.callee(node, *actor)?;
                let retries = retries.unwrap_or_else(|| self.call_retries(actor));
                (SubmissionKind::Method(actor), None, Strategy::Default, retries, *retry_on)
            }
            RemoteWork::HostActor(options, saved) => {
                let work = SubmissionKind::ActorCreation(Box::new(actor_spec(None, options)));
                let saved = saved.filter(|saved| errand.needs.contains(saved));
                let make = make(options, None).map(|make| Box::new(Make { saved, ..*make }));
                (work, make, here, 0, RetryOn::System)
            }
            RemoteWork::CreateActor { options, actor_name, strategy } => {
                let work = SubmissionKind::ActorCreation(Box::new(actor_spec(actor_name.as_deref(), options)));
                (work, make(options, None), *strategy, 0, RetryOn::System)
            }
        };
        let is_made = matches!(errand.work, RemoteWork::CreateActor { .. });
        let id = if is_made { errand.task } else { TaskId(self.ids.take(errand.returns)?) };
        let is_task = matches!(work, SubmissionKind::Function | SubmissionKind::Generator(_));
        Some(Submission {
            id,
            job,
            parent: Some((parent, Attempt(0), worker)),
            // It would be at 2.
            remote_depth: errand.depth.saturating_sub(2),
            name: self.names.of(errand.name.clone().into_owned()),
            returns: errand.returns,
            demand: if matches!(work, SubmissionKind::Method(_)) {
                ResourceSet::default()
            } else {
                errand.demand.demand()
            },
            strategy,
            priority: errand.priority,
            retries_max,
            retry_on,
            call: Call {
                program,
                function: errand.function,
                timeout_ms: errand.timeout_ms.and_then(NonZeroU32::new),
                seed: errand.seed,
                lineage: None,
                arguments: errand.arguments.into(),
                needs: errand.needs.as_slice().into(),
                refs: if is_task { Box::new([]) } else { errand.refs.as_slice().into() },
                make,
                submitted: self.clock,
            },
            dependencies: errand.needs.clone(),
            refs: errand.refs.clone(),
            kind: work,
        })
    }

    fn refuse_errand(&mut self, node: NodeId, errand: &RemoteTaskSpec<'_>, fault: Fault) {
        for object in errand.needs.iter().chain(&errand.refs) {
            self.peers.say(node, &PeerMessage::Release(*object, 1));
        }
        let error = TaskError { fault, chain: Vec::new() };
        if let RemoteWork::CreateActor { .. } = errand.work {
            let value = Sending::failed(&error);
            let (object, value) = (errand.task.returns(0), value.as_sent());
            return self.peers.say(node, &PeerMessage::ObjectValue { object, value, contains: Vec::new() });
        }
        let given = (errand.task, errand.attempt, errand.slot);
        self.say_ended(node, given, Err(Box::new(error)), false, &AttemptUsage::default());
    }

    pub(super) fn say_cancelled(&mut self, node: NodeId, given: GivenAs) {
        let error = TaskError { fault: Fault::new(Code::Cancelled, "it was cancelled"), chain: Vec::new() };
        self.say_ended(node, given, Err(Box::new(error)), false, &AttemptUsage::default());
    }

    fn say_ended(
        &mut self,
        node: NodeId,
        (task, attempt, slot): GivenAs,
        returned: Result<Vec<(Sending, Vec<ObjectId>)>, Box<TaskError>>,
        system: bool,
        took: &AttemptUsage,
    ) {
        let returned = match &returned {
            Ok(values) => Ok(values.iter().map(|(value, contains)| (value.as_sent(), contains.clone())).collect()),
            Err(error) => Err(error.clone()),
        };
        let ended = PeerMessage::Finished {
            task,
            attempt,
            slot,
            returned,
            system,
            usage: AttemptUsage { started: self.clock.saturating_sub(took.started.min(self.clock)), ..*took },
        };
        self.peers.say(node, &ended);
    }

    /// The worker of a task has said that it has ended.
    pub(in super::super) fn note_took(&mut self, task: TaskId, took: &AttemptUsage) {
        if let Some(given) = self.peers.given.get_mut(&task) {
            given.took = *took;
        }
    }

    /// It is known what a task returned that another node gave.
    pub(super) fn returned_here(&mut self, task: TaskId) {
        let Some(given) = self.peers.given.get_mut(&task) else { return };
        given.missing = given.missing.saturating_sub(1);
        if given.missing == 0 {
            self.end_given(task);
        }
    }

    fn end_given(&mut self, id: TaskId) {
        let Some(given) = self.peers.given.get(&id) else { return };
        let (owner, returns, errand, took) = (given.owner, given.returns, given.errand(), given.took);
        let (is_kept, lineage) = (given.is_kept, given.lineage);
        let Some(worker) = self.peers.anchor(owner) else { return };
        if let Some(lineage) = lineage {
            self.keep_remnant(id, lineage, (returns, took.nanos));
        }
        let (mut values, mut failed, mut room) = (Vec::new(), None, ATTACHED_BYTES_MAX);
        for index in 0..returns {
            let object = id.returns(index);
            self.peers.returns.remove(&object);
            if let Some(Err(error)) = self.sched.value(object) {
                failed = Some(error.clone());
            }
            let Some(value) = self.sending_within(object, &mut room) else { continue };
            let contains = self.sched.contained_objects(object).collect();
            let (value, contains) = self.sendable(value, contains);
            if value.is_whole() && !is_kept {
                self.events.push_back(Event::ReferencesReleased { object, worker, count: 1 });
            }
            values.push((value, contains));
        }
        match (is_kept, &failed) {
            (true, None) => {}
            // That it could not be made is told when it has ended.
            (true, Some(_)) => return,
            (false, _) => {
                self.peers.given.remove(&id);
                self.peers.theirs.remove(&(owner, errand.0));
            }
        }
        let returned = match &failed {
            None => Ok(values),
            Some(error) => Err(Box::new(as_their_own(error))),
        };
        let system = failed.is_some_and(|error| matches!(error.fault.code, Code::WorkerLost | Code::ObjectLost));
        self.say_ended(owner, errand, returned, system, &took);
    }

    /// An actor that is kept for another node may have ended: that is told once what became of its calls was.
    pub(in super::super) fn note_ended(&mut self, id: TaskId, error: Option<&TaskError>) {
        if self.peers.given.get(&id).is_some_and(|given| given.is_kept) {
            let ended = || TaskError { fault: Fault::new(Code::ActorDied, "it has ended"), chain: Vec::new() };
            self.peers.dead.push((id, error.map_or_else(ended, as_their_own)));
        }
    }

    pub(in super::super) fn tell_dead(&mut self) {
        for (id, error) in std::mem::take(&mut self.peers.dead) {
            let Some(given) = self.peers.given.remove(&id) else { continue };
            self.forget_numbers(id, &given);
            if let Some(worker) = self.peers.anchor(given.owner) {
                self.events.push_back(Event::ReferencesReleased { object: id.returns(0), worker, count: 1 });
            }
            self.say_ended(given.owner, given.errand(), Err(Box::new(error)), false, &given.took);
        }
    }

    /// A generator has yielded an item, which its owner gets.
    pub(in super::super) fn send_item_on(&mut self, worker: WorkerId, stream: ObjectId, object: ObjectId) {
        let Some(value) = self.sending(object) else { return };
        let contains = self.sched.contained_objects(object).collect();
        let (value, contains) = self.sendable(value, contains);
        if value.is_whole() {
            self.events.push_back(Event::ReferencesReleased { object, worker, count: 1 });
        }
        let Some(given) = self.peers.given.get_mut(&TaskId(stream.0)) else { return };
        let (index, (task, attempt, slot), owner) = (given.yielded, given.errand(), given.owner);
        given.yielded += 1;
        // Of what an attempt before it yielded.
        if given.taken >= given.yielded {
            self.events.push_back(Event::ItemsConsumed { stream, worker, consumed: given.taken });
        }
        let value = value.as_sent();
        self.peers.say(owner, &PeerMessage::Yielded { task, attempt, slot, index, object, value, contains });
    }

    /// So many items were taken of a generator that runs here.
    pub(super) fn hear_taken(&mut self, node: NodeId, task: TaskId, taken: u64) {
        let Some(id) = self.peers.theirs.get(&(node, task)).copied() else { return };
        let Some(worker) = self.peers.anchor(node) else { return };
        if let Some(given) = self.peers.given.get_mut(&id) {
            given.taken = taken;
        }
        self.step(Event::ItemsConsumed { stream: id.returns(0), worker, consumed: taken });
    }

    /// The owner wants back what is not begun.
    pub(super) fn recall_given(&mut self, node: NodeId, slot: WorkerId) {
        let waiting = self.take_waiting(node, |errand| errand.slot == slot);
        let mut back: Vec<TaskId> = waiting.into_iter().map(|(task, ..)| task).collect();
        let is_back = |id: &TaskId, given: &Given| {
            let state = self.sched.task(*id).map(|view| view.state);
            given.owner == node && given.slot == slot && matches!(state, Some(TaskState::Pending | TaskState::Queued))
        };
        let all = self.peers.given.iter().filter(|(id, given)| is_back(id, given)).map(|(id, _)| *id);
        let mut ids: Vec<TaskId> = all.collect();
        ids.sort_unstable();
        for id in ids {
            let Some(given) = self.peers.given.remove(&id) else { continue };
            self.forget_numbers(id, &given);
            back.push(given.task);
            self.step(Event::Cancelled { task: id, recursive: true });
            self.let_go(node, (id, given.returns));
        }
        self.peers.say(node, &PeerMessage::Recalled(slot, back));
    }

    fn forget_numbers(&mut self, id: TaskId, given: &Given) {
        self.peers.theirs.remove(&(given.owner, given.task));
        (0..given.returns).for_each(|index| _ = self.peers.returns.remove(&id.returns(index)));
    }

    /// Nothing is said any more of some of what was given. Gives it, in order.
    pub(super) fn forget_given(&mut self, is_one: impl Fn(&Given) -> bool) -> Vec<(TaskId, Given)> {
        let mut all: Vec<(TaskId, Given)> = self.peers.given.extract_if(|_, given| is_one(given)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.iter().for_each(|(id, given)| self.forget_numbers(*id, given));
        all
    }

    pub(super) fn cancel_given(&mut self, node: NodeId, (task, attempt): (TaskId, Attempt), anyhow: bool) {
        self.end_waiting(node, |errand| (errand.task, errand.attempt) == (task, attempt));
        let Some(id) = self.peers.theirs.get(&(node, task)).copied() else { return };
        if self.peers.given.get(&id).is_some_and(|given| given.attempt == attempt) {
            if anyhow {
                self.end_call(id);
            }
            self.step(Event::Cancelled { task: id, recursive: true });
        }
    }

    /// A task waits for objects, or goes on.
    pub(in super::super) fn tell_blocked(&mut self, task: TaskId, blocked: bool) {
        let Some(given) = self.peers.given.get(&task) else { return };
        let (owner, theirs) = (given.owner, given.task);
        self.peers.say(owner, &PeerMessage::Blocked(theirs, blocked));
    }

    /// A line of the log of a job, if that is another node's.
    pub(in super::super) fn tell_log(&mut self, worker: WorkerId, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.sched.task(task) else { return };
        let Some(root) = self.peers.seats.root(view.job) else { return };
        let (name, line) = (view.name.to_string().into(), start_of(line, LINE_BYTES_MAX));
        self.peers.say(root.node, &PeerMessage::Log { job: root.job, task, name, worker, level, line });
    }

    /// As above: how far a task is.
    pub(in super::super) fn tell_progress(&mut self, task: TaskId, name: &str, done: u64, total: Option<u64>) {
        let Some(root) = self.sched.job_of(task).and_then(|job| self.peers.seats.root(job)) else { return };
        let name = start_of(name, LINE_BYTES_MAX);
        self.peers.say(root.node, &PeerMessage::Progress { job: root.job, task, name, done, total });
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Bytes of a line of a log, and of a name, that go to another node.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The first of a text, so many bytes at most.
fn start_of(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// An error, without the name of what stands for the owner here.
fn as_their_own(error: &TaskError) -> TaskError {
    TaskError { chain: error.chain.iter().skip(1).cloned().collect(), ..error.clone() }
}
