//! What a component says of its functions.

use serde::{Deserialize, Serialize};

/// What a function takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    /// Columns in, one column out, row by row.
    Scalar,
    /// A record batch in, record batches out.
    Batch,
    /// A group in, a model out; a model and rows in, predictions out.
    Trainer,
    /// Values in, objects out; of a program.
    Task,
}

impl FunctionKind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            FunctionKind::Scalar => "scalar",
            FunctionKind::Batch => "batch",
            FunctionKind::Trainer => "trainer",
            FunctionKind::Task => "task",
        }
    }
}

/// A kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskKind {
    /// A function.
    Task,
    /// Makes an actor.
    Make,
    /// A method that has its actor for itself.
    Method,
    /// A method beside which others of its kind may be called while it waits.
    Shared,
    /// A method that gives what `Restore` takes.
    Checkpoint,
    /// Makes an actor of what `Checkpoint` gave.
    Restore,
    /// A function whose result comes item by item.
    Generator,
}

/// A function of a component, as the component describes it. Nothing in it is
/// checked yet: schemas are decoded by whoever needs them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name, by which a job asks for it.
    pub name: String,
    /// What it takes and gives.
    pub kind: FunctionKind,
    /// Encoded schema of the columns it needs; empty when it takes any. Of a task: name and type of each argument, in
    /// postcard.
    pub arguments: Vec<u8>,
    /// Encoded schema of what it returns; empty when that depends on the input. Of a task: the type (of a generator, of its
    /// items) and the number of its results, and its [`TaskKind`], in postcard.
    pub returns: Vec<u8>,
    /// The parameters that it takes, as far as the component describes them.
    pub parameters: Vec<Parameter>,
    /// One line for people.
    pub about: String,
}

/// A parameter of a function, as the component describes it for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its key among the function's `params`.
    pub name: String,
    /// Its type, for people.
    pub type_name: String,
    /// Its value where it is left out, as JSON; empty where the component does not say.
    pub default: String,
    /// Whether it can't be left out.
    pub required: bool,
}
