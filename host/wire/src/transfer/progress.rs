//! What there is of an object that is being fetched: shared between whoever fetches it and whoever serves it to others.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::layout::{Groups, Layout};
use super::nodes::Nodes;
use super::{Root, Target, View};

/// Where a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Missing,
    /// One lease writes it.
    Leased,
    /// It is never written again.
    Verified,
}

/// An object that is being fetched.
pub(crate) struct Progress {
    layout: Layout,
    nodes: Nodes,
    view: Arc<dyn View>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    groups: Box<[Group]>,
    /// Nothing will be added any more.
    is_over: bool,
}

impl Progress {
    pub(crate) fn new(layout: Layout, root: Root, view: Arc<dyn View>) -> Progress {
        let groups = layout.groups().map(|_| Group::Missing).collect();
        let state = Mutex::new(State { groups, is_over: false });
        Progress { layout, nodes: Nodes::new(layout, root), view, state, changed: Notify::new() }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing will be added: who waits for more need not.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_waiters();
    }

    /// Which of these groups are not verified, in runs.
    pub(crate) fn missing(&self, groups: &Groups) -> Vec<Groups> {
        let state = self.state();
        let mut runs: Vec<Groups> = Vec::new();
        for group in groups.clone().filter(|group| state.groups[*group as usize] != Group::Verified) {
            match runs.last_mut() {
                Some(run) if run.end == group => run.end += 1,
                _ => runs.push(group..group + 1),
            }
        }
        runs
    }

    /// Verified bytes from the start of `groups` on, as many groups as there are in a row: none when the first is
    /// missing.
    pub(crate) fn verified(self: &Arc<Self>, groups: &Groups) -> Option<(Groups, Bytes)> {
        let state = self.state();
        let end = groups.clone().find(|group| state.groups[*group as usize] != Group::Verified).unwrap_or(groups.end);
        drop(state);
        let groups = groups.start..end;
        (!groups.is_empty()).then(|| {
            let range = self.layout.range(&groups);
            let (at, len) = (range.start as usize, (range.end - range.start) as usize);
            (groups, Bytes::from_owner(Verified { view: self.view.clone(), at, len }))
        })
    }

    /// Waits until the first of `groups` is verified, and gives what [`verified`](Self::verified) does; nothing when it
    /// will never be.
    pub(crate) async fn wait_for(self: &Arc<Self>, groups: &Groups) -> Option<(Groups, Bytes)> {
        loop {
            // Made before looking, so that no change in between is missed.
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

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing(&self.layout.groups());
        f.debug_struct("Progress").field("bytes", &self.layout.bytes()).field("missing", &missing).finish()
    }
}

/// Bytes that are verified.
struct Verified {
    view: Arc<dyn View>,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for Verified {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: in bounds of the target (`Layout::range`), whose view lives; verified groups are never leased again,
        // and nothing but a lease writes.
        unsafe { std::slice::from_raw_parts(self.view.start().as_ptr().add(self.at), self.len) }
    }
}

/// The right to write some groups of a target, which nobody else has.
pub(crate) struct Lease {
    progress: Arc<Progress>,
    /// Keeps the memory.
    target: Arc<dyn Target>,
    groups: Groups,
}

impl Lease {
    /// Of groups of which none is leased or verified, or none.
    ///
    /// # Panics
    /// When the target has another length than the object.
    pub(crate) fn of(progress: &Arc<Progress>, target: Arc<dyn Target>, groups: Groups) -> Option<Lease> {
        assert_eq!(target.bytes(), progress.layout.bytes());
        let mut state = progress.state();
        let places = state.groups.get_mut(groups.start as usize..groups.end as usize)?;
        if places.iter().any(|group| *group != Group::Missing) {
            return None;
        }
        places.fill(Group::Leased);
        drop(state);
        Some(Lease { progress: progress.clone(), target, groups })
    }

    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The memory of groups of this lease, to be written.
    ///
    /// # Panics
    /// When one is not of this lease, or verified.
    pub(crate) fn memory(&mut self, groups: &Groups) -> &mut [u8] {
        let of = &self.groups;
        assert!(of.start <= groups.start && groups.end <= of.end, "groups {groups:?} of a lease of {of:?}");
        let is_leased = |group| self.progress.state().groups[group as usize] == Group::Leased;
        assert!(groups.clone().all(is_leased), "groups {groups:?} are verified");
        let range = self.progress.layout.range(groups);
        let (at, len) = (range.start as usize, (range.end - range.start) as usize);
        // SAFETY: in bounds of the target, which is as long as the layout and kept by this lease; the groups are leased,
        // to this lease alone, so that nobody reads or writes them but by this borrow.
        unsafe { std::slice::from_raw_parts_mut(self.target.start().as_ptr().add(at), len) }
    }

