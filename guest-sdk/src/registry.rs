//! The functions and tasks of a component, as their attributes registered them.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_schema::Field;

use crate::bindings::guest::Kind;
use crate::bindings::parameters::Parameter;
use crate::bindings::program::TaskKind;
use crate::task::Arguments;

/// A function of the component: one static value per function, which an attribute expands to.
pub struct Function {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
    pub(crate) arguments: fn() -> Vec<Field>,
    pub(crate) returns: fn() -> Vec<Field>,
    pub(crate) parameters: fn() -> Vec<Parameter>,
    pub(crate) open: fn(&str) -> Result<Box<dyn BoundFunction>, String>,
}

inventory::collect!(Function);

/// A function bound to its parameters, ready for calls.
pub(crate) trait BoundFunction {
    fn process(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes groups, not batches".into())
    }
    fn fit(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes batches, not groups".into())
    }
    fn predict(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes batches, not groups".into())
    }
}

/// Returns all functions of this component, sorted by name. (The linker gives no order.)
pub(crate) fn functions() -> Vec<&'static Function> {
    let mut all: Vec<_> = inventory::iter::<Function>.into_iter().collect();
    all.sort_by_key(|f| f.name);
    all
}

/// A task of the component, or a function of one of its actors.
#[derive(Debug)]
pub struct TaskDefinition {
    pub(crate) name: &'static str,
    pub(crate) kind: TaskKind,
    pub(crate) about: &'static str,
    /// Name and type of each argument.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) returns: &'static str,
    /// Number of results.
    pub(crate) count: u32,
    pub(crate) run: EntryPoint,
    /// The cached result of [`TaskDefinition::index`].
    index: AtomicU32,
}

/// The entry point of a task.
#[derive(Debug, Clone, Copy)]
pub enum EntryPoint {
    /// Runs to its end.
    Blocking(fn(&Arguments<'_>) -> Result<(), String>),
    /// Returns an iterator of items.
    Generator(fn(&Arguments<'_>) -> Result<GeneratorItems, String>),
    /// Returns a future, which may wait.
    Async(fn(&Arguments<'_>) -> Result<CallFuture, String>),
}

/// A generator's iterator: each step yields an item to the host, or returns an error.
pub type GeneratorItems = Box<dyn Iterator<Item = Result<(), String>>>;

/// The future of a call that may wait.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<(), String>>>>;

inventory::collect!(&'static TaskDefinition);

/// Marks an index that was not computed yet.
const INDEX_UNKNOWN: u32 = u32::MAX;

impl TaskDefinition {
    /// Defines a task.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        returns: &'static str,
        count: u32,
        run: fn(&Arguments<'_>) -> Result<(), String>,
    ) -> TaskDefinition {
        let (kind, run, index) = (TaskKind::Task, EntryPoint::Blocking(run), AtomicU32::new(INDEX_UNKNOWN));
        TaskDefinition { name, kind, about, arguments, returns, count, run, index }
    }

    /// Defines a generator.
    pub const fn generator(
        name: &'static str,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        items: &'static str,
        begin: fn(&Arguments<'_>) -> Result<GeneratorItems, String>,
    ) -> TaskDefinition {
        let (kind, run, index) = (TaskKind::Generator, EntryPoint::Generator(begin), AtomicU32::new(INDEX_UNKNOWN));
        TaskDefinition { name, kind, about, arguments, returns: items, count: 1, run, index }
    }

    /// Defines a function of an actor.
    pub const fn actor_function(
        name: &'static str,
        kind: TaskKind,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        returns: &'static str,
        run: EntryPoint,
    ) -> TaskDefinition {
        TaskDefinition { name, kind, about, arguments, returns, count: 1, run, index: AtomicU32::new(INDEX_UNKNOWN) }
    }

    /// Returns its index in [`tasks`].
    pub(crate) fn index(&self) -> u32 {
        match self.index.load(Ordering::Relaxed) {
            INDEX_UNKNOWN => {
                let before =
                    inventory::iter::<&'static TaskDefinition>.into_iter().filter(|task| task.key() < self.key());
                let index = before.count() as u32;
                self.index.store(index, Ordering::Relaxed);
                index
            }
            index => index,
        }
    }

    /// The sort key of tasks. The host calls neither of two tasks with the same name, but each has its own index.
    fn key(&self) -> (&'static str, usize) {
        (self.name, std::ptr::from_ref(self).addr())
    }
}

/// Returns all tasks of this component, sorted by name.
pub(crate) fn tasks() -> Vec<&'static TaskDefinition> {
    let mut all: Vec<_> = inventory::iter::<&'static TaskDefinition>.into_iter().copied().collect();
    all.sort_unstable_by_key(|task| task.key());
    all
}

/// Returns the task at an index of [`tasks`]. Selects it without sorting: a fresh sandbox looks up one task only.
pub(crate) fn task(index: u32) -> Result<&'static TaskDefinition, String> {
    let mut all: Vec<_> = inventory::iter::<&'static TaskDefinition>.into_iter().copied().collect();
    match index as usize {
        index if index < all.len() => Ok(all.select_nth_unstable_by_key(index, |task| task.key()).1),
        index => Err(no_task(index, all.len())),
    }
}

/// Like [`task`], for instances that look up several tasks: caches the sorted list.
pub(crate) fn cached_task(index: u32) -> Result<&'static TaskDefinition, String> {
    static ALL: OnceLock<Vec<&'static TaskDefinition>> = OnceLock::new();
    let all = ALL.get_or_init(tasks);
    all.get(index as usize).copied().ok_or_else(|| no_task(index as usize, all.len()))
}

fn no_task(index: usize, available: usize) -> String {
    format!("task index {index} is out of range: the component has {available} tasks")
}
