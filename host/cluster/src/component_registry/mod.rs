//! The registry of a tenant's components: names and versions of components that nodes keep, and the keys that sign them.
//!
//! A version never changes: a name and a version are one component for ever, even once it is yanked. While a tenant has a
//! signing key, its jobs use only registered components that one of its keys has signed.

mod changes;
mod error;
mod record;
mod reference;
mod requests;
mod version;

pub use error::ComponentError;
pub use record::{
    ComponentFunction, ComponentKey, ComponentSignature, NewComponent, RegisteredComponent, signed_message,
};
pub use reference::ComponentReference;
pub use version::ComponentVersion;

pub(crate) use changes::{check_signed, components_in_use};
pub(crate) use requests::{add_key, keys, list, pull, push, remove_key, yank};
