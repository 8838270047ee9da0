//! Execution of calls.

use sandbar_core::Argument;

use super::arguments::Arguments;
use super::task_result::with_json;
use super::{chunk, stream};
use crate::actor;
use crate::registry::{self, EntryPoint};

/// Runs the task at this index of [`registry::tasks`]. `arguments` is an encoded list of `Argument`. Returns whether
/// the call has finished.
pub(crate) fn run(index: u32, call: u64, arguments: &[u8]) -> Result<bool, String> {
    let definition = if actor::is_actor() { registry::cached_task(index) } else { registry::task(index) }?;
    let mut values: Vec<Argument<'_>> =
        postcard::from_bytes(arguments).map_err(|e| format!("the arguments can't be decoded: {e}"))?;
    let returns_json = values.pop_if(|last| *last == Argument::ReturnsJson).is_some();
    if chunk::is_list(definition, &values) {
        return chunk::outside_list(|| actor::with_current_call(None, || chunk::run(definition, call, &values[0])))
            .map(|()| true);
    }
    if values.len() > definition.arguments.len() {
        return Err(format!("the task takes {} arguments, not {}", definition.arguments.len(), values.len()));
    }
    let arguments = Arguments { parameters: definition.arguments, call, values };
    match definition.run {
        EntryPoint::Blocking(run) => {
            let call = || chunk::outside_list(|| actor::with_current_call(None, || run(&arguments)));
            with_json(returns_json, call).map(|()| true)
        }
        EntryPoint::Generator(begin) => {
            chunk::outside_list(|| actor::with_current_call(None, || stream::run(call, begin(&arguments)?)))
        }
        EntryPoint::Async(begin) => actor::start(call, begin(&arguments)?),
    }
}
