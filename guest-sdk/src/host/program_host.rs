//! The state of the test host, in this process and thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::actor::Actor;
use super::call::{Call, CallFrame};
use crate::actor::{self, ActorState};
use crate::bindings::tasks::Outcome;
use crate::registry::GeneratorItems;

/// The state of the test host.
#[derive(Default)]
pub(super) struct ProgramHost {
    /// The last object number in use.
    pub(super) last: u64,
    pub(super) objects: HashMap<u64, Object>,
    /// Unfinished calls, by the number of their first result.
    pub(super) calls: BTreeMap<u64, Call>,
    /// Running parts of calls: each was started by the one before it.
    pub(super) frames: Vec<CallFrame>,
    /// Actors, by the number of their first handle.
    pub(super) actors: BTreeMap<u64, Actor>,
    pub(super) names: HashMap<String, u64>,
    /// Generators, by the number of their call.
    pub(super) streams: HashMap<u64, Generator>,
    /// Input files, by their number.
    pub(super) files: Vec<InputFile>,
    /// Number of bundles of each placement group.
    pub(super) groups: HashMap<u64, usize>,
    pub(super) deferred: DeferredDrops,
}

pub(super) struct Object {
    /// `TimeOut` while the object is not ready.
    pub(super) outcome: Outcome,
    pub(super) bytes: Vec<u8>,
    pub(super) contains: Vec<u64>,
    /// Whether the program holds a reference.
    pub(super) held: bool,
    /// Number of objects that contain it and of unfinished calls that use it.
    pub(super) contained: usize,
}

/// User values to drop after the host is no longer borrowed: their destructors may call the host.
#[derive(Default)]
pub(super) struct DeferredDrops {
    pub(super) states: Vec<ActorState>,
    pub(super) calls: Vec<u64>,
    pub(super) streams: Vec<GeneratorItems>,
}

/// A started generator.
pub(super) struct Generator {
    /// None while the generator computes an item.
    pub(super) items: Option<GeneratorItems>,
    pub(super) yielded: u64,
}

impl Generator {
    pub(super) fn into_items(self) -> Option<GeneratorItems> {
        self.items
    }
}

/// An input file of the job.
#[derive(Debug, Clone)]
pub(super) enum InputFile {
    File(PathBuf),
    /// A list of file names, encoded with postcard.
    Names(Vec<u8>),
}

thread_local! {
    static HOST: RefCell<ProgramHost> = RefCell::default();
}

pub(super) fn host<T>(run: impl FnOnce(&mut ProgramHost) -> T) -> T {
    let (result, deferred) = HOST.with_borrow_mut(|host| (run(host), std::mem::take(&mut host.deferred)));
    deferred.calls.into_iter().for_each(actor::abandon);
    drop((deferred.states, deferred.streams));
    result
}
