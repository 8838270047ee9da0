//! Why something can't be asked of a node.

use sandbar_core::{Fault, TaskError};
use sandbar_node::NodeError;

/// Why something can't be asked of a node, or was not done. What becomes of a task is its object's [`TaskError`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The node can't be started: a folder, or the program of its workers.
    #[error("{0}")]
    Setup(String),
    /// A program can't be loaded, or a job can't be begun, or has ended otherwise than by its client.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A program has no such task.
    #[error("it has no task `{name}`; its tasks are: {there}")]
    NoTask {
        /// What was asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// A program has no such actor, or the actor has no such method.
    #[error("it has no actor that is called by `{name}`; its actors have: {there}")]
    NoMethod {
        /// What was asked for: `Counter.new` is what makes a `Counter`.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// A task takes another number of arguments.
    #[error("`{task}` takes ({takes}), and was given {given} arguments")]
    Count {
        /// The task.
        task: String,
        /// Names and types of its arguments.
        takes: String,
        /// How many were given.
        given: usize,
    },
    /// An argument is not what the task takes.
    #[error("`{task}` takes {expected} for `{argument}`, and was given {given}")]
    Argument {
        /// The task.
        task: String,
        /// The argument's name.
        argument: String,
        /// Its type.
        expected: String,
        /// What was given instead.
        given: String,
    },
    /// A task returns something else than is asked of it.
    #[error("`{task}` returns {returns}, and was asked for {asked}")]
    Returns {
        /// The task.
        task: String,
        /// The type of what it returns.
        returns: String,
        /// What was asked for.
        asked: String,
    },
    /// A task yields items, and was submitted as one that returns.
    #[error("`{task}` is a generator of {items}: what it yields is taken with `stream`, not `submit`")]
    Generator {
        /// The task.
        task: String,
        /// The type of its items.
        items: String,
    },
    /// A task returns, and was asked for items.
    #[error("`{task}` is no generator: it returns {returns}, for which it is called with `submit`, not `stream`")]
    NoGenerator {
        /// The task.
        task: String,
        /// The type of what it returns.
        returns: String,
    },
    /// An object was given to a task of another job than its own.
    #[error("object {object} is of another job than `{task}`")]
    OtherJob {
        /// The object.
        object: String,
        /// The task that it was given to, or `put`.
        task: String,
    },
    /// A value can't be written.
    #[error("the value can't be stored: {0}")]
    Value(String),
    /// The node refuses it: it is too large, or the job has ended.
    #[error("{0}")]
    Refused(#[from] Fault),
    /// A task that the client waited for has failed.
    #[error("{0}")]
    Task(#[from] TaskError),
}
