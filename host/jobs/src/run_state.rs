//! The state of a job or a task.

use serde::{Deserialize, Serialize};

/// State of a job or a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Not started.
    Pending,
    /// Started.
    Running,
    /// Finished without an error.
    Succeeded,
    /// Finished with an error.
    Failed,
    /// Interrupted or cancelled.
    Stopped,
}

impl RunState {
    /// Returns the state's name in JSON and in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Pending => "pending",
            RunState::Running => "running",
            RunState::Succeeded => "succeeded",
            RunState::Failed => "failed",
            RunState::Stopped => "stopped",
        }
    }

    /// Returns whether the state is final.
    pub fn is_finished(self) -> bool {
        !matches!(self, RunState::Pending | RunState::Running)
    }
}
