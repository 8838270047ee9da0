//! Kernels, each with all parameters that its text depends on.

use sandbar_dense::{Binary, Broadcast, Dtype, Reduction, Unary};

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Product(Product),
    Cooperative(Cooperative),
    /// The cooperative kernel with emulated matrix units.
    #[cfg(test)]
    Emulated(Cooperative),
    Map(ElementwiseKernel),
    Reduce(Reduce),
    Softmax(Softmax),
    Grouped(GroupedKernel),
    Solve(Solve),
    Points(Points),
}

/// A matrix product, by tiles of one size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(super) from: Dtype,
    pub(super) to: Dtype,
    pub(super) first_transposed: bool,
    pub(super) second_transposed: bool,
    /// Number of 4×4 blocks per thread in each dimension.
    pub(super) blocks: u32,
}

/// A matrix product by matrix units, by tiles of one size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cooperative {
    pub(super) units: MatrixUnits,
    pub(super) to: Dtype,
    /// Tile size as a multiple of the smallest.
    pub(super) blocks: u32,
    pub(super) first: Layout,
    pub(super) second: Layout,
}

/// Memory layout of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    /// Whether values of consecutive depths are adjacent, instead of those of consecutive lines: rows of the first
    /// operand, columns of the second.
    pub(super) is_deep: bool,
    /// Whether reads always cover four adjacent values.
    pub(super) is_by_four: bool,
}

/// A GPU's units for products of small square f16 matrices with sums in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixUnits {
    /// Rows and columns of a small matrix.
    pub(super) side: u32,
    /// Threads of a subgroup, which together hold a small matrix.
    pub(super) lanes: u32,
}

/// Element-wise functions, for a sequence of steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ElementwiseKernel {
    pub(super) dtype: Dtype,
    pub(super) inputs: Vec<Broadcast>,
    pub(super) steps: Vec<MapStep>,
}

/// A step, with parameters in place of constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MapStep {
    Input(u8),
    Parameter(u8),
    /// A constant, as the bits of an f64.
    Constant(u64),
    One(Unary),
    Two(Binary),
    Select,
}

/// A reduction of lines.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reduce {
    pub(super) from: Dtype,
    pub(super) to: Dtype,
    pub(super) with: Reduction,
    /// Whether a group reduces a line, instead of each thread.
    pub(super) by_group: bool,
    /// Whether the input has indices beside the values.
    pub(super) has_indices: bool,
    /// Whether the output has values beside the indices.
    pub(super) returns_values: bool,
}

/// A kernel for exponentials along rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Softmax {
    pub(super) dtype: Dtype,
    /// Whether to compute the logarithm of the sum, instead of shares of it.
    pub(super) is_log_sum: bool,
}

/// Least squares of many groups, for a number of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupedKernel {
    pub(super) width: u32,
    pub(super) is_weighted: bool,
}

/// Systems of equations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Solve {
    pub(super) dtype: Dtype,
    pub(super) is_cholesky: bool,
}

/// Nearest centres, histograms, row selection, and type conversions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Points {
    Nearest(Dtype),
    Histogram(Dtype, Dtype),
    Take(Dtype),
    Convert(Dtype, Dtype),
}
