//! Bundles of placement groups on several nodes. The owner of a group has other nodes reserve bundles; each answers at once. A
//! reservation is a placement group of the owner's proxy task, on this node alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandbar_core::{Attempt, Code, Fault, GroupId, GroupStrategy, NodeId, Strategy, TaskId};
use sandbar_sched::{Event, GroupSpec, GroupState, ResourceSet};

use super::super::context::Context;
use super::super::refs::ReservationRef;
use super::super::values::StoredValue;
use super::programs::Programs;
use super::proxy_tasks::ProxyTasks;
use crate::peer::{Amounts, JobRoot, PeerMessage};

/// Minimum interval of load reports that differ, and interval of others: a node that was refused tries again then.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);
const SAME_LOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Difference of the interval between nodes: two that refused each other must not retry at the same time.
const LOAD_JITTER: Duration = Duration::from_millis(7);

/// A reservation: its owner, the owner's group, and the attempt to place it.
pub(super) type ReservationKey = (NodeId, GroupId, Attempt);

#[derive(Debug)]
struct Reservation {
    /// Placement group here, and the owner's proxy task.
    group: GroupId,
    proxy: TaskId,
    /// Indices in the owner's group, in the order of the bundles here.
    bundles: Vec<u32>,
    total: ResourceSet,
}

/// A node's request to reserve bundles.
pub(super) struct ReserveRequest {
    pub(super) group: GroupId,
    pub(super) attempt: Attempt,
    pub(super) job: JobRoot,
    pub(super) program: u32,
    pub(super) bundles: Vec<(u32, Amounts)>,
}

/// Bundles that this node has reserved for other nodes, and the last load reports to them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    reserved: BTreeMap<ReservationKey, Reservation>,
    reports: BTreeMap<NodeId, LoadReport>,
}

/// The last report of this node's load to another.
#[derive(Debug)]
struct LoadReport {
    at: Instant,
    external_usage: ResourceSet,
}

impl Reservations {
    pub(super) fn len(&self) -> usize {
        self.reserved.len()
    }

    /// Reserves bundles for a node, or refuses.
    pub(super) fn handle_reserve(
        &mut self,
        cx: &mut Context,
        proxies: &mut ProxyTasks,
        programs: &Programs,
        node: NodeId,
        request: ReserveRequest,
    ) {
        let (group, attempt) = (request.group, request.attempt);
        let is_reserved = self.reserve(cx, proxies, programs, node, request).is_some();
        cx.peers.send(node, &PeerMessage::ReserveReply(group, attempt, is_reserved));
    }

    fn reserve(
        &mut self,
        cx: &mut Context,
        proxies: &mut ProxyTasks,
        programs: &Programs,
        node: NodeId,
        request: ReserveRequest,
    ) -> Option<()> {
        let key = (node, request.group, request.attempt);
        let program = programs.get(node, request.program)?;
        if self.reserved.contains_key(&key) {
            return None;
        }
        let job = proxies.job_of_root(cx, node, request.job)?;
        let proxy = proxies.get_or_start(cx, node, job, &program)?;
        let worker = cx.peers.proxy_worker(node)?;
        let group = GroupId(cx.ids.take(1)?);
        let (bundles, demands): (Vec<u32>, Vec<ResourceSet>) =
            request.bundles.into_iter().map(|(index, amounts)| (index, amounts.resources())).unzip();
        let total = ResourceSet::sum(demands.iter());
        let spec = GroupSpec { name: None, strategy: GroupStrategy::Pack, local_only: true, bundles: demands };
        let value = StoredValue::Inline(Box::default());
        cx.step(Event::GroupCreated { group, task: proxy, worker, spec, value });
        let is_placed = cx.scheduler.group(group).is_some_and(|view| view.state == GroupState::Created);
        if is_placed {
            self.reserved.insert(key, Reservation { group, proxy, bundles, total });
        } else {
            cx.step(Event::GroupRemoved { group, task: proxy, worker });
        }
        cx.step(Event::ReferencesReleased { object: group.ready(), worker, count: 1 });
        is_placed.then_some(())
    }

    /// Releases bundles of a node.
    pub(super) fn handle_release(&mut self, cx: &mut Context, node: NodeId, group: GroupId, attempt: Attempt) {
        let Some(reservation) = self.reserved.remove(&(node, group, attempt)) else { return };
        if let Some(worker) = cx.peers.proxy_worker(node) {
            cx.step(Event::GroupRemoved { group: reservation.group, task: reservation.proxy, worker });
        }
    }

