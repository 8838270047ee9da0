//! Programs, calls of their tasks, decoded task requests, and resource demands.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, ActorOptions, Argument, Limits, ObjectId, RequestOptions, TaskKind, TaskRequest};
use sandbar_sched::{RESOURCE_UNIT, ResourceSet};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::ActorSettings;

/// A component with its tasks.
#[derive(Debug)]
pub struct Program {
    /// Compiled code.
    pub compiled: Arc<CompiledComponent>,
    /// Limits of each task.
    pub limits: Limits,
    /// Tasks in the component's order.
    pub tasks: Vec<ProgramTask>,
}

/// A task of a component.
#[derive(Debug, Clone)]
pub struct ProgramTask {
    /// Name. The name of a function of an actor has the prefix `Actor.`, with the actor's type.
    pub name: Arc<str>,
    /// Name and type of each argument.
    pub arguments: Vec<(String, String)>,
    /// Type of the result.
    pub returns: String,
    /// Number of returned objects.
    pub count: u32,
    /// Kind of task.
    pub kind: TaskKind,
}

impl Program {
    /// Returns the kinds of its tasks, in order.
    pub(super) fn kinds(&self) -> Vec<TaskKind> {
        self.tasks.iter().map(|task| task.kind).collect()
    }

    /// Returns the function of this kind that belongs to the same actor as `function`.
    fn sibling(&self, function: u32, kind: TaskKind) -> Option<u32> {
        let (actor, _) = self.tasks.get(function as usize)?.name.rsplit_once('.')?;
        let is_sibling = |task: &ProgramTask| {
            task.kind == kind && task.name.rsplit_once('.').is_some_and(|(other, _)| other == actor)
        };
        self.tasks.iter().position(is_sibling).map(|index| index as u32)
    }

    /// Returns the creation of an actor by a function.
    pub(super) fn creation(&self, function: u32, options: ActorOptions, name: Option<String>) -> ActorCreation {
        let restore = self.sibling(function, TaskKind::Restore);
        ActorCreation {
            settings: ActorSettings {
                concurrency: options.max_concurrency.unwrap_or(CONCURRENCY),
                checkpoint: restore.and_then(|_| self.sibling(function, TaskKind::Checkpoint)),
                checkpoint_every: options.checkpoint_every.unwrap_or(1).max(1),
            },
            restore,
            checkpoint: None,
            options,
            name,
        }
    }
}

/// Default number of calls of an actor that run concurrently while they wait.
const CONCURRENCY: u32 = 1000;

/// Creation of an actor.
#[derive(Debug, Clone)]
pub(super) struct ActorCreation {
    /// Settings for the worker that hosts the actor.
    pub(super) settings: ActorSettings,
    /// Function that restores the actor from a checkpoint.
    pub(super) restore: Option<u32>,
    /// Checkpoint from another node, among the objects that the call needs.
    pub(super) checkpoint: Option<ObjectId>,
    /// Options of the caller.
    pub(super) options: ActorOptions,
    /// Name in the job.
    pub(super) name: Option<String>,
}

/// A call of a task, with its arguments.
#[derive(Debug, Clone)]
pub(super) struct TaskPayload {
    pub(super) program: Arc<Program>,
    pub(super) function: u32,
    /// Time limit of an attempt.
    pub(super) timeout_ms: Option<NonZeroU32>,
    pub(super) seed: u64,
    /// Identity of the task across runs of its job, if another node may take the job over.
    pub(super) lineage: Option<NonZeroU64>,
    /// A list of [`Argument`], in postcard.
    pub(super) arguments: Box<[u8]>,
    /// Objects among the arguments.
    pub(super) needs: Box<[ObjectId]>,
    /// Objects contained in values of the arguments, for actors and their methods.
    pub(super) refs: Box<[ObjectId]>,
    /// Actor that the call creates.
    pub(super) creation: Option<Box<ActorCreation>>,
    /// Time of submission, in nanoseconds of the monotonic clock.
    pub(super) submitted: u64,
}

