//! What a scheduler should know of nodes that are far and are asked to set room aside, and what these say: also of what
//! others use there.

use sandbar_core::{GroupId, NodeId, WorkerId};
use sandbar_sched::{Action, Demand, Event, UNIT};

use crate::cluster::History;
use crate::groups::Room;
use crate::model::{Model, Steps};

/// What a node was asked to set aside.
pub struct Aside {
    /// Bundles, by their places in the group.
    bundles: Vec<u32>,
    is_done: bool,
}

impl Model {
    /// A node says what others use of it.
    pub fn load(&mut self, node: u32, others: &Demand) {
        if !self.far.contains(&node) {
            return;
        }
        let total = &self.nodes[&node];
        let custom = total.custom.iter().map(|(name, has)| {
            let amount = others.custom.get(name).copied().unwrap_or(0);
            (name.clone(), amount.min(*has))
        });
        let others = Demand {
            cpus: others.cpus.min(total.cpus),
            gpus: others.gpus.min(total.gpus),
            memory: others.memory.min(total.memory),
            custom: custom.filter(|(_, amount)| *amount > 0).collect(),
        };
        self.loads.insert(node, others);
        self.refused.retain(|(_, other)| *other != node);
    }

    /// What others use of a node.
    pub fn others(&self, node: u32) -> Demand {
        self.loads.get(&node).cloned().unwrap_or_default()
    }

    /// What a node has left beside what others use.
    pub fn left(&self, node: u32) -> (i128, Demand) {
        let ((cpus, mut rest), others) = (self.free(Room::Node(node)), self.others(node));
        rest.gpus = rest.gpus.saturating_sub(others.gpus);
        rest.memory = rest.memory.saturating_sub(others.memory);
        for (name, amount) in &mut rest.custom {
            *amount = amount.saturating_sub(others.custom.get(name).copied().unwrap_or(0));
        }
        (cpus - i128::from(others.cpus), rest)
    }

    /// Whether others use processors of a node of which there are not enough.
    pub fn is_crowded(&self, node: u32) -> bool {
        self.others(node).cpus > 0 && self.left(node).0 < 0
    }

    /// What a node that is gone has set aside, and what it has said.
    pub fn lose_aside(&mut self, lost: u32) {
        self.loads.remove(&lost);
        self.aside.retain(|(_, node, _), _| *node != lost);
        self.refused.retain(|(_, node)| *node != lost);
    }

    /// A node says whether it has set room aside.
    pub fn answered(&mut self, key: (u64, u32, u32), done: bool) {
        let Some(aside) = self.aside.get_mut(&key).filter(|aside| !aside.is_done) else { return };
        if done {
            aside.is_done = true;
            return;
        }
        self.aside.remove(&key);
        self.refused.insert((key.0, key.1));
        self.groups.get_mut(&key.0).expect("it is tried").asked.fill(None);
    }

    /// Takes over what nodes are asked, and what they are to give back.
    pub fn ask_nodes(&mut self, actions: &[Action<u64>]) {
        for action in actions {
            match action {
                Action::SetAside { group, node, attempt, bundles } => {
                    let key = (group.0, node.0, attempt.0);
                    assert!(self.far.contains(&node.0) && !self.draining.contains(&node.0), "node {node} may be asked");
                    assert!(!self.refused.contains(&(group.0, node.0)), "node {node} has refused it");
                    assert!(self.attempts.insert(key), "node {node} was asked before");
                    let is_asked = |(key, aside): (&(u64, u32, u32), &Aside)| {
                        (key.0, key.1) == (group.0, node.0) && !aside.is_done
                    };
                    assert!(!self.aside.iter().any(is_asked), "node {node} has not answered");
                    if let Some(group) = self.groups.get(&group.0) {
                        let is_so = |(index, total): &(u32, Demand)| group.bundles[*index as usize] == *total;
                        assert!(!bundles.is_empty() && bundles.iter().all(is_so), "{action:?}");
                    }
                    let bundles = bundles.iter().map(|(index, _)| *index).collect();
                    self.aside.insert(key, Aside { bundles, is_done: false });
                }
                Action::GiveBack { group, node, attempt } => {
                    let aside = self.aside.remove(&(group.0, node.0, attempt.0));
                    assert!(aside.is_some(), "{action:?}: it has nothing of it");
                }
                _ => {}
            }
        }
    }

