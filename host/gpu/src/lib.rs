//! Dense operations on GPUs, by kernels of our own in WGSL and by guests' ones.
//!
//! An [`Adapter`] is a GPU, a [`Device`] what one tenant has of it, and a [`Stream`] what somebody has the device do, one thing
//! after another.
//!
//! Goals: what [`sandbar_dense::cpu`] gives, within stated tolerances; whatever a guest says, an error or an answer; memory
//! that is counted before it is taken. Non-goals: to be right on drivers that are known not to be, and sharing a device
//! between tenants.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod adapter;
mod device;
mod error;
mod guests;
mod kernels;
mod measure;
mod memory;
mod program;
mod server;
mod software;
mod stamps;
mod stream;

pub use adapter::Adapter;
pub use device::{Device, DeviceTensor};
pub use error::GpuError;
pub use guests::GuestKernel;
pub use program::run_gpu;
pub use software::use_software;
pub use stream::Stream;
