//! Data locality: a task with large dependencies is queued for the node that has most of their bytes, and goes to
//! another node only if the wait there is too long.
//!
//! Like Spark's locality wait, with estimates from measured task durations in place of a clock.

use std::collections::BTreeMap;

use sandbar_core::{NodeId, Strategy};

use crate::records::keys::{NodeKey, ShapeKey, TaskKey};
use crate::records::lineage::ValueLocation;
use crate::records::object::ObjectOutcome;
use crate::records::queue::{Request, Shape};
use crate::scheduler::Scheduler;

/// Minimum bytes of dependencies on a node that are worth a wait for it.
const BYTES_MIN: u64 = 1 << 20;
/// Maximum estimated wait for the preferred node, in nanoseconds.
const WAIT_NANOS_MAX: u64 = 1_000_000_000;

impl<C, V> Scheduler<C, V> {
    /// Returns the shape under which a ready task is queued.
    pub(crate) fn shape_for_queue(&mut self, at: TaskKey) -> ShapeKey {
        let shape = self.classes.get(self.tasks[at].class).spec.shape;
        if self.cluster.nodes.len() < 2 || self.queue.shape(shape).strategy != Strategy::Default {
            return shape;
        }
        let Some(node) = self.preferred_node_of(at) else { return shape };
        let Shape { tenant, demand, strategy, is_lease, .. } = self.queue.shape(shape);
        let (tenant, demand, strategy, is_lease) = (*tenant, demand.clone(), *strategy, *is_lease);
        let request = Request { tenant, demand, strategy, preferred_node: Some(node), is_lease };
        let preferred = self.queue.use_request(request);
        self.tasks[at].locality_shape = Some(preferred);
        preferred
    }

    /// Returns the shape of a queued task.
    pub(crate) fn shape_of(&self, at: TaskKey) -> ShapeKey {
        let task = &self.tasks[at];
        task.locality_shape.unwrap_or_else(|| self.classes.get(task.class).spec.shape)
    }

    /// Releases the locality shape of a task that has left its queue.
    pub(crate) fn release_locality_shape(&mut self, at: TaskKey) {
        if let Some(preferred) = self.tasks[at].locality_shape.take() {
            self.queue.leave_shape(preferred);
        }
    }

    /// Returns the node that has most bytes of a task's dependencies, if they are worth a wait.
    fn preferred_node_of(&self, at: TaskKey) -> Option<NodeId> {
        let mut all: BTreeMap<NodeId, u64> = BTreeMap::new();
        for need in self.tasks[at].links.iter().flat_map(|links| &links.dependencies) {
            if let ObjectOutcome::Ready(value) = &self.objects[*need].value
                && let Some(ValueLocation { node, bytes }) = (self.callbacks.location)(value)
                && let Some(node) = node.or(self.cluster.nodes.local)
            {
                let of_node = all.entry(node).or_default();
                *of_node = of_node.saturating_add(bytes);
            }
        }
        let (node, bytes) = all.into_iter().max_by_key(|(node, bytes)| (*bytes, std::cmp::Reverse(*node)))?;
        let at = self.cluster.nodes.find(node)?;
        (bytes >= BYTES_MIN && !self.cluster.nodes[at].is_draining).then_some(node)
    }

    /// Whether tasks of a shape may run on a node, given their preferred node.
    pub(crate) fn satisfies_locality(&self, node: NodeKey, shape: &Shape) -> bool {
        let Some(preferred) = shape.preferred_node else { return true };
        let Some(preferred) = self.cluster.nodes.find(preferred) else { return true };
        let record = &self.cluster.nodes[preferred];
        if preferred == node
            || record.is_draining
            || !shape.demand.fits_in_beside(&record.external_usage, &record.total)
        {
            return true;
        }
        let workers = record.task_workers.max(1) as u64;
        let nanos = shape.nanos.max(1).saturating_mul(shape.len as u64) / workers;
        nanos > WAIT_NANOS_MAX
    }
}
