//! Components that tenants have sent to this node, in a folder for each tenant. A tenant can use only the components in
//! its own folder: the hash of another tenant's component is as good as any other unknown hash.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sandbar_core::ComponentId;
use sandbar_machine::evict_oldest;
use sandbar_wire::{Frames, Name};

use crate::files::FileId;
use crate::jobs::remove_folders;
use crate::tenants::TenantSettings;
use crate::uploads::{IncompletePath, UploadError, receive, remove_incomplete};

const EXTENSION: &str = "wasm";
/// A component in error messages.
const ITEM: &str = "component";

/// Components of tenants on this node.
#[derive(Debug)]
pub(crate) struct TenantComponents {
    folder: PathBuf,
}

impl TenantComponents {
    /// Opens the components in a folder of this process, and removes what an earlier process left incomplete.
    pub(crate) fn open(folder: PathBuf) -> TenantComponents {
        remove_incomplete(&folder);
        TenantComponents { folder }
    }

    fn folder(&self, tenant: &Name) -> PathBuf {
        self.folder.join(tenant.as_str())
    }

    /// Returns the path of a component of a tenant, which need not exist.
    pub(crate) fn path(&self, tenant: &Name, component: ComponentId) -> PathBuf {
        self.folder(tenant).join(format!("{component}.{EXTENSION}"))
    }

    /// Opens a component of a tenant, and marks it as used.
    pub(crate) fn get(&self, tenant: &Name, component: ComponentId) -> Option<File> {
        let file = File::open(self.path(tenant, component)).ok()?;
        // Eviction is by modification time. A file that can't be marked is evicted earlier.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    /// Removes a component that can't be used.
    pub(crate) fn remove(&self, tenant: &Name, component: ComponentId) {
        let _ = fs::remove_file(self.path(tenant, component));
    }

    /// Removes the components of tenants that `exists` does not know. Returns whether there were any.
    pub(crate) fn remove_others(&self, exists: impl Fn(&Name) -> bool) -> bool {
        remove_folders(&self.folder, exists)
    }

    /// Receives a component of `bytes` bytes into a file. `in_use` protects components of running jobs from eviction.
    /// Whatever happens, nothing else than a whole component stays on disk.
    pub(crate) async fn receive(
        &self,
        tenant: &Name,
        component: ComponentId,
        bytes: u64,
        settings: &TenantSettings,
        in_use: &BTreeSet<ComponentId>,
        frames: &mut Frames,
    ) -> Result<(), UploadError> {
        let max = settings.component_bytes_max;
        if bytes > max {
            return Err(UploadError::TooLarge { item: ITEM, bytes, max });
        }
        let draft = IncompletePath::new(&self.folder(tenant))?;
        let hash = receive(ITEM, draft.create_file()?, draft.path(), bytes, frames).await?;
        if FileId::from_hash(hash) != component.into() {
            return Err(UploadError::Other(ITEM));
        }
        self.publish(draft, tenant, component, settings, in_use)
    }

    /// Stores a component that another node has sent.
    pub(crate) fn insert(
        &self,
        tenant: &Name,
        component: ComponentId,
        bytes: &[u8],
        settings: &TenantSettings,
        in_use: &BTreeSet<ComponentId>,
    ) -> Result<(), UploadError> {
        let draft = IncompletePath::new(&self.folder(tenant))?;
        draft.create_file()?.write_all(bytes).map_err(|e| UploadError::File(draft.path().to_owned(), e))?;
        self.publish(draft, tenant, component, settings, in_use)
    }

    /// Makes a complete draft a component, and evicts the least recently used ones beyond the tenant's limits.
    fn publish(
        &self,
        draft: IncompletePath,
        tenant: &Name,
        component: ComponentId,
        settings: &TenantSettings,
        in_use: &BTreeSet<ComponentId>,
    ) -> Result<(), UploadError> {
        let path = self.path(tenant, component);
        draft.complete(&path)?;
        let is_kept =
            |path: &Path| component_of(path).is_none_or(|other| other == component || in_use.contains(&other));
        let (files_max, bytes_max) = (settings.components_max as usize, settings.components_bytes_max);
        evict_oldest(&self.folder(tenant), files_max, bytes_max, is_kept);
        Ok(())
    }
}

/// Returns the component of a file's name.
fn component_of(path: &Path) -> Option<ComponentId> {
    let is_component = path.extension().is_some_and(|extension| extension == EXTENSION);
    path.file_stem().filter(|_| is_component)?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn names(components: &TenantComponents, tenant: &Name) -> Vec<u8> {
        (0..20).filter(|number| components.path(tenant, component(*number)).is_file()).collect()
    }

    fn component(number: u8) -> ComponentId {
        ComponentId::from_digest([number; 32])
    }

    #[test]
    fn components_belong_to_their_tenants_and_the_oldest_are_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let components = TenantComponents::open(folder.path().to_owned());
        let [ada, bob]: [Name; 2] = ["ada", "bob"].map(|name| name.parse().unwrap());
        let settings = TenantSettings { components_max: 3, components_bytes_max: 100, ..TenantSettings::default() };
        let insert = |tenant: &Name, number: u8, bytes: usize| {
            let in_use = BTreeSet::from([component(1)]);
            components.insert(tenant, component(number), &vec![0; bytes], &settings, &in_use).unwrap();
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs(number.into());
            File::options()
                .append(true)
                .open(components.path(tenant, component(number)))
                .unwrap()
                .set_modified(used)
                .unwrap();
        };
        for number in [1, 2, 3] {
            insert(&ada, number, 20);
        }
        assert!(components.get(&bob, component(1)).is_none());
        insert(&bob, 9, 100);
        // By number. The first one is in use.
        insert(&ada, 4, 20);
        assert_eq!(names(&components, &ada), [1, 3, 4]);
        // By bytes. Use protects from eviction.
        components.get(&ada, component(3)).unwrap();
        insert(&ada, 5, 60);
        assert_eq!(names(&components, &ada), [1, 3, 5]);
        assert_eq!(names(&components, &bob), [9]);
        components.remove_others(|name| *name == bob);
        assert_eq!((names(&components, &ada).len(), names(&components, &bob)), (0, vec![9]));
    }

    #[test]
    fn what_is_incomplete_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let components = TenantComponents::open(folder.path().to_owned());
        let ada: Name = "ada".parse().unwrap();
        let draft = || {
            let draft = IncompletePath::new(&components.folder(&ada)).unwrap();
            drop(draft.create_file().unwrap());
            draft
        };
        let incomplete = draft();
        let path = incomplete.path().to_owned();
        assert!(path.is_file());
        drop(incomplete);
        assert!(!path.exists());
        let incomplete = draft();
        let path = incomplete.path().to_owned();
        // The process is killed.
        std::mem::forget(incomplete);
        TenantComponents::open(folder.path().to_owned());
        assert!(!path.exists());
    }
}
