//! Command-line arguments of `host audit`.

use std::path::PathBuf;

use clap::Subcommand;

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
