//! Dense operations on GPUs, by WGSL kernels of this crate and by guests' kernels.
//!
//! An [`Adapter`] is a GPU, a [`Device`] one tenant's logical device on it, and a [`Stream`] a sequence of work on the
//! device.
//!
//! Goals: the results of [`sandbar_dense::cpu`] within stated tolerances; an error or a result for any request of a
//! guest; memory that is counted before it is allocated. Non-goals: correctness on drivers with known errors, and
//! sharing a device between tenants.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod adapter;
mod device;
mod error;
mod guest_kernel;
mod kernels;
mod measure;
mod memory;
mod program;
mod server;
mod software;
mod stream;
mod tensor;
mod timer;

pub use adapter::Adapter;
pub use device::Device;
pub use error::GpuError;
pub use guest_kernel::GuestKernel;
pub use program::run_gpu;
pub use software::use_software;
pub use stream::Stream;
pub use tensor::DeviceTensor;
