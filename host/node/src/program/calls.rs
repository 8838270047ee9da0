//! What tasks call, and what a submission says.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{Argument, Limits, ObjectId, Options, Request};
use sandbar_sched::{Demand, UNIT};
use sandbar_worker::Compiled;

/// A component with its tasks.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) limits: Limits,
    pub(crate) tasks: Vec<ProgramTask>,
}

/// A task of a component.
#[derive(Debug)]
pub(crate) struct ProgramTask {
    pub(crate) name: Arc<str>,
    /// Name and type of each argument.
    pub(crate) arguments: Vec<(String, String)>,
}

/// What a task calls, and with what.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) program: Arc<Program>,
    pub(super) function: u32,
    pub(super) seed: u64,
    /// A list of [`Argument`], in postcard.
    pub(super) arguments: Box<[u8]>,
    /// Objects among them.
    pub(super) needs: Box<[ObjectId]>,
}

/// A request, read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) options: Option<Box<Options>>,
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
        let Request { options, arguments, refs } = postcard::from_bytes(request)?;
        let needs = arguments.iter().filter_map(|argument| match argument {
            Argument::Object(object) => Some(*object),
            _ => None,
        });
        let needs = needs.collect();
        // Mostly none.
        let arguments = if arguments.is_empty() { vec![0] } else { postcard::to_stdvec(&arguments)? };
        Ok(Read { options, arguments: arguments.into(), needs, refs })
    }
}

/// What most tasks take: one processor.
pub(super) fn usual_demand() -> Demand {
    Demand { cpus: UNIT, ..Demand::default() }
}

/// What a task with these options takes.
pub(super) fn demand(options: &Options) -> Demand {
    // Amounts that are no numbers or below zero are none; those too large are asked of no node.
    let amount = |amount: f64| (amount * UNIT as f64).round() as u64;
    Demand {
        cpus: options.cpus.map_or(UNIT, amount),
        gpus: options.gpus.map_or(0, amount),
        memory: options.memory.unwrap_or(0),
        custom: options.resources.iter().map(|(name, of)| (name.as_str().into(), amount(*of))).collect(),
    }
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
