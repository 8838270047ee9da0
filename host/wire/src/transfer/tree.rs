//! The hash tree of an object: BLAKE3's own, cut off above the groups.
//!
//! A group's hash is the chaining value of the subtree over its bytes, so that a list of them can be merged to the hash
//! of the whole, which is BLAKE3's of the bytes (section 2.1 of its paper). Lists are sent whole and merged before any of
//! their hashes is believed: the hashes of a block's groups merge to the block's, those of the blocks to the root.

use std::fmt;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};

use super::layout::{BLOCK_GROUPS, GROUP_BYTES, Groups, Layout};

/// A node of a hash tree.
pub(crate) type Node = [u8; 32];

/// The BLAKE3 hash of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Root(pub [u8; 32]);

impl Root {
    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Root {
        Root(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({})", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// The hashes of all groups of an object, and of all of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Tree {
    layout: Layout,
    root: Root,
    groups: Box<[Node]>,
    /// The hashes of blocks, where there are several.
    blocks: Box<[Node]>,
}

impl Tree {
    /// Hashes bytes, all of them.
    pub fn of(bytes: &[u8]) -> Tree {
        let layout = Layout::of_memory(bytes);
        let groups = layout.groups().map(|group| {
            let range = layout.range(&(group..group + 1));
            hash_group(group, &bytes[range.start as usize..range.end as usize])
        });
        match layout.groups().end {
            0 | 1 => Tree { layout, root: Root::of(bytes), groups: Box::default(), blocks: Box::default() },
            _ => Tree::of_groups(layout, groups.collect()),
        }
    }

    fn of_groups(layout: Layout, groups: Box<[Node]>) -> Tree {
        let blocks: Box<[Node]> = match layout.blocks() {
            0 | 1 => Box::default(),
            _ => groups.chunks(BLOCK_GROUPS as usize).map(|of_block| merge(of_block, false)).collect(),
        };
        let root = Root(merge(if blocks.is_empty() { &groups } else { &blocks }, true));
        Tree { layout, root, groups, blocks }
    }

    /// Of lists that were verified.
    pub(crate) fn of_lists(layout: Layout, root: Root, groups: Box<[Node]>, blocks: Box<[Node]>) -> Tree {
        Tree { layout, root, groups, blocks }
    }

    /// The hash of all.
    pub fn root(&self) -> Root {
        self.root
    }

    /// How many bytes were hashed.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Bytes of memory that it takes.
    pub(crate) fn weight(&self) -> u64 {
        (size_of::<Tree>() + (self.groups.len() + self.blocks.len()) * size_of::<Node>()) as u64
    }

    /// The hashes of blocks: none where there is one block.
    pub(crate) fn blocks(&self) -> &[Node] {
        &self.blocks
    }

    /// The hashes of a block's groups: none where the object has one group.
    pub(crate) fn groups(&self, block: u32) -> &[Node] {
        let Groups { start, end } = self.layout.groups_of(block);
        self.groups.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// The hash of a group that is not all of an object. At least one byte.
pub(crate) fn hash_group(group: u32, bytes: &[u8]) -> Node {
    Hasher::new().set_input_offset(u64::from(group) * GROUP_BYTES).update(bytes).finalize_non_root()
}

/// The hash over neighbouring subtrees, of which all but the last are complete and equally large; at least one, and for
/// a root at least two.
pub(crate) fn merge(nodes: &[Node], is_root: bool) -> Node {
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
            let tree = Tree::of(&bytes);
            assert_eq!(tree.root(), Root::of(&bytes), "{len} bytes");
            assert_eq!(tree.bytes(), len);
        }
    }

    #[test]
    fn lists_merge_to_what_they_are_the_lists_of() {
        let tree = Tree::of(&bytes(3 * BLOCK + GROUP_BYTES + 1));
        assert_eq!(tree.blocks().len(), 4);
        assert_eq!(Root(merge(tree.blocks(), true)), tree.root());
        for (block, node) in tree.blocks().iter().enumerate() {
            assert_eq!(merge(tree.groups(block as u32), false), *node);
        }
        let one = Tree::of(&bytes(BLOCK));
        assert!(one.blocks().is_empty());
        assert_eq!(Root(merge(one.groups(0), true)), one.root());
    }
}
