//! Errors of the client.

use sandbar_core::{Fault, TaskError};
use sandbar_node::ProgramError;

/// Why a request to the node was rejected or failed. The failure of a task is its object's [`TaskError`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The node can't be started: a folder or the worker program is missing or unusable.
    #[error("{0}")]
    Setup(Fault),
    /// A program can't be loaded, a job can't be started, or a job was ended by someone other than its client.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program has no task of this name.
    #[error("the program has no task `{name}`; its tasks are: {available}")]
    NoTask {
        /// The requested name.
        name: String,
        /// The names of the program's tasks.
        available: String,
    },
    /// The program has no such actor, or the actor has no such method.
    #[error("the program has no actor method `{name}`; its actor methods are: {available}")]
    NoMethod {
        /// The requested name: `Counter.new` creates a `Counter`.
        name: String,
        /// The names of the methods of the program's actors.
        available: String,
    },
    /// The number of arguments differs from the task's.
    #[error("`{task}` takes ({takes}), and was given {count} arguments")]
    Count {
        /// The task.
        task: String,
        /// The names and types of the task's arguments.
        takes: String,
        /// The number of arguments in the call.
        count: usize,
    },
    /// An argument does not have the type that the task takes.
    #[error("`{task}` takes {expected} for `{argument}`, and was given {actual}")]
    Argument {
        /// The task.
        task: String,
        /// The argument's name.
        argument: String,
        /// The argument's type.
        expected: String,
        /// The value or type in the call.
        actual: String,
    },
    /// The requested return type differs from the task's.
    #[error("`{task}` returns {returns}, and was asked for {requested}")]
    Returns {
        /// The task.
        task: String,
        /// The task's return type.
        returns: String,
        /// The requested type.
        requested: String,
    },
    /// The task is a generator and was called with `submit`.
    #[error("`{task}` is a generator of {items}: call it with `stream`, not `submit`")]
    Generator {
        /// The task.
        task: String,
        /// The type of the generator's items.
        items: String,
    },
    /// The task is not a generator and was called with `stream`.
    #[error("`{task}` is not a generator: it returns {returns}; call it with `submit`, not `stream`")]
    NoGenerator {
        /// The task.
        task: String,
        /// The task's return type.
        returns: String,
    },
    /// An object was passed to a task of another job.
    #[error("object {object} and `{task}` belong to different jobs")]
    OtherJob {
        /// The object.
        object: String,
        /// The task that received it, or `put`.
        task: String,
    },
    /// A value can't be encoded.
    #[error("can't encode the value: {0}")]
    Value(String),
    /// The node rejected the request: it is too large, or the job has ended.
    #[error("{0}")]
    Refused(#[from] Fault),
    /// A task that the client waited for failed.
    #[error("{0}")]
    Task(#[from] TaskError),
}
