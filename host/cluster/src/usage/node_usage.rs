//! Usage on this node.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbar_core::{JobRun, TenantId, UsageAmounts};
use sandbar_jobs::now_ms;
use sandbar_wire::Name;

use super::store::UsageStore;

/// Folder of the files, in the data folder.
const USAGE: &str = "usage";
/// The job of what a tenant has used without one.
const UPLOADS: &str = "(uploads)";

/// Usage on this node.
pub(crate) struct NodeUsage {
    store: Mutex<UsageStore>,
    /// Names of the tenants that exist or have existed.
    names: Mutex<BTreeMap<TenantId, Name>>,
    /// Held while usage is on its way from the runtime to the store.
    pub(super) collecting: tokio::sync::Mutex<()>,
}

impl NodeUsage {
    /// Opens the files in the folder of a node.
    pub(crate) fn open(data: &Path) -> NodeUsage {
        let store = Mutex::new(UsageStore::open(data.join(USAGE), now_ms()));
        NodeUsage { store, names: Mutex::default(), collecting: tokio::sync::Mutex::default() }
    }

    /// Counts bytes that a client of a tenant has sent.
    pub(crate) fn add_upload(&self, tenant: &Name, bytes: u64) {
        let amounts = UsageAmounts { upload_bytes: bytes, ..UsageAmounts::default() };
        self.store().add(tenant.as_str(), JobRun { id: UPLOADS.to_owned(), run: 0 }, &amounts);
    }

    /// Marks the usage of tenants that no longer exist.
    pub(crate) fn mark_removed(&self, exists: impl Fn(&Name) -> bool) {
        let is_local = |tenant: &str| tenant == TenantId::DEFAULT.to_string();
        let exists = |tenant: &str| is_local(tenant) || tenant.parse().is_ok_and(|tenant: Name| exists(&tenant));
        self.store().mark_removed(exists);
    }

    pub(super) fn store(&self) -> MutexGuard<'_, UsageStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the names of tenants, also of those that are removed later.
    pub(super) fn remember(&self, tenants: impl Iterator<Item = (TenantId, Name)>) {
        self.names().extend(tenants);
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<TenantId, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of a tenant, or its id if it was removed before this node knew it.
    pub(super) fn name(&self, tenant: TenantId) -> String {
        self.names().get(&tenant).map_or_else(|| tenant.to_string(), |name| name.as_str().to_owned())
    }
}
