//! The location directory of an owner's objects: the holders of each object, the nodes that fetch it, and their sources.
//!
//! Receivers that arrive at about the same time form a tree: each node sends an object to few others at once, and nodes
//! that are fetching it forward what they have. The object's owner keeps and answers from this directory. It is pure
//! state: it has no clock and no IO, and equal calls give equal results.

mod choose;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{NodeId, ObjectId};

/// Limits of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocationLimits {
    /// Maximum nodes that fetch an object from the same node at once. A node that served as many is spared while others
    /// that served less have or fetch the object. Exceeded only if no other node is left.
    pub fan_out_max: usize,
    /// Maximum sources of a node, if several nodes have the whole object.
    pub parents_max: usize,
    /// Maximum objects.
    pub objects_max: usize,
    /// Maximum nodes that have or fetch one object.
    pub nodes_max: usize,
}

impl Default for LocationLimits {
    fn default() -> Self {
        LocationLimits { fan_out_max: 2, parents_max: 4, objects_max: 1_000_000, nodes_max: 4096 }
    }
}

/// The sources that a node should fetch from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceAssignment {
    /// These nodes. Several only if all of them have the whole object.
    Holders(Vec<NodeId>),
    /// The node has the whole object.
    AlreadyWhole,
    /// Nobody has the object.
    NoHolder,
    /// The directory's limit of nodes or objects is reached.
    Full,
}

/// New sources for a node whose parents left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// The object.
    pub object: ObjectId,
    /// The node that fetches it.
    pub node: NodeId,
    /// Sources for the rest. Empty if no node has the object any more.
    pub from: Vec<NodeId>,
}

/// Holders of each object, the nodes that fetch it, and their sources.
#[derive(Debug, Default)]
pub struct Locations {
    limits: LocationLimits,
    objects: BTreeMap<ObjectId, ObjectNodes>,
    /// Objects that each node has or fetches.
    of_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
}

/// The nodes that have or fetch one object.
#[derive(Debug, Default)]
struct ObjectNodes {
    nodes: BTreeMap<NodeId, NodeEntry>,
    joined: u64,
}

#[derive(Debug)]
struct NodeEntry {
    /// Sources of this node; empty if it has the whole object.
    from: Vec<NodeId>,
    is_whole: bool,
    /// Nodes that currently fetch from this one.
    children: usize,
    /// Nodes that ever fetched from this one.
    served: u64,
    /// Sequence number of its arrival.
    joined: u64,
    /// Nodes from which this one failed to fetch.
    failed: BTreeSet<NodeId>,
}

impl Locations {
    /// Creates an empty directory.
    pub fn new(limits: LocationLimits) -> Locations {
        Locations { limits, ..Locations::default() }
    }

    /// Records that a node has the whole object, as it produced or fetched it. Returns false if a limit is reached.
    pub fn add_holder(&mut self, object: ObjectId, node: NodeId) -> bool {
        let Some(object_nodes) = self.add_node(object, node) else { return false };
        object_nodes.clear_parents(node);
        if let Some(entry) = object_nodes.nodes.get_mut(&node) {
            entry.is_whole = true;
        }
        true
    }

    /// Assigns sources to a node. Repeated calls return the same sources while these are valid.
    pub fn assign(&mut self, object: ObjectId, node: NodeId) -> SourceAssignment {
        self.reassign(object, node, &[])
    }

    /// Assigns sources for the rest to a node that gave up on some of its sources.
    pub fn reassign(&mut self, object: ObjectId, node: NodeId, failed: &[NodeId]) -> SourceAssignment {
        let limits = self.limits;
        if !self.objects.contains_key(&object) {
            return SourceAssignment::NoHolder;
        }
        let Some(object_nodes) = self.add_node(object, node) else { return SourceAssignment::Full };
        let Some(entry) = object_nodes.nodes.get_mut(&node) else { return SourceAssignment::Full };
        if entry.is_whole {
            return SourceAssignment::AlreadyWhole;
        }
        entry.failed.extend(failed.iter().copied().filter(|holder| *holder != node));
        if !entry.from.is_empty() && !entry.from.iter().any(|from| failed.contains(from)) {
            return SourceAssignment::Holders(entry.from.clone());
        }
        object_nodes.clear_parents(node);
        let from = object_nodes.choose(node, limits);
        if from.is_empty() {
            let reassigned = self.detach(object, node);
            debug_assert!(
                reassigned.iter().all(|reassigned| reassigned.from.is_empty()),
                "others find what {node} does not"
            );
            return SourceAssignment::NoHolder;
        }
        SourceAssignment::Holders(from)
    }

