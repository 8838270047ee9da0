//! Placement groups that tasks make and remove.

use sandbar_core::{GROUP_BUNDLES_MAX, GroupId, GroupRequest};
use sandbar_sandbox::Refusal;

use super::{Desk, gone};
use crate::program::messages::Up;
use crate::program::objects::Slot;

/// A placement group is asked for in so many bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

impl Desk {
    pub(super) fn group(&mut self, slot: Slot, request: &[u8]) -> Result<GroupId, Refusal> {
        if request.len() > REQUEST_BYTES_MAX {
            let message =
                format!("it asks for a placement group in {} bytes, the limit is {REQUEST_BYTES_MAX}", request.len());
            return Err(Refusal::bad_request(message));
        }
        let malformed = |_| Refusal::bad_request("it asks for a placement group by a request that makes no sense");
        let bundles = postcard::from_bytes::<GroupRequest>(request).map_err(malformed)?.bundles.len();
        if !(1..=GROUP_BUNDLES_MAX).contains(&bundles) {
            let message = format!("a placement group of {bundles} bundles: it has from 1 to {GROUP_BUNDLES_MAX}");
            return Err(Refusal::bad_request(message));
        }
        self.announce(slot);
        let group = self.take_ids(1)?;
        let Some(task) = self.task(slot) else { return Err(gone()) };
        task.holds.insert(group);
        let (task, job) = (task.id, task.job);
        self.objects.made((job, group));
        self.say(&Up::Group { group, task, request });
        self.publish_in_time();
        Ok(GroupId(group))
    }

    pub(super) fn remove_group(&mut self, slot: Slot, group: GroupId) -> Result<(), Refusal> {
        self.announce(slot);
        let task = self.task(slot).ok_or_else(gone)?.id;
        self.say(&Up::RemoveGroup(group.0, task));
        self.publish();
        Ok(())
    }
}
