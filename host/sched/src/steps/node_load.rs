//! Reported load of remote nodes. Resources in external use delay new tasks; they do not decide whether a task is
//! feasible.

use sandbar_core::NodeId;

use crate::records::resources::ResourceSet;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Records the external usage that a remote node reports, clamped to the node's total.
    pub(crate) fn load_node(&mut self, node: NodeId, external_usage: &ResourceSet) {
        let Some(at) = self.cluster.nodes.find(node) else { return };
        let record = &mut self.cluster.nodes[at];
        if record.is_remote {
            record.external_usage = external_usage.clamped_to(&record.total);
            self.work.needs_dispatch = true;
            self.forget_refusals(node);
        }
    }
}
