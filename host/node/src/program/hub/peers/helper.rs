//! Tasks of other nodes that run here.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{
    Attempt, Code, ComponentId, Fault, JobId, Limits, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, TenantId,
    WorkerId,
};
use sandbar_sched::{Demand, Event, Role, Submission, TaskState, Work};

use super::super::{Command, State};
use super::away::Wanted;
use super::lent::{ATTACHED_BYTES_MAX, Lender, Sending};
use crate::program::Program;
use crate::program::calls::Call;
use crate::program::peer::{Errand, Loaded, Said, ToHelper, ToOwner};

/// What a job's first task is called that is the owner of the job.
const SEAT: &str = "owner";

/// A job of another node.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) owner: NodeId,
    /// Its number there.
    pub(super) theirs: u32,
    pub(super) job: JobId,
    pub(super) first: TaskId,
    /// Objects that the owner has asked for.
    wanted: Vec<ObjectId>,
}

/// A task of another node that runs here.
#[derive(Debug)]
pub(super) struct GivenErrand {
    seat: WorkerId,
    /// The owner's number.
    task: u64,
    attempt: u32,
    slot: u32,
    returns: u32,
    /// Of which nothing is known yet.
    missing: u32,
    took: Took,
}

/// What its worker said.
#[derive(Debug, Default)]
struct Took {
    nanos: u64,
    memory_bytes: u64,
    begun: u64,
    waited: u64,
}

/// A program of another node.
pub(super) enum Known {
    /// Tasks that wait for it, as they came.
    Loading(Vec<Vec<u8>>),
    Loaded(Loaded),
}

impl State {
    /// A node says something for which this one runs tasks.
    pub(super) fn hear_owner(&mut self, node: NodeId, said: ToHelper<'_>, frame: &[u8]) -> io::Result<()> {
        let seat = |job: u32| self.peers.seats.get(&(node, job)).copied();
        match said {
            ToHelper::Program { program, component, limits } => self.load_program(node, program, component, limits),
            ToHelper::Begin(errand) => {
                let known = self.peers.all.get_mut(&node).and_then(|peer| peer.programs.get_mut(&errand.program));
                match known {
                    Some(Known::Loading(waiting)) => waiting.push(frame.to_vec()),
                    Some(Known::Loaded(Ok(program))) => {
                        let program = program.clone();
                        self.begin_errand(node, errand, program)?;
                    }
                    Some(Known::Loaded(Err(fault))) => {
                        let fault = fault.clone();
                        self.refuse_errand(node, &errand, fault);
                    }
                    None => return Err(io::Error::other("a task of a program that was not named before")),
                }
            }
            ToHelper::Value { object, value, contains } => {
                self.arrived(Lender::Owner(node), ObjectId(object), value, &contains);
            }
            ToHelper::Recall(slot) => self.recall_errands(node, slot),
            ToHelper::Cancel(task, attempt) => self.cancel_errand(node, task, attempt),
            ToHelper::Want(job, object, missed) => {
                if let Some(worker) = seat(job)
                    && let Some(guest) = self.peers.guests.get_mut(&worker)
                {
                    let (object, task) = (ObjectId(object), guest.first);
                    guest.wanted.push(object);
                    self.want_for(Wanted { object, worker, task }, missed);
                }
            }
            ToHelper::Release(job, object, times) => {
                if let Some(worker) = seat(job) {
                    self.step(Event::Released { object: ObjectId(object), worker, times });
                }
            }
            ToHelper::JobEnded(job) => {
                if let Some(seat) = seat(job) {
                    self.end_guest(seat);
                }
                self.forget_waiting(node, job);
            }
        }
        Ok(())
    }

