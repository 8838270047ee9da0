//! Who sends a request of the tenant API.

use sandbar_wire::{Name, TenantAccess};

/// A tenant's client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) tenant: &'a Name,
    pub(crate) access: TenantAccess,
}
