//! Tenants of a cluster: their settings and tokens in the cluster's store, and every node's copy of them.

mod directory;
mod error;
mod issue;
mod keys;
mod records;
mod registry;
mod settings;

pub(crate) use directory::{TenantDirectory, before_first_read, observe_access};
pub use error::TenantError;
pub(crate) use issue::{NewTokenSpec, issue_token};
pub use records::{Tenant, TenantToken, TokenUse};
pub(crate) use registry::{
    add, admit_node, admit_tenant, bind_name, change_in_order, decode, exists, key_of_node, list, put, remove,
    remove_node, revoke_node_token, revoke_token, set,
};
pub use settings::TenantSettings;
