//! Issue of tokens of tenants.

use std::time::Duration;

use sandbar_meta::MetaStore;
use sandbar_wire::{Authority, Clock as _, JoinGrant, Name, SystemClock, TenantRole, TokenId};

use super::error::TenantError;
use super::records::TenantToken;
use super::registry::create_token;
use crate::error::ClusterError;

/// A token to create.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTokenSpec {
    pub(crate) role: TenantRole,
    pub(crate) use_once: bool,
    pub(crate) lifetime: Duration,
    /// Token of the client that requests it; `None` for an operator.
    pub(crate) created_by: Option<TokenId>,
}

/// Signs and stores a token of a tenant. Returns it with its secret text.
pub(crate) async fn issue_token(
    store: &dyn MetaStore,
    authority: Option<&Authority>,
    tenant: &Name,
    spec: NewTokenSpec,
) -> Result<(TenantToken, String), ClusterError> {
    let NewTokenSpec { role, use_once, lifetime, created_by } = spec;
    let (authority, now) = (authority.ok_or(TenantError::NoAuthority)?, SystemClock.now());
    let signed = authority.token(JoinGrant::Tenant(tenant.clone(), role), use_once, lifetime, now)?;
    let token = TenantToken {
        id: signed.id(),
        role,
        use_once,
        created_by: created_by.map(|id| id.to_string()),
        issued: signed.issued(),
        expires: signed.expires(),
        last_use: None,
    };
    create_token(store, tenant, &token, now).await?;
    Ok((token, signed.to_text()))
}
