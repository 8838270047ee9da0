//! This node's copy of what the cluster accepts: its tenants and their tokens, and the keys of removed nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandbar_meta::Revision;
use sandbar_wire::{AcceptedTenants, AccessList, Endpoint, Name};

use super::registry::{Access, read_access};
use super::settings::TenantSettings;
use crate::error::ClusterError;

/// Interval at which the node asks the store whether anything has changed. A revocation must reach every node within 5 s.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval, whatever tenants cause.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum time of one read of the store.
const READ_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum age of the copy. A node that can't read the store for longer accepts no tenants, as any of them may have been
/// revoked.
const AGE_MAX: Duration = Duration::from_secs(30);

/// Settings of all tenants.
#[derive(Debug, Default)]
pub(crate) struct TenantDirectory(Mutex<Arc<BTreeMap<Name, TenantSettings>>>);

impl TenantDirectory {
    /// Returns the settings of a tenant, if it exists.
    pub(crate) fn settings(&self, tenant: &Name) -> Option<TenantSettings> {
        self.lock().get(tenant).copied()
    }

    /// Returns all tenants.
    pub(crate) fn all(&self) -> Arc<BTreeMap<Name, TenantSettings>> {
        self.lock().clone()
    }

    fn set(&self, settings: BTreeMap<Name, TenantSettings>) {
        *self.lock() = Arc::new(settings);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<BTreeMap<Name, TenantSettings>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the list of accepted certificates of a node that has not read the store yet.
pub(crate) fn before_first_read() -> AccessList {
    AccessList { tenants: AcceptedTenants::Unknown, ..AccessList::default() }
}

/// Keeps the copy and the endpoint's list of accepted certificates up to date. Calls `on_change` after each change with
/// the new list. Never returns.
pub(crate) async fn observe_access(
    store: &dyn sandbar_meta::MetaStore,
    endpoint: &Endpoint,
    directory: &TenantDirectory,
    on_change: impl Fn(&AccessList),
) {
    let mut known: Option<Revision> = None;
    let mut accepted = before_first_read();
    let (mut read_at, mut is_stale) = (Instant::now(), true);
    loop {
        let started = Instant::now();
        match tokio::time::timeout(READ_TIME_MAX, read_access(store, known)).await {
            Ok(Ok(read)) => {
                // Whatever changed since the read began may be missing.
                read_at = started;
                let is_new = read.is_some();
                if let Some(Access { accepted: list, settings, revision }) = read {
                    (known, accepted) = (Some(revision), list);
                    directory.set(settings);
                    on_change(&accepted);
                }
                if is_new || is_stale {
                    endpoint.set_accepted(accepted.clone());
                    is_stale = false;
                }
                endpoint.confirm_accepted();
            }
            failed => {
                let error = failed.unwrap_or_else(|_| Err(ClusterError::MessageTimedOut(READ_TIME_MAX)));
                if let Err(error) = error {
                    log::debug!("the tenants of the cluster can't be read: {error}");
                }
                if !is_stale && read_at.elapsed() > AGE_MAX {
                    is_stale = true;
                    let seconds = AGE_MAX.as_secs();
                    log::warn!(
                        "the cluster's store could not be read for {seconds} s: this node accepts no tenants until it can, \
                         as they may have been revoked"
                    );
                    let tenants = AcceptedTenants::Unknown;
                    endpoint.set_accepted(AccessList { tenants, revoked_keys: accepted.revoked_keys.clone() });
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL_MIN).await;
        // A tenant with an unknown token does not wait for the interval.
        let _ = tokio::time::timeout(POLL_INTERVAL, endpoint.access_wanted()).await;
    }
}