impl TaskPayload {
    /// Creates a call that needs no objects.
    pub(super) fn new(
        program: Arc<Program>,
        function: u32,
        seed: u64,
        arguments: Box<[u8]>,
        submitted: u64,
    ) -> TaskPayload {
        let (needs, refs) = (Box::new([]), Box::new([]));
        TaskPayload {
            program,
            function,
            timeout_ms: None,
            seed,
            lineage: None,
            arguments,
            needs,
            refs,
            creation: None,
            submitted,
        }
    }

    /// Returns the time limit of an attempt.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(|limit| Duration::from_millis(limit.get().into()))
    }

    /// Returns the bytes that the call owns on the heap.
    pub(super) fn bytes(&self) -> u64 {
        self.arguments.len() as u64 + size_of_val(&*self.needs) as u64 + size_of_val(&*self.refs) as u64
    }

    pub(super) fn is_generator(&self) -> bool {
        self.program.tasks.get(self.function as usize).is_some_and(|task| task.kind == TaskKind::Generator)
    }
}

/// A decoded task request.
#[derive(Debug)]
pub(super) struct DecodedRequest {
    pub(super) options: Option<Box<RequestOptions>>,
    /// Actor of a method call.
    pub(super) actor: Option<ActorId>,
    pub(super) arguments: Box<[u8]>,
    pub(super) needs: Vec<ObjectId>,
    pub(super) refs: Vec<ObjectId>,
}

impl DecodedRequest {
    /// Decodes an untrusted request.
    ///
    /// # Errors
    /// Fails if it is malformed.
    pub(super) fn decode(request: &[u8]) -> Result<DecodedRequest, postcard::Error> {
        let TaskRequest { options, actor, arguments, refs } = postcard::from_bytes(request)?;
        let needs = arguments.iter().filter_map(|argument| match argument {
            Argument::Object(object) => Some(*object),
            _ => None,
        });
        let needs = needs.collect();
        // The encoding of an empty list.
        let arguments = if arguments.is_empty() { vec![0] } else { postcard::to_stdvec(&arguments)? };
        let actor = actor.map(|handle| ActorId(handle.0));
        Ok(DecodedRequest { options, actor, arguments: arguments.into(), needs, refs })
    }
}

/// Returns the default demand of a task: one CPU.
pub(super) fn default_demand() -> ResourceSet {
    ResourceSet { cpus: RESOURCE_UNIT, ..ResourceSet::default() }
}

/// Returns the demand of a task with these options.
pub(super) fn demand(options: &RequestOptions) -> ResourceSet {
    ResourceSet {
        cpus: options.cpus.map_or(RESOURCE_UNIT, units),
        gpus: options.gpus.map_or(0, units),
        memory: options.memory.unwrap_or(0),
        custom: options.resources.iter().map(|(name, amount)| (name.as_str().into(), units(*amount))).collect(),
    }
}

/// Converts an amount to [`RESOURCE_UNIT`]s. NaN and negative amounts become zero. Huge amounts saturate.
pub(crate) fn units(amount: f64) -> u64 {
    (amount * RESOURCE_UNIT as f64).round() as u64
}

/// Returns the demand of an actor with these options: no CPU by default.
pub(super) fn actor_demand(options: &RequestOptions) -> ResourceSet {
    let demand = demand(options);
    ResourceSet { cpus: options.cpus.map_or(0, |_| demand.cpus), ..demand }
}

/// Interned names of tasks.
#[derive(Debug, Default)]
pub(super) struct Names(FxHashMap<String, Arc<str>>);

/// Maximum number of interned names.
const NAMES_MAX: usize = 10_000;

impl Names {
    /// Returns the interned name. Beyond [`NAMES_MAX`] names, returns a copy that is not interned.
    pub(super) fn intern(&mut self, name: String) -> Arc<str> {
        if let Some(interned) = self.0.get(&name) {
            return interned.clone();
        }
        let text: Arc<str> = name.as_str().into();
        if self.0.len() < NAMES_MAX {
            self.0.insert(name, text.clone());
        }
        text
    }
}
