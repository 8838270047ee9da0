//! The hash tree of an object: BLAKE3's own tree, down to groups.
//!
//! A group's hash is the chaining value of the subtree over its bytes, so a list of group hashes merges to the BLAKE3
//! hash of all bytes (section 2.1 of the BLAKE3 paper). Lists are sent whole and verified before any of their hashes is
//! used: the group hashes of a block merge to the block's hash, the block hashes merge to the root hash.

use std::fmt;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};

use super::layout::{BLOCK_GROUPS, GROUP_BYTES, Groups, Layout};

/// A node of a hash tree.
pub(crate) type HashNode = [u8; 32];

/// BLAKE3 hash of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RootHash(pub [u8; 32]);

impl RootHash {
    /// Hashes bytes.
    pub fn hash(bytes: &[u8]) -> RootHash {
        RootHash(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Debug for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootHash({})", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// The hashes of an object: its groups, blocks and root.
#[derive(Debug, PartialEq, Eq)]
pub struct HashTree {
    layout: Layout,
    root: RootHash,
    groups: Box<[HashNode]>,
    /// Hashes of blocks, if the object has several.
    blocks: Box<[HashNode]>,
}

impl HashTree {
    /// Hashes bytes and returns their tree.
    pub fn build(bytes: &[u8]) -> HashTree {
        let layout = Layout::of_memory(bytes);
        let groups = layout.groups().map(|group| {
            let range = layout.range(&(group..group + 1));
            hash_group(group, &bytes[range.start as usize..range.end as usize])
        });
        match layout.groups().end {
            0 | 1 => HashTree { layout, root: RootHash::hash(bytes), groups: Box::default(), blocks: Box::default() },
            _ => HashTree::of_groups(layout, groups.collect()),
        }
    }

    fn of_groups(layout: Layout, groups: Box<[HashNode]>) -> HashTree {
        let blocks: Box<[HashNode]> = match layout.blocks() {
            0 | 1 => Box::default(),
            _ => groups.chunks(BLOCK_GROUPS as usize).map(|of_block| merge(of_block, false)).collect(),
        };
        let root = RootHash(merge(if blocks.is_empty() { &groups } else { &blocks }, true));
        HashTree { layout, root, groups, blocks }
    }

    /// Builds a tree from verified lists.
    pub(crate) fn of_lists(
        layout: Layout,
        root: RootHash,
        groups: Box<[HashNode]>,
        blocks: Box<[HashNode]>,
    ) -> HashTree {
        HashTree { layout, root, groups, blocks }
    }

    /// Returns the root hash.
    pub fn root(&self) -> RootHash {
        self.root
    }

    /// Returns the number of hashed bytes.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Returns the bytes of memory that the tree uses.
    pub(crate) fn weight(&self) -> u64 {
        (size_of::<HashTree>() + (self.groups.len() + self.blocks.len()) * size_of::<HashNode>()) as u64
    }

    /// Returns the block hashes: empty if the object has one block.
    pub(crate) fn blocks(&self) -> &[HashNode] {
        &self.blocks
    }

    /// Returns the group hashes of a block: empty if the object has one group.
    pub(crate) fn groups(&self, block: u32) -> &[HashNode] {
        let Groups { start, end } = self.layout.groups_of(block);
        self.groups.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// Hashes a group of an object that has several. The group has at least one byte.
pub(crate) fn hash_group(group: u32, bytes: &[u8]) -> HashNode {
    Hasher::new().set_input_offset(u64::from(group) * GROUP_BYTES).update(bytes).finalize_non_root()
}

/// Merges the hashes of adjacent subtrees, all of which but the last are complete and of equal size. Needs at least
/// one, and for a root at least two.
pub(crate) fn merge(nodes: &[HashNode], is_root: bool) -> HashNode {
    let [node] = nodes else {
        // The left subtree is the largest complete one that leaves something to the right.
        let (left, right) = nodes.split_at(nodes.len().div_ceil(2).next_power_of_two());
        let (left, right) = (merge(left, false), merge(right, false));
        return match is_root {
            true => *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes(),
            false => merge_subtrees_non_root(&left, &right, Mode::Hash),
        };
    };
    *node
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_GROUPS as u64 * GROUP_BYTES;

    fn bytes(len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        Hasher::new().update(&len.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_root_is_the_hash_of_all_bytes() {
        let lengths = [0, 1, 1023, 1024, 1025, GROUP_BYTES - 1, GROUP_BYTES, GROUP_BYTES + 1, 2 * GROUP_BYTES];
        for len in
            lengths.into_iter().chain([3 * GROUP_BYTES + 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 9])
        {
            let bytes = bytes(len);
            let tree = HashTree::build(&bytes);
            assert_eq!(tree.root(), RootHash::hash(&bytes), "{len} bytes");
            assert_eq!(tree.bytes(), len);
        }
    }

    #[test]
    fn hash_lists_merge_to_their_tree() {
        let tree = HashTree::build(&bytes(3 * BLOCK + GROUP_BYTES + 1));
        assert_eq!(tree.blocks().len(), 4);
        assert_eq!(RootHash(merge(tree.blocks(), true)), tree.root());
        for (block, node) in tree.blocks().iter().enumerate() {
            assert_eq!(merge(tree.groups(block as u32), false), *node);
        }
        let one = HashTree::build(&bytes(BLOCK));
        assert!(one.blocks().is_empty());
        assert_eq!(RootHash(merge(one.groups(0), true)), one.root());
    }
}
