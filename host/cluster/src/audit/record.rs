//! Records of the audit log.

use sandbar_wire::{Name, TenantRole};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Maximum characters of a subject and of a reason. Longer ones are truncated.
const TEXT_CHARS_MAX: usize = 1000;

/// A record of the audit log: a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Number of the record, from 1 on.
    pub number: u64,
    /// Time in milliseconds since 1970, by the node's clock.
    pub ms: u64,
    /// The node.
    pub node: String,
    /// Who requested the action.
    pub by: AuditActor,
    /// What was requested: `submit`, `add-tenant`, ...
    pub action: String,
    /// What it concerns: a tenant, a job, a token, a node, ...
    pub subject: String,
    /// `done`, or the code of the refusal.
    pub outcome: String,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of earlier refusals of the same tenant that were not recorded, because there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u64,
    /// SHA-256 of the line before, in hexadecimal digits; zeros in the first record.
    pub previous: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Who requested an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditActor {
    /// The node itself.
    Node,
    /// An operator, on the node's machine.
    Operator,
    /// A client of a tenant.
    Tenant {
        /// The tenant.
        name: Name,
        /// Role of the client.
        role: TenantRole,
        /// Id of the token of its certificate.
        token: String,
    },
    /// A node or a client that requests a certificate.
    Applicant {
        /// Key of the applicant.
        key: String,
        /// Its address.
        address: String,
    },
}

impl AuditActor {
    /// Returns the tenant of the actor.
    pub(crate) fn tenant(&self) -> Option<&Name> {
        match self {
            AuditActor::Tenant { name, .. } => Some(name),
            AuditActor::Node | AuditActor::Operator | AuditActor::Applicant { .. } => None,
        }
    }
}

/// What is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AuditEntry {
    pub(crate) by: AuditActor,
    pub(crate) action: &'static str,
    pub(crate) subject: String,
    /// Code and reason of a refusal.
    pub(crate) refusal: Option<(String, String)>,
}

impl AuditEntry {
    /// Returns the record of the entry.
    pub(crate) fn record(self, place: RecordPlace<'_>, suppressed: u64) -> AuditRecord {
        let RecordPlace { number, ms, node, previous } = place;
        let (outcome, reason) = match self.refusal {
            Some((code, reason)) => (code, Some(truncated(reason))),
            None => ("done".to_owned(), None),
        };
        AuditRecord {
            number,
            ms,
            node: node.to_owned(),
            by: self.by,
            action: self.action.to_owned(),
            subject: truncated(self.subject),
            outcome,
            reason,
            suppressed,
            previous: previous.to_hex(),
        }
    }
}

/// Place of a record in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordPlace<'a> {
    pub(crate) number: u64,
    pub(crate) ms: u64,
    pub(crate) node: &'a str,
    pub(crate) previous: LineHash,
}

/// SHA-256 of a line, without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LineHash([u8; 32]);

impl LineHash {
    pub(crate) fn of(line: &[u8]) -> LineHash {
        LineHash(Sha256::digest(line).into())
    }

    pub(crate) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn truncated(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
        text.truncate(at);
        text.push('…');
    }
    text
}
