//! Processes of a node: messages with files over a socket, and what such a process may ask of the kernel.
//!
//! Goals: no message is over its bound, in bytes or files; a process that was taken over is killed for what it has no
//! business to ask. Non-goals: what messages say.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod confine;
pub mod socket;
pub mod spawn;
pub mod walls;
