//! Functions of a component, as the component describes them.

use serde::{Deserialize, Serialize};

/// Prefix of the paths of components in the registry of a cluster: `component:NAME@VERSION`.
pub const REGISTERED_PREFIX: &str = "component:";

/// Kind of a function, by its argument and result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    /// Columns in, one column out, row by row.
    Scalar,
    /// A record batch in, record batches out.
    Batch,
    /// A group in, a model out; a model and rows in, predictions out.
    Trainer,
    /// Values in, objects out; a function of a program.
    Task,
}

impl FunctionKind {
    /// Returns the name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            FunctionKind::Scalar => "scalar",
            FunctionKind::Batch => "batch",
            FunctionKind::Trainer => "trainer",
            FunctionKind::Task => "task",
        }
    }
}

/// Kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskKind {
    /// A plain function.
    Task,
    /// The constructor of an actor.
    Make,
    /// A method with exclusive access to its actor.
    Method,
    /// A method that runs concurrently with other methods of its kind: they start while it waits.
    Shared,
    /// A method that returns the checkpoint that `Restore` takes.
    Checkpoint,
    /// The constructor of an actor from the output of `Checkpoint`.
    Restore,
    /// A function that returns its result item by item.
    Generator,
}

/// A function of a component, as the component describes it. The fields are unchecked: consumers decode the schemas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Name by which a job refers to the function.
    pub name: String,
    /// Kind of the function.
    pub kind: FunctionKind,
    /// Encoded schema of the columns that the function needs; empty if it takes any. For a task: name and type of each
    /// argument, in postcard.
    pub arguments: Vec<u8>,
    /// Encoded schema of the output; empty if it depends on the input. For a task, in postcard: the type of its result
    /// (of its items, for a generator), the number of its results, and its [`TaskKind`].
    pub returns: Vec<u8>,
    /// Parameters that the component describes.
    pub parameters: Vec<Parameter>,
    /// One-line description.
    pub about: String,
}

/// A parameter of a function, described for documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Key among the function's `params`.
    pub name: String,
    /// Name of the type, for display.
    pub type_name: String,
    /// Default value as JSON; empty if the component does not declare one.
    pub default: String,
    /// Whether the parameter is mandatory.
    pub required: bool,
}
