//! Arguments of `host tenant`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandbar_node::{Name, TenantRole, TenantSettings, TokenId};

use crate::cluster_args::{AccessArgs, time, token_id};
use crate::shares::bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Adds a tenant, with default settings unless others are given.
    #[command(after_help = "Examples:\n  host tenant add ada\n  host tenant add bob --weight 200 --jobs-max 10")]
    Add {
        /// The tenant's name: lower-case letters, digits and dashes.
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        settings: SettingArgs,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Lists the tenants, or the tokens of one.
    #[command(
        after_help = "Examples:\n  host tenant list\n  host tenant list ada --json\n  host tenant list ada --node 10.0.0.1:7410   (as an admin of ada)"
    )]
    List {
        /// Only this tenant, with its tokens.
        #[arg(value_parser = name)]
        name: Option<Name>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        access: AccessArgs,
    },
    /// Changes settings of a tenant.
    #[command(
        after_help = "Examples:\n  host tenant set ada --weight 200\n  host tenant set ada --jobs-max 10 --component-bytes-max 16MiB"
    )]
    Set {
        /// The tenant's name.
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        settings: SettingArgs,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Removes a tenant: revokes its certificates and tokens within 5 s, ends its jobs and deletes their records.
    #[command(after_help = "Examples:\n  host tenant remove ada")]
    Remove {
        /// The tenant's name.
        #[arg(value_parser = name)]
        name: Name,
        /// Folder of a node of this machine, which handles the request.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Prints a token of a tenant, which a client exchanges for a certificate when it connects for the first time.
    #[command(after_help = "Examples:
  host tenant token ada                                          (on the first node)
  host tenant token ada --role viewer --for 10m --once
  host tenant token ada --role viewer --node 10.0.0.1:7410       (as an admin of ada)")]
    Token {
        /// The tenant's name.
        #[arg(value_parser = name)]
        name: Name,
        /// Role of clients that exchange the token: viewer (lists, status, logs), submitter (also submits and stops
        /// jobs) or admin (also creates and revokes tokens of the tenant).
        #[arg(long, value_name = "ROLE", default_value = "submitter", value_parser = role)]
        role: TenantRole,
        /// Time for which it can be exchanged: a number and s, m or h, at most a day.
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
        lifetime: Duration,
        /// Valid for one client only, the first one.
        #[arg(long)]
        once: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        access: AccessArgs,
    },
    /// Revokes a token of a tenant, and within 5 s all certificates that came from it.
    #[command(
        after_help = "Examples:\n  host tenant list ada\n  host tenant revoke ada 3f0c9a5e8d7b41269f5e8d7b41263f0c"
    )]
    Revoke {
        /// The tenant's name.
        #[arg(value_parser = name)]
        name: Name,
        /// The token's id: see `host tenant list NAME`.
        #[arg(value_name = "TOKEN", value_parser = token_id)]
        id: TokenId,
        #[command(flatten)]
        access: AccessArgs,
    },
}

impl TenantCommand {
    /// Returns whether the command prints JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self, TenantCommand::List { json: true, .. } | TenantCommand::Token { json: true, .. })
    }
}

