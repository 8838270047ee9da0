//! The authority of a cluster, in the folder of its founder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbar_wire::{Authority, Clock, JoinGrant, SystemClock, TokenId};

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

/// A new token.
#[derive(Clone)]
pub struct NewToken {
    /// Its id, by which it can be revoked.
    pub id: TokenId,
    /// Its text, which is a secret.
    pub text: String,
}

/// Creates a token that the authority in the founder's data folder accepts from nodes for `lifetime`; from one node only
/// if `use_once`. The founder need not run.
///
/// # Errors
/// Fails if the folder has no authority, or the lifetime is too long.
pub fn create_node_token(data: &Path, use_once: bool, lifetime: Duration) -> Result<NewToken, ClusterError> {
    let now = SystemClock.now();
    let authority = Authority::open(&data.join(AUTHORITY), now)?;
    let token = authority.token(JoinGrant::Node, use_once, lifetime, now)?;
    Ok(NewToken { id: token.id(), text: token.to_text() })
}

/// Opens the authority in a data folder. `None` if the folder is not the founder's.
pub(crate) fn open(data: &Path) -> Result<Option<Arc<Authority>>, ClusterError> {
    let folder = data.join(AUTHORITY);
    if !folder.is_dir() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Authority::open(&folder, SystemClock.now())?)))
}
