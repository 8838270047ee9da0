//! Walls around the processes that handle what tenants have made: how they are shown, and required.

use sandbar_node::machine::{self, OtherCalls, ProcessKind, Walls};

use crate::error::CliError;
use crate::table::size;

/// Argument for commands that run such processes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct WallArgs {
    /// Refuse to start where a wall around workers, the compiler or GPU processes is missing. `host doctor` lists them.
    #[arg(long)]
    pub require_walls: bool,
}

impl WallArgs {
    /// Returns the walls of this machine. Logs a warning for each that is missing.
    ///
    /// # Errors
    /// Fails if walls are required and some are missing.
    pub(crate) async fn check(&self) -> Result<Vec<Walls>, CliError> {
        let all = machine::walls().await?;
        let missing = missing(&all);
        if self.require_walls && !missing.is_empty() {
            let text = missing.join("; ");
            return Err(CliError::Failed(format!("walls are missing (--require-walls): {text}")));
        }
        missing.iter().for_each(|missing| log::warn!("a wall is missing: {missing}"));
        Ok(all)
    }

    /// Like [`WallArgs::check`], but does nothing if walls are not required: a command that runs one job starts sooner.
    ///
    /// # Errors
    /// Those of [`WallArgs::check`].
    pub(crate) async fn check_if_required(&self) -> Result<(), CliError> {
        if self.require_walls { self.check().await.map(drop) } else { Ok(()) }
    }
}

/// Describes each missing wall: what it is, for which processes, why, and the remedy.
pub(crate) fn missing(all: &[Walls]) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for walls in all {
        for missing in &walls.missing {
            let text = format!("{} ({})", missing.reason, missing.remedy());
            let text = format!("{}: {text}", missing.wall.name());
            match found.iter_mut().find(|(other, _)| *other == text) {
                Some((_, processes)) => processes.push(walls.process.name()),
                None => found.push((text, vec![walls.process.name()])),
            }
        }
    }
    found.into_iter().map(|(text, processes)| format!("{text} of {}", processes.join(", "))).collect()
}

/// Describes the walls of a kind of processes in a line.
pub(crate) fn line(walls: &Walls) -> String {
    let calls = match (walls.system_calls.len(), walls.other_calls) {
        (0, _) => "none".to_owned(),
        (count, OtherCalls::Kill) => format!("{count} allowed, others kill it"),
        (count, OtherCalls::Fail) => format!("{count} allowed, others fail"),
    };
    let files = walls.landlock_abi.map_or_else(|| "not restricted".to_owned(), |abi| format!("Landlock v{abi}"));
    let namespaces = match (walls.process, walls.namespaces.is_empty()) {
        (ProcessKind::Gpu, _) => "the node's".to_owned(),
        (_, true) => "missing".to_owned(),
        (_, false) => walls.namespaces.join(", "),
    };
    let memory = walls.memory_bytes_max.map_or_else(String::new, |bytes| format!("; memory: rlimit {}", size(bytes)));
    format!("system calls: {calls}; files: {files}; namespaces: {namespaces}{memory}")
}
