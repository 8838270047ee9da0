//! Kernels of our own: which of them an operation takes, and what each is given.

mod cooperative;
mod grouped;
mod maps;
mod points;
mod product;
mod rows;
mod solve;

use std::sync::Arc;

use sandbar_dense::{Dtype, GROUPED_WIDTH_MAX, Op};

pub(crate) use self::cooperative::Units;
use crate::GpuError;
use crate::device::{Device, DeviceTensor};
use crate::memory::Taken;

/// Groups of threads in one direction of a grid, at most.
const GRID_MAX: u64 = 65_535;

/// A kernel, and all that its text depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Product(product::Product),
    Cooperative(cooperative::Cooperative),
    /// As above, without matrix units.
    #[cfg(test)]
    Emulated(cooperative::Cooperative),
    Map(maps::Each),
    Reduce(rows::Reduce),
    Softmax(rows::Softmax),
    Grouped(grouped::Fit),
    Solve(solve::Solve),
    Points(points::Points),
}

/// A kernel to be run once.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    /// What is bound to it, from place 0 on; it writes to the last ones, so many.
    pub(crate) bindings: Vec<Arc<Taken>>,
    pub(crate) written: usize,
    pub(crate) immediates: Vec<u8>,
    pub(crate) grid: [u32; 3],
}

impl Kernel {
    /// Its text, in WGSL.
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

/// The most columns of grouped least squares for which threads share enough memory.
pub(crate) fn grouped_width_max(limits: &wgpu::Limits) -> u32 {
    let has_room = |width: &u32| grouped::shared_bytes(*width) <= u64::from(limits.max_compute_workgroup_storage_size);
    (0..=GROUPED_WIDTH_MAX).rev().find(has_room).unwrap_or(0)
}

/// What is to be run for an operation that takes these.
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

/// The type that values of one are computed in.
fn arithmetic(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F16 { Dtype::F32 } else { dtype }
}

/// How a text begins that reads values of one type, `T`, computes in `A` and writes others, `U`.
fn head(reads: Dtype, writes: Dtype) -> String {
    let enable = if [reads, writes].contains(&Dtype::F16) { "enable f16;\n" } else { "" };
    // What is compared with itself may be taken for equal; naga's `!=` is false where one is NaN.
    let is_nan = match arithmetic(reads) {
        Dtype::F64 => "!(x == x)",
        _ => "(bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u",
    };
    format!(
        "{enable}alias T = {reads};\nalias A = {};\nalias U = {writes};\n\
         fn is_nan(x: A) -> bool {{ return {is_nan}; }}\n\
         fn place(w: vec3<u32>, n: vec3<u32>) -> u32 {{ return w.x + w.y * n.x; }}\n",
        arithmetic(reads),
    )
}

/// A binding's declaration.
fn binding(at: usize, name: &str, values: &str, is_written: bool) -> String {
    let access = if is_written { "read_write" } else { "read" };
    format!("@group(0) @binding({at}) var<storage, {access}> {name}: array<{values}>;\n")
}

/// A grid of so many groups.
fn grid(groups: u64) -> [u32; 3] {
    // Counts of values are below 2³¹, so both fit.
    let x = groups.clamp(1, GRID_MAX);
    [x as u32, groups.div_ceil(x).max(1) as u32, 1]
}

/// What a kernel is told, in the order in which its text declares it: values in the type that it computes in come first.
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

    /// All of them, in a multiple of what a struct of them is aligned to.
    fn bytes(mut self, dtype: Dtype) -> Vec<u8> {
        let alignment = if dtype == Dtype::F64 { 8 } else { 4 };
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.0
    }
}