    /// What all nodes have agreed to is placed, and what came to nothing is not. Where a group is tried anew it is as if it
    /// had come to nothing before.
    pub fn place_agreed(&mut self, steps: &Steps) {
        for view in steps.groups() {
            let id = view.id.0;
            let group = self.groups.get_mut(&id).unwrap_or_else(|| panic!("group {id} should be gone"));
            if !group.is_tried() {
                continue;
            }
            let is_open = self.aside.iter().any(|((group, ..), aside)| *group == id && !aside.is_done);
            if !is_open && view.bundles.iter().all(|bundle| bundle.placed.is_some()) {
                for (node, asked) in group.nodes.iter_mut().zip(&mut group.asked) {
                    *node = node.or(asked.take());
                }
            }
        }
    }

    /// What nodes have set aside, or were asked to, is what groups have there or want.
    pub fn check_aside(&self) {
        for ((id, node, attempt), aside) in &self.aside {
            let group = self.groups.get(id).unwrap_or_else(|| panic!("node {node} still has something of group {id}"));
            for index in &aside.bundles {
                let (has, wants) = (group.nodes[*index as usize], group.asked[*index as usize]);
                let is_so = wants == Some(*node) || aside.is_done && has == Some(*node);
                assert!(is_so, "node {node} was asked for bundle {index} of group {id} in attempt {attempt}");
            }
        }
        for (id, group) in &self.groups {
            let of_group = || self.aside.iter().filter(|((other, ..), _)| other == id);
            assert_eq!(group.is_tried(), of_group().any(|(_, aside)| !aside.is_done), "group {id} waits for answers");
            for (index, (has, wants)) in (0..).zip(group.nodes.iter().zip(&group.asked)) {
                let Some(node) = has.or(*wants).filter(|node| self.far.contains(node)) else { continue };
                let covers =
                    |(key, aside): &(&(u64, u32, u32), &Aside)| key.1 == node && aside.bundles.contains(&index);
                let count = of_group().filter(covers).count();
                assert_eq!(count, 1, "node {node} has bundle {index} of group {id} set aside");
            }
        }
    }
}

impl History {
    /// A node says what others use of it.
    pub fn load(&mut self) {
        let node = self.pick(&self.nodes.clone()).unwrap_or(7);
        let mut below = |n: u32| u64::from(self.seed.below(n));
        let others = match below(10) {
            0 => Demand { cpus: u64::MAX, gpus: u64::MAX, memory: u64::MAX, custom: [("tpu".into(), u64::MAX)].into() },
            1..6 => Demand::default(),
            _ => {
                let custom = [("tpu".into(), UNIT / 2 * below(3)), ("other".into(), 1)].into();
                Demand { cpus: UNIT / 2 * below(8), gpus: UNIT * below(3), memory: 30 * below(5), custom }
            }
        };
        self.event(Event::NodeLoad { node: NodeId(node), others });
    }

    /// A node answers that was asked for room.
    pub fn answer(&mut self, percent: u32) {
        if self.questions.is_empty() {
            return self.work();
        }
        let at = self.seed.below(self.questions.len() as u32) as usize;
        let (group, node, attempt): (GroupId, _, _) = self.questions.swap_remove(at);
        let done = self.chance(percent);
        self.event(Event::SetAside { group, node, attempt, done });
    }

    /// Some task makes a placement group.
    pub fn make_group(&mut self) {
        let begun = self.workers.iter().flat_map(|(id, local)| local.begun.iter().map(|(task, ..)| (*id, *task)));
        if let Some((worker, task)) = self.pick(&begun.collect::<Vec<_>>()) {
            self.create_group(WorkerId(worker), task);
        }
    }
}
