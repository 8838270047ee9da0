//! Every bound of a store, in one place, with its default.

use crate::{Bound, MetaError};

/// What a store takes, keeps and hands out. Keys have a bound of their own, [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaLimits {
    /// Bytes of one value.
    pub value_bytes_max: usize,
    /// Conditions of a transaction; operations of either of its branches. etcd's own default is the same.
    pub operations_max: usize,
    /// Bytes of all keys and values of a transaction. With what a message adds, it is to stay below the 1.5 MiB that etcd
    /// takes by default.
    pub transaction_bytes_max: usize,
    /// Entries of a page, and changes that a watcher is given at once, unless one transaction made more.
    pub page_entries_max: usize,
    /// Bytes of keys and values of a page, and of changes given at once, unless one entry or transaction has more.
    pub page_bytes_max: usize,
    /// Watchers of one store at once. They buffer nothing: each reads on where it was.
    pub watchers_max: usize,
    /// Changes that can still be watched; the transactions before them are compacted away. Of etcd its own settings say
    /// (`--auto-compaction-retention`).
    pub history_changes_max: usize,
    /// Bytes of keys and values of these changes. They are in memory.
    pub history_bytes_max: usize,
    /// Leases at once. etcd has no such bound.
    pub leases_max: usize,
    /// Seconds that a lease may last without being kept alive.
    pub lease_ttl_s_max: u32,
    /// Bytes of all keys and values. Of etcd its own setting says (`--quota-backend-bytes`).
    pub store_bytes_max: u64,
    /// Requests that wait for the writer of a file; who comes later waits to wait.
    pub requests_waiting_max: usize,
    /// Requests that share one durable commit.
    pub requests_together_max: usize,
    /// Memory in which a file's pages are kept, bytes.
    pub cache_bytes: usize,
}

impl Default for MetaLimits {
    fn default() -> Self {
        MetaLimits {
            value_bytes_max: 1 << 20,
            operations_max: 128,
            transaction_bytes_max: 1280 << 10,
            page_entries_max: 1000,
            page_bytes_max: 2 << 20,
            watchers_max: 1024,
            history_changes_max: 10_000,
            history_bytes_max: 32 << 20,
            leases_max: 10_000,
            lease_ttl_s_max: 86_400,
            store_bytes_max: 2 << 30,
            requests_waiting_max: 256,
            requests_together_max: 256,
            cache_bytes: 64 << 20,
        }
    }
}

impl MetaLimits {
    /// Entries of a page of which at most `limit` are wanted; none says that it is all one.
    pub(crate) fn page_entries(&self, limit: usize) -> usize {
        if limit == 0 { self.page_entries_max } else { limit.min(self.page_entries_max) }
    }

    /// Whether another lease of so many seconds may begin, beside so many.
    pub(crate) fn check_lease(&self, ttl_s: u32, leases: usize) -> Result<(), MetaError> {
        if ttl_s == 0 || ttl_s > self.lease_ttl_s_max {
            let max = u64::from(self.lease_ttl_s_max);
            return Err(MetaError::Limit { bound: Bound::LeaseSeconds, value: ttl_s.into(), max });
        }
        if leases >= self.leases_max {
            return Err(MetaError::limit(Bound::Leases, leases + 1, self.leases_max));
        }
        Ok(())
    }

    /// Whether there is room for `put` bytes more beside those that there are. What they overwrite is not looked at.
    pub(crate) fn check_room(&self, bytes: u64, put: u64) -> Result<(), MetaError> {
        if put > 0 && bytes + put > self.store_bytes_max {
            let max = self.store_bytes_max;
            let reason =
                format!("it has {bytes} bytes of at most {max}, {put} more were to be put; delete what is not needed");
            return Err(MetaError::Full(reason));
        }
        Ok(())
    }
}
