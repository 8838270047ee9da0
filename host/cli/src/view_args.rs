//! Command-line arguments of the commands that show programs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sandbar_node::RunState;

use crate::cluster_args::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum Actors {
    /// Lists the tenant's actors that outlive the jobs that created them, on all nodes.
    #[command(
        after_help = "Examples:\n  host actors list --node first:7410\n  host actors list --node first:7410 --json"
    )]
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Stops such actors. Their unfinished calls fail.
    #[command(after_help = "Examples:\n  host actors stop counter --node first:7410")]
    Stop {
        /// Names or ids of actors.
        #[arg(required = true, value_name = "ACTOR")]
        actors: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Jobs {
    /// Lists jobs, the newest first.
    #[command(after_help = "Examples:\n  host jobs list --limit 5\n  host jobs list --state failed --json")]
    List {
        /// Show only this state.
        #[arg(long, value_enum)]
        state: Option<StateName>,
        /// Maximum number of rows.
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Prints the state of a job.
    #[command(
        after_help = "Examples:\n  host jobs status\n  host jobs status 4f3a9c --json\n  host jobs status 4f3a9c --node 10.0.0.1:7410"
    )]
    Status(JobSelector),
    /// Prints the log lines of a job's tasks.
    #[command(after_help = "Examples:\n  host jobs logs\n  host jobs logs -f 4f3a9c\n  host jobs logs --task throw")]
    Logs {
        /// The job's id [default: the last job]
        id: Option<String>,
        /// Follow the log until the job ends.
        #[arg(long, short)]
        follow: bool,
        /// Show only lines of tasks with this name, or of the task with this id.
        #[arg(long, value_name = "NAME|ID")]
        task: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Stops a running job, as Ctrl-C in its terminal does, and waits for its end.
    #[command(
        after_help = "Examples:\n  host jobs stop 4f3a9c\n\nExit codes: 0 the job has ended, now or before, 1 it has not."
    )]
    Stop {
        /// The job's id.
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Downloads the output of a job file that a cluster has run.
    #[command(after_help = "Examples:\n  host jobs output 4f3a9c --output models.parquet --node 10.0.0.1:7410")]
    Output {
        /// The job's id.
        id: String,
        /// File to write. An existing one is replaced.
        #[arg(long, value_name = "PATH")]
        output: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Deletes the records of finished jobs.
    #[command(after_help = "Examples:\n  host jobs delete 4f3a9c 77e01b")]
    Delete {
        /// The jobs' ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// The job to show, and the output form.
#[derive(Debug, Args)]
pub(crate) struct JobSelector {
    /// The job's id [default: the last job]
    pub id: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum List {
    /// Lists tasks: running, waiting, and finished ones whose records are kept.
    #[command(
        after_help = "Examples:\n  host list tasks\n  host list tasks --state failed --limit 5\n  host list tasks --name throw --json\n  host list tasks --node 10.0.0.1:7410"
    )]
    Tasks {
        /// Show only this state.
        #[arg(long, value_enum)]
        state: Option<StateName>,
        /// Show only this name.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        rows: Rows,
    },
    /// Lists the actors of a running job.
    #[command(after_help = "Examples:\n  host list actors\n  host list actors --json")]
    Actors(Rows),
    /// Lists the objects of a running job, the largest first.
    #[command(after_help = "Examples:\n  host list objects\n  host list objects --limit 5 --json")]
    Objects(Rows),
    /// Lists the workers of a running job, and their tasks.
    #[command(after_help = "Examples:\n  host list workers\n  host list workers --json")]
    Workers(Rows),
    /// Lists the placement groups of a running job, and the free resources of their bundles.
    #[command(
        alias = "groups",
        after_help = "Examples:\n  host list placement-groups\n  host list placement-groups --json\n\n`host list groups` is an alias."
    )]
    PlacementGroups(Rows),
    /// Lists the nodes of a running job, and their total and free resources.
    #[command(after_help = "Examples:\n  host list nodes\n  host list nodes --json")]
    Nodes(Rows),
}

impl List {
    pub(crate) fn is_json(&self) -> bool {
        match self {
            List::Tasks { rows, .. } => rows.json,
            List::Actors(rows)
            | List::Objects(rows)
            | List::Workers(rows)
            | List::PlacementGroups(rows)
            | List::Nodes(rows) => rows.json,
        }
    }
}

/// The rows to show, and the output form.
#[derive(Debug, Args)]
pub(crate) struct Rows {
    /// The job's id [default: the last job]
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Maximum number of rows.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Summary {
    /// Summarizes tasks by name: counts by state, durations, and bytes moved.
    #[command(after_help = "Examples:\n  host summary tasks\n  host summary tasks --job 4f3a9c --json")]
    Tasks {
        /// The job's id [default: the last job]
        #[arg(long, value_name = "ID")]
        job: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Timeline {
    /// The job's id [default: the last job]
    pub id: Option<String>,
    /// Output file [default: standard output, which must not be a terminal]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub remote: Remote,
}

/// State of a job or a task.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StateName {
    Pending,
    Running,
    Succeeded,
    Failed,
    Stopped,
}

impl From<StateName> for RunState {
    fn from(name: StateName) -> RunState {
        match name {
            StateName::Pending => RunState::Pending,
            StateName::Running => RunState::Running,
            StateName::Succeeded => RunState::Succeeded,
            StateName::Failed => RunState::Failed,
            StateName::Stopped => RunState::Stopped,
        }
    }
}
