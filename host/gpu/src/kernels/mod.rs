//! Kernels of this crate: selection for an operation, and their texts.

mod cooperative;
mod grouped;
mod kernel;
mod maps;
mod points;
mod product;
mod rows;
mod solve;
mod step;
mod tiles;
mod wgsl;

use sandbar_dense::{GROUPED_WIDTH_MAX, Op};

pub(crate) use self::kernel::{Kernel, MatrixUnits};
pub(crate) use self::step::Step;
use crate::GpuError;
use crate::tensor::{DeviceTensor, TensorMemory};

impl Kernel {
    /// Returns the WGSL text.
    pub(crate) fn source(&self) -> String {
        match self {
            Kernel::Product(product) => product.source(),
            Kernel::Cooperative(product) => product.source(),
            #[cfg(test)]
            Kernel::Emulated(product) => cooperative::tests::emulated(&product.source()),
            Kernel::Map(each) => each.source(),
            Kernel::Reduce(reduce) => reduce.source(),
            Kernel::Softmax(softmax) => softmax.source(),
            Kernel::Grouped(fit) => fit.source(),
            Kernel::Solve(solve) => solve.source(),
            Kernel::Points(points) => points.source(),
        }
    }
}

/// Returns the maximum number of columns of grouped least squares that fit the shared memory.
pub(crate) fn grouped_width_max(limits: &wgpu::Limits) -> u32 {
    let fits_limits =
        |width: &u32| grouped::shared_bytes(*width) <= u64::from(limits.max_compute_workgroup_storage_size);
    (0..=GROUPED_WIDTH_MAX).rev().find(fits_limits).unwrap_or(0)
}

/// Returns the launches for an operation on valid inputs, by matrix units if available and worthwhile.
pub(crate) fn plan(
    memory: &TensorMemory,
    units: Option<MatrixUnits>,
    op: &Op,
    inputs: &[&DeviceTensor],
    outputs: &[&DeviceTensor],
) -> Result<Vec<Step>, GpuError> {
    match op {
        Op::Product { first_transposed, second_transposed } => {
            product::plan(memory, units, [(inputs[0], *first_transposed), (inputs[1], *second_transposed)], outputs[0])
        }
        Op::GroupedLeastSquares(options) => Ok(grouped::plan(*options, inputs, outputs)),
        Op::SolveCholesky => solve::plan(memory, true, [inputs[0], inputs[1]], outputs[0]),
        Op::SolveQr => solve::plan(memory, false, [inputs[0], inputs[1]], outputs[0]),
        Op::Map(map) => Ok(maps::plan(map, inputs, outputs[0])),
        Op::Reduce { with, along } => rows::reduce(memory, *with, (*along).into(), inputs[0], outputs[0]),
        Op::Softmax => Ok(rows::softmax(inputs[0], outputs[0], false)),
        Op::LogSumExp => Ok(rows::softmax(inputs[0], outputs[0], true)),
        Op::Nearest => Ok(points::nearest([inputs[0], inputs[1]], [outputs[0], outputs[1]])),
        Op::Histogram { bins } => points::histogram(memory, [inputs[0], inputs[1]], *bins, outputs[0]),
        Op::Take => Ok(points::take([inputs[0], inputs[1]], outputs[0])),
        Op::Convert(_) => Ok(points::convert(inputs[0], outputs[0])),
    }
}
