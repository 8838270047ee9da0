//! Progress of a fetch, shared by the fetch itself and by answers that serve it to others.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::layout::{Groups, Layout};
use super::verified_hashes::VerifiedHashes;
use super::{FetchTarget, RootHash, TargetView};

/// State of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupState {
    Missing,
    /// One lease writes it.
    Leased,
    /// Never written again.
    Verified,
}

/// Groups of an object, and their bytes.
pub(crate) struct GroupBytes {
    pub(crate) groups: Groups,
    pub(crate) bytes: Bytes,
}

/// Verified parts of an object that is being fetched.
pub(crate) struct FetchProgress {
    layout: Layout,
    hashes: VerifiedHashes,
    view: Arc<dyn TargetView>,
    state: Mutex<ProgressState>,
    changed: Notify,
}

struct ProgressState {
    groups: Box<[GroupState]>,
    /// The fetch has ended; no group will be added.
    is_over: bool,
}

impl FetchProgress {
    pub(crate) fn new(layout: Layout, root: RootHash, view: Arc<dyn TargetView>) -> FetchProgress {
        let groups = layout.groups().map(|_| GroupState::Missing).collect();
        let state = Mutex::new(ProgressState { groups, is_over: false });
        FetchProgress { layout, hashes: VerifiedHashes::new(layout, root), view, state, changed: Notify::new() }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn hashes(&self) -> &VerifiedHashes {
        &self.hashes
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        // Poisoning is harmless: no code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the fetch as ended and wakes waiters.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_waiters();
    }

    /// Returns the runs of unverified groups in a range.
    pub(crate) fn missing(&self, groups: &Groups) -> Vec<Groups> {
        let state = self.state();
        let mut runs: Vec<Groups> = Vec::new();
        for group in groups.clone().filter(|group| state.groups[*group as usize] != GroupState::Verified) {
            match runs.last_mut() {
                Some(run) if run.end == group => run.end += 1,
                _ => runs.push(group..group + 1),
            }
        }
        runs
    }

    /// Returns the leading run of verified groups in a range, with their bytes; `None` if the first group is missing.
    pub(crate) fn verified(self: &Arc<Self>, groups: &Groups) -> Option<GroupBytes> {
        let state = self.state();
        let end =
            groups.clone().find(|group| state.groups[*group as usize] != GroupState::Verified).unwrap_or(groups.end);
        drop(state);
        let groups = groups.start..end;
        (!groups.is_empty()).then(|| {
            let range = self.layout.range(&groups);
            let (at, len) = (range.start as usize, (range.end - range.start) as usize);
            let bytes = Bytes::from_owner(VerifiedBytes { view: self.view.clone(), at, len });
            GroupBytes { groups, bytes }
        })
    }

    /// Waits until the first group of the range is verified, then returns like [`verified`](Self::verified). Returns
    /// `None` if the fetch ends first.
    pub(crate) async fn wait_for(self: &Arc<Self>, groups: &Groups) -> Option<GroupBytes> {
        loop {
            // Registered before the check, so that no notification is missed.
            let changed = self.changed.notified();
            if let Some(verified) = self.verified(groups) {
                return Some(verified);
            }
            if self.state().is_over {
                return None;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for FetchProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing(&self.layout.groups());
        f.debug_struct("FetchProgress").field("bytes", &self.layout.bytes()).field("missing", &missing).finish()
    }
}

/// Bytes of verified groups.
struct VerifiedBytes {
    view: Arc<dyn TargetView>,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for VerifiedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Layout::range` is in bounds of the target, whose view is alive. Verified groups are never leased
        // again, and only leases write.
        unsafe { std::slice::from_raw_parts(self.view.start().as_ptr().add(self.at), self.len) }
    }
}

/// Exclusive right to write some groups of a target.
pub(crate) struct GroupLease {
    progress: Arc<FetchProgress>,
    /// Keeps the memory alive.
    target: Arc<dyn FetchTarget>,
    groups: Groups,
}

impl GroupLease {
    /// Leases groups; `None` if one of them is leased or verified.
    ///
    /// # Panics
    /// If the target's length differs from the object's.
    pub(crate) fn acquire(
        progress: &Arc<FetchProgress>,
        target: Arc<dyn FetchTarget>,
        groups: Groups,
    ) -> Option<GroupLease> {
        assert_eq!(target.bytes(), progress.layout.bytes());
        let mut state = progress.state();
        let states = state.groups.get_mut(groups.start as usize..groups.end as usize)?;
        if states.iter().any(|group| *group != GroupState::Missing) {
            return None;
        }
        states.fill(GroupState::Leased);
        drop(state);
        Some(GroupLease { progress: progress.clone(), target, groups })
    }

    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    pub(crate) fn progress(&self) -> &FetchProgress {
        &self.progress
    }

    /// Returns the memory of leased groups, to write it.
    ///
    /// # Panics
    /// If a group is not part of this lease, or is verified.
    pub(crate) fn memory(&mut self, groups: &Groups) -> &mut [u8] {
        let all_groups = &self.groups;
        assert!(
            all_groups.start <= groups.start && groups.end <= all_groups.end,
            "groups {groups:?} of a lease of {all_groups:?}"
        );
        let is_leased = |group| self.progress.state().groups[group as usize] == GroupState::Leased;
        assert!(groups.clone().all(is_leased), "groups {groups:?} are verified");
        let range = self.progress.layout.range(groups);
        let (at, len) = (range.start as usize, (range.end - range.start) as usize);
        // SAFETY: the range is in bounds of the target, whose length equals the layout's (checked in `acquire`) and
        // which this lease keeps alive. The groups are leased, and to this lease only, so this borrow is the only
        // access.
        unsafe { std::slice::from_raw_parts_mut(self.target.start().as_ptr().add(at), len) }
    }

    /// Verifies a written group and returns whether it is right. From then on others may read it.
    ///
    /// # Panics
    /// Like [`memory`](Self::memory).
    pub(crate) fn verify(&mut self, group: u32) -> bool {
        let progress = self.progress.clone();
        let is_right = progress.hashes.is_group(group, self.memory(&(group..group + 1)));
        if is_right {
            progress.state().groups[group as usize] = GroupState::Verified;
            progress.changed.notify_waiters();
        }
        is_right
    }
}

impl Drop for GroupLease {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        for group in &mut state.groups[self.groups.start as usize..self.groups.end as usize] {
            if *group == GroupState::Leased {
                *group = GroupState::Missing;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::GROUP_BYTES;
    use super::*;
    use crate::transfer::{HashTree, HeapTarget};

    const GROUP_LEN: usize = GROUP_BYTES as usize;

    fn fetching(bytes: &[u8]) -> (Arc<FetchProgress>, Arc<dyn FetchTarget>) {
        let target: Arc<dyn FetchTarget> = Arc::new(HeapTarget::new(bytes.len() as u64).unwrap());
        let tree = HashTree::build(bytes);
        let progress = FetchProgress::new(Layout::of_memory(bytes), tree.root(), target.view());
        progress.hashes().add_groups(0, tree.groups(0).into());
        (Arc::new(progress), target)
    }

    fn write(lease: &mut GroupLease, bytes: &[u8], group: u32) -> bool {
        let at = group as usize * GROUP_LEN;
        let memory = lease.memory(&(group..group + 1));
        memory.copy_from_slice(&bytes[at..at + memory.len()]);
        lease.verify(group)
    }

    #[test]
    fn a_group_has_one_writer_and_none_once_it_is_verified() {
        let bytes: Vec<u8> = (0..3 * GROUP_LEN + 5).map(|i| (i / 777) as u8).collect();
        let (progress, target) = fetching(&bytes);
        let lease = |groups| GroupLease::acquire(&progress, target.clone(), groups);
        let mut first = lease(0..2).unwrap();
        assert!(lease(1..3).is_none() && lease(0..1).is_none() && lease(3..5).is_none());
        let mut last = lease(3..4).unwrap();
        assert!(progress.verified(&(3..4)).is_none());
        assert!(!last.verify(3), "these are zeros");
        assert!(write(&mut last, &bytes, 3) && write(&mut first, &bytes, 0));
        drop((first, last));
        assert!(lease(0..1).is_none());
        assert_eq!(progress.missing(&(0..4)), vec![1..3]);
        let GroupBytes { groups, bytes: verified } = progress.verified(&(3..4)).unwrap();
        assert_eq!((groups, &verified[..]), (3..4, &bytes[3 * GROUP_LEN..]));
        let mut rest = lease(1..3).unwrap();
        assert!(write(&mut rest, &bytes, 1) && write(&mut rest, &bytes, 2));
        drop((rest, target));
        assert_eq!(progress.verified(&(0..4)).unwrap().bytes[..], bytes[..], "the view outlives the target");
    }

    #[test]
    #[should_panic(expected = "groups 0..2 of a lease of 0..1")]
    fn a_lease_is_of_its_groups_alone() {
        let (progress, target) = fetching(&[1; 2 * GROUP_LEN]);
        GroupLease::acquire(&progress, target, 0..1).unwrap().memory(&(0..2));
    }

    #[tokio::test]
    async fn waiters_are_notified() {
        let bytes = vec![9; 2 * GROUP_LEN];
        let (progress, target) = fetching(&bytes);
        let mut lease = GroupLease::acquire(&progress, target, 0..2).unwrap();
        let waits = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for(&(1..2)).await }
        });
        tokio::task::yield_now().await;
        assert!(write(&mut lease, &bytes, 0) && !waits.is_finished());
        assert!(write(&mut lease, &bytes, 1));
        assert_eq!(waits.await.unwrap().unwrap().groups, 1..2);
        let (progress, _target) = fetching(&bytes);
        progress.end();
        assert!(progress.wait_for(&(0..1)).await.is_none());
    }
}
