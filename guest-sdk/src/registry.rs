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
    pub(crate) open: fn(&str) -> Result<Box<dyn Opened>, String>,
}

inventory::collect!(Function);

/// A function bound to its parameters, ready for calls.
pub(crate) trait Opened {
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
pub struct Offered {
    pub(crate) name: &'static str,
    pub(crate) kind: TaskKind,
    pub(crate) about: &'static str,
    /// Name and type of each argument.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) returns: &'static str,
    /// Number of results.
    pub(crate) count: u32,
    pub(crate) run: Run,
    /// The cached result of [`Offered::place`].
    place: AtomicU32,
}

/// The entry point of a task.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// Runs to its end.
    Now(fn(&Arguments<'_>) -> Result<(), String>),
    /// Returns an iterator of items.
    Items(fn(&Arguments<'_>) -> Result<Items, String>),
    /// Returns a future, which may wait.
    Later(fn(&Arguments<'_>) -> Result<Later, String>),
}

/// A generator's iterator: each step yields an item to the host, or returns an error.
pub type Items = Box<dyn Iterator<Item = Result<(), String>>>;

/// The future of a call that may wait.
pub type Later = Pin<Box<dyn Future<Output = Result<(), String>>>>;

inventory::collect!(&'static Offered);

/// Marks an index that was not computed yet.
const NOWHERE: u32 = u32::MAX;

impl Offered {
    /// Defines a task.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        returns: (&'static str, u32),
        run: fn(&Arguments<'_>) -> Result<(), String>,
    ) -> Offered {
        let (returns, count) = returns;
        let (kind, run, place) = (TaskKind::Task, Run::Now(run), AtomicU32::new(NOWHERE));
        Offered { name, kind, about, arguments, returns, count, run, place }
    }

    /// Defines a generator.
    pub const fn of_generator(
        name: &'static str,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        items: &'static str,
        begin: fn(&Arguments<'_>) -> Result<Items, String>,
    ) -> Offered {
        let (kind, run, place) = (TaskKind::Generator, Run::Items(begin), AtomicU32::new(NOWHERE));
        Offered { name, kind, about, arguments, returns: items, count: 1, run, place }
    }

    /// Defines a function of an actor.
    pub const fn of_actor(
        name: &'static str,
        kind: TaskKind,
        about: &'static str,
        arguments: &'static [(&'static str, &'static str)],
        returns: &'static str,
        run: Run,
    ) -> Offered {
        Offered { name, kind, about, arguments, returns, count: 1, run, place: AtomicU32::new(NOWHERE) }
    }

    /// Returns its index in [`tasks`].
    pub(crate) fn place(&self) -> u32 {
        match self.place.load(Ordering::Relaxed) {
            NOWHERE => {
                let before = inventory::iter::<&'static Offered>.into_iter().filter(|task| task.key() < self.key());
                let place = before.count() as u32;
                self.place.store(place, Ordering::Relaxed);
                place
            }
            place => place,
        }
    }

    /// The sort key of tasks. The host calls neither of two tasks with the same name, but each has its own index.
    fn key(&self) -> (&'static str, usize) {
        (self.name, std::ptr::from_ref(self).addr())
    }
}

/// Returns all tasks of this component, sorted by name.
pub(crate) fn tasks() -> Vec<&'static Offered> {
    let mut all: Vec<_> = inventory::iter::<&'static Offered>.into_iter().copied().collect();
    all.sort_unstable_by_key(|task| task.key());
    all
}

/// Returns the task at an index of [`tasks`]. Selects it without sorting: a fresh sandbox looks up one task only.
pub(crate) fn task(place: u32) -> Result<&'static Offered, String> {
    let mut all: Vec<_> = inventory::iter::<&'static Offered>.into_iter().copied().collect();
    match place as usize {
        place if place < all.len() => Ok(all.select_nth_unstable_by_key(place, |task| task.key()).1),
        place => Err(no_task(place, all.len())),
    }
}

/// Like [`task`], for instances that look up several tasks: caches the sorted list.
pub(crate) fn one_of_many(place: u32) -> Result<&'static Offered, String> {
    static ALL: OnceLock<Vec<&'static Offered>> = OnceLock::new();
    let all = ALL.get_or_init(tasks);
    all.get(place as usize).copied().ok_or_else(|| no_task(place as usize, all.len()))
}

fn no_task(place: usize, of: usize) -> String {
    format!("task index {place} is out of range: the component has {of} tasks")
}
