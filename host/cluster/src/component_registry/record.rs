//! Registered components, as they are stored and sent.

use sandbar_core::{ComponentId, FunctionKind};
use sandbar_wire::{Name, PublicKey, Signature};
use serde::{Deserialize, Serialize};

use super::version::ComponentVersion;
use crate::encoding::text;
use crate::files::FileId;

/// A component to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewComponent {
    /// Its name and version.
    #[serde(flatten)]
    pub version: ComponentVersion,
    /// The component.
    #[serde(with = "text")]
    pub component: ComponentId,
    /// Its bytes.
    pub bytes: u64,
    /// Its signature.
    pub signature: Option<ComponentSignature>,
}

/// A registered component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredComponent {
    /// Name, version, component and signature, as they were pushed.
    #[serde(flatten)]
    pub pushed: NewComponent,
    /// Time at which it was pushed, in milliseconds since 1970, by the clock of the node that received it.
    pub pushed_ms: u64,
    /// Its functions; the first ones if there are many.
    pub functions: Vec<ComponentFunction>,
    /// Whether it was yanked: no new job uses it by its name.
    pub yanked: bool,
}

/// A function of a registered component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentFunction {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: FunctionKind,
}

/// A signature of a component with one of its tenant's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentSignature {
    /// The key.
    #[serde(with = "text")]
    pub key: PublicKey,
    /// The signature of the [message](signed_message).
    #[serde(with = "text")]
    pub signature: Signature,
}

/// A key with which components of a tenant are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentKey {
    /// The public key.
    #[serde(with = "text")]
    pub key: PublicKey,
    /// Time at which it was added, in milliseconds since 1970.
    pub added_ms: u64,
}

/// Returns the message that the signature of a component signs: a line each for what it is, its tenant, its name and version,
/// and the SHA-256 of its bytes.
pub fn signed_message(tenant: &Name, version: &ComponentVersion, component: ComponentId) -> Vec<u8> {
    // None of the parts has a line break.
    format!("sandbar component 1\n{tenant}\n{version}\n{component}\n").into_bytes()
}

impl NewComponent {
    /// Returns the file of the component.
    pub(crate) fn file(&self) -> FileId {
        self.component.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::check_json;

    #[test]
    fn records_have_golden_json() {
        let component = RegisteredComponent {
            pushed: NewComponent {
                version: "fares@1.2.0".parse().unwrap(),
                component: ComponentId::from_digest([7; 32]),
                bytes: 9,
                signature: Some(ComponentSignature { key: PublicKey([1; 32]), signature: Signature([2; 64]) }),
            },
            pushed_ms: 5,
            functions: vec![ComponentFunction { name: "main".to_owned(), kind: FunctionKind::Task }],
            yanked: false,
        };
        let (seven, one, two) = ("07".repeat(32), "01".repeat(32), "02".repeat(64));
        check_json(
            &component,
            &format!(
                r#"{{"name":"fares","version":"1.2.0","component":"{seven}","bytes":9,"signature":{{"key":"{one}","signature":"{two}"}},"pushed_ms":5,"functions":[{{"name":"main","kind":"task"}}],"yanked":false}}"#
            ),
        );
        check_json(
            &ComponentKey { key: PublicKey([1; 32]), added_ms: 5 },
            &format!(r#"{{"key":"{one}","added_ms":5}}"#),
        );
        let version = &component.pushed.version;
        let message = signed_message(&"ada".parse().unwrap(), version, component.pushed.component);
        assert_eq!(message, format!("sandbar component 1\nada\nfares@1.2.0\n{seven}\n").as_bytes());
    }
}
