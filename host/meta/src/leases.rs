//! Active leases and their expiry times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::LeaseId;

/// Active leases. Times are those of a [`Clock`](crate::Clock).
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_id: BTreeMap<LeaseId, Lease>,
    by_end: BTreeSet<(Duration, LeaseId)>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    ttl_s: u32,
    end: Duration,
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Starts a lease.
    pub(crate) fn begin(&mut self, id: LeaseId, ttl_s: u32, now: Duration) {
        let end = now + Duration::from_secs(ttl_s.into());
        self.end(id);
        self.by_id.insert(id, Lease { ttl_s, end });
        self.by_end.insert((end, id));
    }

    /// Renews a lease. Returns its period in seconds, or `None` if it has ended.
    pub(crate) fn keep_alive(&mut self, id: LeaseId, now: Duration) -> Option<u32> {
        let Lease { ttl_s, end } = *self.by_id.get(&id)?;
        if end <= now {
            return None;
        }
        self.begin(id, ttl_s, now);
        Some(ttl_s)
    }

    /// Ends a lease. Returns whether it existed.
    pub(crate) fn end(&mut self, id: LeaseId) -> bool {
        let Some(lease) = self.by_id.remove(&id) else { return false };
        self.by_end.remove(&(lease.end, id))
    }

    pub(crate) fn contains(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns the expired leases in order of their expiry. Does not remove them.
    pub(crate) fn overdue(&self, now: Duration) -> Vec<LeaseId> {
        self.by_end.iter().take_while(|(end, _)| *end <= now).map(|(_, id)| *id).collect()
    }

    /// Returns the next expiry time.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        self.by_end.first().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_in_order_unless_kept_alive() {
        let mut leases = Leases::default();
        let at = Duration::from_secs;
        for (id, ttl_s) in [(1, 5), (2, 3), (3, 5)] {
            leases.begin(LeaseId(id), ttl_s, at(0));
        }
        assert_eq!(leases.next_end(), Some(at(3)));
        assert_eq!(leases.keep_alive(LeaseId(2), at(2)), Some(3));
        assert_eq!(leases.overdue(at(4)), []);
        assert_eq!(leases.overdue(at(5)), [LeaseId(1), LeaseId(2), LeaseId(3)]);
        assert_eq!(leases.keep_alive(LeaseId(1), at(5)), None, "it should have ended");
        assert!(leases.end(LeaseId(1)) && !leases.end(LeaseId(1)));
        assert_eq!(leases.overdue(at(9)), [LeaseId(2), LeaseId(3)]);
        assert!(leases.contains(LeaseId(2)) && !leases.contains(LeaseId(1)));
    }
}
