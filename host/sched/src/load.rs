//! What others use of nodes that are far, as these say. Where others have taken what there is nothing more is begun; whether
//! something ever could be is not theirs to say.

use sandbar_core::NodeId;

use crate::resources::Demand;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// A node that is far says what of it others use. It may say anything: of what it has not others use nothing.
    pub(crate) fn load_node(&mut self, node: NodeId, others: &Demand) {
        let Some(at) = self.cluster.node_ids.get(&node).copied() else { return };
        let record = &mut self.cluster.nodes[at];
        if record.is_far {
            record.others = others.at_most(&record.total);
            self.is_stale = true;
            self.forget_refusals(node);
        }
    }
}
