//! Dense kernels, which sandboxed code does two to three times slower than the machine could, and which a GPU does faster
//! still: products of matrices, systems of equations, least squares of many groups, functions of each value, reductions.
//!
//! An [`Op`] and the [`Spec`]s of some tensors say what comes of it; a [`Tensor`] has its values at hand. [`cpu`] does
//! operations on the processor, with faer and with loops of our own. Tests of functions do without faer and GPUs, which take
//! long to compile: without the features `faer` and `remote` this room is a small one.
//!
//! Goals: the same operations, with the same answers within stated tolerances, on every device; whatever the operation and
//! the values, an answer or an error. Non-goals: automatic differentiation, and fusing operations by itself.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[cfg(feature = "remote")]
mod about;
#[cfg(feature = "remote")]
mod cost;
pub mod cpu;
mod error;
mod grouped;
mod map;
mod op;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "remote")]
mod session;
mod shape;
mod tensor;

#[cfg(feature = "remote")]
pub use about::{About, Described, Kind};
#[cfg(feature = "remote")]
pub use cost::{Costs, Work};
pub use error::DenseError;
pub use grouped::{MEAN_NOISE, PIVOT_MIN, Status};
pub use map::{Binary, Map, STACK_MAX, STEPS_MAX, Step, Stretch, Unary, stretch};
pub use op::{GROUPED_WIDTH_MAX, Grouped, INPUTS_MAX, Op, Reduction};
#[cfg(feature = "remote")]
pub use session::{Choice, Gpu, KERNELS_MAX, Operand, Session, TENSORS_MAX};
pub use shape::{Dtype, RANK_MAX, Shape, Spec, VALUES_MAX};
pub use tensor::{Owned, Tensor, Values};
