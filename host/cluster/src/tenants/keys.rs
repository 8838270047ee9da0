//! Keys of tenants, tokens and names of nodes in the cluster's store.

use sandbar_meta::{Key, KeyRange, MetaError};
use sandbar_wire::{KeyId, Name, TokenId};

use crate::error::ClusterError;

/// Changed by every change of tenants, their tokens, and removed nodes. Its revision tells whether a copy is current.
const CHANGED: &str = "identity/changed";
/// Prefix of tenants. The name follows.
pub(super) const TENANTS: &str = "identity/tenants/";
/// Prefix of tokens of tenants. The tenant's name follows, then the token's id.
pub(super) const TOKENS: &str = "identity/tokens/";
/// Prefix of keys of removed nodes. The key's id follows.
pub(super) const REMOVED: &str = "identity/removed/";
/// Prefix of names of nodes, each of which belongs to a key. The name follows.
const NAMES: &str = "identity/names/";
/// Prefix of tokens of nodes that were used once or revoked. The id follows.
const NODE_TOKENS: &str = "identity/node-tokens/";

fn key(text: String) -> Result<Key, ClusterError> {
    Ok(Key::new(text.into_bytes()).map_err(MetaError::from)?)
}

fn prefix(text: &str) -> Result<KeyRange, ClusterError> {
    Ok(KeyRange::prefix(text.as_bytes().to_vec()).map_err(MetaError::from)?)
}

pub(super) fn changed_key() -> Result<Key, ClusterError> {
    key(CHANGED.to_owned())
}

pub(super) fn tenant_key(name: &Name) -> Result<Key, ClusterError> {
    key(format!("{TENANTS}{name}"))
}

pub(super) fn tenant_keys() -> Result<KeyRange, ClusterError> {
    prefix(TENANTS)
}

pub(super) fn token_key(tenant: &Name, token: TokenId) -> Result<Key, ClusterError> {
    key(format!("{TOKENS}{tenant}/{token}"))
}

/// Returns the range of the tokens of one tenant, or of all.
pub(super) fn token_keys(tenant: Option<&Name>) -> Result<KeyRange, ClusterError> {
    match tenant {
        Some(tenant) => prefix(&format!("{TOKENS}{tenant}/")),
        None => prefix(TOKENS),
    }
}

pub(super) fn removed_key(node: KeyId) -> Result<Key, ClusterError> {
    key(format!("{REMOVED}{node}"))
}

pub(super) fn removed_keys() -> Result<KeyRange, ClusterError> {
    prefix(REMOVED)
}

/// Returns the key of a node's name.
pub(crate) fn names_key(name: &Name) -> Result<Key, ClusterError> {
    key(format!("{NAMES}{name}"))
}

pub(super) fn node_token_key(token: TokenId) -> Result<Key, ClusterError> {
    key(format!("{NODE_TOKENS}{token}"))
}

/// Returns the text of a key after a prefix.
pub(super) fn rest<'a>(key: &'a Key, prefix: &str) -> Option<&'a str> {
    std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(prefix)
}
