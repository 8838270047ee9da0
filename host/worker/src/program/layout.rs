//! Layout of the memory that a worker shares with its node: words, and three rings behind them.

use std::sync::Arc;

use sandbar_store::SharedMemory;

use super::ring::RingMemory;

/// Words of a worker's shared memory, as indices of u64. Independent words are one cache line apart.
pub(super) mod words {
    /// The task to interrupt.
    pub const TASK_TO_INTERRUPT: usize = 0;
    /// Doorbell of the worker: whether it sleeps.
    pub const DOORBELL: usize = 8;
    /// Whether the node's thread sleeps, and waits for the worker's event.
    pub const NODE_SLEEPS: usize = 80;
    pub const WORKER_MESSAGES: usize = 16;
    pub const WORKER_MESSAGES_READ: usize = 24;
    pub const NODE_MESSAGES: usize = 32;
    pub const NODE_MESSAGES_READ: usize = 40;
    pub const TASKS: usize = 48;
    /// The task whose code the worker runs, and the number of times it has switched to a task.
    pub const CURRENT_TASK: usize = 56;
    pub const STEPS: usize = 57;
    /// The actor call for which that code runs.
    pub const CURRENT_CALL: usize = 58;
    /// Bytes of value files that the node has accepted.
    pub const FILE_BYTES_CREDITED: usize = 64;
    /// Whether tasks of any job must wait after submitting; a message names the jobs.
    pub const JOBS_HELD: usize = 65;
    /// Bit set of the worker's memories that may be written again. Clearing a bit claims the memory.
    pub const FREE_MEMORY: usize = 72;
}

/// Value of a word for a task if there is none.
pub(super) const NO_TASK: u64 = u64::MAX;

const CONTROL_BYTES: usize = 4096;
const WORKER_RING_BYTES: usize = 2 << 20;
const NODE_RING_BYTES: usize = 1 << 20;
const TASK_RING_BYTES: usize = 1 << 20;
/// Bytes of the shared memory.
pub(super) const MEMORY_BYTES: usize = CONTROL_BYTES + WORKER_RING_BYTES + NODE_RING_BYTES + TASK_RING_BYTES;

/// Returns the rings of a worker: worker messages, node messages, tasks.
pub(super) fn rings(memory: &Arc<SharedMemory>) -> (RingMemory, RingMemory, RingMemory) {
    let ring = |word, read, at, bytes| RingMemory { memory: memory.clone(), word, read, at, bytes };
    let node_ring = CONTROL_BYTES + WORKER_RING_BYTES;
    (
        ring(words::WORKER_MESSAGES, words::WORKER_MESSAGES_READ, CONTROL_BYTES, WORKER_RING_BYTES),
        ring(words::NODE_MESSAGES, words::NODE_MESSAGES_READ, node_ring, NODE_RING_BYTES),
        ring(words::TASKS, 0, node_ring + NODE_RING_BYTES, TASK_RING_BYTES),
    )
}
