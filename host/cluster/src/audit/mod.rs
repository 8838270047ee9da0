//! The audit log of a node: who asked for what, when, and what came of it.
//!
//! A folder of files of JSON lines, which are only ever appended to. Each line has the SHA-256 of the line before it, so that
//! no line can be changed, removed or inserted without those after it.

mod check;
mod log;
mod record;
mod suppression;

pub use check::{AuditError, AuditSummary, read_audit, verify_audit};
pub(crate) use log::AuditLog;
pub(crate) use record::AuditEntry;
pub use record::{AuditActor, AuditRecord};

/// Folder of the log, in a node's data folder.
const FOLDER: &str = "audit";

/// Returns the folder of the audit log in a node's data folder.
pub fn audit_folder(data: &std::path::Path) -> std::path::PathBuf {
    data.join(FOLDER)
}
