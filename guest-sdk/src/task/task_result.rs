//! Results and errors of the current task.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;

use sandbar_core::TaskError;

use super::call_buffers::with_scratch;
use super::chunk;
use super::object::release_if_many;
use super::value::Value;
use crate::host;

thread_local! {
    /// Whether the current task returns JSON.
    static RETURNS_JSON: Cell<bool> = const { Cell::new(false) };
}

/// Calls `run`, which returns JSON if `returns_json`.
pub(super) fn with_json<T>(returns_json: bool, run: impl FnOnce() -> T) -> T {
    let before = RETURNS_JSON.replace(returns_json);
    let result = run();
    RETURNS_JSON.set(before);
    result
}

/// Passes a result of the current task to the host.
///
/// # Errors
/// Reports why the value can't be encoded.
pub fn return_value<T: Value>(value: T) -> Result<(), String> {
    // What the task has dropped makes room for its result.
    release_if_many();
    if RETURNS_JSON.get() {
        let json = value.to_json().unwrap_or_else(|e| {
            log::warn!("the result is shown as null: {e}");
            b"null".to_vec()
        });
        host::returned(&[&json], &[]);
        return Ok(());
    }
    let written = with_scratch(|scratch| match chunk::add_result(&value, scratch) {
        Some(written) => written,
        None => value.write(scratch, host::returned),
    });
    written.map_err(|e| format!("the result can't be encoded: {e}"))
}

/// Converts a task's error to text. Reports another task's error to the host first, so that it keeps its code and
/// chain.
pub fn report_error<E: Display + 'static>(error: E) -> String {
    let text = error.to_string();
    if let Some(error) = (&error as &dyn Any).downcast_ref::<TaskError>() {
        let error = postcard::to_stdvec(error).expect("an error is texts");
        if !chunk::set_failure(&error) {
            host::report_failure(&error);
        }
    }
    text
}
