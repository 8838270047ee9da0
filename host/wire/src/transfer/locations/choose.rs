//! Whom a node fetches from.

use std::cmp::Reverse;

use sandbar_core::NodeId;

use super::{LocationLimits, Place, Places};

impl Places {
    /// Finds parents for a node that has none, and makes it their child. None when nobody has anything.
    pub(super) fn choose(&mut self, node: NodeId, limits: LocationLimits) -> Vec<NodeId> {
        let mut from = self.find(node, limits);
        if from.is_empty() {
            // Those who failed may do better now.
            if let Some(place) = self.nodes.get_mut(&node) {
                place.failed.clear();
            }
            from = self.find(node, limits);
        }
        for parent in &from {
            if let Some(place) = self.nodes.get_mut(parent) {
                (place.children, place.served) = (place.children + 1, place.served + 1);
            }
        }
        if let Some(place) = self.nodes.get_mut(&node) {
            place.from.clone_from(&from);
        }
        from
    }

    fn find(&self, node: NodeId, limits: LocationLimits) -> Vec<NodeId> {
        let Some(place) = self.nodes.get(&node) else { return Vec::new() };
        let may = |(other, _): &(&NodeId, &Place)| **other != node && !place.failed.contains(other);
        let others = || self.nodes.iter().filter(may);
        let has_room = |(_, other): &(&NodeId, &Place)| other.children < limits.fan_out_max;

        // Those who have all, whoever has served least first. Who has done its part is spared while there are others: so an
        // object's maker, who is there before all, sends it about as often as anybody.
        let mut whole: Vec<_> = others().filter(|(_, other)| other.is_whole).collect();
        whole.sort_by_key(|(_, other)| (other.served, other.children, Reverse(other.joined)));
        let owes = |(_, other): &(&NodeId, &Place)| other.served < limits.fan_out_max as u64;
        let parents = |free: Vec<(&NodeId, &Place)>| -> Vec<NodeId> {
            free.into_iter().map(|(other, _)| *other).take(limits.parents_max.max(1)).collect()
        };
        let free: Vec<_> = whole.iter().copied().filter(has_room).collect();
        let owing: Vec<_> = free.iter().copied().filter(owes).collect();
        if !owing.is_empty() {
            return parents(owing);
        }
        // Else one of those who fetch it, as near to one who has it as there is room, and never by way of itself.
        let fetching = others().filter(|(_, other)| !other.is_whole && !other.from.is_empty()).filter(has_room);
        let above =
            fetching.filter_map(|(other, of)| Some((self.depth(*other, node)?, of.children, of.joined, *other)));
        if let Some((.., other)) = above.min() {
            return vec![other];
        }
        if !free.is_empty() {
            return parents(free);
        }
        // Nobody has room: whoever has all sends to one more.
        whole
            .into_iter()
            .min_by_key(|(_, other)| (other.children, other.joined))
            .map(|(other, _)| *other)
            .into_iter()
            .collect()
    }

    /// How far a node is from one who has all; none when it is below `under`, or hangs in the air.
    fn depth(&self, node: NodeId, under: NodeId) -> Option<usize> {
        // Nodes that fetch from several fetch from those who have all, so that there is one way up.
        let (mut at, mut depth) = (node, 0);
        loop {
            let place = self.nodes.get(&at)?;
            if place.is_whole {
                return Some(depth);
            }
            if at == under || depth > self.nodes.len() {
                return None;
            }
            (at, depth) = (*place.from.first()?, depth + 1);
        }
    }

    /// A node fetches from nobody any more.
    pub(super) fn leave_parents(&mut self, node: NodeId) {
        let from = self.nodes.get_mut(&node).map(|place| std::mem::take(&mut place.from)).unwrap_or_default();
        for parent in from {
            if let Some(place) = self.nodes.get_mut(&parent) {
                place.children -= 1;
            }
        }
    }

    /// A node does not fetch from one that was taken out any more.
    pub(super) fn leave_parent(&mut self, node: NodeId, parent: NodeId) {
        if let Some(place) = self.nodes.get_mut(&node) {
            place.from.retain(|from| *from != parent);
        }
    }

    pub(super) fn children_of(&self, node: NodeId) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, place)| place.from.contains(&node)).map(|(child, _)| *child).collect()
    }
}
