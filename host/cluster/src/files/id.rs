//! Identity of tenants' files.

use std::fmt;
use std::str::FromStr;

use sandbar_core::ComponentId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A file of a tenant, identified by the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileId([u8; 32]);

impl FileId {
    /// Finishes the hash of a file.
    pub(crate) fn from_hash(hash: Sha256) -> FileId {
        FileId(hash.finalize().into())
    }

    /// Returns the component with this hash.
    pub(crate) fn component(self) -> ComponentId {
        ComponentId::from_digest(self.0)
    }

    /// Returns the first 12 hexadecimal digits, for display.
    pub(crate) fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

/// Components are sent like files.
impl From<ComponentId> for FileId {
    fn from(component: ComponentId) -> FileId {
        FileId(*component.digest())
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileId({self})")
    }
}

impl FromStr for FileId {
    type Err = String;

    fn from_str(text: &str) -> Result<FileId, String> {
        text.parse::<ComponentId>().map(FileId::from)
    }
}

impl TryFrom<String> for FileId {
    type Error = String;

    fn try_from(text: String) -> Result<FileId, String> {
        text.parse()
    }
}

impl From<FileId> for String {
    fn from(file: FileId) -> String {
        file.to_string()
    }
}

/// A file of a tenant, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoredFile {
    /// SHA-256 of the file.
    pub file: FileId,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A file of a tenant, under the name by which its job knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedStoredFile {
    /// Name, as the tenant gave it. It names no file of a node.
    pub name: String,
    /// The file.
    #[serde(flatten)]
    pub content: StoredFile,
}
