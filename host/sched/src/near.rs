//! Tasks go to where most of the bytes are that they need, if that is worth it: they stand in a line of their own, for that
//! node, and go elsewhere only if it would be a while until their turn comes there.
//!
//! As Spark's locality wait, by what is known of how long tasks take, instead of by a clock.

use std::collections::BTreeMap;

use sandbar_core::{NodeId, Strategy};

use crate::lineage::Lies;
use crate::places::{NodeAt, ShapeAt, TaskAt};
use crate::queue::Shape;
use crate::refs::Value;
use crate::scheduler::Scheduler;

/// What it takes to move less is not worth a wait, in bytes.
const BYTES_MIN: u64 = 1 << 20;
/// Tasks that wait longer than this for the node where their objects are go elsewhere, in nanoseconds.
const WAIT_NANOS_MAX: u64 = 1_000_000_000;

impl<C, V> Scheduler<C, V> {
    /// The shape of a task that is put in line now.
    pub(crate) fn shape_in_line(&mut self, at: TaskAt) -> ShapeAt {
        let shape = self.classes.get(self.tasks[at].class).kind.shape;
        if self.cluster.nodes.len() < 2 || self.queue.shape(shape).strategy != Strategy::Default {
            return shape;
        }
        let Some(node) = self.nearest(at) else { return shape };
        let demand = self.queue.shape(shape).demand.clone();
        let near = self.queue.use_demand(&demand, Strategy::Default, Some(node));
        self.tasks[at].near = Some(near);
        near
    }

    /// The shape of a task in line.
    pub(crate) fn shape_of(&self, at: TaskAt) -> ShapeAt {
        let task = &self.tasks[at];
        task.near.unwrap_or_else(|| self.classes.get(task.class).kind.shape)
    }

    /// A task stands in no line any more.
    pub(crate) fn left_line(&mut self, at: TaskAt) {
        if let Some(near) = self.tasks[at].near.take() {
            self.queue.leave_shape(near);
        }
    }

    /// The node that has most of the bytes that a task needs.
    fn nearest(&self, at: TaskAt) -> Option<NodeId> {
        let mut all: BTreeMap<NodeId, u64> = BTreeMap::new();
        for need in self.tasks[at].links.iter().flat_map(|links| &links.needs) {
            if let Value::Ready(value) = &self.objects[*need].value
                && let Some(Lies { node, bytes }) = (self.inspect.lies)(value)
                && let Some(node) = node.or(self.cluster.here)
            {
                let of_node = all.entry(node).or_default();
                *of_node = of_node.saturating_add(bytes);
            }
        }
        let (node, bytes) = all.into_iter().max_by_key(|(node, bytes)| (*bytes, std::cmp::Reverse(*node)))?;
        let at = self.cluster.node_ids.get(&node)?;
        (bytes >= BYTES_MIN && !self.cluster.nodes[*at].is_draining).then_some(node)
    }

    /// Whether tasks of a shape may be on a node, rather than on the one where their objects are.
    pub(crate) fn is_near_enough(&self, node: NodeAt, shape: &Shape) -> bool {
        let Some(near) = shape.near else { return true };
        let Some(near) = self.cluster.node_ids.get(&near) else { return true };
        let record = &self.cluster.nodes[*near];
        if *near == node || record.is_draining || !shape.demand.is_beside(&record.others, &record.total) {
            return true;
        }
        let workers = record.of_tasks.max(1) as u64;
        let nanos = shape.nanos.max(1).saturating_mul(shape.len as u64) / workers;
        nanos > WAIT_NANOS_MAX
    }
}
