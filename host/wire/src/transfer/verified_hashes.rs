//! The known hashes of an object that is being fetched. A list is accepted once it merges to the hash above it.

use std::sync::OnceLock;

use super::layout::Layout;
use super::tree::{HashNode, HashTree, RootHash, hash_group, merge};

#[derive(Debug)]
pub(crate) struct VerifiedHashes {
    layout: Layout,
    root: RootHash,
    /// Hashes of all blocks, if the object has several.
    blocks: OnceLock<Box<[HashNode]>>,
    /// Group hashes of each block, if the object has several groups.
    groups: Box<[OnceLock<Box<[HashNode]>>]>,
}

impl VerifiedHashes {
    pub(crate) fn new(layout: Layout, root: RootHash) -> VerifiedHashes {
        let groups = (0..layout.blocks()).map(|_| OnceLock::new()).collect();
        VerifiedHashes { layout, root, blocks: OnceLock::new(), groups }
    }

    pub(crate) fn root(&self) -> RootHash {
        self.root
    }

    /// Returns how many block hashes are missing: all or none.
    pub(crate) fn missing_blocks(&self) -> u32 {
        if self.layout.blocks() < 2 || self.blocks.get().is_some() { 0 } else { self.layout.blocks() }
    }

    /// Returns how many group hashes of a block are missing: all or none.
    pub(crate) fn missing_groups(&self, block: u32) -> u32 {
        let is_known = self.groups.get(block as usize).is_none_or(|groups| groups.get().is_some());
        if self.layout.groups().end < 2 || is_known { 0 } else { self.layout.groups_of(block).len() as u32 }
    }

    /// Returns the block hashes, if known.
    pub(crate) fn blocks(&self) -> Option<&[HashNode]> {
        self.blocks.get().map(|nodes| &nodes[..])
    }

    /// Returns the group hashes of a block, if known.
    pub(crate) fn groups(&self, block: u32) -> Option<&[HashNode]> {
        self.groups.get(block as usize)?.get().map(|nodes| &nodes[..])
    }

    /// Verifies and stores the block hashes. Returns whether they are right.
    pub(crate) fn add_blocks(&self, nodes: Box<[HashNode]>) -> bool {
        let is_right = nodes.len() == self.layout.blocks() as usize && RootHash(merge(&nodes, true)) == self.root;
        if is_right {
            let _ = self.blocks.set(nodes);
        }
        is_right
    }

    /// Verifies and stores the group hashes of a block, which requires the block hashes. Returns whether they are
    /// right.
    pub(crate) fn add_groups(&self, block: u32, nodes: Box<[HashNode]>) -> bool {
        let is_one = self.layout.blocks() == 1;
        let above =
            if is_one { Some(self.root.0) } else { self.blocks().and_then(|all| all.get(block as usize).copied()) };
        let is_right = nodes.len() == self.layout.groups_of(block).len()
            && above.is_some_and(|above| merge(&nodes, is_one) == above);
        if let (true, Some(groups)) = (is_right, self.groups.get(block as usize)) {
            let _ = groups.set(nodes);
        }
        is_right
    }

    /// Returns whether the bytes are a group's. Requires the group hashes of its block.
    pub(crate) fn is_group(&self, group: u32, bytes: &[u8]) -> bool {
        if self.layout.groups().end < 2 {
            return RootHash::hash(bytes) == self.root;
        }
        let block = self.layout.block_of(group);
        let index = (group - self.layout.groups_of(block).start) as usize;
        self.groups(block).and_then(|nodes| nodes.get(index)).is_some_and(|node| hash_group(group, bytes) == *node)
    }

    /// Returns the hash tree, once all hashes are known.
    pub(crate) fn tree(&self) -> Option<HashTree> {
        let has_groups = self.layout.groups().end > 1;
        let mut groups = Vec::new();
        for block in self.groups.iter().filter(|_| has_groups) {
            groups.extend_from_slice(block.get()?);
        }
        let blocks = if self.layout.blocks() > 1 { self.blocks()?.into() } else { Box::default() };
        Some(HashTree::of_lists(self.layout, self.root, groups.into(), blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{BLOCK_GROUPS, GROUP_BYTES};
    use super::*;

    fn object(bytes: u64) -> (Vec<u8>, HashTree, VerifiedHashes) {
        let bytes: Vec<u8> = (0..bytes).map(|i| (i / 1000) as u8).collect();
        let tree = HashTree::build(&bytes);
        let nodes = VerifiedHashes::new(Layout::of_memory(&bytes), tree.root());
        (bytes, tree, nodes)
    }

    #[test]
    fn right_lists_are_believed_and_make_the_tree() {
        for len in [1, GROUP_BYTES, GROUP_BYTES + 1, u64::from(BLOCK_GROUPS) * GROUP_BYTES + 5] {
            let (bytes, tree, nodes) = object(len);
            let layout = Layout::of_memory(&bytes);
            assert_eq!(nodes.missing_blocks() as usize, tree.blocks().len());
            if nodes.missing_blocks() > 0 {
                assert!(nodes.add_blocks(tree.blocks().into()));
            }
            for block in 0..layout.blocks() {
                assert_eq!(nodes.missing_groups(block) as usize, tree.groups(block).len());
                if nodes.missing_groups(block) > 0 {
                    assert!(nodes.add_groups(block, tree.groups(block).into()));
                }
                assert_eq!(nodes.missing_groups(block), 0);
            }
            for group in layout.groups() {
                let range = layout.range(&(group..group + 1));
                let mut right = bytes[range.start as usize..range.end as usize].to_vec();
                assert!(nodes.is_group(group, &right));
                right[0] ^= 1;
                assert!(!nodes.is_group(group, &right));
            }
            assert_eq!(nodes.tree().unwrap(), tree);
        }
    }

    #[test]
    fn wrong_lists_are_not() {
        let (_, tree, nodes) = object(u64::from(BLOCK_GROUPS) * GROUP_BYTES + 5);
        let flipped = |list: &[HashNode]| {
            let mut list: Box<[HashNode]> = list.into();
            list[0][0] ^= 1;
            list
        };
        assert!(!nodes.add_groups(0, tree.groups(0).into()), "their block's hash is not known yet");
        assert!(!nodes.add_blocks(flipped(tree.blocks())));
        assert!(!nodes.add_blocks(Box::default()));
        assert!(nodes.add_blocks(tree.blocks().into()));
        assert!(!nodes.add_groups(0, flipped(tree.groups(0))));
        assert!(!nodes.add_groups(1, tree.groups(0).into()));
        assert!(!nodes.add_groups(7, tree.groups(0).into()));
        assert!(nodes.tree().is_none());
    }
}
