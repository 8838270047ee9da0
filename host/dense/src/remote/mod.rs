//! How the process that has a GPU is asked to work, and answers.
//!
//! Over a Unix SEQPACKET socket, one message a datagram, in postcard, and in memory that both have: its first page has words
//! ([`words`]), then come values on their way, at first those that go to the GPU. Who asks gives tensors and kernels
//! their numbers, which it uses once, and asks for one thing after another without waiting, up to [`MESSAGES_MAX`]: messages are
//! counted from 1 on, and [`FromGpu::Done`] says up to which of them all is done. Work that has gone wrong is not answered:
//! what would have come of it has failed, and so has what is made of that; who reads it is told why.
//!
//! Neither side trusts the other: values are copied before they are looked at, and numbers are looked up. The node, which
//! made the connection, has the memory too, and looks at how long the work at hand has taken.

mod broker;
mod client;
mod process;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{Costs, Described, Op, Spec};

pub use broker::{Broker, FromBroker, ToBroker};
pub use client::{ReadNumber, Remote};
pub use process::{GpuOptions, GpuProcess, LIST_ARGUMENT, Looked, SERVE_ARGUMENT, SOFTWARE_ARGUMENT};

/// Words of the shared memory, as indices of u64, a line of the caches apart.
pub mod words {
    /// Since when the GPU has been at work of this connection, in nanoseconds of the monotonic clock; 0 if it is not.
    pub const SINCE: usize = 0;
    /// As above, of the process, which makes kernels.
    pub const MAKING_SINCE: usize = 8;
    /// Set by the node before it ends the process: what for, as [`Lost`](super::Lost)'s number.
    pub const LOST: usize = 24;
    /// How many guests use the connection, as the worker says.
    pub const USERS: usize = 40;
    /// Not 0 once the GPU's process has closed the connection.
    pub const CLOSED: usize = 32;
}

/// Bytes of the shared memory before values.
pub const CONTROL_BYTES: usize = 4096;
/// Values that are moved by one message at most.
pub const MOVED_BYTES_MAX: usize = 2 << 20;
/// Places for so many values to the GPU, and behind these as many for values back. They are used in turn.
pub const PLACES: usize = 4;
/// All of it.
pub const AREA_BYTES: usize = CONTROL_BYTES + 2 * PLACES * MOVED_BYTES_MAX;
/// Values up to so many bytes travel in the message.
pub const INLINE_BYTES_MAX: usize = 4096;
/// Messages that are not done, at most.
pub const MESSAGES_MAX: u64 = 64;
/// Text of a kernel at most.
pub const KERNEL_BYTES_MAX: usize = 64 << 10;
/// Tensors that a kernel is bound to at most.
pub const BINDINGS_MAX: usize = 8;
/// Tensors that are dropped by one message at most.
pub const DROPPED_MAX: usize = 256;

/// Where a place of the shared memory begins.
pub fn place(number: usize, is_back: bool) -> usize {
    CONTROL_BYTES + (number % PLACES + if is_back { PLACES } else { 0 }) * MOVED_BYTES_MAX
}

/// Nanoseconds of the monotonic clock, of which the shared memory tells.
pub fn now_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the GPU is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToGpu {
    /// What follows is for another user: its time is told apart.
    User,
    /// There is a tensor, of zeros.
    Tensor {
        /// Its number.
        tensor: u32,
        /// Its type and shape.
        spec: Spec,
        /// Whether all of it will be written.
        is_written: bool,
    },
    /// Values of a tensor.
    Write {
        /// Which one.
        tensor: u32,
        /// The byte from which on they are, a multiple of four.
        offset: u64,
        /// They.
        values: Moved,
    },
    /// There is a tensor of the same values as another, in another shape.
    Reshape {
        /// The other.
        from: u32,
        /// Its number.
        tensor: u32,
        /// Its type, and its shape.
        spec: Spec,
    },
    /// An operation.
    Run {
        /// Which one.
        op: Op,
        /// What it takes.
        inputs: Vec<u32>,
        /// The numbers of what comes of it.
        outputs: Vec<u32>,
    },
    /// There is a kernel of a guest's.
    Kernel {
        /// Its number.
        kernel: u32,
        /// Its text.
        wgsl: String,
    },
    /// A kernel is to be run.
    Dispatch {
        /// Which one.
        kernel: u32,
        /// What is bound to it, from place 0 of group 0 on.
        bindings: Vec<u32>,
        /// Groups of threads in each direction.
        grid: [u32; 3],
    },
    /// Values of a tensor are wanted.
    Read {
        /// Which one.
        tensor: u32,
        /// The byte from which on, a multiple of four.
        offset: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// These are not used any more.
    Drop {
        /// Tensors.
        tensors: Vec<u32>,
    },
    /// As above.
    DropKernel {
        /// The kernel.
        kernel: u32,
    },
}

/// Values on their way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Moved {
    /// Here, up to [`INLINE_BYTES_MAX`].
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// So many bytes in the next place.
    Placed(u32),
}

/// What the GPU's process says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromGpu {
    /// All up to this message is done.
    Done {
        /// Which one.
        message: u64,
        /// For how many nanoseconds the GPU worked at what was not said to be done before.
        nanos: u64,
    },
    /// Values that were asked for, or why there are none.
    Values {
        /// By which message.
        read: u64,
        /// They.
        values: Result<Moved, RemoteError>,
    },
}

/// Why there are no values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RemoteError {
    /// What happened.
    pub kind: RemoteErrorKind,
    /// In words.
    pub message: String,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteErrorKind {
    /// What was asked for makes no sense.
    Request,
    /// There is not enough memory, of the limit or of the device.
    Memory,
    /// A kernel is none, or over a limit.
    Kernel,
    /// It took longer than it may.
    TimeOut,
    /// The device is gone, with all that was on it.
    Lost,
}

/// What for a process was ended, as far as one of its connections is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Lost {
    /// What this connection had it do took too long.
    OwnWork = 1,
    /// What another connection had it do did.
    OthersWork = 2,
}

/// What the node says to the process that is to have a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// The first message.
    Hello {
        /// Which GPU, of those that there are.
        place: usize,
        /// Bytes that tensors may take.
        memory_bytes_max: u64,
        /// What it takes for what it does, if that was measured before.
        costs: Option<Costs>,
        /// What the processor takes, to be handed on.
        processor: Option<Costs>,
    },
    /// Somebody who is to be served. Files: a socket, and shared memory.
    Connect,
}

/// What it answers, once it is ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromServer {
    /// It takes connections.
    Ready(Box<Described>),
    /// It has no GPU to serve with, and why.
    Failed(String),
}