/// Settings of a tenant.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingArgs {
    /// Share of each node relative to other tenants, 1 to 1000.
    #[arg(long, value_name = "N")]
    pub weight: Option<u32>,
    /// CPUs of each node that the tenant can always use, whatever others do.
    #[arg(long, value_name = "N")]
    pub reserved_cpus: Option<f64>,
    /// Maximum unfinished tasks on each node.
    #[arg(long, value_name = "N")]
    pub tasks_max: Option<u64>,
    /// Maximum actors on each node, with those that outlive their jobs.
    #[arg(long, value_name = "N")]
    pub actors_max: Option<u64>,
    /// Maximum memory of each node's own process for tasks, calls, objects and small values.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory_bytes_max: Option<u64>,
    /// Maximum bytes of objects on each node, in memory and on disk.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub object_bytes_max: Option<u64>,
    /// Maximum unfinished jobs.
    #[arg(long, value_name = "N")]
    pub jobs_max: Option<u32>,
    /// Maximum finished jobs that are kept.
    #[arg(long, value_name = "N")]
    pub finished_jobs_max: Option<u32>,
    /// Maximum bytes of the finished jobs that are kept.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub finished_job_bytes_max: Option<u64>,
    /// Maximum bytes of a component.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub component_bytes_max: Option<u64>,
    /// Maximum components that each node stores.
    #[arg(long, value_name = "N")]
    pub components_max: Option<u32>,
    /// Maximum bytes of the components that each node stores.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub components_bytes_max: Option<u64>,
    /// Maximum bytes of a file.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub file_bytes_max: Option<u64>,
    /// Maximum bytes of the files that each node stores.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub files_bytes_max: Option<u64>,
    /// Maximum seconds of CPU time on each node in a day (UTC), or `none`. Beyond it, further tasks fail.
    #[arg(long, value_name = "N", value_parser = budget)]
    pub cpu_seconds_per_day_max: Option<Budget>,
    /// Maximum seconds of GPU time on each node in a day (UTC), or `none`. Beyond it, further tasks fail.
    #[arg(long, value_name = "N", value_parser = budget)]
    pub gpu_seconds_per_day_max: Option<Budget>,
    /// Maximum bytes that each node receives from other nodes in a day (UTC), or `none`. Beyond it, further tasks fail.
    #[arg(long, value_name = "SIZE", value_parser = bytes_budget)]
    pub network_bytes_per_day_max: Option<Budget>,
    /// Maximum bytes of log lines on each node in a day (UTC), or `none`. Beyond it, further tasks fail.
    #[arg(long, value_name = "SIZE", value_parser = bytes_budget)]
    pub log_bytes_per_day_max: Option<Budget>,
    /// Maximum seconds of a run of a program, or `none`. Then it ends.
    #[arg(long, value_name = "N", value_parser = budget)]
    pub job_seconds_max: Option<Budget>,
}

/// A budget, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(Option<u64>);

/// The text of no budget.
const NONE: &str = "none";

fn budget(text: &str) -> Result<Budget, String> {
    let number = || text.parse().map_err(|_| format!("not a whole number, nor `{NONE}`"));
    if text == NONE { Ok(Budget(None)) } else { number().map(|number| Budget(Some(number))) }
}

fn bytes_budget(text: &str) -> Result<Budget, String> {
    let number = || bytes(text).map_err(|error| format!("{error}; nor `{NONE}`"));
    if text == NONE { Ok(Budget(None)) } else { number().map(|number| Budget(Some(number))) }
}

impl SettingArgs {
    /// Returns settings changed by the given ones.
    pub(crate) fn apply(&self, to: TenantSettings) -> TenantSettings {
        let changed = |budget: Option<Budget>, to: Option<u64>| budget.map_or(to, |budget| budget.0);
        TenantSettings {
            weight: self.weight.unwrap_or(to.weight),
            reserved_cpus: self.reserved_cpus.unwrap_or(to.reserved_cpus),
            tasks_max: self.tasks_max.unwrap_or(to.tasks_max),
            actors_max: self.actors_max.unwrap_or(to.actors_max),
            memory_bytes_max: self.memory_bytes_max.unwrap_or(to.memory_bytes_max),
            object_bytes_max: self.object_bytes_max.unwrap_or(to.object_bytes_max),
            jobs_max: self.jobs_max.unwrap_or(to.jobs_max),
            finished_jobs_max: self.finished_jobs_max.unwrap_or(to.finished_jobs_max),
            finished_job_bytes_max: self.finished_job_bytes_max.unwrap_or(to.finished_job_bytes_max),
            component_bytes_max: self.component_bytes_max.unwrap_or(to.component_bytes_max),
            components_max: self.components_max.unwrap_or(to.components_max),
            components_bytes_max: self.components_bytes_max.unwrap_or(to.components_bytes_max),
            file_bytes_max: self.file_bytes_max.unwrap_or(to.file_bytes_max),
            files_bytes_max: self.files_bytes_max.unwrap_or(to.files_bytes_max),
            cpu_seconds_per_day_max: changed(self.cpu_seconds_per_day_max, to.cpu_seconds_per_day_max),
            gpu_seconds_per_day_max: changed(self.gpu_seconds_per_day_max, to.gpu_seconds_per_day_max),
            network_bytes_per_day_max: changed(self.network_bytes_per_day_max, to.network_bytes_per_day_max),
            log_bytes_per_day_max: changed(self.log_bytes_per_day_max, to.log_bytes_per_day_max),
            job_seconds_max: changed(self.job_seconds_max, to.job_seconds_max),
        }
    }
}

fn name(text: &str) -> Result<Name, String> {
    text.parse().map_err(|e: sandbar_node::NameError| e.to_string())
}

fn role(text: &str) -> Result<TenantRole, String> {
    text.parse()
}
