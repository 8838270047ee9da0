//! Placement groups that tasks create and remove.

use sandbar_core::{GROUP_BUNDLES_MAX, GroupId, GroupRequest};
use sandbar_sandbox::Refusal;

use super::WorkerRuntime;
use crate::program::messages::WorkerMessage;
use crate::program::objects::{ObjectKey, TaskSlot};

/// Maximum bytes of a request for a placement group.
const REQUEST_BYTES_MAX: usize = 64 << 10;

impl WorkerRuntime {
    pub(super) fn group(&mut self, slot: TaskSlot, request: &[u8]) -> Result<GroupId, Refusal> {
        if request.len() > REQUEST_BYTES_MAX {
            let message = format!(
                "its request for a placement group takes {} bytes, the limit is {REQUEST_BYTES_MAX}",
                request.len()
            );
            return Err(Refusal::bad_request(message));
        }
        let malformed = |_| Refusal::bad_request("its request for a placement group is malformed");
        let bundles = postcard::from_bytes::<GroupRequest>(request).map_err(malformed)?.bundles.len();
        if !(1..=GROUP_BUNDLES_MAX).contains(&bundles) {
            let message = format!("a placement group of {bundles} bundles: it has from 1 to {GROUP_BUNDLES_MAX}");
            return Err(Refusal::bad_request(message));
        }
        self.announce(slot);
        let group = self.take_ids(1)?;
        let task = self.tasks.require(slot)?;
        task.holds.insert(group);
        let (task, job) = (task.id, task.job);
        self.objects.created(ObjectKey::new(job, group));
        self.node.send(&WorkerMessage::CreateGroup { group, task, request });
        self.node.publish_in_time();
        Ok(GroupId(group))
    }

    pub(super) fn remove_group(&mut self, slot: TaskSlot, group: GroupId) -> Result<(), Refusal> {
        self.announce(slot);
        let task = self.tasks.require(slot)?.id;
        self.node.send(&WorkerMessage::RemoveGroup(group.0, task));
        self.node.publish();
        Ok(())
    }
}
