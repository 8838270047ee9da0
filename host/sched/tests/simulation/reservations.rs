//! The model's reservations on remote nodes and their external usage, and the simulated replies and reports.

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

impl Model {
    /// Records the external usage of a remote node.
    pub fn load(&mut self, node: u32, external_usage: &ResourceSet) {
        if !self.remote.contains(&node) {
            return;
        }
        let total = &self.nodes[&node];
        let custom = total.custom.iter().map(|(name, has)| {
            let amount = external_usage.custom.get(name).copied().unwrap_or(0);
            (name.clone(), amount.min(*has))
        });
        let external_usage = ResourceSet {
            cpus: external_usage.cpus.min(total.cpus),
            gpus: external_usage.gpus.min(total.gpus),
            memory: external_usage.memory.min(total.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        };
        self.loads.insert(node, external_usage);
        self.refused.retain(|(_, other)| *other != node);
    }

    /// Returns the external usage of a node.
    pub fn external_usage(&self, node: u32) -> ResourceSet {
        self.loads.get(&node).cloned().unwrap_or_default()
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

    /// Removes the reservations and reports of a lost node.
    pub fn lose_reservations(&mut self, lost: u32) {
        self.loads.remove(&lost);
        self.reservations.retain(|(_, node, _), _| *node != lost);
        self.refused.retain(|(_, node)| *node != lost);
    }

    /// Handles a node's reply to a reservation request.
    pub fn handle_reserve_reply(&mut self, key: (u64, u32, u32), granted: bool) {
        let Some(reservation) = self.reservations.get_mut(&key).filter(|reservation| !reservation.is_granted) else {
            return;
        };
        if granted {
            reservation.is_granted = true;
            return;
        }
        self.reservations.remove(&key);
        self.refused.insert((key.0, key.1));
        self.groups.get_mut(&key.0).expect("it is tried").reserving_on.fill(None);
    }

    /// Applies reservation requests and releases, after checks.
    pub fn handle_reserve_actions(&mut self, actions: &[Action<u64>]) {
        for action in actions {
            match action {
                Action::ReserveBundles { group, node, attempt, bundles } => {
                    let key = (group.0, node.0, attempt.0);
                    assert!(
                        self.remote.contains(&node.0) && !self.draining.contains(&node.0),
                        "node {node} may be asked"
                    );
                    assert!(!self.refused.contains(&(group.0, node.0)), "node {node} has refused it");
                    assert!(self.attempts.insert(key), "node {node} was asked before");
                    let is_pending = |(key, reservation): (&(u64, u32, u32), &Reservation)| {
                        (key.0, key.1) == (group.0, node.0) && !reservation.is_granted
                    };
                    assert!(!self.reservations.iter().any(is_pending), "node {node} has not answered");
                    if let Some(group) = self.groups.get(&group.0) {
                        let is_so = |(index, total): &(u32, ResourceSet)| group.bundles[*index as usize] == *total;
                        assert!(!bundles.is_empty() && bundles.iter().all(is_so), "{action:?}");
                    }
                    let bundles = bundles.iter().map(|(index, _)| *index).collect();
                    self.reservations.insert(key, Reservation { bundles, is_granted: false });
                }
                Action::ReleaseBundles { group, node, attempt } => {
                    let reservation = self.reservations.remove(&(group.0, node.0, attempt.0));
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
            let is_open =
                self.reservations.iter().any(|((group, ..), reservation)| *group == id && !reservation.is_granted);
            if !is_open && view.bundles.iter().all(|bundle| bundle.placed.is_some()) {
                for (node, reserving_on) in group.nodes.iter_mut().zip(&mut group.reserving_on) {
                    *node = node.or(reserving_on.take());
                }
            }
        }
    }

    /// Checks that reservations match the placed and reserved bundles of groups.
    pub fn check_reservations(&self) {
        for ((id, node, attempt), reservation) in &self.reservations {
            let group = self.groups.get(id).unwrap_or_else(|| panic!("node {node} still has something of group {id}"));
            for index in &reservation.bundles {
                let (has, wants) = (group.nodes[*index as usize], group.reserving_on[*index as usize]);
                let is_so = wants == Some(*node) || reservation.is_granted && has == Some(*node);
                assert!(is_so, "node {node} was asked for bundle {index} of group {id} in attempt {attempt}");
            }
        }
        for (id, group) in &self.groups {
            let of_group = || self.reservations.iter().filter(|((other, ..), _)| other == id);
            assert_eq!(
                group.is_reserving(),
                of_group().any(|(_, reservation)| !reservation.is_granted),
                "group {id} waits for answers"
            );
            for (index, (has, wants)) in (0..).zip(group.nodes.iter().zip(&group.reserving_on)) {
                let Some(node) = has.or(*wants).filter(|node| self.remote.contains(node)) else { continue };
                let covers = |(key, reservation): &(&(u64, u32, u32), &Reservation)| {
                    key.1 == node && reservation.bundles.contains(&index)
                };
                let count = of_group().filter(covers).count();
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
    pub fn answer_reserve_request(&mut self, percent: u32) {
        if self.reserve_requests.is_empty() {
            return self.run_worker_step();
        }
        let at = self.seed.below(self.reserve_requests.len() as u32) as usize;
        let (group, node, attempt): (GroupId, _, _) = self.reserve_requests.swap_remove(at);
        let granted = self.chance(percent);
        self.event(Event::ReserveReply { group, node, attempt, granted });
    }

    /// A started task creates a placement group.
    pub fn make_group(&mut self) {
        let started = self.workers.iter().flat_map(|(id, state)| state.started.iter().map(|(task, ..)| (*id, *task)));
        if let Some((worker, task)) = self.pick(&started.collect::<Vec<_>>()) {
            self.create_group(WorkerId(worker), task);
        }
    }
}
