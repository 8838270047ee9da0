//! Placement groups, and what there is for them: what tasks ask for as the scheduler takes it, and as it is listed.

use std::io;

use sandbar_core::{Bundle, GroupId, GroupRequest, JobId, TaskId, WorkerId};
use sandbar_jobs::{BundleRow, GroupRow, Listing, NodeRow, ResourceRow};
use sandbar_sched::{BundleView, Event, GroupSpec, GroupState, GroupView, RESOURCE_UNIT, ResourceSet};

use super::{State, Stored};
use crate::calls::units;

impl State {
    /// A task wants room set aside. The object that says so is empty.
    pub(super) fn create_group(&mut self, worker: WorkerId, group: u64, task: u64, request: &[u8]) -> io::Result<()> {
        let request: GroupRequest = postcard::from_bytes(request).map_err(io::Error::other)?;
        let spec = GroupSpec {
            name: request.name.map(|name| name.as_str().into()),
            strategy: request.strategy,
            bundles: request.bundles.iter().map(set_aside).collect(),
            local_only: false,
        };
        let value = Stored::Inline(Box::default());
        self.step(Event::GroupCreated { group: GroupId(group), task: TaskId(task), worker, spec, value });
        Ok(())
    }

    /// By id.
    pub(super) fn list_groups(&self, job: JobId, limit: usize) -> Listing<GroupRow> {
        let of_job = || self.sched.groups().filter(|group| group.job == job);
        Listing::new(of_job().count() as u64, of_job().take(limit).map(|group| row(&group)).collect())
    }

    /// By id.
    pub(super) fn list_nodes(&self, limit: usize) -> Listing<NodeRow> {
        let nodes = self.sched.nodes();
        let row = |node: sandbar_sched::NodeView<'_>| NodeRow {
            id: node.id.0,
            resources: resources(
                node.total,
                Some((
                    node.free_cpus - i128::from(node.external_usage.cpus),
                    &node.free_rest.saturating_sub(node.external_usage),
                )),
            ),
        };
        let mut rows: Vec<NodeRow> = nodes.map(row).collect();
        rows.sort_unstable_by_key(|row| row.id);
        let total = rows.len() as u64;
        rows.truncate(limit);
        Listing::new(total, rows)
    }
}

fn row(group: &GroupView<'_>) -> GroupRow {
    let state = match group.state {
        GroupState::Pending => "pending",
        GroupState::Created => "created",
        GroupState::Rescheduling => "rescheduling",
        GroupState::Infeasible => "infeasible",
    };
    let bundle = |bundle: &BundleView<'_>| BundleRow {
        node: bundle.placed.map(|(node, ..)| node.0),
        resources: resources(bundle.total, bundle.placed.map(|(_, cpus, rest)| (cpus, rest))),
        occupants: bundle.occupants.len() as u64,
    };
    GroupRow {
        id: group.id.short(),
        name: group.name.map(|name| name.as_ref().to_owned()),
        strategy: group.strategy.as_str().to_owned(),
        state: state.to_owned(),
        bundles: group.bundles.iter().map(bundle).collect(),
    }
}

/// What there is of each that there is any of, and what of it is left.
fn resources(total: &ResourceSet, free: Option<(i128, &ResourceSet)>) -> Vec<ResourceRow> {
    let (free_cpus, rest) = free.map_or((0, None), |(cpus, rest)| (cpus, Some(rest)));
    let of_rest = |of: &dyn Fn(&ResourceSet) -> u64| rest.map_or(0, of) as f64;
    let unit = RESOURCE_UNIT as f64;
    let row = |name: &str, total: f64, free: f64| ResourceRow { name: name.to_owned(), total, free };
    let mut rows = vec![
        row("cpus", total.cpus as f64 / unit, free_cpus as f64 / unit),
        row("gpus", total.gpus as f64 / unit, of_rest(&|rest| rest.gpus) / unit),
        row("memory", total.memory as f64, of_rest(&|rest| rest.memory)),
    ];
    rows.extend(total.custom.iter().map(|(name, amount)| {
        let free = of_rest(&|rest| rest.custom.get(name).copied().unwrap_or(0));
        row(name, *amount as f64 / unit, free / unit)
    }));
    rows.retain(|row| row.total > 0.0);
    rows
}

fn set_aside(bundle: &Bundle) -> ResourceSet {
    ResourceSet {
        cpus: units(bundle.cpus),
        gpus: units(bundle.gpus),
        memory: bundle.memory,
        custom: bundle.resources.iter().map(|(name, of)| (name.as_str().into(), units(*of))).collect(),
    }
}
