//! Generator of peers' messages. They are well formed, and mostly name tasks, objects and workers that exist, existed or will
//! exist.

use std::num::NonZeroU64;

use sandbar_core::{
    ActorId, ActorOptions, Argument, Attempt, Code, ComponentId, Fault, GroupId, JobId, JobRun, Limits, NodeId,
    ObjectId, RetryOn, Strategy, TaskError, TaskId, TenantId, WorkerId,
};
use sandbar_sched::RESOURCE_UNIT;
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::AttemptUsage;

use crate::peer::{Amounts, JobRoot, PeerMessage, PeerValue, RemoteActor, RemoteTaskSpec, RemoteWork};

/// The peers.
pub(super) const PEERS: [NodeId; 2] = [NodeId(100), NodeId(101)];
/// Number of slots of a peer.
pub(super) const PEER_SLOTS: u32 = 2;

/// First ids of worker `n` and of peer `n`, divided by `n`. The engine's own ids start at 0.
const WORKER_ID_STRIDE: u64 = 1 << 40;
const NODE_ID_STRIDE: u64 = 1 << 48;
/// Number of ids of each worker and node that messages name.
const IDS: u32 = 16;

/// Number of the program that most messages name.
const PROGRAM: u32 = 1;

/// Source of choices. The function returns a number below its argument.
struct Choices<'a>(&'a mut dyn FnMut(u32) -> u32);

/// Generates a message of a peer. `choose` returns a number below its argument.
pub fn generate_peer_message(choose: &mut dyn FnMut(u32) -> u32) -> Vec<u8> {
    let mut choices = Choices(choose);
    let (list, value, error) = (choices.arguments(), vec![7; choices.length()], choices.error());
    let error = postcard::to_stdvec(&error).unwrap_or_default();
    let message = choices.message(&list, &value, &error);
    postcard::to_stdvec(&message).unwrap_or_default()
}

/// Returns the message that introduces [`PROGRAM`].
pub(super) fn program_message() -> Vec<u8> {
    let (program, component, limits) = (PROGRAM, CompiledComponent::placeholder_id(), Limits::default());
    postcard::to_stdvec(&PeerMessage::Program { program, tenant: TenantId::DEFAULT, component, limits })
        .unwrap_or_default()
}