    /// Records that a node has nothing of an object any more. Returns new sources for the nodes that fetched from it.
    pub fn remove_holder(&mut self, object: ObjectId, node: NodeId) -> Vec<Reassignment> {
        self.detach(object, node)
    }

    /// Removes a node. Returns new sources for the nodes that fetched from it.
    pub fn remove_node(&mut self, node: NodeId) -> Vec<Reassignment> {
        let objects = self.of_node.remove(&node).unwrap_or_default();
        objects.into_iter().flat_map(|object| self.detach(object, node)).collect()
    }

    /// Removes an object.
    pub fn forget(&mut self, object: ObjectId) {
        for node in self.objects.remove(&object).into_iter().flat_map(|object_nodes| object_nodes.nodes.into_keys()) {
            self.forget_node(object, node);
        }
    }

    /// Returns the nodes that have the whole object.
    pub fn holders(&self, object: ObjectId) -> Vec<NodeId> {
        let all = self.objects.get(&object).into_iter().flat_map(|object_nodes| &object_nodes.nodes);
        all.filter(|(_, entry)| entry.is_whole).map(|(node, _)| *node).collect()
    }

    /// Returns how many nodes fetch an object from a node.
    pub fn children(&self, object: ObjectId, node: NodeId) -> usize {
        self.objects
            .get(&object)
            .and_then(|object_nodes| object_nodes.nodes.get(&node))
            .map_or(0, |entry| entry.children)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns whether no object is known.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns an object's nodes after adding a node; `None` if a limit is reached.
    fn add_node(&mut self, object: ObjectId, node: NodeId) -> Option<&mut ObjectNodes> {
        let (limits, objects) = (self.limits, self.objects.len());
        let object_nodes = match self.objects.entry(object) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if objects >= limits.objects_max => return None,
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(ObjectNodes::default()),
        };
        if !object_nodes.nodes.contains_key(&node) {
            if object_nodes.nodes.len() >= limits.nodes_max {
                return None;
            }
            object_nodes.joined += 1;
            let (joined, failed) = (object_nodes.joined, BTreeSet::new());
            let entry = NodeEntry { from: Vec::new(), is_whole: false, children: 0, served: 0, joined, failed };
            object_nodes.nodes.insert(node, entry);
            self.of_node.entry(node).or_default().insert(object);
        }
        Some(object_nodes)
    }

    /// Removes a node from an object, and assigns new sources to its children.
    fn detach(&mut self, object: ObjectId, node: NodeId) -> Vec<Reassignment> {
        self.forget_node(object, node);
        let Some(object_nodes) = self.objects.get_mut(&object) else { return Vec::new() };
        object_nodes.clear_parents(node);
        object_nodes.nodes.remove(&node);
        let mut reassigned = Vec::new();
        for child in object_nodes.children_of(node) {
            object_nodes.remove_parent(child, node);
            let from = object_nodes.nodes.get(&child).map(|entry| entry.from.clone()).unwrap_or_default();
            let from = if from.is_empty() { object_nodes.choose(child, self.limits) } else { from };
            reassigned.push(Reassignment { object, node: child, from });
        }
        if object_nodes.nodes.values().all(|entry| !entry.is_whole) {
            // Nobody has the whole object any more: remove it, and notify the nodes that fetched it.
            let left: Vec<NodeId> = object_nodes.nodes.keys().copied().collect();
            reassigned.retain(|reassigned| !left.contains(&reassigned.node));
            reassigned.extend(left.into_iter().map(|node| Reassignment { object, node, from: Vec::new() }));
            self.forget(object);
        }
        reassigned
    }

    fn forget_node(&mut self, object: ObjectId, node: NodeId) {
        if let Some(objects) = self.of_node.get_mut(&node) {
            objects.remove(&object);
            if objects.is_empty() {
                self.of_node.remove(&node);
            }
        }
    }
}
