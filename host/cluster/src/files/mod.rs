//! Files of tenants: inputs and outputs of their jobs, and file arguments of their programs.
//!
//! A file is known by its tenant and its hash. It stays on a node while an unfinished job of the tenant needs it, and
//! afterwards until the tenant's other files need the space.

mod id;
mod tenant_files;
mod transfer;

pub use id::{FileId, NamedStoredFile, StoredFile};
pub(crate) use tenant_files::{FileUse, TenantFiles};
pub(crate) use transfer::{FILES, copy_from, fetch_all, replicate, send, serve};
