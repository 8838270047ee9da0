//! Random broadcasts with joins and deaths: every live node gets the object, and no node sends it often.
//!
//! `SANDBAR_SEED` replays one history; `SANDBAR_SEEDS` sets how many are tried otherwise.

use std::collections::BTreeMap;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use sandbar_seeds::{for_each_seed, seeds};

use super::*;

const OBJECT: ObjectId = ObjectId(1);
const PRODUCER: NodeId = NodeId(0);
/// Chunks of the object.
const CHUNKS: u64 = 20;

fn with_producer(limits: LocationLimits) -> Locations {
    let mut locations = Locations::new(limits);
    assert!(locations.add_holder(OBJECT, PRODUCER));
    locations
}

fn from(nodes: &[u32]) -> SourceAssignment {
    SourceAssignment::Holders(nodes.iter().map(|node| NodeId(*node)).collect())
}

#[test]
fn receivers_form_a_tree() {
    let mut locations = with_producer(LocationLimits::default());
    for (node, parent) in [(1, 0), (2, 0), (3, 1), (4, 2), (5, 1), (6, 2), (7, 3), (8, 4)] {
        assert_eq!(locations.assign(OBJECT, NodeId(node)), from(&[parent]), "node {node}");
        assert_eq!(locations.assign(OBJECT, NodeId(node)), from(&[parent]), "node {node}, again");
    }
    // A node that completes has room again. The producer has room too, but is spared: it has served `fan_out_max`
    // nodes.
    assert!(
        locations.add_holder(OBJECT, NodeId(1))
            && locations.add_holder(OBJECT, NodeId(2))
            && locations.add_holder(OBJECT, NodeId(8))
    );
    assert_eq!(locations.assign(OBJECT, NodeId(9)), from(&[8]));
    assert_eq!(locations.assign(OBJECT, NodeId(1)), SourceAssignment::AlreadyWhole);
    assert_eq!(locations.holders(OBJECT), [0, 1, 2, 8].map(NodeId));
}

#[test]
fn an_exhausted_source_is_used_if_no_other_node_has_the_object() {
    let mut locations = with_producer(LocationLimits::default());
    for node in 1..=2 {
        assert_eq!(locations.assign(OBJECT, NodeId(node)), from(&[0]));
        assert!(locations.remove_holder(OBJECT, NodeId(node)).is_empty());
    }
    assert_eq!(locations.assign(OBJECT, NodeId(3)), from(&[0]));
}

#[test]
fn children_of_the_dead_get_other_parents() {
    let mut locations = with_producer(LocationLimits::default());
    (1..=6).for_each(|node| drop(locations.assign(OBJECT, NodeId(node))));
    let moved = locations.remove_node(NodeId(1));
    let moved: Vec<_> = moved.into_iter().map(|moved| (moved.node.0, moved.from)).collect();
    // The producer has served its share; two others fetch from node 2.
    assert_eq!(moved, [(3, vec![NodeId(4)]), (5, vec![NodeId(6)])]);
    // A node that notices by itself gets the same answer.
    assert_eq!(locations.reassign(OBJECT, NodeId(3), &[NodeId(1)]), from(&[4]));
    assert!(!locations.of_node.contains_key(&NodeId(1)));
}

#[test]
fn failed_holders_are_avoided_while_others_exist() {
    let mut locations = with_producer(LocationLimits { fan_out_max: 9, ..LocationLimits::default() });
    assert_eq!(locations.assign(OBJECT, NodeId(1)), from(&[0]));
    assert_eq!(locations.assign(OBJECT, NodeId(2)), from(&[0]));
    assert_eq!(locations.reassign(OBJECT, NodeId(1), &[PRODUCER]), from(&[2]));
    // Node 1 fetches from node 2, so node 2 can't fetch from it.
    assert_eq!(locations.reassign(OBJECT, NodeId(2), &[PRODUCER]), from(&[0]));
}

#[test]
fn an_object_without_holders_has_no_location() {
    let mut locations = Locations::new(LocationLimits::default());
    assert_eq!(locations.assign(OBJECT, NodeId(1)), SourceAssignment::NoHolder);
    assert!(locations.is_empty());
    let mut locations = with_producer(LocationLimits::default());
    (1..=3).for_each(|node| drop(locations.assign(OBJECT, NodeId(node))));
    let moved = locations.remove_node(PRODUCER);
    assert!(moved.len() == 3 && moved.iter().all(|moved| moved.from.is_empty()), "{moved:?}");
    assert_eq!((locations.len(), locations.of_node.len()), (0, 0));
}

