//! The protocol between workers and the process that owns a GPU.
//!
//! Messages are datagrams of a Unix SEQPACKET socket, in postcard. Larger values pass through shared memory: its first
//! page has control words ([`words`]), followed by slots for uploads and slots for downloads. The client allocates the
//! numbers of tensors and kernels, uses each once, and sends up to [`MESSAGES_MAX`] requests without waiting. Messages
//! are counted from 1; [`GpuResponse::Done`] reports the message up to which all are completed. A failing request gets
//! no response: its outputs fail, as does everything computed from them, and a read reports the error.
//!
//! Neither side trusts the other: values are copied before they are interpreted, and numbers are looked up. The node,
//! which creates the connection, maps the memory as well and supervises the duration of the current work.

mod broker;
mod client;
mod process;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{Costs, DeviceProfile, Op, Spec};

pub use broker::{Broker, BrokerRequest, BrokerResponse};
pub use client::{GpuClient, ReadNumber};
pub use process::{GpuOptions, GpuProcess, LIST_ARGUMENT, ProcessState, SERVE_ARGUMENT, SOFTWARE_ARGUMENT};

/// Control words in the shared memory, as indices of u64, each on its own cache line.
pub mod words {
    /// Start of the GPU's current work for this connection, in nanoseconds of the monotonic clock; 0 when idle.
    pub const BUSY_SINCE: usize = 0;
    /// Start of the process's current kernel compilation, likewise.
    pub const COMPILING_SINCE: usize = 8;
    /// Set by the node before it kills the process: the number of a [`KillReason`](super::KillReason).
    pub const KILL_REASON: usize = 24;
    /// Number of guests that use the connection, set by the worker.
    pub const USERS: usize = 40;
    /// Not 0 once the GPU's process has closed the connection.
    pub const CLOSED: usize = 32;
}

/// Bytes of control words, before the slots.
pub const CONTROL_BYTES: usize = 4096;
/// Maximum bytes of values per message, and size of a slot.
pub const TRANSFER_BYTES_MAX: usize = 2 << 20;
/// Number of slots for uploads, and of slots for downloads behind them. Slots are used in turn.
pub const SLOTS: usize = 4;
/// Size of the shared memory, in bytes.
pub const AREA_BYTES: usize = CONTROL_BYTES + 2 * SLOTS * TRANSFER_BYTES_MAX;
/// Maximum size of values inside a message, in bytes.
pub const INLINE_BYTES_MAX: usize = 4096;
/// Maximum number of incomplete messages.
pub const MESSAGES_MAX: u64 = 64;
/// Maximum size of a kernel's text, in bytes.
pub const KERNEL_BYTES_MAX: usize = 64 << 10;
/// Maximum number of tensors bound to a kernel.
pub const BINDINGS_MAX: usize = 8;
/// Maximum number of tensors dropped per message.
pub const DROPS_PER_MESSAGE_MAX: usize = 256;

/// Returns the offset of a slot in the shared memory.
pub fn slot_offset(number: usize, is_back: bool) -> usize {
    CONTROL_BYTES + (number % SLOTS + if is_back { SLOTS } else { 0 }) * TRANSFER_BYTES_MAX
}

/// Returns the time of the monotonic clock in nanoseconds, as used in the shared memory.
pub fn now_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A request to the GPU's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum GpuRequest {
    /// The following requests belong to another user, whose time is measured separately.
    User,
    /// Creates a tensor of zeros.
    Tensor {
        /// Number of the tensor.
        tensor: u32,
        /// Type and shape.
        spec: Spec,
        /// Whether the tensor will be overwritten completely.
        is_written: bool,
    },
    /// Writes values of a tensor.
    Write {
        /// Tensor.
        tensor: u32,
        /// Offset in bytes, a multiple of four.
        offset: u64,
        /// Values.
        values: TransferData,
    },
    /// Creates a tensor with the values of another in another shape.
    Reshape {
        /// Source.
        from: u32,
        /// Number of the new tensor.
        tensor: u32,
        /// Type and new shape.
        spec: Spec,
    },
    /// Runs an operation.
    Run {
        /// Operation.
        op: Op,
        /// Inputs.
        inputs: Vec<u32>,
        /// Numbers of the outputs.
        outputs: Vec<u32>,
    },
    /// Creates a guest's kernel.
    Kernel {
        /// Number of the kernel.
        kernel: u32,
        /// WGSL text.
        wgsl: String,
    },
    /// Runs a kernel.
    Dispatch {
        /// Kernel.
        kernel: u32,
        /// Tensors to bind, from binding 0 of group 0 on.
        bindings: Vec<u32>,
        /// Thread groups in each dimension.
        grid: [u32; 3],
    },
    /// Reads values of a tensor.
    Read {
        /// Tensor.
        tensor: u32,
        /// Offset in bytes, a multiple of four.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Drops tensors.
    Drop {
        /// Tensors.
        tensors: Vec<u32>,
    },
    /// Drops a kernel.
    DropKernel {
        /// Kernel.
        kernel: u32,
    },
}

/// Values in transit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum TransferData {
    /// Inline, at most [`INLINE_BYTES_MAX`].
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// This many bytes in the next slot.
    Slot(u32),
}

/// A response of the GPU's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum GpuResponse {
    /// All requests up to this message are completed.
    Done {
        /// Number of the message.
        message: u64,
        /// Nanoseconds of GPU work since the last report.
        nanos: u64,
    },
    /// Result of a read.
    Values {
        /// Number of the read's message.
        read: u64,
        /// Values, or the error.
        values: Result<TransferData, RemoteError>,
    },
}

/// Error of a GPU request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RemoteError {
    /// Kind.
    pub kind: RemoteErrorKind,
    /// Message.
    pub message: String,
}

/// Kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteErrorKind {
    /// The request is invalid.
    Request,
    /// The limit or the device's memory is exhausted.
    Memory,
    /// A kernel is invalid, or exceeds a limit.
    Kernel,
    /// The work exceeded its time limit.
    TimeOut,
    /// The device and all of its tensors are lost.
    Lost,
    /// The caller does not want to wait any longer.
    Cancelled,
}

/// Reason for which the node killed the process, for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum KillReason {
    /// Work of this connection exceeded its time limit.
    OwnWork = 1,
    /// Work of another connection exceeded its time limit.
    OthersWork = 2,
}

/// A message of the node to the GPU's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ServerRequest {
    /// First message.
    Hello {
        /// Index of the GPU.
        index: usize,
        /// Maximum bytes of all tensors.
        memory_bytes_max: u64,
        /// Costs of the GPU, if measured before.
        costs: Option<Costs>,
        /// Costs of the processor, to include in the profile.
        processor: Option<Costs>,
    },
    /// A new client. Files: its socket, and its shared memory.
    Connect,
}

/// A response to the first message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ServerResponse {
    /// The process accepts connections.
    Ready(Box<DeviceProfile>),
    /// The process has no usable GPU, for this reason.
    Failed(String),
}