impl Choices<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        (self.0)(bound)
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn length(&mut self) -> usize {
        [0, 1, 100, 5000, 200 << 10][self.below(5) as usize]
    }

    /// Returns an id of a task, an object or a placement group.
    fn id(&mut self) -> u64 {
        let first = match u64::from(self.below(8)) {
            worker @ 0..5 => worker * WORKER_ID_STRIDE,
            other => (other - 4) * NODE_ID_STRIDE,
        };
        first + u64::from(self.below(IDS))
    }

    fn object(&mut self) -> ObjectId {
        ObjectId(self.id())
    }

    fn objects(&mut self) -> Vec<ObjectId> {
        (0..self.below(3)).map(|_| self.object()).collect()
    }

    fn task(&mut self) -> TaskId {
        TaskId(self.id())
    }

    fn attempt(&mut self) -> Attempt {
        Attempt(self.below(3).saturating_sub(1))
    }

    fn worker(&mut self) -> WorkerId {
        WorkerId(self.below(4 + 2 * (PEER_SLOTS + 1)) + 1)
    }

    fn node(&mut self) -> NodeId {
        [NodeId(0), PEERS[0], PEERS[1], NodeId(77)][self.below(4) as usize]
    }

    fn job(&mut self) -> JobId {
        JobId(self.below(5))
    }

    fn root(&mut self) -> JobRoot {
        JobRoot { node: self.node(), job: self.job() }
    }

    fn error(&mut self) -> TaskError {
        let code = [Code::Panic, Code::Cancelled, Code::WorkerLost, Code::ObjectLost, Code::ActorDied];
        let fault = Fault::new(code[self.below(5) as usize], "a generated error");
        TaskError { fault, chain: (0..self.below(3)).map(|_| "task".to_owned()).collect() }
    }

    fn value<'a>(&mut self, value: &'a [u8], error: &'a [u8]) -> PeerValue<'a> {
        match self.below(4) {
            0 => PeerValue::Remote { node: self.node(), object: self.object(), bytes: self.length() as u64 },
            1 => PeerValue::Failed(error),
            _ => PeerValue::Value(value),
        }
    }

    fn arguments(&mut self) -> Vec<u8> {
        let argument = |choices: &mut Choices<'_>| match choices.below(3) {
            0 => Argument::Object(choices.object()),
            1 => Argument::Missing,
            _ => Argument::Value(b"\x04"),
        };
        let all: Vec<Argument<'_>> = (0..self.below(3)).map(|_| argument(self)).collect();
        postcard::to_stdvec(&all).unwrap_or_default()
    }

    fn strategy(&mut self) -> Strategy {
        match self.below(4) {
            0 => Strategy::Spread,
            1 => Strategy::Node { node: self.node(), soft: self.flag() },
            2 => Strategy::Group { group: self.group(), bundle: self.flag().then_some(0) },
            _ => Strategy::Default,
        }
    }

    fn group(&mut self) -> GroupId {
        GroupId(self.id())
    }

    fn amounts(&mut self) -> Amounts {
        let cpus = [0, RESOURCE_UNIT, 2 * RESOURCE_UNIT, u64::MAX][self.below(4) as usize];
        Amounts { cpus, memory: [0, 1, u64::MAX][self.below(3) as usize], ..Amounts::default() }
    }

    fn remote_actor(&mut self) -> RemoteActor {
        match self.flag() {
            true => RemoteActor::Lent(ActorId(self.id())),
            false => RemoteActor::Hosted(self.task(), self.attempt()),
        }
    }

    fn actor_options(&mut self) -> ActorOptions {
        ActorOptions {
            detached: self.below(8) == 0,
            get_if_exists: self.flag(),
            max_restarts: self.below(3),
            max_task_retries: self.below(3),
            ..ActorOptions::default()
        }
    }

    fn retry_on(&mut self) -> RetryOn {
        [RetryOn::System, RetryOn::All][self.below(2) as usize]
    }

    /// Returns work and the index of its function in a program with seven tasks. Some indices fit other work, or no function.
    fn work<'a>(&mut self) -> (RemoteWork<'a>, u32) {
        let (work, function) = match self.below(7) {
            0 | 1 => (RemoteWork::Task, 0),
            2 => (RemoteWork::Generator(self.below(4)), 1),
            3 => (RemoteWork::HostActor(self.actor_options(), self.flag().then(|| self.object())), 2),
            4 => {
                let (options, strategy) = (self.actor_options(), self.strategy());
                (RemoteWork::CreateActor { options, actor_name: self.flag().then(|| "one".into()), strategy }, 2)
            }
            _ => {
                let (actor, retry_on) = (self.remote_actor(), self.retry_on());
                (RemoteWork::Call { actor, retries: self.flag().then_some(1), retry_on }, 3)
            }
        };
        (work, if self.below(32) == 0 { self.below(9) } else { function })
    }

    fn task_spec<'a>(&mut self, arguments: &'a [u8], value: &'a [u8], error: &'a [u8]) -> RemoteTaskSpec<'a> {
        let (work, function) = self.work();
        let needs = self.objects();
        let values = needs.iter().map(|need| (*need, self.value(value, error))).collect();
        RemoteTaskSpec {
            task: self.task(),
            attempt: self.attempt(),
            slot: self.worker(),
            job: self.root(),
            program: if self.below(32) == 0 { self.below(3) } else { PROGRAM },
            function,
            seed: 7,
            lineage: NonZeroU64::new(self.below(3).into()),
            name: "task".into(),
            returns: if self.below(32) == 0 { self.below(3) } else { 1 },
            demand: Amounts { cpus: u64::from(self.below(3)) * RESOURCE_UNIT, ..Amounts::default() },
            priority: 0,
            depth: self.below(6),
            timeout_ms: (self.below(4) == 0).then_some(20),
            bundle: (self.below(8) == 0).then(|| (self.group(), self.below(2))),
            refs: self.objects(),
            needs,
            values: if self.flag() { values } else { Vec::new() },
            arguments,
            work,
        }
    }

    fn message<'a>(&mut self, arguments: &'a [u8], value: &'a [u8], error: &'a [u8]) -> PeerMessage<'a> {
        match self.below(32) {
            0..7 => PeerMessage::Submit(self.task_spec(arguments, value, error)),
            7 => {
                let component =
                    if self.flag() { CompiledComponent::placeholder_id() } else { ComponentId::from_digest([1; 32]) };
                let (program, tenant) = (self.below(3), TenantId(self.below(2).into()));
                PeerMessage::Program { program, tenant, component, limits: Limits::default() }
            }
            8 => {
                let lasting = self.flag().then(|| "20260131-235959-123-4f3a9c".into());
                PeerMessage::Job {
                    root: self.root(),
                    tenant: TenantId(self.below(3).into()),
                    run: JobRun { id: "job".to_owned(), run: self.below(3) },
                    name: "a job".into(),
                    lasting,
                }
            }
            9 => PeerMessage::Recall(self.worker()),
            10 => PeerMessage::Recalled(self.worker(), (0..self.below(3)).map(|_| self.task()).collect()),
            11 | 12 => PeerMessage::Cancel(self.task(), self.attempt(), self.flag()),
            13 => PeerMessage::JobEnded(self.root()),
            14..17 => {
                let returned = match self.below(4) {
                    0 => Err(Box::new(self.error())),
                    _ => Ok((0..1 + self.below(8) / 7).map(|_| (self.value(value, error), self.objects())).collect()),
                };
                let (task, attempt, slot, system) = (self.task(), self.attempt(), self.worker(), self.flag());
                let usage =
                    AttemptUsage { started: u64::MAX, nanos: 5, waited_nanos: 8, gpu_nanos: 7, memory_bytes: 6 };
                PeerMessage::Finished { task, attempt, slot, returned, system, usage }
            }
            17 => PeerMessage::Blocked(self.task(), self.flag()),
            18 => {
                let (task, attempt, slot, index) = (self.task(), self.attempt(), self.worker(), self.below(3).into());
                let (object, value, contains) = (self.object(), self.value(value, error), self.objects());
                match self.flag() {
                    true => PeerMessage::Yielded { task, attempt, slot, index, object, value, contains },
                    false => PeerMessage::Checkpoint { task, attempt, object, value, contains },
                }
            }
            19 => PeerMessage::ItemsTaken(self.task(), self.below(5).into()),
            20 => PeerMessage::FindActor { object: self.object(), job: self.root(), name: "one".into() },
            21 => PeerMessage::KillActor(self.remote_actor(), self.flag()),
            22 => PeerMessage::RequestObject(self.object(), self.flag()),
            23 => PeerMessage::ObjectValue {
                object: self.object(),
                value: self.value(value, error),
                contains: self.objects(),
            },
            24 | 25 => PeerMessage::Release(self.object(), self.below(3)),
            26 => match self.below(2) {
                0 => {
                    let (job, task, worker) = (self.job(), self.task(), self.worker());
                    PeerMessage::Log { job, task, name: "task".into(), worker, level: 1, line: "a line" }
                }
                _ => {
                    PeerMessage::Progress { job: self.job(), task: self.task(), name: "reads", done: 1, total: Some(2) }
                }
            },
            27 | 28 => {
                let (group, attempt, job) = (self.group(), self.attempt(), self.root());
                let bundles = (0..self.below(3)).map(|index| (index, self.amounts())).collect();
                PeerMessage::ReserveBundles { group, attempt, job, program: PROGRAM, bundles }
            }
            29 => PeerMessage::ReserveReply(self.group(), self.attempt(), self.flag()),
            30 => match self.flag() {
                true => PeerMessage::ReleaseBundles(self.group(), self.attempt()),
                false => PeerMessage::Load(self.amounts()),
            },
            _ => match self.below(8) {
                0 => PeerMessage::Leaving,
                1 => PeerMessage::Released,
                2 => {
                    let (object, job) = (self.object(), self.root());
                    PeerMessage::OpenFile { object, job, number: self.below(3).into() }
                }
                _ => PeerMessage::RequestObject(self.object(), false),
            },
        }
    }
}