#[test]
fn the_location_table_is_bounded() {
    let limits = LocationLimits { objects_max: 2, nodes_max: 3, ..LocationLimits::default() };
    let mut locations = with_producer(limits);
    assert!(locations.add_holder(ObjectId(2), PRODUCER) && !locations.add_holder(ObjectId(3), PRODUCER));
    assert_eq!(
        [1, 2, 3].map(|node| locations.assign(OBJECT, NodeId(node)) == SourceAssignment::Full),
        [false, false, true]
    );
    locations.forget(ObjectId(2));
    assert!(locations.add_holder(ObjectId(3), PRODUCER));
    locations.remove_holder(OBJECT, NodeId(1));
    assert_ne!(locations.assign(OBJECT, NodeId(3)), SourceAssignment::Full);
}

/// A broadcast in which each node receives a chunk a round.
struct History {
    locations: Locations,
    limits: LocationLimits,
    random: Xoshiro256PlusPlus,
    /// Chunks that each node has, and its sources.
    nodes: BTreeMap<NodeId, (u64, Vec<NodeId>)>,
    sent: BTreeMap<NodeId, u64>,
    deaths: u64,
    next: u32,
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let limits = LocationLimits {
            fan_out_max: 1 + random.next_u64() as usize % 3,
            parents_max: 1 + random.next_u64() as usize % 4,
            ..LocationLimits::default()
        };
        let nodes = [(PRODUCER, (CHUNKS, Vec::new()))].into();
        History { locations: with_producer(limits), limits, random, nodes, sent: BTreeMap::new(), deaths: 0, next: 1 }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn join(&mut self) {
        let node = NodeId(self.next);
        self.next += 1;
        let SourceAssignment::Holders(from) = self.locations.assign(OBJECT, node) else {
            panic!("{node} finds no holder")
        };
        self.nodes.insert(node, (0, from));
    }

    fn die(&mut self) {
        let index = 1 + self.below(self.nodes.len() as u64 - 1) as usize;
        let Some(node) = self.nodes.keys().nth(index).copied() else { return };
        self.nodes.remove(&node);
        self.deaths += 1;
        let moved = self.locations.remove_node(node);
        for (child, (has, from)) in &mut self.nodes {
            // The notification and the node's own request give the same sources.
            if *has < CHUNKS && from.contains(&node) {
                let notified = moved.iter().find(|moved| moved.node == *child).expect("its child is notified");
                let found = self.locations.reassign(OBJECT, *child, &[node]);
                assert_eq!(found, SourceAssignment::Holders(notified.from.clone()));
                from.clone_from(&notified.from);
            }
        }
    }

    /// Sends each node its next chunk from a source that has it.
    fn round(&mut self) -> bool {
        let before: BTreeMap<NodeId, u64> = self.nodes.iter().map(|(node, (has, _))| (*node, *has)).collect();
        let mut moved = false;
        for (node, (has, from)) in self.nodes.iter_mut().filter(|(_, (has, _))| *has < CHUNKS) {
            let giver = from.iter().filter(|parent| before[*parent] > *has).min_by_key(|parent| self.sent.get(*parent));
            let Some(giver) = giver.copied() else { continue };
            *self.sent.entry(giver).or_default() += 1;
            (*has, moved) = (*has + 1, true);
            if *has == CHUNKS {
                assert!(self.locations.add_holder(OBJECT, *node));
            }
        }
        moved
    }

    fn check(&self) {
        for (node, (has, from)) in &self.nodes {
            if *has < CHUNKS {
                assert!(
                    !from.is_empty() && from.iter().all(|parent| self.nodes.contains_key(parent)),
                    "{node}: {from:?}"
                );
            }
            let children = self.nodes.values().filter(|(has, from)| *has < CHUNKS && from.contains(node)).count();
            assert_eq!(children, self.locations.children(OBJECT, *node), "children of {node}");
            assert!(children <= self.limits.fan_out_max, "{children} children of {node}");
        }
    }

    /// Runs up to 20 receivers that join at about the same time, some of which die.
    fn run(&mut self) {
        let (receivers, deaths) = (1 + self.below(20), self.below(4));
        for _ in 0..receivers {
            self.join();
            if self.below(3) == 0 {
                self.round();
            }
            self.check();
        }
        for _ in 0..deaths {
            (0..self.below(4)).for_each(|_| _ = self.round());
            if self.nodes.len() > 1 {
                self.die();
            }
            self.check();
        }
        while self.round() {
            self.check();
        }
        assert!(self.nodes.values().all(|(has, _)| *has == CHUNKS), "{:?}", self.nodes);
        let sends_max = CHUNKS * (self.limits.fan_out_max as u64 + self.deaths);
        let sent = self.sent.get(&PRODUCER).copied().unwrap_or(0);
        assert!(
            sent <= sends_max,
            "the producer sent {sent} chunks of {CHUNKS}, {:?}, {} deaths",
            self.limits,
            self.deaths
        );
    }
}

#[test]
fn all_live_nodes_receive_it_and_the_source_sends_few_copies() {
    for_each_seed(seeds(20_000), |seed| History::new(seed).run());
}
