//! Unmet demand: requests that no node has room for now, so that users learn why nothing happens.

use sandbar_core::{GroupId, JobId, Strategy, TaskId};

use crate::records::groups::Group;
use crate::records::keys::NodeKey;
use crate::records::nodes::Node;
use crate::records::queue::Shape;
use crate::records::resources::{FreeResources, RESOURCE_UNIT, ResourceSet};
use crate::scheduler::Scheduler;

/// A request that waits for resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetDemand {
    /// The job of the task or group; of several tasks, the job of the first.
    pub job: JobId,
    /// What makes the request.
    pub source: DemandSource,
    /// The requested and the free amounts, for people.
    pub reason: String,
}

/// Source of an unmet request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DemandSource {
    /// Tasks with the same request: the first one, and their number over all jobs.
    Tasks(TaskId, usize),
    /// A placement group.
    Group(GroupId),
}

/// A node or a bundle.
struct Room<'a> {
    total: &'a ResourceSet,
    free: FreeResources,
    /// Phrase for its location.
    location: &'static str,
}

const ON_NODE: &str = "on the node";
const IN_BUNDLE: &str = "in the bundle";

impl<C, V> Scheduler<C, V> {
    /// Returns the requests of queued tasks that no node has room for now, and the pending placement groups. Requests
    /// for at most one processor are left out: they wait for running tasks only.
    pub fn unmet_demands(&self) -> Vec<UnmetDemand> {
        let groups = self.groups.waiting().map(|(_, id)| {
            let group = &self.groups.all[&id];
            let reason = format!("{}, {}", group.spec.strategy.as_str(), self.reason_of(group));
            UnmetDemand { job: self.jobs[group.job].id, source: DemandSource::Group(id), reason }
        });
        let mut found: Vec<UnmetDemand> = groups.collect();
        for at in self.queue.waiting() {
            let shape = self.queue.shape(at);
            let is_usual = shape.is_cpu_only && shape.demand.cpus <= RESOURCE_UNIT;
            let rooms = self.rooms(shape);
            if is_usual || rooms.iter().any(|room| room.free.fits(&shape.demand)) {
                continue;
            }
            let first = self.queue.first(at, &self.tasks).map(|(_, first)| &self.tasks[first]);
            let (Some(first), Some(reason)) = (first, reason(&shape.demand, &rooms)) else { continue };
            let job = self.jobs[first.job].id;
            found.push(UnmetDemand { job, source: DemandSource::Tasks(first.id, shape.len), reason });
        }
        found
    }

    /// Returns the nodes, or the bundles of their group, that tasks may run on.
    fn rooms<'a>(&'a self, shape: &Shape) -> Vec<Room<'a>> {
        let Strategy::Group { group, bundle } = shape.strategy else {
            let may = |(at, _): &(NodeKey, _)| self.is_permitted_on(*at, shape);
            return self.cluster.nodes.iter().filter(may).map(|(_, node)| on_node(node)).collect();
        };
        let placed = self.groups.all.get(&group).into_iter().flat_map(|group| group.bundles.iter().zip(0u32..));
        let matching = placed.filter(|(_, index)| bundle.is_none_or(|bundle| bundle == *index));
        let bundles = matching.filter_map(|(at, _)| Some(&self.cluster.bundles[(*at)?]));
        bundles.map(|bundle| Room { total: &bundle.total, free: bundle.free.clone(), location: IN_BUNDLE }).collect()
    }

    /// Explains why a placement group waits: no room for one bundle, or for all at once.
    fn reason_of(&self, group: &Group<V>) -> String {
        if let Some(reservation) = &group.reservation {
            return format!("nodes without a reply to the reservation request: {}", reservation.awaiting.len());
        }
        let all = self.cluster.nodes.iter().filter(|(_, node)| group.may_place_on(node));
        let nodes: Vec<Room<'_>> = all.map(|(_, node)| on_node(node)).collect();
        let missing = group.spec.bundles.iter().zip(&group.bundles).filter(|(_, at)| at.is_none());
        let missing: Vec<&ResourceSet> = missing.map(|(demand, _)| demand).collect();
        let require_plain_function = |demand: &&ResourceSet| !nodes.iter().any(|room| room.free.fits(demand));
        let first = missing.iter().copied().find(require_plain_function).and_then(|demand| reason(demand, &nodes));
        let together = ResourceSet::sum(missing.iter().copied());
        first
            .or_else(|| reason(&together, &nodes))
            .unwrap_or_else(|| format!("room for {} bundles at once", missing.len()))
    }
}

fn on_node(node: &Node) -> Room<'_> {
    Room { total: &node.total, free: node.free.minus(&node.external_usage), location: ON_NODE }
}

/// Explains the shortage in the room that lacks the least, for the first resource that it lacks.
fn reason(demand: &ResourceSet, rooms: &[Room<'_>]) -> Option<String> {
    let could = rooms.iter().filter(|room| demand.fits_in(room.total));
    could.filter_map(|room| lack(demand, room)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, why)| why)
}

/// Returns the missing share of a request, and an explanation.
fn lack(demand: &ResourceSet, room: &Room<'_>) -> Option<(f64, String)> {
    let Room { total, free, location } = room;
    let units = |amount: i128| amount as f64 / RESOURCE_UNIT as f64;
    let describe = |demanded: f64, resource_name: &str, left: f64, total: f64| {
        (1.0 - left / demanded, format!("{demanded} {resource_name}, {left} of {total} {location} are free"))
    };
    let left = free.cpus.max(0);
    if i128::from(demand.cpus) > left {
        return Some(describe(units(demand.cpus.into()), "cpus", units(left), units(total.cpus.into())));
    }
    let custom = demand
        .custom
        .iter()
        .map(|(name, amount)| (&**name, *amount, free.rest.custom_amount(name), total.custom_amount(name)));
    let gpus = ("gpus", demand.gpus, free.rest.gpus, total.gpus);
    if let Some((name, demanded, left, total)) =
        std::iter::once(gpus).chain(custom).find(|(_, demanded, left, _)| demanded > left)
    {
        return Some(describe(units(demanded.into()), name, units(left.into()), units(total.into())));
    }
    let (demanded, left) = (demand.memory as f64, free.rest.memory as f64);
    (demanded > left).then(|| describe(demanded, "bytes of memory", left, total.memory as f64))
}