    /// Whether what was written to a group is right. From here on others may read it.
    ///
    /// # Panics
    /// As [`memory`](Self::memory).
    pub(crate) fn verify(&mut self, group: u32) -> bool {
        let progress = self.progress.clone();
        let is_right = progress.nodes.is_group(group, self.memory(&(group..group + 1)));
        if is_right {
            progress.state().groups[group as usize] = Group::Verified;
            progress.changed.notify_waiters();
        }
        is_right
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        for group in &mut state.groups[self.groups.start as usize..self.groups.end as usize] {
            if *group == Group::Leased {
                *group = Group::Missing;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::GROUP_BYTES;
    use super::*;
    use crate::transfer::{HeapTarget, Tree};

    const GROUP_LEN: usize = GROUP_BYTES as usize;

    fn fetching(bytes: &[u8]) -> (Arc<Progress>, Arc<dyn Target>) {
        let target: Arc<dyn Target> = Arc::new(HeapTarget::new(bytes.len() as u64).unwrap());
        let tree = Tree::of(bytes);
        let progress = Progress::new(Layout::of_memory(bytes), tree.root(), target.view());
        progress.nodes().add_groups(0, tree.groups(0).into());
        (Arc::new(progress), target)
    }

    fn write(lease: &mut Lease, bytes: &[u8], group: u32) -> bool {
        let at = group as usize * GROUP_LEN;
        let memory = lease.memory(&(group..group + 1));
        memory.copy_from_slice(&bytes[at..at + memory.len()]);
        lease.verify(group)
    }

    #[test]
    fn a_group_has_one_writer_and_none_once_it_is_verified() {
        let bytes: Vec<u8> = (0..3 * GROUP_LEN + 5).map(|i| (i / 777) as u8).collect();
        let (progress, target) = fetching(&bytes);
        let lease = |groups| Lease::of(&progress, target.clone(), groups);
        let mut first = lease(0..2).unwrap();
        assert!(lease(1..3).is_none() && lease(0..1).is_none() && lease(3..5).is_none());
        let mut last = lease(3..4).unwrap();
        assert!(progress.verified(&(3..4)).is_none());
        assert!(!last.verify(3), "these are zeros");
        assert!(write(&mut last, &bytes, 3) && write(&mut first, &bytes, 0));
        drop((first, last));
        assert!(lease(0..1).is_none());
        assert_eq!(progress.missing(&(0..4)), vec![1..3]);
        let (groups, verified) = progress.verified(&(3..4)).unwrap();
        assert_eq!((groups, &verified[..]), (3..4, &bytes[3 * GROUP_LEN..]));
        let mut rest = lease(1..3).unwrap();
        assert!(write(&mut rest, &bytes, 1) && write(&mut rest, &bytes, 2));
        drop((rest, target));
        assert_eq!(progress.verified(&(0..4)).unwrap().1[..], bytes[..], "the view outlives the target");
    }

    #[test]
    #[should_panic(expected = "groups 0..2 of a lease of 0..1")]
    fn a_lease_is_of_its_groups_alone() {
        let (progress, target) = fetching(&[1; 2 * GROUP_LEN]);
        Lease::of(&progress, target, 0..1).unwrap().memory(&(0..2));
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let bytes = vec![9; 2 * GROUP_LEN];
        let (progress, target) = fetching(&bytes);
        let mut lease = Lease::of(&progress, target, 0..2).unwrap();
        let waits = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for(&(1..2)).await }
        });
        tokio::task::yield_now().await;
        assert!(write(&mut lease, &bytes, 0) && !waits.is_finished());
        assert!(write(&mut lease, &bytes, 1));
        assert_eq!(waits.await.unwrap().unwrap().0, 1..2);
        let (progress, _target) = fetching(&bytes);
        progress.end();
        assert!(progress.wait_for(&(0..1)).await.is_none());
    }
}
