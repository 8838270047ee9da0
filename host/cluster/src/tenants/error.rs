//! Errors of changes of tenants.

use sandbar_core::LimitError;
use sandbar_wire::{Name, TenantRole, TokenId};

/// Why a tenant or a token can't be created, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantError {
    /// There is no tenant of that name.
    #[error("there is no tenant {_0:?}; `host tenant list` lists them, `host tenant add {_0}` adds it")]
    Unknown(Name),
    /// The name is taken.
    #[error("there is a tenant {_0:?} already; `host tenant set {_0}` changes its settings")]
    Exists(Name),
    /// The tenant has no such token.
    #[error("tenant {_0:?} has no token {_1}; `host tenant list {_0}` lists its tokens")]
    UnknownToken(Name, TokenId),
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] LimitError),
    /// The cluster has its maximum number of tenants.
    #[error("the cluster has {_0} tenants, the limit; remove one first")]
    TenantLimit(usize),
    /// The tenant has its maximum number of tokens.
    #[error("tenant {_0:?} has {_1} tokens, the limit; revoke one first: `host tenant list {_0}` lists them")]
    TokenLimit(Name, usize),
    /// A client may not create or revoke a token of a higher role than its own.
    #[error("a client with the role `{own}` can't create or revoke tokens with the role `{role}`")]
    HigherRole {
        /// Role of the client.
        own: TenantRole,
        /// Role of the token.
        role: TenantRole,
    },
    /// This node can't sign tokens.
    #[error("this node does not have the cluster's authority: create the token on the first node")]
    NoAuthority,
    /// Other changes were made at the same time, again and again.
    #[error("other changes of tenants were made at the same time; try again")]
    Conflict,
}

impl TenantError {
    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            TenantError::Unknown(_) => "no-tenant",
            TenantError::Exists(_) => "tenant-exists",
            TenantError::UnknownToken(..) => "no-token",
            TenantError::Setting(_) => "setting",
            TenantError::TenantLimit(_) => "too-many-tenants",
            TenantError::TokenLimit(..) => "token-limit",
            TenantError::HigherRole { .. } => "role",
            TenantError::NoAuthority => "no-authority",
            TenantError::Conflict => "conflict",
        }
    }
}
