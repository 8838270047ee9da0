//! The groups of a fetch that are not requested yet.

use std::collections::BTreeMap;

use super::layout::{Groups, Layout};

/// Index of a holder in a fetch.
pub(crate) type HolderIndex = usize;

/// Unrequested groups, lowest first: nodes that fetch from this one in the same order find them early.
#[derive(Debug)]
pub(crate) struct PiecePlan {
    layout: Layout,
    piece_groups: u32,
    /// By first group: the end, and the holder that failed to deliver them.
    missing: BTreeMap<u32, (u32, Option<HolderIndex>)>,
}

impl PiecePlan {
    /// Plans all groups of an object.
    pub(crate) fn new(layout: Layout, piece_groups: u32) -> PiecePlan {
        let groups = layout.groups();
        let missing = (!groups.is_empty()).then_some((groups.start, (groups.end, None)));
        PiecePlan { layout, piece_groups: piece_groups.max(1), missing: missing.into_iter().collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// Removes the next groups for a holder: at most a piece, within one block. Skips groups that this holder failed to
    /// deliver, unless it is the only one.
    pub(crate) fn take(&mut self, by: HolderIndex, is_only: bool) -> Option<Groups> {
        let may = |had: Option<HolderIndex>| is_only || had != Some(by);
        let (&start, &(end, had)) = self.missing.iter().find(|(_, (_, had))| may(*had))?;
        let in_piece = (start / self.piece_groups + 1) * self.piece_groups;
        let in_block = self.layout.groups_of(self.layout.block_of(start)).end;
        let groups = start..end.min(in_piece).min(in_block);
        self.missing.remove(&start);
        if groups.end < end {
            self.missing.insert(groups.end, (end, had));
        }
        Some(groups)
    }

    /// Returns groups to the plan. `had` is the holder that failed to deliver them.
    pub(crate) fn give_back(&mut self, groups: Groups, had: Option<HolderIndex>) {
        if !groups.is_empty() {
            self.missing.insert(groups.start, (groups.end, had));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{BLOCK_GROUPS, GROUP_BYTES};
    use super::*;

    fn plan(groups: u32, piece: u32) -> PiecePlan {
        PiecePlan::new(Layout::for_bytes(u64::from(groups) * GROUP_BYTES).unwrap(), piece)
    }

    #[test]
    fn pieces_cover_all_groups_once_in_order() {
        for (groups, piece) in [(0, 4), (1, 4), (4, 4), (9, 4), (600, 100), (BLOCK_GROUPS * 2 + 1, 256)] {
            let (mut plan, mut at) = (plan(groups, piece), 0);
            while let Some(taken) = plan.take(0, false) {
                assert_eq!(taken.start, at);
                assert!(plan.layout.has(&taken) && taken.len() <= piece as usize, "{taken:?}");
                at = taken.end;
            }
            assert_eq!(at, groups);
            assert!(plan.is_empty());
        }
    }

    #[test]
    fn returned_pieces_go_to_another_holder() {
        let mut plan = plan(8, 4);
        assert_eq!((plan.take(0, false), plan.take(1, false)), (Some(0..4), Some(4..8)));
        plan.give_back(2..4, Some(0));
        plan.give_back(5..6, None);
        assert_eq!((plan.take(0, false), plan.take(0, false)), (Some(5..6), None));
        assert_eq!(plan.take(1, false), Some(2..4));
        plan.give_back(2..4, Some(1));
        assert_eq!((plan.take(1, false), plan.take(1, true)), (None, Some(2..4)));
    }
}
