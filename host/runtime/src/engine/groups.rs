//! Placement groups of tasks.

use std::io;

use sandbar_core::{Bundle, GroupId, GroupRequest, TaskId, WorkerId};
use sandbar_sched::{Event, GroupSpec, ResourceSet};

use super::context::Context;
use super::values::StoredValue;
use crate::calls::units;

/// Creates a placement group. The object that is ready when the group is placed has an empty value.
///
/// # Errors
/// The request is malformed.
pub(super) fn create(cx: &mut Context, worker: WorkerId, group: u64, task: u64, request: &[u8]) -> io::Result<()> {
    let request: GroupRequest = postcard::from_bytes(request).map_err(io::Error::other)?;
    let spec = GroupSpec {
        name: request.name.map(|name| name.as_str().into()),
        strategy: request.strategy,
        bundles: request.bundles.iter().map(bundle_resources).collect(),
        local_only: false,
    };
    let value = StoredValue::Inline(Box::default());
    cx.step(Event::GroupCreated { group: GroupId(group), task: TaskId(task), worker, spec, value });
    Ok(())
}

fn bundle_resources(bundle: &Bundle) -> ResourceSet {
    ResourceSet {
        cpus: units(bundle.cpus),
        gpus: units(bundle.gpus),
        memory: bundle.memory,
        custom: bundle.resources.iter().map(|(name, amount)| (name.as_str().into(), units(*amount))).collect(),
    }
}
