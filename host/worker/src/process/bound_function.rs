//! Bound functions of a worker.

use sandbar_core::Limits;
use sandbar_dense::DeviceChoice;

/// A function with bound parameters, as the node sent it.
pub(super) struct BoundFunction {
    /// Number of the program.
    pub program: u32,
    pub function: u32,
    pub params: String,
    pub limits: Limits,
    pub plan: Vec<u8>,
    pub device: Option<DeviceChoice>,
}
