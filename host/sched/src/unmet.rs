//! What is asked for and is not free anywhere now: said, since whoever asks sees nothing but that nothing happens.

use sandbar_core::{JobId, TaskId};

use crate::cluster::Node;
use crate::resources::{Demand, Free, UNIT};
use crate::scheduler::Scheduler;

/// Tasks that wait for more than any node has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetView {
    /// The job of the first of them.
    pub job: JobId,
    /// The first of them.
    pub first: TaskId,
    /// How many of them wait, of whatever job.
    pub waiting: usize,
    /// What each of them asks for and what of that is left, in words.
    pub reason: String,
}

impl<C, V> Scheduler<C, V> {
    /// The demands of tasks in line that no node has room for now. Those for one processor or less are left out: their turn
    /// comes as a matter of course.
    pub fn unmet(&self) -> Vec<UnmetView> {
        let mut found = Vec::new();
        for at in self.queue.waiting() {
            let shape = self.queue.shape(at);
            let is_usual = shape.is_light && shape.demand.cpus <= UNIT;
            let nodes = || self.cluster.nodes.iter().map(|(_, node)| node);
            if is_usual || nodes().any(|node| node.free.fits(&shape.demand)) {
                continue;
            }
            let first = self.queue.first(at, &self.tasks).map(|(_, first)| &self.tasks[first]);
            let (Some(first), Some(reason)) = (first, reason(&shape.demand, nodes())) else { continue };
            let job = self.jobs[first.job].id;
            found.push(UnmetView { job, first: first.id, waiting: shape.len, reason });
        }
        found
    }
}

/// What the node that lacks least lacks: of one resource, the first that it has too little of.
fn reason<'a>(demand: &Demand, nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
    let could = nodes.filter(|node| demand.is_within(&node.total));
    could
        .filter_map(|node| lack(demand, &node.free, &node.total))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, why)| why)
}

/// Which share of what is asked for is missing, and in words.
fn lack(demand: &Demand, free: &Free, total: &Demand) -> Option<(f64, String)> {
    let units = |amount: i128| amount as f64 / UNIT as f64;
    let left = free.cpus.max(0);
    if i128::from(demand.cpus) > left {
        let (asked, total) = (units(demand.cpus.into()), units(total.cpus.into()));
        return Some((1.0 - units(left) / asked, words(asked, "cpus", units(left), total)));
    }
    let custom = demand.custom.iter().map(|(name, amount)| (&**name, *amount, free.rest.of(name), total.of(name)));
    let gpus = ("gpus", demand.gpus, free.rest.gpus, total.gpus);
    if let Some((name, asked, left, total)) =
        std::iter::once(gpus).chain(custom).find(|(_, asked, left, _)| asked > left)
    {
        let (asked, left, total) = (units(asked.into()), units(left.into()), units(total.into()));
        return Some((1.0 - left / asked, words(asked, name, left, total)));
    }
    let (asked, left) = (demand.memory as f64, free.rest.memory as f64);
    let bytes = || words(asked, "bytes of memory", left, total.memory as f64);
    (asked > left).then(|| (1.0 - left / asked, bytes()))
}

fn words(asked: f64, what: &str, left: f64, total: f64) -> String {
    format!("{asked} {what}, of {total} on the node {left} are free")
}
