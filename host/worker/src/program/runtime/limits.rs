//! Limits of the values of a task.

use sandbar_core::Code;
use sandbar_sandbox::{Refusal, is_interrupted};

/// Maximum number of objects that the tasks of a worker hold or need, as many as a job may have.
pub(super) const OBJECTS_MAX: usize = 16_000_000;
/// Maximum number of results of one task.
pub(super) const RETURNS_MAX: u32 = 10_000;

/// Maximum number of objects in the values of one message. Their numbers and the rest of the message fit into half of a
/// ring: a larger frame might never find room, depending on the position of the ring's end.
pub(super) const CONTAINED_MAX: usize = 40_000;

/// Number of objects of a long list that are handled between two checks whether the task must end.
pub(super) const STEP_OBJECTS: usize = 4096;

/// Refuses the rest of a long request of a task that must end.
pub(super) fn refuse_interrupted() -> Result<(), Refusal> {
    match is_interrupted() {
        true => Err(Refusal { code: Code::Cancelled, message: "it was cancelled while it ran".to_owned() }),
        false => Ok(()),
    }
}

/// Checks the number of objects in a value.
pub(super) fn check_contained(contained: &[u64]) -> Result<(), Refusal> {
    if contained.len() <= CONTAINED_MAX {
        return Ok(());
    }
    let message = format!(
        "a value contains {} objects, the limit is {CONTAINED_MAX}: put them into several values, and these into one",
        contained.len()
    );
    Err(Refusal::bad_output(message))
}
