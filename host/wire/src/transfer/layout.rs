//! Division of an object into groups, the unit of verification, and blocks, whose group hashes are sent together.

use std::ops::Range;

/// Bytes of a group, the unit of verification and of refetching. Part of the protocol. BLAKE3 reaches its full speed at
/// 64 KiB, and the hashes add 1/2000 to the bytes.
pub(crate) const GROUP_BYTES: u64 = 64 << 10;

/// Groups of a block. Part of the protocol. Two levels of hash lists keep each list small relative to its data: 8 KiB
/// of group hashes for each 16 MiB block, plus 32 bytes for each block.
pub(crate) const BLOCK_GROUPS: u32 = 256;

/// A range of groups, end excluded.
pub(crate) type Groups = Range<u32>;

/// The layout of an object of a given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    bytes: u64,
}

impl Layout {
    /// Returns `None` if the group count exceeds `u32`.
    pub(crate) fn for_bytes(bytes: u64) -> Option<Layout> {
        u32::try_from(bytes.div_ceil(GROUP_BYTES)).ok().map(|_| Layout { bytes })
    }

    /// Returns the layout of bytes in memory.
    ///
    /// # Panics
    /// If the bytes exceed 256 TiB, which no process can have.
    pub(crate) fn of_memory(bytes: &[u8]) -> Layout {
        let layout = Layout { bytes: bytes.len() as u64 };
        assert!(Layout::for_bytes(layout.bytes).is_some(), "{} bytes of memory", bytes.len());
        layout
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns all groups.
    pub(crate) fn groups(self) -> Groups {
        0..self.bytes.div_ceil(GROUP_BYTES) as u32
    }

    pub(crate) fn blocks(self) -> u32 {
        self.groups().end.div_ceil(BLOCK_GROUPS)
    }

    pub(crate) fn block_of(self, group: u32) -> u32 {
        group / BLOCK_GROUPS
    }

    pub(crate) fn groups_of(self, block: u32) -> Groups {
        let first = block * BLOCK_GROUPS;
        first..first.saturating_add(BLOCK_GROUPS).min(self.groups().end)
    }

    /// Returns whether the range is valid: not empty, in bounds, and within one block.
    pub(crate) fn has(self, groups: &Groups) -> bool {
        groups.start < groups.end
            && groups.end <= self.groups().end
            && self.block_of(groups.start) == self.block_of(groups.end - 1)
    }

    /// Returns the byte range of groups.
    pub(crate) fn range(self, groups: &Groups) -> Range<u64> {
        let at = |group: u32| (u64::from(group) * GROUP_BYTES).min(self.bytes);
        at(groups.start)..at(groups.end)
    }

    /// Returns the bytes of groups.
    pub(crate) fn len(self, groups: &Groups) -> u64 {
        let range = self.range(groups);
        range.end - range.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_group_and_every_group_in_one_block() {
        let block = u64::from(BLOCK_GROUPS) * GROUP_BYTES;
        for bytes in [0, 1, GROUP_BYTES - 1, GROUP_BYTES, GROUP_BYTES + 1, block - 1, block, block + 1, 5 * block + 7] {
            let layout = Layout::for_bytes(bytes).unwrap();
            let mut at = 0;
            for block in 0..layout.blocks() {
                for group in layout.groups_of(block) {
                    let range = layout.range(&(group..group + 1));
                    assert_eq!((range.start, layout.block_of(group)), (at, block));
                    assert!(range.end > at && range.end - at <= GROUP_BYTES);
                    at = range.end;
                }
            }
            assert_eq!(at, bytes);
            assert_eq!(layout.len(&layout.groups()), bytes);
        }
    }

    #[test]
    fn only_groups_of_one_block_are_requested_together() {
        let layout = Layout::for_bytes(300 * GROUP_BYTES).unwrap();
        for (groups, expected) in [(0..1, true), (0..256, true), (255..257, false), (299..300, true), (299..301, false)]
        {
            assert_eq!(layout.has(&groups), expected, "{groups:?}");
        }
        assert!(!layout.has(&Groups { start: 5, end: 5 }) && !layout.has(&Groups { start: 5, end: 4 }));
        assert!(Layout::for_bytes(u64::MAX).is_none());
    }
}
