//! The client of a request of the tenant API: its tenant, and what its certificate allows.

use sandbar_wire::{Name, TenantAccess};

/// A tenant's client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) tenant: &'a Name,
    pub(crate) access: TenantAccess,
}
