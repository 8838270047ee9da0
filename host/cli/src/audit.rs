//! `host audit`: the audit log in a node's folder, whether the node runs or not.

use std::process::ExitCode;

use sandbar_node::{AuditActor, AuditRecord, AuditSummary, audit_folder, read_audit, utc_text, verify_audit};
use serde::Serialize;

use crate::audit_args::AuditCommand;
use crate::control_socket::folder;
use crate::error::CliError;
use crate::output;
use crate::table::Columns;

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
