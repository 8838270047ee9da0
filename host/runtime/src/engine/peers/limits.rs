//! Limits of tasks that run on other nodes: a task and its result are one message each.

use std::io;

use sandbar_core::{Code, Fault};

/// Maximum number of returned objects, of needed objects, and of bytes of arguments of a task that runs on another node.
pub(in crate::engine) const REMOTE_RETURNS_MAX: u32 = 1024;
const REMOTE_OBJECTS_MAX: usize = 20_000;
const REMOTE_ARGUMENT_BYTES_MAX: usize = 256 << 10;

/// Maximum number of jobs at a time that a node has introduced.
pub(super) const INTRODUCED_JOBS_MAX: usize = 10_000;
/// Maximum number of programs that a node describes during a connection.
pub(super) const PROGRAMS_MAX: usize = 10_000;
/// Maximum number of a node's tasks that wait for one program.
pub(super) const WAITING_TASKS_MAX: usize = 10_000;

/// Checks the number of items of a node, before one is added.
///
/// # Errors
/// The number is the maximum.
pub(super) fn check_number(number: usize, max: usize, items: &str) -> io::Result<()> {
    if number < max {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {max} {items}")))
}

/// Returns why a task can't run on another node, if it is too large: a task and its result are one message each.
pub(in crate::engine) fn too_large_for_peers(returns: u32, objects: usize, arguments: usize) -> Option<Fault> {
    let message = if returns > REMOTE_RETURNS_MAX {
        format!("returns {returns} objects: a task on another node returns {REMOTE_RETURNS_MAX} at most")
    } else if objects > REMOTE_OBJECTS_MAX {
        format!("takes {objects} objects: a task on another node takes {REMOTE_OBJECTS_MAX} at most")
    } else if arguments > REMOTE_ARGUMENT_BYTES_MAX {
        format!(
            "has {arguments} bytes of arguments: a task on another node has {REMOTE_ARGUMENT_BYTES_MAX} at most; pass \
             objects"
        )
    } else {
        return None;
    };
    Some(Fault::new(Code::BadRequest, message))
}
