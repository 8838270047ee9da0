//! Choice of a node's sources.

use std::cmp::Reverse;

use sandbar_core::NodeId;

use super::{LocationLimits, NodeEntry, ObjectNodes};

impl ObjectNodes {
    /// Chooses parents for a node that has none, and records it as their child. Returns an empty list if no node has the
    /// object.
    pub(super) fn choose(&mut self, node: NodeId, limits: LocationLimits) -> Vec<NodeId> {
        let mut from = self.find(node, limits);
        if from.is_empty() {
            // Retry nodes that failed before.
            if let Some(entry) = self.nodes.get_mut(&node) {
                entry.failed.clear();
            }
            from = self.find(node, limits);
        }
        for parent in &from {
            if let Some(entry) = self.nodes.get_mut(parent) {
                (entry.children, entry.served) = (entry.children + 1, entry.served + 1);
            }
        }
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.from.clone_from(&from);
        }
        from
    }

    fn find(&self, node: NodeId, limits: LocationLimits) -> Vec<NodeId> {
        let Some(entry) = self.nodes.get(&node) else { return Vec::new() };
        let may = |(other, _): &(&NodeId, &NodeEntry)| **other != node && !entry.failed.contains(other);
        let others = || self.nodes.iter().filter(may);
        let has_room = |(_, other): &(&NodeId, &NodeEntry)| other.children < limits.fan_out_max;

        // First choice: whole holders, least served first. Holders that have served `fan_out_max` nodes are spared
        // while there are others, so that the producer of an object, its first holder, sends it about as often as any
        // other node.
        let mut whole: Vec<_> = others().filter(|(_, other)| other.is_whole).collect();
        whole.sort_by_key(|(_, other)| (other.served, other.children, Reverse(other.joined)));
        let owes = |(_, other): &(&NodeId, &NodeEntry)| other.served < limits.fan_out_max as u64;
        let parents = |free: Vec<(&NodeId, &NodeEntry)>| -> Vec<NodeId> {
            free.into_iter().map(|(other, _)| *other).take(limits.parents_max.max(1)).collect()
        };
        let free: Vec<_> = whole.iter().copied().filter(has_room).collect();
        let owing: Vec<_> = free.iter().copied().filter(owes).collect();
        if !owing.is_empty() {
            return parents(owing);
        }
        // Second choice: a node that is fetching the object, as near to a whole holder as has room, and not below this
        // node.
        let fetching = others().filter(|(_, other)| !other.is_whole && !other.from.is_empty()).filter(has_room);
        let above = fetching
            .filter_map(|(other, fetch)| Some((self.depth(*other, node)?, fetch.children, fetch.joined, *other)));
        if let Some((.., other)) = above.min() {
            return vec![other];
        }
        if !free.is_empty() {
            return parents(free);
        }
        // Nobody has room: the least loaded whole holder takes one more.
        whole
            .into_iter()
            .min_by_key(|(_, other)| (other.children, other.joined))
            .map(|(other, _)| *other)
            .into_iter()
            .collect()
    }

    /// Returns a node's distance from a whole holder; `None` if it is below `under` or has no path to one.
    fn depth(&self, node: NodeId, under: NodeId) -> Option<usize> {
        // Nodes with several parents fetch from whole holders only, so the path is unique.
        let (mut at, mut depth) = (node, 0);
        loop {
            let entry = self.nodes.get(&at)?;
            if entry.is_whole {
                return Some(depth);
            }
            if at == under || depth > self.nodes.len() {
                return None;
            }
            (at, depth) = (*entry.from.first()?, depth + 1);
        }
    }

    /// Removes all parents of a node.
    pub(super) fn clear_parents(&mut self, node: NodeId) {
        let from = self.nodes.get_mut(&node).map(|entry| std::mem::take(&mut entry.from)).unwrap_or_default();
        for parent in from {
            if let Some(entry) = self.nodes.get_mut(&parent) {
                entry.children -= 1;
            }
        }
    }

    /// Removes a parent that left from a node.
    pub(super) fn remove_parent(&mut self, node: NodeId, parent: NodeId) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.from.retain(|from| *from != parent);
        }
    }

    pub(super) fn children_of(&self, node: NodeId) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, entry)| entry.from.contains(&node)).map(|(child, _)| *child).collect()
    }
}
