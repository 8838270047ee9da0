//! How nodes talk to each other: QUIC between peers that have proved who they are.
//!
//! Non-goals: what is said about tasks, who is a member, where objects are stored.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod transfer;

pub use transfer::*;
