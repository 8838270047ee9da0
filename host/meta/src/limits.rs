//! All limits of a metadata store, with their defaults.

use crate::{LimitKind, MetaError};

/// Limits of requests, responses and stored data. [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) limits keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaLimits {
    /// Bytes of one value.
    pub value_bytes_max: usize,
    /// Conditions of a transaction, and operations of each of its branches. Same as etcd's default.
    pub operations_max: usize,
    /// Bytes of all keys and values of a transaction. With the overhead of a message, the total must stay below etcd's
    /// default of 1.5 MiB.
    pub transaction_bytes_max: usize,
    /// Entries of a page, and changes per delivery to a watcher, except for a single larger transaction.
    pub page_entries_max: usize,
    /// Bytes of keys and values of a page, and per delivery to a watcher, except for a single larger entry or
    /// transaction.
    pub page_bytes_max: usize,
    /// Concurrent watchers of one store. They have no buffers: each reads the shared history from its position.
    pub watchers_max: usize,
    /// Changes kept in the history; older transactions are compacted. etcd has its own setting
    /// (`--auto-compaction-retention`).
    pub history_changes_max: usize,
    /// Bytes of keys and values of the history, which is in memory.
    pub history_bytes_max: usize,
    /// Concurrent leases. etcd has no such limit.
    pub leases_max: usize,
    /// Maximum time to live of a lease, in seconds.
    pub lease_ttl_s_max: u32,
    /// Bytes of all keys and values. etcd has its own setting (`--quota-backend-bytes`).
    pub store_bytes_max: u64,
    /// Requests queued for the writer of a file; senders of further requests wait.
    pub requests_waiting_max: usize,
    /// Requests that share one durable commit.
    pub requests_together_max: usize,
    /// Size of a file's page cache, in bytes.
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
    /// Returns the number of entries of a page with a requested `limit`; zero requests a full page.
    pub(crate) fn page_entries(&self, limit: usize) -> usize {
        if limit == 0 { self.page_entries_max } else { limit.min(self.page_entries_max) }
    }

    /// Checks that a lease of `ttl_s` seconds may be granted while `leases` leases exist.
    pub(crate) fn check_lease(&self, ttl_s: u32, leases: usize) -> Result<(), MetaError> {
        if ttl_s == 0 || ttl_s > self.lease_ttl_s_max {
            let max = u64::from(self.lease_ttl_s_max);
            return Err(MetaError::Limit { bound: LimitKind::LeaseSeconds, value: ttl_s.into(), max });
        }
        if leases >= self.leases_max {
            return Err(MetaError::limit(LimitKind::Leases, leases + 1, self.leases_max));
        }
        Ok(())
    }

    /// Checks that `put` more bytes fit beside `bytes` existing ones. Ignores that a put may overwrite existing bytes.
    pub(crate) fn check_space(&self, bytes: u64, put: u64) -> Result<(), MetaError> {
        if put > 0 && bytes + put > self.store_bytes_max {
            let max = self.store_bytes_max;
            let reason = format!(
                "the store holds {bytes} bytes of at most {max}, and {put} more do not fit; delete unused keys"
            );
            return Err(MetaError::Full(reason));
        }
        Ok(())
    }
}
