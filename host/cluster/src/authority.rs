//! The authority of a cluster, in the folder of its founder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbar_wire::{Authority, Clock, JoinGrant, SystemClock};

use crate::error::ClusterError;

/// Folder of the authority, in the founder's data folder.
const AUTHORITY: &str = "authority";

/// Creates the authority of a new cluster in the founder's data folder. Returns the name of the cluster.
///
/// # Errors
/// Fails if the folder has an authority, or can't be written.
pub fn create_cluster(data: &Path) -> Result<String, ClusterError> {
    std::fs::create_dir_all(data).map_err(|e| ClusterError::Folder(data.to_owned(), e))?;
    let authority = Authority::create(&data.join(AUTHORITY), SystemClock.now())?;
    Ok(authority.trust().cluster().to_string())
}

/// Creates a token that the authority in the founder's data folder accepts for `lifetime`, from a tenant or from nodes.
///
/// # Errors
/// Fails if the folder has no authority, the lifetime is too long, or the tenant's name is invalid.
pub fn create_token(data: &Path, tenant: Option<&str>, lifetime: Duration) -> Result<String, ClusterError> {
    let now = SystemClock.now();
    let authority = Authority::open(&data.join(AUTHORITY), now)?;
    let name = |text: &str| text.parse().map_err(|e| ClusterError::InvalidName(text.to_owned(), e));
    let grant = tenant.map(name).transpose()?.map_or(JoinGrant::Node, JoinGrant::Tenant);
    Ok(authority.token(grant, lifetime, now)?.to_text())
}

/// Opens the authority in a data folder. `None` if the folder is not the founder's.
pub(crate) fn open(data: &Path) -> Result<Option<Arc<Authority>>, ClusterError> {
    let folder = data.join(AUTHORITY);
    if !folder.is_dir() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Authority::open(&folder, SystemClock.now())?)))
}
