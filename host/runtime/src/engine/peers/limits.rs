//! Limits of tasks that run on other nodes: a task and its result are one message each.

use sandbar_core::{Code, Fault};

/// Maximum number of returned objects, of needed objects, and of bytes of arguments of a task that runs on another node.
pub(in crate::engine) const REMOTE_RETURNS_MAX: u32 = 1024;
const REMOTE_OBJECTS_MAX: usize = 20_000;
const REMOTE_ARGUMENT_BYTES_MAX: usize = 256 << 10;

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
