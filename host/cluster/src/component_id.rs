//! Ids of components.

use sandbar_core::ComponentId;
use sha2::{Digest, Sha256};

/// Returns the id of a component's bytes.
pub(crate) fn component_id(component: &[u8]) -> ComponentId {
    let digest: [u8; 32] = Sha256::digest(component).into();
    ComponentId::from_digest(digest)
}
