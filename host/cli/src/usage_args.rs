//! Command-line arguments of `host usage`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use sandbar_node::{Name, NameError, UsageBy};

use crate::cluster_args::AccessArgs;

/// Maximum days of `--since`.
const DAYS_MAX: u64 = 400;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host usage                                             (on a node: all tenants, on all nodes)
  host usage --by tenant --since 7d
  host usage --tenant ada --output usage.parquet
  host usage --job 4f3a9c --json
  host usage --node first:7410                           (as a tenant: its own)

Sums are those of whole hours, and as of now. After the crash of a node, up to 10 seconds of it are missing.

Exit codes: 0 all nodes responded, 1 some did not, or the command failed, 2 wrong usage.")]
pub(crate) struct UsageArgs {
    /// Only this tenant.
    #[arg(long, value_name = "NAME", value_parser = tenant)]
    pub tenant: Option<Name>,
    /// Only this job: its id, or the last part of it.
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Start of the period: a number and h or d, such as 12h or 30d.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = since)]
    pub since: Duration,
    /// Subject of a row.
    #[arg(long, value_name = "WHAT", default_value = "job")]
    pub by: RowsBy,
    /// Write the rows to this Parquet file instead.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Subject of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowsBy {
    /// A tenant.
    Tenant,
    /// A run of a job.
    Job,
    /// A tenant on a node.
    Node,
}

impl From<RowsBy> for UsageBy {
    fn from(by: RowsBy) -> UsageBy {
        match by {
            RowsBy::Tenant => UsageBy::Tenant,
            RowsBy::Job => UsageBy::Job,
            RowsBy::Node => UsageBy::Node,
        }
    }
}

fn tenant(text: &str) -> Result<Name, String> {
    text.parse().map_err(|e: NameError| e.to_string())
}

fn since(text: &str) -> Result<Duration, String> {
    let found = [("h", 1), ("d", 24)].iter().find_map(|(unit, hours)| Some((text.strip_suffix(unit)?, *hours)));
    let hours = found.and_then(|(number, hours)| number.parse::<u64>().ok()?.checked_mul(hours));
    let hours = hours.filter(|hours| (1..=DAYS_MAX * 24).contains(hours));
    let hours = hours.ok_or_else(|| format!("not a time: a number and h or d, {DAYS_MAX}d at most"))?;
    Ok(Duration::from_secs(hours * 3600))
}
