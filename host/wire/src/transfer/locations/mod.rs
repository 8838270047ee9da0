//! Who has which object, who is fetching it, and from whom.
//!
//! Receivers that ask at about the same time form a tree: each node sends an object to few others at once, and those who
//! are fetching it send on what they have. It is the owner of an object that keeps this, and that is asked. It decides
//! and does nothing: there is no clock, and the same questions get the same answers.

mod choose;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{NodeId, ObjectId};

/// What may be kept, and how many fetch from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocationLimits {
    /// Nodes that fetch an object from the same node at once, and after which it is spared while others have it, or fetch
    /// it, who were asked less. More only where nobody else is left.
    pub fan_out_max: usize,
    /// Nodes that an object is fetched from, where several have all of it.
    pub parents_max: usize,
    /// Objects that are known.
    pub objects_max: usize,
    /// Nodes that have or fetch one object.
    pub nodes_max: usize,
}

impl Default for LocationLimits {
    fn default() -> Self {
        LocationLimits { fan_out_max: 2, parents_max: 4, objects_max: 1_000_000, nodes_max: 4096 }
    }
}

/// Whom a node is to fetch from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// From these: several only when all of them have all of it.
    From(Vec<NodeId>),
    /// It has it.
    IsThere,
    /// Nobody has it.
    Nowhere,
    /// There are as many nodes, or objects, as are kept.
    Full,
}

/// A node whose parents are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Which object it fetches.
    pub object: ObjectId,
    /// Which node.
    pub node: NodeId,
    /// Whom it fetches the rest from. None when nobody has it any more.
    pub from: Vec<NodeId>,
}

/// Who has which object, and who fetches it from whom.
#[derive(Debug, Default)]
pub struct Locations {
    limits: LocationLimits,
    objects: BTreeMap<ObjectId, Places>,
    /// What each node has or fetches.
    of_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
}

/// The nodes of one object.
#[derive(Debug, Default)]
struct Places {
    nodes: BTreeMap<NodeId, Place>,
    joined: u64,
}

#[derive(Debug)]
struct Place {
    /// Whom it fetches from; none when it has all.
    from: Vec<NodeId>,
    is_whole: bool,
    /// How many fetch from it.
    children: usize,
    /// How many ever did.
    served: u64,
    /// When it came, counted.
    joined: u64,
    /// Who could not give it anything.
    failed: BTreeSet<NodeId>,
}

impl Locations {
    /// None.
    pub fn new(limits: LocationLimits) -> Locations {
        Locations { limits, ..Locations::default() }
    }

    /// A node has all of an object: it made it, or has fetched it. Whether that is kept.
    pub fn has(&mut self, object: ObjectId, node: NodeId) -> bool {
        let Some(places) = self.enter(object, node) else { return false };
        places.leave_parents(node);
        if let Some(place) = places.nodes.get_mut(&node) {
            place.is_whole = true;
        }
        true
    }

    /// A node wants to fetch an object. Asking again gives the same answer, while that holds.
    pub fn want(&mut self, object: ObjectId, node: NodeId) -> Wanted {
        self.more(object, node, &[])
    }

    /// A node that fetches an object gave up on some it was to fetch from: from whom it is to fetch the rest.
    pub fn more(&mut self, object: ObjectId, node: NodeId, gone: &[NodeId]) -> Wanted {
        let limits = self.limits;
        if !self.objects.contains_key(&object) {
            return Wanted::Nowhere;
        }
        let Some(places) = self.enter(object, node) else { return Wanted::Full };
        let Some(place) = places.nodes.get_mut(&node) else { return Wanted::Full };
        if place.is_whole {
            return Wanted::IsThere;
        }
        place.failed.extend(gone.iter().copied().filter(|holder| *holder != node));
        if !place.from.is_empty() && !place.from.iter().any(|from| gone.contains(from)) {
            return Wanted::From(place.from.clone());
        }
        places.leave_parents(node);
        let from = places.choose(node, limits);
        if from.is_empty() {
            let moved = self.leave(object, node);
            debug_assert!(moved.iter().all(|moved| moved.from.is_empty()), "others find what {node} does not");
            return Wanted::Nowhere;
        }
        Wanted::From(from)
    }

    /// A node has nothing of an object any more: it dropped it, or gave up fetching it. Gives those who fetched from it.
    pub fn drops(&mut self, object: ObjectId, node: NodeId) -> Vec<Moved> {
        self.leave(object, node)
    }

    /// A node is no more. Gives those who fetched from it.
    pub fn gone(&mut self, node: NodeId) -> Vec<Moved> {
        let objects = self.of_node.remove(&node).unwrap_or_default();
        objects.into_iter().flat_map(|object| self.leave(object, node)).collect()
    }

    /// An object is no more.
    pub fn forget(&mut self, object: ObjectId) {
        for node in self.objects.remove(&object).into_iter().flat_map(|places| places.nodes.into_keys()) {
            self.left(object, node);
        }
    }

    /// Who has all of an object.
    pub fn holders(&self, object: ObjectId) -> Vec<NodeId> {
        let all = self.objects.get(&object).into_iter().flat_map(|places| &places.nodes);
        all.filter(|(_, place)| place.is_whole).map(|(node, _)| *node).collect()
    }

    /// How many fetch an object from a node.
    pub fn children(&self, object: ObjectId, node: NodeId) -> usize {
        self.objects.get(&object).and_then(|places| places.nodes.get(&node)).map_or(0, |place| place.children)
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The nodes of an object, with this one among them; none when there is no room for it.
    fn enter(&mut self, object: ObjectId, node: NodeId) -> Option<&mut Places> {
        let (limits, objects) = (self.limits, self.objects.len());
        let places = match self.objects.entry(object) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if objects >= limits.objects_max => return None,
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(Places::default()),
        };
        if !places.nodes.contains_key(&node) {
            if places.nodes.len() >= limits.nodes_max {
                return None;
            }
            places.joined += 1;
            let (joined, failed) = (places.joined, BTreeSet::new());
            let place = Place { from: Vec::new(), is_whole: false, children: 0, served: 0, joined, failed };
            places.nodes.insert(node, place);
            self.of_node.entry(node).or_default().insert(object);
        }
        Some(places)
    }

    /// Takes a node out. Whoever fetched from it fetches from others.
    fn leave(&mut self, object: ObjectId, node: NodeId) -> Vec<Moved> {
        self.left(object, node);
        let Some(places) = self.objects.get_mut(&object) else { return Vec::new() };
        places.leave_parents(node);
        places.nodes.remove(&node);
        let mut moved = Vec::new();
        for child in places.children_of(node) {
            places.leave_parent(child, node);
            let from = places.nodes.get(&child).map(|place| place.from.clone()).unwrap_or_default();
            let from = if from.is_empty() { places.choose(child, self.limits) } else { from };
            moved.push(Moved { object, node: child, from });
        }
        if places.nodes.values().all(|place| !place.is_whole) {
            // What is nowhere whole is known no more; who fetched it is told.
            let left: Vec<NodeId> = places.nodes.keys().copied().collect();
            moved.retain(|moved| !left.contains(&moved.node));
            moved.extend(left.into_iter().map(|node| Moved { object, node, from: Vec::new() }));
            self.forget(object);
        }
        moved
    }

    fn left(&mut self, object: ObjectId, node: NodeId) {
        if let Some(objects) = self.of_node.get_mut(&node) {
            objects.remove(&object);
            if objects.is_empty() {
                self.of_node.remove(&node);
            }
        }
    }
}
