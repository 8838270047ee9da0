//! Errors of commands.

use std::process::ExitCode;

use sandbar_node::{Fault, JobStoreError, NodeError, ProgramError};

use crate::signals;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Wrong usage: exit code 2.
    Usage(String),
    /// Failure: exit code 1.
    Failed(String),
    /// Stopped by another process: exit code 130, as after an interrupt.
    Stopped(String),
}

impl CliError {
    /// Creates a failure.
    pub(crate) fn failed(reason: impl std::fmt::Display) -> CliError {
        CliError::Failed(reason.to_string())
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            CliError::Usage(_) => ExitCode::from(2),
            CliError::Failed(_) => ExitCode::FAILURE,
            CliError::Stopped(_) => ExitCode::from(signals::exit_code(signals::INTERRUPT)),
        }
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CliError::Usage(text) | CliError::Failed(text) | CliError::Stopped(text) => f.write_str(text),
        }
    }
}

impl From<ProgramError> for CliError {
    fn from(error: ProgramError) -> Self {
        NodeError::from(error).into()
    }
}

impl From<NodeError> for CliError {
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        match (error.is_invalid(), error.is_stopped()) {
            (true, _) => CliError::Usage(message),
            (_, true) => CliError::Stopped(message),
            _ => CliError::Failed(message),
        }
    }
}

impl From<Fault> for CliError {
    fn from(fault: Fault) -> CliError {
        CliError::Failed(fault.to_string())
    }
}

impl From<JobStoreError> for CliError {
    fn from(error: JobStoreError) -> CliError {
        CliError::Failed(error.to_string())
    }
}
