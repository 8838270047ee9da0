//! Calls of tasks.

/// A call of a task.
#[derive(Debug, Clone)]
pub struct TaskCall {
    /// Index of its function among the component's tasks.
    pub function: u32,
    /// Number by which an actor identifies the call.
    pub call: u64,
    /// Seed of its randomness.
    pub seed: u64,
    /// Its arguments: a list of [`sandbar_core::Argument`], in postcard.
    pub arguments: Box<[u8]>,
}
