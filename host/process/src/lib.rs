//! Processes of a node: messages with files over a socket, and restrictions of what such a process may request from the
//! kernel.
//!
//! Goals: no message exceeds its bound, in bytes or files; a process that was taken over is killed for any system call
//! outside its task. Non-goals: the content of messages.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod calls;
pub mod confine;
mod files;
mod namespaces;
mod profile;
mod report;
pub mod socket;
pub mod spawn;
pub mod support;
mod walls;

pub use calls::{AllowedCall, OtherCalls};
pub use files::FileAccess;
pub use profile::{ProcessKind, Profile};
pub use report::{WALLS_ARGUMENT, Walls, parse_walls, report_walls};
pub use walls::{MissingWall, Wall};
