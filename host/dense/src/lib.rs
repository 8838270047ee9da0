//! Dense linear algebra on the processor and on GPUs: matrix products, systems of equations, least squares of many
//! groups, element-wise functions and reductions. Sandboxed code runs these two to three times slower than native code,
//! and a GPU is faster still.
//!
//! An [`Op`] and the [`Spec`]s of its inputs determine the output specs; a [`Tensor`] also has values. [`cpu`] runs
//! operations on the processor, with faer and with loops of our own. Without the features `faer` and `remote` the crate
//! is small: tests of functions do not need faer and GPUs, which take long to compile.
//!
//! Goals: the same operations on every device, with the same results within stated tolerances; a result or an error for
//! any operation and any values. Non-goals: automatic differentiation, and automatic fusion of operations.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[cfg(feature = "remote")]
mod about;
#[cfg(feature = "remote")]
mod cost;
pub mod cpu;
mod error;
#[cfg(feature = "remote")]
mod gpu;
mod grouped;
mod map;
mod op;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "remote")]
mod session;
mod shape;
mod steps;
mod tensor;

#[cfg(feature = "remote")]
pub use about::{DeviceInfo, DeviceKind, DeviceProfile};
#[cfg(feature = "remote")]
pub use cost::{Costs, Workload};
pub use error::DenseError;
#[cfg(feature = "remote")]
pub use gpu::Gpu;
pub use grouped::{GroupStatus, MEAN_NOISE, PIVOT_MIN};
pub use map::{Binary, Broadcast, Map, STACK_MAX, STEPS_MAX, Step, Unary, broadcast};
pub use op::{GROUPED_WIDTH_MAX, GroupedOptions, INPUTS_MAX, Op, Reduction};
#[cfg(feature = "remote")]
pub use session::{DeviceChoice, KERNELS_MAX, Operand, Session, TENSORS_MAX};
pub use shape::{Dtype, RANK_MAX, Shape, Spec, VALUES_MAX};
pub use steps::Cancellation;
pub use tensor::{OwnedValues, Tensor, Values};