    fn load_program(&mut self, node: NodeId, program: u32, component: ComponentId, limits: Limits) {
        let Some(peer) = self.peers.all.get_mut(&node) else { return };
        if peer.programs.contains_key(&program) {
            return;
        }
        let asker = self.asker.clone();
        let told = move |loaded| asker.command(Command::Loaded(node, program, loaded));
        let limits = limits.within(&self.options.crew.limits);
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
        let Some(Known::Loading(waiting)) = before else { return };
        for frame in waiting {
            let Ok(Said::Owner(said)) = postcard::from_bytes(&frame) else { continue };
            if self.hear_owner(node, said, &frame).is_err() {
                self.lose_peer(node);
            }
        }
    }

    /// Tasks that wait for their programs, and are not wanted any more.
    fn forget_waiting(&mut self, node: NodeId, job: u32) {
        self.waiting_errands(node, |errand| errand.job != job);
    }

    /// Keeps some of the tasks that wait for their programs. Gives the others: task and attempt.
    fn waiting_errands(&mut self, node: NodeId, keep: impl Fn(&Errand<'_>) -> bool) -> Vec<(u64, u32)> {
        let mut gone = Vec::new();
        let Some(peer) = self.peers.all.get_mut(&node) else { return gone };
        for known in peer.programs.values_mut() {
            let Known::Loading(waiting) = known else { continue };
            waiting.retain(|frame| match postcard::from_bytes(frame) {
                Ok(Said::Owner(ToHelper::Begin(errand))) if !keep(&errand) => {
                    gone.push((errand.task, errand.attempt));
                    false
                }
                _ => true,
            });
        }
        gone
    }

    /// The seat of a job's owner.
    fn guest(&mut self, node: NodeId, theirs: u32, program: &Arc<Program>) -> Option<WorkerId> {
        if let Some(seat) = self.peers.seats.get(&(node, theirs)) {
            return Some(*seat);
        }
        let (seat, first, job) = (self.number_worker()?, self.ids.take(1).map(TaskId)?, self.number_job());
        let guest = Guest { owner: node, theirs, job, first, wanted: Vec::new() };
        self.peers.guests.insert(seat, guest);
        self.peers.seats.insert((node, theirs), seat);
        self.peers.guest_jobs.insert(job, seat);
        let limits = self.options.job_limits;
        self.step(Event::JobStarted { job, tenant: TenantId::DEFAULT, limits });
        self.step(Event::WorkerReady { worker: seat, node: self.options.node, role: Role::Driver(job) });
        let call = Call::of(program.clone(), u32::MAX, 0, Box::default(), self.clock);
        let task = Submission::bare(first, job, self.names.of(SEAT.to_owned()), call);
        self.step(Event::Submitted { task });
        Some(seat)
    }

    fn begin_errand(&mut self, node: NodeId, errand: Errand<'_>, program: Arc<Program>) -> io::Result<()> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let known = program.tasks.get(errand.function as usize);
        if known.is_none_or(|known| known.kind != sandbar_core::TaskKind::Task) || errand.returns == 0 {
            return Err(wrong("a task that is none of its program"));
        }
        let Some(worker) = self.guest(node, errand.job, &program) else {
            return Err(wrong("there are no more numbers"));
        };
        let Some(guest) = self.peers.guests.get(&worker) else { return Ok(()) };
        let (first, job) = (guest.first, guest.job);
        let Some(id) = self.ids.take(errand.returns).map(TaskId) else {
            return Err(wrong("there are no more numbers"));
        };
        let lender = Lender::Owner(node);
        let lent: Vec<ObjectId> = errand.needs.iter().chain(&errand.refs).copied().map(ObjectId).collect();
        lent.iter().for_each(|object| self.borrow(lender, *object, first, worker));
        for (object, value) in &errand.values {
            self.arrived(lender, ObjectId(*object), *value, &[]);
        }
        if let Some(limit) = errand.timeout_ms {
            self.timed.insert(id, (Duration::from_millis(limit.into()), worker, None));
        }
        self.peers.theirs.insert((node, errand.task), id);
        self.peers.returns.extend((0..errand.returns).map(|index| (id.returns(index), id)));
        let given = GivenErrand {
            seat: worker,
            task: errand.task,
            attempt: errand.attempt,
            slot: errand.slot,
            returns: errand.returns,
            missing: errand.returns,
            took: Took::default(),
        };
        self.peers.errands.insert(id, given);
        let returns = errand.returns;
        let task = self.errand_task(id, job, (first, worker), errand, program);
        self.step(Event::Submitted { task });
        (0..returns).for_each(|index| self.step(Event::Wanted { object: id.returns(index), worker, task: first }));
        self.steps(lent.into_iter().map(|object| Event::Released { object, worker, times: 1 }));
        Ok(())
    }

    fn errand_task(
        &mut self,
        id: TaskId,
        job: JobId,
        (first, worker): (TaskId, WorkerId),
        errand: Errand<'_>,
        program: Arc<Program>,
    ) -> Submission<Call> {
        let (cpus, gpus, memory, custom) = errand.demand;
        let objects = |all: Vec<u64>| all.into_iter().map(ObjectId).collect::<Vec<_>>();
        let (needs, refs) = (objects(errand.needs), objects(errand.refs));
        Submission {
            id,
            job,
            parent: Some((first, Attempt(0), worker)),
            // It would be the seat's child, at 2.
            below: errand.depth.saturating_sub(2),
            name: self.names.of(errand.name.into_owned()),
            returns: errand.returns,
            demand: Demand {
                cpus,
                gpus,
                memory,
                custom: custom.into_iter().map(|(name, of)| (name.into(), of)).collect(),
            },
            // Whoever has it tries another node, if this one is lost.
            strategy: Strategy::Node { node: self.options.node, soft: false },
            priority: errand.priority,
            retries_max: 0,
            retry_on: RetryOn::System,
            call: Call {
                program,
                function: errand.function,
                timeout_ms: errand.timeout_ms.and_then(NonZeroU32::new),
                seed: errand.seed,
                arguments: errand.arguments.into(),
                needs: needs.as_slice().into(),
                refs: Box::new([]),
                make: None,
                submitted: self.clock,
            },
            needs,
            refs,
            work: Work::Task,
        }
    }

    fn refuse_errand(&mut self, node: NodeId, errand: &Errand<'_>, fault: Fault) {
        for object in errand.needs.iter().chain(&errand.refs) {
            self.peers.say(node, &Said::Helper(ToOwner::Release(*object, 1)));
        }
        let error = Box::new(TaskError { fault, chain: Vec::new() });
        self.say_ended(node, (errand.task, errand.attempt), Err(error), false, &Took::default());
    }

    fn say_ended(
        &mut self,
        node: NodeId,
        (task, attempt): (u64, u32),
        returned: Result<Vec<(Sending, Vec<u64>)>, Box<TaskError>>,
        system: bool,
        took: &Took,
    ) {
        let returned = match &returned {
            Ok(values) => Ok(values.iter().map(|(value, contains)| (value.as_sent(), contains.clone())).collect()),
            Err(error) => Err(error.clone()),
        };
        let ended = ToOwner::Ended {
            task,
            attempt,
            returned,
            system,
            nanos: took.nanos,
            memory_bytes: took.memory_bytes,
            begun_nanos_ago: self.clock.saturating_sub(took.begun.min(self.clock)),
            waited: took.waited,
        };
        self.peers.say(node, &Said::Helper(ended));
    }

    /// The worker of a task has said that it has ended.
    pub(in super::super) fn note_took(&mut self, task: TaskId, took: &super::super::keep::Took) {
        if let Some(errand) = self.peers.errands.get_mut(&task) {
            let (nanos, memory_bytes, begun, waited) = (took.nanos, took.memory_bytes, took.begun, took.waited);
            errand.took = Took { nanos, memory_bytes, begun, waited };
        }
    }

    /// The owner of a job is to be told of an object: of what its task returned, or that it wanted.
    pub(in super::super) fn deliver_to_seat(&mut self, seat: WorkerId, object: ObjectId) {
        let Some(task) = self.peers.returns.get(&object).copied() else { return self.answer(seat, object) };
        let Some(errand) = self.peers.errands.get_mut(&task) else { return };
        errand.missing = errand.missing.saturating_sub(1);
        if errand.missing == 0 {
            self.end_errand(task);
        }
    }

    fn answer(&mut self, seat: WorkerId, object: ObjectId) {
        let Some(guest) = self.peers.guests.get_mut(&seat) else { return };
        let Some(at) = guest.wanted.iter().position(|wanted| *wanted == object) else { return };
        guest.wanted.swap_remove(at);
        let (owner, job) = (guest.owner, guest.theirs);
        let Some(value) = self.sending(object) else { return };
        let contains = self.sched.contained(object).map(|content| content.0).collect();
        let (value, contains) = self.sendable(value, contains);
        let value = value.as_sent();
        self.peers.say(owner, &Said::Helper(ToOwner::Value { job, object: object.0, value, contains }));
    }

    /// As above: it can't have it.
    pub(in super::super) fn refuse_owner(&mut self, seat: WorkerId, object: ObjectId, error: &TaskError) {
        let Some(guest) = self.peers.guests.get_mut(&seat) else { return };
        guest.wanted.retain(|wanted| *wanted != object);
        let (owner, job) = (guest.owner, guest.theirs);
        let value = Sending::Failed(postcard::to_stdvec(error).unwrap_or_default());
        let (value, contains) = (value.as_sent(), Vec::new());
        self.peers.say(owner, &Said::Helper(ToOwner::Value { job, object: object.0, value, contains }));
    }

    /// What a task returned is known.
    fn end_errand(&mut self, id: TaskId) {
        let Some(errand) = self.peers.errands.remove(&id) else { return };
        let Some(owner) = self.peers.guests.get(&errand.seat).map(|guest| guest.owner) else { return };
        self.peers.theirs.remove(&(owner, errand.task));
        let (mut values, mut failed, mut room) = (Vec::new(), None, ATTACHED_BYTES_MAX);
        for index in 0..errand.returns {
            let object = id.returns(index);
            self.peers.returns.remove(&object);
            if let Some(Err(error)) = self.sched.value(object) {
                failed = Some(error.clone());
            }
            let Some(value) = self.sending_within(object, &mut room) else { continue };
            let contains = self.sched.contained(object).map(|content| content.0).collect();
            let (value, contains) = self.sendable(value, contains);
            if value.is_whole() {
                self.events.push_back(Event::Released { object, worker: errand.seat, times: 1 });
            }
            values.push((value, contains));
        }
        let returned = match &failed {
            None => Ok(values),
            Some(error) => Err(Box::new(as_their_own(error))),
        };
        let system = failed.is_some_and(|error| matches!(error.fault.code, Code::WorkerLost | Code::ObjectLost));
        self.say_ended(owner, (errand.task, errand.attempt), returned, system, &errand.took);
    }

    /// The owner wants back what is not begun.
    fn recall_errands(&mut self, node: NodeId, slot: u32) {
        let waiting = self.waiting_errands(node, |errand| errand.slot != slot);
        let mut back: Vec<u64> = waiting.into_iter().map(|(task, _)| task).collect();
        let is_back = |id: &TaskId, errand: &GivenErrand| {
            let of_node = self.peers.guests.get(&errand.seat).is_some_and(|guest| guest.owner == node);
            let state = self.sched.task(*id).map(|view| view.state);
            of_node && errand.slot == slot && matches!(state, Some(TaskState::Pending | TaskState::Queued))
        };
        let mut given: Vec<TaskId> =
            self.peers.errands.iter().filter(|(id, errand)| is_back(id, errand)).map(|(id, _)| *id).collect();
        given.sort_unstable();
        for id in given {
            if let Some(task) = self.forget_errand(id) {
                back.push(task);
                self.step(Event::Cancelled { task: id, recursive: true });
            }
        }
        self.peers.say(node, &Said::Helper(ToOwner::Recalled(slot, back)));
    }

    /// Nothing is said of a task any more. Gives its owner's number.
    fn forget_errand(&mut self, id: TaskId) -> Option<u64> {
        let errand = self.peers.errands.remove(&id)?;
        for index in 0..errand.returns {
            let object = id.returns(index);
            self.peers.returns.remove(&object);
            self.step(Event::Released { object, worker: errand.seat, times: 1 });
        }
        let owner = self.peers.guests.get(&errand.seat)?.owner;
        self.peers.theirs.remove(&(owner, errand.task));
        Some(errand.task)
    }

    fn cancel_errand(&mut self, node: NodeId, task: u64, attempt: u32) {
        for gone in self.waiting_errands(node, |errand| (errand.task, errand.attempt) != (task, attempt)) {
            let fault = Fault::new(Code::Cancelled, "it was cancelled");
            let error = Box::new(TaskError { fault, chain: Vec::new() });
            self.say_ended(node, gone, Err(error), false, &Took::default());
        }
        let Some(id) = self.peers.theirs.get(&(node, task)).copied() else { return };
        if self.peers.errands.get(&id).is_some_and(|errand| errand.attempt == attempt) {
            self.step(Event::Cancelled { task: id, recursive: true });
        }
    }

    /// A job of another node has ended, or that node has.
    pub(super) fn end_guest(&mut self, seat: WorkerId) {
        let Some(guest) = self.peers.guests.remove(&seat) else { return };
        self.peers.seats.remove(&(guest.owner, guest.theirs));
        self.peers.guest_jobs.remove(&guest.job);
        let of_seat = self.peers.errands.iter().filter(|(_, errand)| errand.seat == seat);
        let errands: Vec<(TaskId, u64, u32)> = of_seat.map(|(id, errand)| (*id, errand.task, errand.returns)).collect();
        for (id, task, returns) in errands {
            self.peers.errands.remove(&id);
            self.peers.theirs.remove(&(guest.owner, task));
            (0..returns).for_each(|index| _ = self.peers.returns.remove(&id.returns(index)));
        }
        self.step(Event::JobEnded { job: guest.job });
        self.step(Event::WorkerLost { worker: seat, begun: Vec::new() });
    }

    /// A task waits for objects, or goes on.
    pub(in super::super) fn tell_blocked(&mut self, task: TaskId, blocked: bool) {
        let Some(errand) = self.peers.errands.get(&task) else { return };
        let Some(owner) = self.peers.guests.get(&errand.seat).map(|guest| guest.owner) else { return };
        let theirs = errand.task;
        self.peers.say(owner, &Said::Helper(ToOwner::Blocked(theirs, blocked)));
    }

    /// A line of the log of a job, if that is another node's.
    pub(in super::super) fn tell_log(&mut self, worker: WorkerId, task: TaskId, level: u8, line: &str) {
        let Some(view) = self.sched.task(task) else { return };
        let Some((owner, job)) = self.owner_of(view.job) else { return };
        let (name, line) = (view.name.to_string().into(), start_of(line, LINE_BYTES_MAX));
        self.peers.say(owner, &Said::Helper(ToOwner::Log { job, task: task.0, name, worker: worker.0, level, line }));
    }

    /// As above: how far a task is.
    pub(in super::super) fn tell_progress(&mut self, task: TaskId, name: &str, done: u64, total: Option<u64>) {
        let Some((owner, job)) = self.sched.job_of(task).and_then(|job| self.owner_of(job)) else { return };
        let name = start_of(name, LINE_BYTES_MAX);
        self.peers.say(owner, &Said::Helper(ToOwner::Progress { job, task: task.0, name, done, total }));
    }

    fn owner_of(&self, job: JobId) -> Option<(NodeId, u32)> {
        let guest = self.peers.guests.get(self.peers.guest_jobs.get(&job)?)?;
        Some((guest.owner, guest.theirs))
    }
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
