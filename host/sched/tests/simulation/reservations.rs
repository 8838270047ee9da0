//! The model's reservations on remote nodes and their external usage, and the simulated replies and reports.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{GroupId, NodeId, WorkerId};
use sandbar_sched::{Action, Event, RESOURCE_UNIT, ResourceSet};

use crate::cluster::History;
use crate::groups::Room;
use crate::model::{Model, Steps};

/// A reservation on a remote node.
pub struct Reservation {
    /// Indices of the bundles in the group.
    bundles: Vec<u32>,
    is_granted: bool,
}

/// Group, node and attempt of a reservation.
type ReservationKey = (u64, u32, u32);

/// Reservations on remote nodes.
#[derive(Default)]
pub struct Reservations {
    /// Reservations that were requested or granted.
    held: BTreeMap<ReservationKey, Reservation>,
    /// All reservations ever requested.
    requested: BTreeSet<ReservationKey>,
    /// Groups and nodes that refused them and have not reported their load since.
    refused: BTreeSet<(u64, u32)>,
}

impl Reservations {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether a node refused a group and has not reported its load since.
    pub fn is_refused(&self, group: u64, node: u32) -> bool {
        self.refused.contains(&(group, node))
    }

    fn of_group(&self, group: u64) -> impl Iterator<Item = (&ReservationKey, &Reservation)> {
        self.held.iter().filter(move |((other, ..), _)| *other == group)
    }

    /// Whether a node has not answered a request for a group.
    fn is_awaiting(&self, group: u64) -> bool {
        self.of_group(group).any(|(_, reservation)| !reservation.is_granted)
    }

    /// Records a request, after checks.
    fn request(&mut self, key: ReservationKey, bundles: Vec<u32>) {
        let (group, node, _) = key;
        assert!(!self.is_refused(group, node), "node {node} has refused it");
        assert!(self.requested.insert(key), "node {node} was asked before");
        let has_answered =
            |(key, reservation): (&ReservationKey, &Reservation)| key.1 != node || reservation.is_granted;
        assert!(self.of_group(group).all(has_answered), "node {node} has not answered");
        self.held.insert(key, Reservation { bundles, is_granted: false });
    }

    /// Records a node's reply. Returns whether it refused a request.
    fn answer(&mut self, key: ReservationKey, is_granted: bool) -> bool {
        let reservation = self.held.get_mut(&key).filter(|reservation| !reservation.is_granted);
        let is_refused = reservation.is_some() && !is_granted;
        if is_refused {
            self.held.remove(&key);
            self.refused.insert((key.0, key.1));
        } else if let Some(reservation) = reservation {
            reservation.is_granted = true;
        }
        is_refused
    }

    /// Permits new requests to a node.
    fn forget_refusals(&mut self, node: u32) {
        self.refused.retain(|(_, other)| *other != node);
    }

    /// Removes the reservations on a lost node.
    pub fn lose_node(&mut self, lost: u32) {
        self.held.retain(|(_, node, _), _| *node != lost);
        self.forget_refusals(lost);
    }
}

