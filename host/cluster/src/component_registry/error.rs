//! Errors of the component registry.

use sandbar_wire::{Name, PublicKey};

use super::version::ComponentVersion;

/// Why a component can't be registered, changed or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// The tenant has no such version.
    #[error("there is no component {_0}; `host component list --node ADDRESS` lists them")]
    Unknown(ComponentVersion),
    /// The tenant has no component of the name, or all of its versions were yanked.
    #[error("there is no component {_0:?}; `host component list --node ADDRESS` lists them")]
    UnknownName(Name),
    /// The component of that hash is not registered.
    #[error("component {_0} is not registered")]
    NotRegistered(String),
    /// The version is another component.
    #[error("{_0} is another component already: a version never changes; push it with a new version")]
    Exists(ComponentVersion),
    /// The tenant has its maximum number of registered components, or of their bytes.
    #[error(
        "tenant {tenant:?} would have {count} registered {what}, the limit is {max}; yank some (`host component yank`), or ask \
         the cluster's operator (`host tenant set {tenant} --{setting} N`)"
    )]
    Limit {
        /// The tenant.
        tenant: Name,
        /// The limited quantity.
        what: &'static str,
        /// Number with the new component.
        count: u64,
        /// The limit.
        max: u64,
        /// Option of the limit.
        setting: &'static str,
    },
    /// The tenant has its maximum number of versions, and none was yanked.
    #[error("the tenant has {_0} versions of components, the limit; yank some (`host component yank`)")]
    VersionLimit(usize),
    /// The tenant has signing keys, and the component is not signed.
    #[error("{_0} is not signed, and the tenant requires that: push it with --key FILE")]
    Unsigned(ComponentVersion),
    /// The key is not one of the tenant's.
    #[error(
        "{_0} is signed with key {_1}, which the tenant does not accept; an admin adds it with `host component keys add`"
    )]
    UnknownKey(ComponentVersion, PublicKey),
    /// The signature is not one of the component, name, version and tenant.
    #[error("the signature of {_0} is wrong: it is of another component, name, version or tenant")]
    WrongSignature(ComponentVersion),
    /// The tenant requires signed components, and the component of a job is not registered.
    #[error(
        "component {_0} is not in the tenant's registry, and the tenant uses only signed components: register it with \
         `host component push --key FILE`"
    )]
    NotSigned(String),
    /// The component was yanked.
    #[error("{_0} was yanked: choose another version (`host component list`)")]
    Yanked(ComponentVersion),
    /// The tenant has its maximum number of keys.
    #[error("the tenant has {_0} signing keys, the limit; remove one first")]
    KeyLimit(usize),
    /// The tenant has no such key.
    #[error("the tenant has no signing key {_0}; `host component keys list` lists them")]
    NoKey(PublicKey),
}

impl ComponentError {
    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ComponentError::Unknown(_) | ComponentError::UnknownName(_) | ComponentError::NotRegistered(_) => {
                "no-component"
            }
            ComponentError::Exists(_) => "component-exists",
            ComponentError::Limit { .. } | ComponentError::VersionLimit(_) => "component-limit",
            ComponentError::Unsigned(_) | ComponentError::NotSigned(_) => "not-signed",
            ComponentError::UnknownKey(..) | ComponentError::WrongSignature(_) => "signature",
            ComponentError::Yanked(_) => "yanked",
            ComponentError::KeyLimit(_) => "key-limit",
            ComponentError::NoKey(_) => "no-key",
        }
    }
}
