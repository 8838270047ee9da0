//! What tasks call, and what a submission says.

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
    pub compiled: Arc<CompiledComponent>,
    pub limits: Limits,
    pub tasks: Vec<ProgramTask>,
}

/// A task of a component.
#[derive(Debug, Clone)]
pub struct ProgramTask {
    /// Its name: of a method, behind its actor's and a dot.
    pub name: Arc<str>,
    /// Name and type of each argument.
    pub arguments: Vec<(String, String)>,
    /// The type of what it returns.
    pub returns: String,
    /// How many objects that is.
    pub count: u32,
    /// What it has to do with an actor, if anything.
    pub kind: TaskKind,
}

impl Program {
    /// What kinds its tasks are of, in order.
    pub(super) fn kinds(&self) -> Vec<TaskKind> {
        self.tasks.iter().map(|task| task.kind).collect()
    }

    /// The function of this kind that is of the same actor as `function`.
    fn beside(&self, function: u32, kind: TaskKind) -> Option<u32> {
        let (actor, _) = self.tasks.get(function as usize)?.name.rsplit_once('.')?;
        let is_it = |task: &ProgramTask| {
            task.kind == kind && task.name.rsplit_once('.').is_some_and(|(other, _)| other == actor)
        };
        self.tasks.iter().position(is_it).map(|place| place as u32)
    }

    /// How an actor is to be called that a function makes.
    pub(super) fn make(&self, function: u32, options: ActorOptions, name: Option<String>) -> Make {
        let restore = self.beside(function, TaskKind::Restore);
        Make {
            options: ActorSettings {
                concurrency: options.max_concurrency.unwrap_or(CONCURRENCY),
                checkpoint: restore.and_then(|_| self.beside(function, TaskKind::Checkpoint)),
                checkpoint_every: options.checkpoint_every.unwrap_or(1).max(1),
            },
            restore,
            saved: None,
            actor: options,
            name,
        }
    }
}

/// Calls of an actor that wait beside each other, if it says nothing else.
const CONCURRENCY: u32 = 1000;

/// How an actor is made.
#[derive(Debug, Clone)]
pub(super) struct Make {
    pub(super) options: ActorSettings,
    /// The function that makes it anew of what it was saved as.
    pub(super) restore: Option<u32>,
    /// What it was saved as on another node, among what the call needs.
    pub(super) saved: Option<ObjectId>,
    /// What was said of it.
    pub(super) actor: ActorOptions,
    /// By which it is found.
    pub(super) name: Option<String>,
}

/// What a task calls, and with what.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) program: Arc<Program>,
    pub(super) function: u32,
    /// How long an attempt may take, if it says so.
    pub(super) timeout_ms: Option<NonZeroU32>,
    pub(super) seed: u64,
    /// What it is in each run of its job, if that may be taken over.
    pub(super) lineage: Option<NonZeroU64>,
    /// A list of [`Argument`], in postcard.
    pub(super) arguments: Box<[u8]>,
    /// Objects among them.
    pub(super) needs: Box<[ObjectId]>,
    /// Objects that values among them contain, of what has to do with an actor.
    pub(super) refs: Box<[ObjectId]>,
    /// Of what makes an actor.
    pub(super) make: Option<Box<Make>>,
    /// When it was submitted, in nanoseconds of the machine's monotonic clock.
    pub(super) submitted: u64,
}

impl Call {
    /// A call that needs nothing, submitted at this time.
    pub(super) fn of(program: Arc<Program>, function: u32, seed: u64, arguments: Box<[u8]>, submitted: u64) -> Call {
        let (needs, refs) = (Box::new([]), Box::new([]));
        Call { program, function, timeout_ms: None, seed, lineage: None, arguments, needs, refs, make: None, submitted }
    }

    /// How long an attempt may take, if it says so.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(|limit| Duration::from_millis(limit.get().into()))
    }

    /// Bytes that it takes beside itself.
    pub(super) fn bytes(&self) -> u64 {
        self.arguments.len() as u64 + size_of_val(&*self.needs) as u64 + size_of_val(&*self.refs) as u64
    }

    pub(super) fn is_generator(&self) -> bool {
        self.program.tasks.get(self.function as usize).is_some_and(|task| task.kind == TaskKind::Generator)
    }
}

/// A request, read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) options: Option<Box<RequestOptions>>,
    /// The actor whose method is called.
    pub(super) actor: Option<ActorId>,
    pub(super) arguments: Box<[u8]>,
    pub(super) needs: Vec<ObjectId>,
    pub(super) refs: Vec<ObjectId>,
}

impl Read {
    /// Reads a request, which may be any bytes.
    ///
    /// # Errors
    /// When they are none.
    pub(super) fn of(request: &[u8]) -> Result<Read, postcard::Error> {
        let TaskRequest { options, actor, arguments, refs } = postcard::from_bytes(request)?;
        let needs = arguments.iter().filter_map(|argument| match argument {
            Argument::Object(object) => Some(*object),
            _ => None,
        });
        let needs = needs.collect();
        // Mostly none.
        let arguments = if arguments.is_empty() { vec![0] } else { postcard::to_stdvec(&arguments)? };
        let actor = actor.map(|handle| ActorId(handle.0));
        Ok(Read { options, actor, arguments: arguments.into(), needs, refs })
    }
}

/// What most tasks take: one processor.
pub(super) fn usual_demand() -> ResourceSet {
    ResourceSet { cpus: RESOURCE_UNIT, ..ResourceSet::default() }
}

/// What a task with these options takes.
pub(super) fn demand(options: &RequestOptions) -> ResourceSet {
    ResourceSet {
        cpus: options.cpus.map_or(RESOURCE_UNIT, units),
        gpus: options.gpus.map_or(0, units),
        memory: options.memory.unwrap_or(0),
        custom: options.resources.iter().map(|(name, of)| (name.as_str().into(), units(*of))).collect(),
    }
}

/// Converts an amount to [`RESOURCE_UNIT`]s. NaN and negative amounts become zero. Huge amounts saturate.
pub(super) fn units(amount: f64) -> u64 {
    (amount * RESOURCE_UNIT as f64).round() as u64
}

/// What an actor with these options takes: no processor, if nothing else is said.
pub(super) fn actor_demand(options: &RequestOptions) -> ResourceSet {
    let asked = demand(options);
    ResourceSet { cpus: options.cpus.map_or(0, |_| asked.cpus), ..asked }
}

/// Names of tasks that were given one of their own.
#[derive(Debug, Default)]
pub(super) struct Names(FxHashMap<String, Arc<str>>);

/// More names than this are not kept.
const NAMES_MAX: usize = 10_000;

impl Names {
    /// One text for all that are called so.
    pub(super) fn of(&mut self, name: String) -> Arc<str> {
        if let Some(known) = self.0.get(&name) {
            return known.clone();
        }
        let text: Arc<str> = name.as_str().into();
        if self.0.len() < NAMES_MAX {
            self.0.insert(name, text.clone());
        }
        text
    }
}
