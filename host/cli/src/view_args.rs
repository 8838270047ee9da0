//! The command line of what shows programs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sandbar_node::RunState;

use crate::cluster_args::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum Jobs {
    /// Lists jobs, the last one first.
    #[command(after_help = "Examples:\n  host jobs list --limit 5\n  host jobs list --state failed --json")]
    List {
        /// Those of this state alone.
        #[arg(long, value_enum)]
        state: Option<StateName>,
        /// So many rows at most.
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Says what became of a job, or what it does.
    #[command(
        after_help = "Examples:\n  host jobs status\n  host jobs status 4f3a9c --json\n  host jobs status 4f3a9c --node 10.0.0.1:7410"
    )]
    Status(OfJob),
    /// Prints all that a job's tasks have logged.
    #[command(after_help = "Examples:\n  host jobs logs\n  host jobs logs -f 4f3a9c\n  host jobs logs --task throw")]
    Logs {
        /// The job; the last one if none is named.
        id: Option<String>,
        /// Goes on until the job has ended.
        #[arg(long, short)]
        follow: bool,
        /// Lines of tasks of this name, or of the task of this id, alone.
        #[arg(long, value_name = "NAME|ID")]
        task: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Ends a job that runs, as Ctrl-C in its terminal does, and waits until it has ended.
    #[command(
        after_help = "Examples:\n  host jobs stop 4f3a9c\n\nExit codes: 0 it has ended, also where it had before, 1 it has not."
    )]
    Stop {
        /// The job.
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Removes what is kept of jobs that have ended.
    #[command(after_help = "Examples:\n  host jobs delete 4f3a9c 77e01b")]
    Delete {
        /// The jobs.
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// A job of which something is to be shown.
#[derive(Debug, Args)]
pub(crate) struct OfJob {
    /// The job; the last one if none is named.
    pub id: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum List {
    /// Tasks: those that run, those that wait, and of those that have ended the ones that are kept.
    #[command(
        after_help = "Examples:\n  host list tasks\n  host list tasks --state failed --limit 5\n  host list tasks --name throw --json\n  host list tasks --node 10.0.0.1:7410"
    )]
    Tasks {
        /// Those of this state alone.
        #[arg(long, value_enum)]
        state: Option<StateName>,
        /// Those of this name alone.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        rows: Rows,
    },
    /// Actors of a job that runs.
    #[command(after_help = "Examples:\n  host list actors\n  host list actors --json")]
    Actors(Rows),
    /// Objects of a job that runs, the largest first.
    #[command(after_help = "Examples:\n  host list objects\n  host list objects --limit 5 --json")]
    Objects(Rows),
    /// Workers of a job that runs, and what they do.
    #[command(after_help = "Examples:\n  host list workers\n  host list workers --json")]
    Workers(Rows),
    /// Placement groups of a job that runs, and what of their bundles is left.
    #[command(
        alias = "groups",
        after_help = "Examples:\n  host list placement-groups\n  host list placement-groups --json\n\n`host list groups` is short for it."
    )]
    PlacementGroups(Rows),
    /// Nodes of a job that runs: what they have, and what of it is left.
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

/// Which rows are shown, and how.
#[derive(Debug, Args)]
pub(crate) struct Rows {
    /// The job; the last one if none is named.
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// So many rows at most.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

impl Rows {
    /// How many rows are shown at most, and whether as JSON.
    pub(crate) fn shown(&self) -> (u32, bool) {
        (self.limit, self.json)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Summary {
    /// Tasks by name: how many are where, how long they took, what they moved.
    #[command(after_help = "Examples:\n  host summary tasks\n  host summary tasks --job 4f3a9c --json")]
    Tasks {
        /// The job; the last one if none is named.
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
    /// The job; the last one if none is named.
    pub id: Option<String>,
    /// The file to write. Without one it goes to standard output, which must not be a terminal.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Where a job is, or a task.
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