    /// Returns where a task in a bundle of another node's group runs.
    ///
    /// # Errors
    /// The bundle is not reserved.
    pub(super) fn strategy(&self, node: NodeId, group: GroupId, index: u32) -> Result<Strategy, Fault> {
        let of_group = self.reserved.range((node, group, Attempt(0))..=(node, group, Attempt(u32::MAX)));
        let found = of_group.rev().find_map(|(_, reservation)| {
            let bundle = reservation.bundles.iter().position(|other| *other == index)?;
            Some(Strategy::Group { group: reservation.group, bundle: Some(bundle as u32) })
        });
        found.ok_or_else(|| Fault::new(Code::GroupRemoved, "its bundle was released"))
    }

    /// A proxy task has ended, and its groups with it.
    pub(super) fn proxy_ended(&mut self, proxy: TaskId) {
        self.reserved.retain(|_, reservation| reservation.proxy != proxy);
    }

    pub(super) fn node_lost(&mut self, node: NodeId) {
        self.reserved.retain(|(owner, ..), _| *owner != node);
        self.reports.remove(&node);
    }

    /// Reports this node's load to each peer: the resources that other nodes than the peer use. `used_by_owner` are the resources
    /// of running tasks of each peer.
    pub(super) fn report_load(
        &mut self,
        cx: &mut Context,
        used_by_owner: impl FnOnce(&Context) -> BTreeMap<NodeId, ResourceSet>,
    ) {
        let now = cx.time.now;
        let interval = LOAD_INTERVAL + LOAD_JITTER * (cx.node().0 % 8);
        let is_due = |node: &NodeId| {
            let report = self.reports.get(node);
            report.is_none_or(|report| now.saturating_duration_since(report.at) >= interval)
        };
        let due: Vec<NodeId> = cx.peers.nodes().into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let Some(used) = used_resources(cx) else { return };
        let mut by_owner = used_by_owner(cx);
        for ((owner, ..), reservation) in &self.reserved {
            by_owner.entry(*owner).or_default().add(&reservation.total);
        }
        for node in due {
            let external_usage = by_owner.get(&node).map_or_else(|| used.clone(), |own| used.saturating_sub(own));
            let is_same = self.reports.get(&node).is_some_and(|report| {
                let age = now.saturating_duration_since(report.at);
                report.external_usage == external_usage && age < SAME_LOAD_INTERVAL
            });
            if !is_same {
                cx.peers.send(node, &PeerMessage::Load(Amounts::from_resources(&external_usage)));
                self.reports.insert(node, LoadReport { at: now, external_usage });
            }
        }
    }

    /// Sends the next report to a node at once, so that it may retry refused requests.
    pub(super) fn report_soon(&mut self, node: NodeId) {
        self.reports.remove(&node);
    }
}

/// Requests bundles of a group of this node from another node.
pub(super) fn request(
    cx: &mut Context,
    proxies: &ProxyTasks,
    node: NodeId,
    ReservationRef { group, attempt }: ReservationRef,
    bundles: &[(u32, ResourceSet)],
) {
    let job = cx.scheduler.group(group).map(|view| view.job);
    let (Some(job), Some(program)) = (job, job.and_then(|job| proxies.program_of(cx, job))) else {
        return cx.step_later(Event::ReserveReply { group, node, attempt, granted: false });
    };
    let tenant = cx.scheduler.tenant_of(job).unwrap_or_default();
    cx.peers.introduce_program(node, tenant, &program);
    proxies.introduce(cx, node, job);
    let bundles = bundles.iter().map(|(index, demand)| (*index, Amounts::from_resources(demand))).collect();
    let (job, program) = (proxies.root(cx, job), program.compiled.number());
    cx.peers.send(node, &PeerMessage::ReserveBundles { group, attempt, job, program, bundles });
}

/// Returns this node's resources that are in use.
fn used_resources(cx: &Context) -> Option<ResourceSet> {
    let node = cx.scheduler.nodes().find(|view| view.id == cx.node())?;
    let free_cpus = u64::try_from(node.free_cpus.max(0)).unwrap_or(u64::MAX);
    Some(node.total.saturating_sub(&ResourceSet { cpus: free_cpus, ..node.free_rest.clone() }))
}
