//! Errors of a node's jobs.

use sandbar_functions::FunctionError;
use sandbar_runtime::ProgramError;
use sandbar_train::TrainError;

/// Error of a whole job, program or prediction, or of the inspection of a component.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A job file's job or a prediction failed.
    #[error(transparent)]
    Job(#[from] TrainError),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Finding, building or loading a component failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl NodeError {
    /// Returns whether the job file or the command line is invalid.
    pub fn is_invalid(&self) -> bool {
        matches!(
            self,
            NodeError::Job(TrainError::Invalid(_))
                | NodeError::Program(ProgramError::Invalid(_))
                | NodeError::Function(FunctionError::Invalid(_))
        )
    }

    /// Returns whether the user stopped the job.
    pub fn is_stopped(&self) -> bool {
        matches!(self, NodeError::Program(ProgramError::Stopped))
    }
}
