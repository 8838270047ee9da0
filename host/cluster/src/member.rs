//! Members of a cluster.

use std::net::SocketAddr;

use sandbar_runtime::Amounts;
use serde::{Deserialize, Serialize};

/// Maximum concurrent tasks that a node is given, whatever it advertises.
pub(crate) const SLOTS_MAX: u32 = 1024;

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Name of the node.
    pub name: String,
    /// Number of the node. Numbers are never reused.
    pub number: u16,
    /// Address at which other nodes reach it.
    pub address: SocketAddr,
    /// Version of its program.
    pub version: String,
    /// Resources that tasks may request.
    pub resources: Amounts,
    /// Number of concurrent tasks.
    pub slots: u32,
    /// Whether it accepts tasks.
    #[serde(default)]
    pub state: MemberState,
    /// SHA-256 of its public key, in hexadecimal. Distinguishes nodes of one name.
    #[serde(default)]
    pub key: String,
    /// Whether it has the cluster's authority, which issues certificates.
    #[serde(default)]
    pub has_authority: bool,
}

impl Member {
    /// Returns whether this process may replace `other` under its name: `other` has the same key, and started earlier.
    pub(crate) fn may_replace(&self, other: &Member) -> bool {
        other.number == self.number || (other.key == self.key && other.number < self.number)
    }

    /// Describes the node for logs and errors.
    pub(crate) fn describe(&self) -> String {
        format!("node `{}` (number {}, {})", self.name, self.number, self.address)
    }
}

/// State of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It accepts tasks.
    #[default]
    Ready,
    /// It accepts no tasks, and leaves when no other node needs it.
    Draining,
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            MemberState::Ready => "ready",
            MemberState::Draining => "draining",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn member(name: &str, number: u16, key: &str) -> Member {
        Member {
            name: name.to_owned(),
            number,
            address: ([127, 0, 0, 1], 7410 + number).into(),
            version: "1".to_owned(),
            resources: Amounts::default(),
            slots: 1,
            state: MemberState::Ready,
            key: key.to_owned(),
            has_authority: false,
        }
    }

    #[test]
    fn only_a_later_process_with_the_same_key_may_replace_a_node() {
        let own = member("a", 5, "k");
        for (other, expected) in [
            (member("a", 5, "k"), true),
            (member("a", 4, "k"), true),
            // A copy of this node's folder that started later.
            (member("a", 6, "k"), false),
            (member("a", 4, "other"), false),
            (member("a", 6, "other"), false),
            // A version that does not publish its key.
            (member("a", 4, ""), false),
        ] {
            assert_eq!(own.may_replace(&other), expected, "{other:?}");
        }
    }
}
