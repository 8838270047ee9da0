//! The component's exports: selecting a function or task, and calling it.

use std::cell::RefCell;

use arrow_schema::{Field, Schema};

use crate::bindings::guest::{Function as Description, Guest};
use crate::bindings::{parameters, program};
use crate::registry::{BoundFunction, functions, tasks};
use crate::{actor, bindings, random, task};

pub(crate) struct Component;

// On other targets, linkers reject the names of the exports, and no host calls them.
#[cfg(target_family = "wasm")]
bindings::export!(Component with_types_in bindings);

thread_local! {
    static BOUND: RefCell<Option<Box<dyn BoundFunction>>> = const { RefCell::new(None) };
}

impl Guest for Component {
    fn describe() -> Vec<Description> {
        functions()
            .into_iter()
            .map(|f| Description {
                name: f.name.into(),
                kind: f.kind,
                arguments: encode_fields((f.arguments)()),
                returns: encode_fields((f.returns)()),
                about: f.about.trim().into(),
            })
            .collect()
    }

    fn open(function: u32, params: String, seed: u64) -> Result<(), String> {
        before_call(seed);
        let all = functions();
        let function = all.get(function as usize).ok_or_else(|| {
            format!("function index {function} is out of range: the component has {} functions", all.len())
        })?;
        let bound = (function.open)(&params)?;
        BOUND.with_borrow_mut(|slot| *slot = Some(bound));
        Ok(())
    }

    fn process(header: Vec<u8>) -> Result<(), String> {
        with_bound(|f| f.process(&header))
    }

    fn fit(header: Vec<u8>) -> Result<(), String> {
        with_bound(|f| f.fit(&header))
    }

    fn predict(header: Vec<u8>) -> Result<(), String> {
        with_bound(|f| f.predict(&header))
    }
}

impl parameters::Guest for Component {
    fn describe() -> Vec<Vec<parameters::Parameter>> {
        functions().into_iter().map(|f| (f.parameters)()).collect()
    }
}

impl program::Guest for Component {
    fn describe() -> Vec<program::Task> {
        let argument =
            |(name, type_name): &(&str, &str)| program::Argument { name: (*name).into(), type_: (*type_name).into() };
        tasks()
            .into_iter()
            .map(|task| program::Task {
                name: task.name.into(),
                kind: task.kind,
                arguments: task.arguments.iter().map(argument).collect(),
                returns: task.returns.into(),
                count: task.count,
                about: task.about.trim().into(),
            })
            .collect()
    }

    fn run(task: u32, call: u64, seed: u64, arguments: Vec<u8>) -> Result<bool, String> {
        before_call(seed);
        if !actor::is_actor() {
            task::forget_handles();
        }
        let has_ended = task::run(task, call, &arguments);
        after_call(has_ended)
    }

    fn resume(call: u64) -> Result<bool, String> {
        let has_ended = actor::resume(call);
        after_call(has_ended)
    }

    fn abandon(call: u64) {
        actor::abandon(call);
        task::release_dropped();
    }
}

/// Runs after each part of a call. An actor's value and waiting calls keep references between calls, so dropped
/// references are released here. For other instances, the host releases everything when the call ends.
fn after_call(has_ended: Result<bool, String>) -> Result<bool, String> {
    if actor::is_actor() {
        task::release_dropped();
    }
    has_ended
}

/// Runs before each call.
fn before_call(seed: u64) {
    // In the second call of an instance, the logger is already set.
    if log::set_logger(&HostLog).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
        std::panic::set_hook(Box::new(|info| bindings::log::panic(&info.to_string())));
    }
    random::set_seed(seed);
}

fn with_bound(call: impl FnOnce(&mut dyn BoundFunction) -> Result<(), String>) -> Result<(), String> {
    BOUND.with_borrow_mut(|slot| match slot {
        Some(function) => call(function.as_mut()),
        None => Err("`open` was not called before this function".into()),
    })
}

fn encode_fields(fields: Vec<Field>) -> Vec<u8> {
    if fields.is_empty() {
        return Vec::new();
    }
    sandbar_batch::encode_schema(&Schema::new(fields)).expect("an attribute names only types that cross")
}

struct HostLog;

impl log::Log for HostLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        use bindings::log::Level;
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug | log::Level::Trace => Level::Debug,
        };
        bindings::log::write(level, &record.args().to_string());
    }

    fn flush(&self) {}
}
