//! Packets between node and worker over their socket.

use sandbar_core::{Limits, TaskKind};
use serde::{Deserialize, Serialize};

use crate::compiler::InitialMemory;

/// Packets over the socket. All go to the worker, except files of values, which go both ways.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Packet {
    Hello {
        worker: u32,
        limits: Limits,
        sandboxes: u32,
        inline: bool,
        value_bytes_max: u64,
    },
    /// Files: compiled code, and its memory image if its sandboxes are reused.
    Program {
        program: u32,
        code_bytes: u64,
        image_end: u64,
        initial: Option<InitialMemory>,
        limits: Limits,
        kinds: Vec<TaskKind>,
    },
    /// File: a value, which a message in the ring refers to.
    File,
}
