//! Kernels of this crate: selection for an operation, and their parameters.

mod cooperative;
mod grouped;
mod maps;
mod points;
mod product;
mod rows;
mod solve;

use std::sync::Arc;

use sandbar_dense::{Dtype, GROUPED_WIDTH_MAX, Op};

pub(crate) use self::cooperative::MatrixUnits;
use crate::GpuError;
use crate::device::{Device, DeviceTensor};
use crate::memory::PooledBuffer;

/// Maximum number of thread groups in one dimension of a grid.
const GRID_MAX: u64 = 65_535;

/// A kernel, with all parameters that its text depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Product(product::Product),
    Cooperative(cooperative::Cooperative),
    /// The cooperative kernel with emulated matrix units.
    #[cfg(test)]
    Emulated(cooperative::Cooperative),
    Map(maps::ElementwiseKernel),
    Reduce(rows::Reduce),
    Softmax(rows::Softmax),
    Grouped(grouped::GroupedKernel),
    Solve(solve::Solve),
    Points(points::Points),
}

/// One launch of a kernel.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    /// Buffers bound from binding 0 on. The kernel writes to the last `written` ones.
    pub(crate) bindings: Vec<Arc<PooledBuffer>>,
    pub(crate) written: usize,
    pub(crate) immediates: Vec<u8>,
    pub(crate) grid: [u32; 3],
}

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

/// Returns the launches for an operation on valid inputs.
pub(crate) fn plan(
    device: &Device,
    op: &Op,
    inputs: &[&DeviceTensor],
    outputs: &[&DeviceTensor],
) -> Result<Vec<Step>, GpuError> {
    match op {
        Op::Product { first_transposed, second_transposed } => {
            product::plan(device, [(inputs[0], *first_transposed), (inputs[1], *second_transposed)], outputs[0])
        }
        Op::GroupedLeastSquares(options) => Ok(grouped::plan(*options, inputs, outputs)),
        Op::SolveCholesky => solve::plan(device, true, [inputs[0], inputs[1]], outputs[0]),
        Op::SolveQr => solve::plan(device, false, [inputs[0], inputs[1]], outputs[0]),
        Op::Map(map) => Ok(maps::plan(map, inputs, outputs[0])),
        Op::Reduce { with, along } => rows::reduce(device, *with, (*along).into(), inputs[0], outputs[0]),
        Op::Softmax => Ok(rows::softmax(inputs[0], outputs[0], false)),
        Op::LogSumExp => Ok(rows::softmax(inputs[0], outputs[0], true)),
        Op::Nearest => Ok(points::nearest([inputs[0], inputs[1]], [outputs[0], outputs[1]])),
        Op::Histogram { bins } => points::histogram(device, [inputs[0], inputs[1]], *bins, outputs[0]),
        Op::Take => Ok(points::take([inputs[0], inputs[1]], outputs[0])),
        Op::Convert(_) => Ok(points::convert(inputs[0], outputs[0])),
    }
}

/// Returns the type in which values of a type are computed.
fn arithmetic(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F16 { Dtype::F32 } else { dtype }
}

/// Returns the start of a text that reads type `T`, computes in `A` and writes `U`.
fn head(reads: Dtype, writes: Dtype) -> String {
    let enable = if [reads, writes].contains(&Dtype::F16) { "enable f16;\n" } else { "" };
    // Comparisons of a value with itself may be optimised away; naga's `!=` is false if one operand is NaN.
    let is_nan = match arithmetic(reads) {
        Dtype::F64 => "!(x == x)",
        _ => "(bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u",
    };
    format!(
        "{enable}alias T = {reads};\nalias A = {};\nalias U = {writes};\n\
         fn is_nan(x: A) -> bool {{ return {is_nan}; }}\n\
         fn group_index(w: vec3<u32>, n: vec3<u32>) -> u32 {{ return w.x + w.y * n.x; }}\n",
        arithmetic(reads),
    )
}

/// Returns the declaration of a binding.
fn binding(at: usize, name: &str, values: &str, is_written: bool) -> String {
    let access = if is_written { "read_write" } else { "read" };
    format!("@group(0) @binding({at}) var<storage, {access}> {name}: array<{values}>;\n")
}

/// Returns a grid of at least this many groups.
fn grid(groups: u64) -> [u32; 3] {
    // The number of values is at most 2³¹, so both dimensions are within the limit.
    let x = groups.clamp(1, GRID_MAX);
    [x as u32, groups.div_ceil(x).max(1) as u32, 1]
}

/// Parameters of a kernel in the order of its text: values in the arithmetic type come first.
#[derive(Debug, Default)]
struct Immediates(Vec<u8>);

impl Immediates {
    fn value(mut self, dtype: Dtype, value: f64) -> Immediates {
        match arithmetic(dtype) {
            Dtype::F64 => self.0.extend(value.to_le_bytes()),
            _ => self.0.extend((value as f32).to_le_bytes()),
        }
        self
    }

    fn size(mut self, size: usize) -> Immediates {
        self.0.extend((size as u32).to_le_bytes());
        self
    }

    /// Returns the bytes, padded to the alignment of their struct.
    fn bytes(mut self, dtype: Dtype) -> Vec<u8> {
        let alignment = if dtype == Dtype::F64 { 8 } else { 4 };
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.0
    }
}
