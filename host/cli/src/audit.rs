//! `host audit`: the audit log in a node's folder, whether the node runs or not.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use sandbar_node::{AuditActor, AuditRecord, AuditSummary, audit_folder, read_audit, utc_text, verify_audit};
use serde::Serialize;

use crate::cluster::folder;
use crate::error::CliError;
use crate::output;
use crate::table::Columns;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Prints the last records.
    #[command(after_help = "Examples:\n  host audit tail\n  host audit tail --limit 100 --json | jq .records[].action")]
    Tail {
        /// Maximum number of records.
        #[arg(long, short = 'n', default_value_t = 20, value_name = "N")]
        limit: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Folder of the node [default: a folder of the user's own]
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Checks that no record was changed, removed or inserted.
    ///
    /// Each record names the hash of the one before it. Note the hash that this prints, on another machine: with --contains,
    /// a log that was cut or written anew since is found as well. Exit codes: 0 the log is whole, 1 it is not, 2 wrong usage.
    #[command(after_help = "Examples:\n  host audit verify\n  host audit verify --contains 3f0c... --json")]
    Verify {
        /// A hash that an earlier verification printed: one of the records must have it.
        #[arg(long, value_name = "HASH")]
        contains: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Folder of the node [default: a folder of the user's own]
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
}

impl AuditCommand {
    pub(crate) fn is_json(&self) -> bool {
        match self {
            AuditCommand::Tail { json, .. } | AuditCommand::Verify { json, .. } => *json,
        }
    }
}

pub(crate) fn run(command: AuditCommand) -> Result<ExitCode, CliError> {
    match command {
        AuditCommand::Tail { limit, json, data } => {
            let records = read_audit(&audit_folder(&folder(data)?), limit).map_err(CliError::failed)?;
            print(records, json)?;
        }
        AuditCommand::Verify { contains, json, data } => {
            let verified = verify_audit(&audit_folder(&folder(data)?), contains.as_deref());
            print_summary(verified.map_err(CliError::failed)?, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(records: Vec<AuditRecord>, as_json: bool) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Records {
        records: Vec<AuditRecord>,
    }
    if as_json {
        return output::json(&Records { records });
    }
    let mut table = Columns::new(&["NUMBER", "TIME", "BY", "ACTION", "OUTCOME", "SUBJECT", "REASON"]);
    for AuditRecord { number, ms, by, action, subject, outcome, reason, .. } in records {
        let by = match by {
            AuditActor::Node => "node".to_owned(),
            AuditActor::Operator => "operator".to_owned(),
            AuditActor::Tenant { name, role, .. } => format!("{name} ({role})"),
            AuditActor::Applicant { address, .. } => address,
        };
        table.row([number.to_string(), utc_text(ms), by, action, outcome, subject, reason.unwrap_or_default()]);
    }
    output::print(&table.text())
}

fn print_summary(summary: AuditSummary, as_json: bool) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Summary {
        records: u64,
        first_number: u64,
        last_number: u64,
        head: String,
    }
    let AuditSummary { records, first_number, last_number, head } = summary;
    if as_json {
        return output::json(&Summary { records, first_number, last_number, head });
    }
    output::message(&format!("the log is whole: {records} records, {first_number} to {last_number}"));
    output::line(&head)
}
