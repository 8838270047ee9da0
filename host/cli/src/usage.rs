//! `host usage`: what jobs and tenants have used.

use std::path::Path;
use std::process::ExitCode;

use sandbar_node::{TableColumn, UsageQuery, UsageReport, UsageRow, now_ms, utc_text, write_table};

use crate::cluster_args::AccessArgs;
use crate::control_socket::{SocketRequest, send_request};
use crate::error::CliError;
use crate::output;
use crate::remote_client::client;
use crate::table::{Columns, cell, size, time};
use crate::usage_args::UsageArgs;

pub(crate) async fn run(usage: UsageArgs) -> Result<ExitCode, CliError> {
    let UsageArgs { tenant, job, since, by, output, json, access } = usage;
    let AccessArgs { node, timeouts, token, data } = access;
    let since_ms = now_ms().saturating_sub(since.as_millis() as u64);
    let report = match &node {
        Some(node) => {
            if tenant.is_some() {
                let message = "a tenant sees what it has used itself: --tenant is for operators, without --node";
                return Err(CliError::Usage(message.to_owned()));
            }
            let mut client = client(node, token, data, timeouts).await?;
            let report = client.usage(since_ms, job.as_deref(), by.into()).await.map_err(CliError::failed)?;
            client.close().await;
            report
        }
        None => {
            let query = UsageQuery { tenant, job, since_ms, by: by.into() };
            send_request(data, &SocketRequest::Usage(query)).await?.usage()?
        }
    };
    match &output {
        Some(path) => write(path, &report)?,
        None if json => output::json(&report)?,
        None => print(&report)?,
    }
    if report.missing_nodes.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let nodes = report.missing_nodes.join(", ");
    output::message(&format!("warning: what was used on these nodes is missing, they did not respond: {nodes}"));
    Ok(ExitCode::FAILURE)
}

fn print(report: &UsageReport) -> Result<(), CliError> {
    output::message(&format!("from {} to {}", utc_text(report.since_ms), utc_text(report.until_ms)));
    let mut table = Columns::new(&[
        "TENANT", "JOB", "RUN", "NODE", "TASKS", "ATTEMPTS", "FAILED", "LOST", "CPU", "GPU", "WALL", "PEAK", "OBJECTS",
        "SPILLED", "NETWORK", "LOG", "UPLOADS",
    ]);
    for UsageRow { tenant, job, run, node, amounts } in &report.rows {
        let attempts = amounts.attempts_succeeded + amounts.attempts_failed + amounts.attempts_lost;
        table.row([
            tenant.clone(),
            cell(job.as_ref()),
            cell(*run),
            cell(node.as_ref()),
            amounts.tasks.to_string(),
            attempts.to_string(),
            amounts.attempts_failed.to_string(),
            amounts.attempts_lost.to_string(),
            time(amounts.cpu_ns),
            time(amounts.gpu_ns),
            time(amounts.wall_ns),
            size(amounts.memory_bytes_max),
            size(amounts.object_bytes),
            size(amounts.spilled_bytes),
            size(amounts.network_bytes),
            size(amounts.log_bytes),
            size(amounts.upload_bytes),
        ]);
    }
    output::print(&table.text())
}

/// Writes the rows to a Parquet file.
fn write(path: &Path, report: &UsageReport) -> Result<(), CliError> {
    let UsageReport { since_ms, until_ms, rows, .. } = report;
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let all = |ms: u64| TableColumn::Int64(vec![number(ms); rows.len()]);
    let mut columns = vec![
        ("since_ms", all(*since_ms)),
        ("until_ms", all(*until_ms)),
        ("tenant", TableColumn::Text(rows.iter().map(|row| Some(row.tenant.clone())).collect())),
        ("job", TableColumn::Text(rows.iter().map(|row| row.job.clone()).collect())),
        ("run", TableColumn::Int32(rows.iter().map(|row| row.run.and_then(|run| run.try_into().ok())).collect())),
        ("node", TableColumn::Text(rows.iter().map(|row| row.node.clone()).collect())),
    ];
    let names = sandbar_node::UsageAmounts::default().named();
    for (at, (name, _)) in names.into_iter().enumerate() {
        let values = rows.iter().map(|row| number(row.amounts.named()[at].1)).collect();
        columns.push((name, TableColumn::Int64(values)));
    }
    write_table(path, columns).map_err(CliError::failed)?;
    output::message(&format!("wrote {} rows to {}", rows.len(), path.display()));
    Ok(())
}
