//! This machine and its user: usable memory and its shares, processors, kernel settings, the user's folders.
//!
//! Goals: every default that depends on the machine is computed in one place, and `host doctor` reports the same values.
//! Non-goals: jobs, nodes, workers.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod files;
mod folders;
mod kernel;
mod limits;
mod memory;

pub use files::{evict_oldest, missing, names_beside, relative_to, write_atomically};
pub use folders::{cache_folder, checkout, find_cache_folder, find_state_folder, shipped, state_folder, worker};
pub use kernel::{
    UdpBuffers, cores, huge_pages, is_in_memory, kernel_version, online_cores, overcommit, raise_file_limit,
    udp_buffers,
};
pub use limits::{MemoryBound, address_space_bytes, memory_limit};
pub use memory::{has_little_memory, memory_for_objects, memory_for_rows, memory_for_tasks, morsels_at_once};
