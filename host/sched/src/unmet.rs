//! What is asked for and is not free anywhere now: said, since whoever asks sees nothing but that nothing happens.

use sandbar_core::{GroupId, JobId, Strategy, TaskId};

use crate::cluster::Node;
use crate::groups::Group;
use crate::places::NodeAt;
use crate::queue::Shape;
use crate::resources::{Demand, Free, UNIT};
use crate::scheduler::Scheduler;

/// What waits for more than there is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetView {
    /// The job of it, or of the first of them.
    pub job: JobId,
    /// What waits.
    pub what: Unmet,
    /// What is asked for and what of that is left, in words.
    pub reason: String,
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unmet {
    /// Tasks that ask for the same: the first of them, and how many they are, of whatever job.
    Tasks(TaskId, usize),
    /// A placement group.
    Group(GroupId),
}

/// Something that has room: what there is, what of it is left, and where that is.
type Room<'a> = (&'a Demand, Free, &'static str);

const ON_NODE: &str = "on the node";
const IN_BUNDLE: &str = "in the bundle";

impl<C, V> Scheduler<C, V> {
    /// The demands of tasks in line that no node has room for now, and placement groups that wait. Tasks for one processor or
    /// less are left out: their turn comes as a matter of course.
    pub fn unmet(&self) -> Vec<UnmetView> {
        let groups = self.groups.waiting.values().map(|id| {
            let group = &self.groups.all[id];
            let reason = format!("{}, {}", group.spec.strategy.as_str(), self.reason_of(group));
            UnmetView { job: self.jobs[group.job].id, what: Unmet::Group(*id), reason }
        });
        let mut found: Vec<UnmetView> = groups.collect();
        for at in self.queue.waiting() {
            let shape = self.queue.shape(at);
            let is_usual = shape.is_light && shape.demand.cpus <= UNIT;
            let rooms = self.rooms(shape);
            if is_usual || rooms.iter().any(|(_, free, _)| free.fits(&shape.demand)) {
                continue;
            }
            let first = self.queue.first(at, &self.tasks).map(|(_, first)| &self.tasks[first]);
            let (Some(first), Some(reason)) = (first, reason(&shape.demand, &rooms)) else { continue };
            let job = self.jobs[first.job].id;
            found.push(UnmetView { job, what: Unmet::Tasks(first.id, shape.len), reason });
        }
        found
    }

    /// What tasks may run on: nodes, or bundles of their group.
    fn rooms<'a>(&'a self, shape: &Shape) -> Vec<Room<'a>> {
        let Strategy::Group { group, bundle } = shape.strategy else {
            let may = |(at, _): &(NodeAt, _)| self.may_be_on(*at, shape);
            return self.cluster.nodes.iter().filter(may).map(|(_, node)| on_node(node)).collect();
        };
        let placed = self.groups.all.get(&group).into_iter().flat_map(|group| group.bundles.iter().zip(0u32..));
        let wanted = placed.filter(|(_, index)| bundle.is_none_or(|bundle| bundle == *index));
        let bundles = wanted.filter_map(|(at, _)| Some(&self.cluster.bundles[(*at)?]));
        bundles.map(|bundle| (&bundle.total, bundle.free.clone(), IN_BUNDLE)).collect()
    }

    /// What a placement group waits for: the first bundle that finds no room, or all together.
    fn reason_of(&self, group: &Group<V>) -> String {
        if let Some(trial) = &group.trial {
            return format!("nodes that were asked for room and have not answered: {}", trial.asked.len());
        }
        let all = self.cluster.nodes.iter().filter(|(_, node)| group.may_lie_on(node));
        let nodes: Vec<Room<'_>> = all.map(|(_, node)| on_node(node)).collect();
        let missing = group.spec.bundles.iter().zip(&group.bundles).filter(|(_, at)| at.is_none());
        let missing: Vec<&Demand> = missing.map(|(demand, _)| demand).collect();
        let alone = |demand: &&Demand| !nodes.iter().any(|(_, free, _)| free.fits(demand));
        let first = missing.iter().copied().find(alone).and_then(|demand| reason(demand, &nodes));
        let together = Demand::sum(missing.iter().copied());
        first
            .or_else(|| reason(&together, &nodes))
            .unwrap_or_else(|| format!("room for {} bundles at once", missing.len()))
    }
}

fn on_node(node: &Node) -> Room<'_> {
    (&node.total, node.free.beside(&node.others), ON_NODE)
}

/// What that lacks which lacks least: of one resource, the first that it has too little of.
fn reason(demand: &Demand, rooms: &[Room<'_>]) -> Option<String> {
    let could = rooms.iter().filter(|(total, ..)| demand.is_within(total));
    could.filter_map(|room| lack(demand, room)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, why)| why)
}

/// Which share of what is asked for is missing, and in words.
fn lack(demand: &Demand, (total, free, place): &Room<'_>) -> Option<(f64, String)> {
    let units = |amount: i128| amount as f64 / UNIT as f64;
    let words = |asked: f64, of: &str, left: f64, total: f64| {
        (1.0 - left / asked, format!("{asked} {of}, of {total} {place} {left} are free"))
    };
    let left = free.cpus.max(0);
    if i128::from(demand.cpus) > left {
        return Some(words(units(demand.cpus.into()), "cpus", units(left), units(total.cpus.into())));
    }
    let custom = demand.custom.iter().map(|(name, amount)| (&**name, *amount, free.rest.of(name), total.of(name)));
    let gpus = ("gpus", demand.gpus, free.rest.gpus, total.gpus);
    if let Some((name, asked, left, total)) =
        std::iter::once(gpus).chain(custom).find(|(_, asked, left, _)| asked > left)
    {
        return Some(words(units(asked.into()), name, units(left.into()), units(total.into())));
    }
    let (asked, left) = (demand.memory as f64, free.rest.memory as f64);
    (asked > left).then(|| words(asked, "bytes of memory", left, total.memory as f64))
}