impl Model {
    /// Records the external usage of a remote node.
    pub fn load(&mut self, node: u32, external_usage: &ResourceSet) {
        let Some(record) = self.nodes.get_mut(&node).filter(|node| node.is_remote) else { return };
        let total = &record.resources;
        let custom = total.custom.iter().map(|(name, has)| {
            let amount = external_usage.custom.get(name).copied().unwrap_or(0);
            (name.clone(), amount.min(*has))
        });
        record.external_usage = ResourceSet {
            cpus: external_usage.cpus.min(total.cpus),
            gpus: external_usage.gpus.min(total.gpus),
            memory: external_usage.memory.min(total.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        };
        self.reservations.forget_refusals(node);
    }

    /// Returns the external usage of a node.
    pub fn external_usage(&self, node: u32) -> ResourceSet {
        self.nodes.get(&node).map_or_else(ResourceSet::default, |node| node.external_usage.clone())
    }

    /// Returns the free resources of a node minus its external usage.
    pub fn left(&self, node: u32) -> (i128, ResourceSet) {
        let ((cpus, mut rest), external_usage) = (self.free(Room::Node(node)), self.external_usage(node));
        rest.gpus = rest.gpus.saturating_sub(external_usage.gpus);
        rest.memory = rest.memory.saturating_sub(external_usage.memory);
        for (name, amount) in &mut rest.custom {
            *amount = amount.saturating_sub(external_usage.custom.get(name).copied().unwrap_or(0));
        }
        (cpus - i128::from(external_usage.cpus), rest)
    }

    /// Whether external usage exceeds the free processors of a node.
    pub fn is_overcommitted(&self, node: u32) -> bool {
        self.external_usage(node).cpus > 0 && self.left(node).0 < 0
    }

    /// Handles a node's reply to a reservation request.
    pub fn handle_reserve_reply(&mut self, key: ReservationKey, granted: bool) {
        if self.reservations.answer(key, granted) {
            self.groups.get_mut(&key.0).expect("it is tried").reserving_on.fill(None);
        }
    }

    /// Applies reservation requests and releases, after checks.
    pub fn handle_reserve_actions(&mut self, actions: &[Action<u64>]) {
        for action in actions {
            match action {
                Action::ReserveBundles { group, node, attempt, bundles } => {
                    let is_able = self.is_remote(node.0) && !self.is_draining(node.0);
                    assert!(is_able, "node {node} may be asked");
                    if let Some(group) = self.groups.get(&group.0) {
                        let is_so = |(index, total): &(u32, ResourceSet)| group.bundles[*index as usize] == *total;
                        assert!(!bundles.is_empty() && bundles.iter().all(is_so), "{action:?}");
                    }
                    let bundles = bundles.iter().map(|(index, _)| *index).collect();
                    self.reservations.request((group.0, node.0, attempt.0), bundles);
                }
                Action::ReleaseBundles { group, node, attempt } => {
                    let reservation = self.reservations.held.remove(&(group.0, node.0, attempt.0));
                    assert!(reservation.is_some(), "{action:?}: it has nothing of it");
                }
                _ => {}
            }
        }
    }

    /// Places bundles for which all nodes have granted their reservations. A retried reservation counts as failed
    /// before.
    pub fn place_reserved(&mut self, steps: &Steps) {
        for view in steps.groups() {
            let id = view.id.0;
            let group = self.groups.get_mut(&id).unwrap_or_else(|| panic!("group {id} should not exist"));
            if !group.is_reserving() {
                continue;
            }
            if !self.reservations.is_awaiting(id) && view.bundles.iter().all(|bundle| bundle.placed.is_some()) {
                for (node, reserving_on) in group.nodes.iter_mut().zip(&mut group.reserving_on) {
                    *node = node.or(reserving_on.take());
                }
            }
        }
    }

    /// Checks that reservations match the placed and reserved bundles of groups.
    pub fn check_reservations(&self) {
        for ((id, node, attempt), reservation) in &self.reservations.held {
            let group = self.groups.get(id).unwrap_or_else(|| panic!("node {node} still has something of group {id}"));
            for index in &reservation.bundles {
                let (has, wants) = (group.nodes[*index as usize], group.reserving_on[*index as usize]);
                let is_so = wants == Some(*node) || reservation.is_granted && has == Some(*node);
                assert!(is_so, "node {node} was asked for bundle {index} of group {id} in attempt {attempt}");
            }
        }
        for (id, group) in &self.groups {
            assert_eq!(group.is_reserving(), self.reservations.is_awaiting(*id), "group {id} waits for answers");
            for (index, (has, wants)) in (0..).zip(group.nodes.iter().zip(&group.reserving_on)) {
                let Some(node) = has.or(*wants).filter(|node| self.is_remote(*node)) else { continue };
                let covers = |(key, reservation): &(&ReservationKey, &Reservation)| {
                    key.1 == node && reservation.bundles.contains(&index)
                };
                let count = self.reservations.of_group(*id).filter(covers).count();
                assert_eq!(count, 1, "node {node} has bundle {index} of group {id} set aside");
            }
        }
    }
}

impl History {
    /// A node reports external usage.
    pub fn load(&mut self) {
        let node = self.pick(&self.nodes.clone()).unwrap_or(7);
        let mut below = |n: u32| u64::from(self.seed.below(n));
        let external_usage = match below(10) {
            0 => ResourceSet {
                cpus: u64::MAX,
                gpus: u64::MAX,
                memory: u64::MAX,
                custom: [("tpu".into(), u64::MAX)].into(),
            },
            1..6 => ResourceSet::default(),
            _ => {
                let custom = [("tpu".into(), RESOURCE_UNIT / 2 * below(3)), ("other".into(), 1)].into();
                ResourceSet {
                    cpus: RESOURCE_UNIT / 2 * below(8),
                    gpus: RESOURCE_UNIT * below(3),
                    memory: 30 * below(5),
                    custom,
                }
            }
        };
        self.event(Event::NodeLoad { node: NodeId(node), external_usage });
    }

    /// A node replies to a reservation request.
    pub fn reply_to_reserve_request(&mut self, percent: u32) {
        if self.requests.reservations.is_empty() {
            return self.run_worker_step();
        }
        let at = self.seed.below(self.requests.reservations.len() as u32) as usize;
        let (group, node, attempt): (GroupId, _, _) = self.requests.reservations.swap_remove(at);
        let granted = self.chance(percent);
        self.event(Event::ReserveReply { group, node, attempt, granted });
    }

    /// A started task creates a placement group.
    pub fn request_group(&mut self) {
        let started = self.workers.iter().flat_map(|(id, state)| state.started.iter().map(|(task, ..)| (*id, *task)));
        if let Some((worker, task)) = self.pick(&started.collect::<Vec<_>>()) {
            self.create_group(WorkerId(worker), task);
        }
    }
}
