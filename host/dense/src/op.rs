//! Operations: valid inputs and the specs of their outputs. This module alone validates inputs, before any device sees
//! them.

use serde::{Deserialize, Serialize};

use crate::map::Map;
use crate::{DenseError, Dtype, Shape, Spec};

/// Maximum number of inputs of an operation.
pub const INPUTS_MAX: usize = 8;

/// An operation on tensors. Unless stated otherwise all tensors have the same float type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Matrix products: of the stacks `[.., m, k]` and `[.., k, n]`, `[.., m, n]`. Each factor may be transposed. A
    /// single matrix on either side is multiplied with each matrix of the other.
    Product {
        /// The first factor is `[.., k, m]`.
        first_transposed: bool,
        /// The second factor is `[.., n, k]`.
        second_transposed: bool,
    },
    /// Least squares of many groups, in f64, because sums of squares square the condition number.
    ///
    /// Inputs: columns `[width, rows]`, a target `[rows]`, offsets `[groups + 1]` (integers: group `g` has the rows
    /// `offsets[g]` to `offsets[g + 1]`, exclusive) or `[groups, 2]` (first row and end of each), and optional weights
    /// `[rows]`. Outputs: coefficients `[groups, width + 1]`, of which the last is the intercept, and the status of
    /// each group `[groups]` (see [`GroupStatus`](crate::GroupStatus)).
    GroupedLeastSquares(GroupedOptions),
    /// Solutions `[.., n, m]` of a stack of symmetric positive definite systems `[.., n, n]` for right sides `[.., n,
    /// m]`. All NaN for a system that is not positive definite.
    SolveCholesky,
    /// Least squares solutions `[.., n, m]` of a stack of systems `[.., rows, n]` with at least as many rows as
    /// unknowns, for right sides `[.., rows, m]`. Arbitrary for a system without full rank, including infinity and NaN.
    SolveQr,
    /// An element-wise function of up to [`INPUTS_MAX`] tensors. The output has the shape of the first input to which
    /// all others can be broadcast: tensors of that shape, single values, rows `[columns]` and columns `[.., 1]`.
    Map(Map),
    /// Reduces the values along a dimension, which the output lacks. Indices are integers.
    Reduce {
        /// Reduction.
        with: Reduction,
        /// Dimension, from 0.
        along: u8,
    },
    /// `exp(x - max) / sum(exp(x - max))` along the last dimension.
    Softmax,
    /// `log(sum(exp(x)))` along the last dimension, which the output lacks.
    LogSumExp,
    /// For points `[n, d]` and centres `[k, d]`: the index of each point's nearest centre, the first of several
    /// (integers, `[n]`), and the squared distances to them, `[n]`.
    Nearest,
    /// For bins (integers, `[features, rows]`) and values `[rows, channels]`: the sums of the values of each bin,
    /// `[features, bins, channels]`. Ignores rows whose bin is not below `bins`.
    Histogram {
        /// Number of bins of each feature.
        bins: u32,
    },
    /// The rows `[m, ..]` of `[n, ..]` at these indices (integers, `[m]`). Indices out of range give zeros.
    Take,
    /// Converts values of any type to this float type, with rounding.
    Convert(Dtype),
}

/// Options of least squares of many groups.
///
/// Minimises `Σ wᵢ (yᵢ - xᵢ·c - c₀)² + ridge · ‖c‖²`; the intercept `c₀` is not penalised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupedOptions {
    /// Whether to fit an intercept; without, it is zero.
    pub intercept: bool,
    /// Weight of the penalty, at least 0.
    pub ridge: f64,
    /// Minimum pivot, from 0 to 1: a group is singular if the columns before leave less than this share of a column's
    /// sum of squares. Values below [`PIVOT_MIN`](crate::PIVOT_MIN) have no effect, because rounding leaves such a
    /// share of zero.
    pub pivot_min: f64,
}

/// Reduction of the values along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Sum; 0 without values.
    Sum,
    /// Mean; NaN without values.
    Mean,
    /// Maximum, NaN if any value is NaN; -∞ without values.
    Max,
    /// Minimum, NaN if any value is NaN; ∞ without values.
    Min,
    /// Index of the maximum, the first of several; NaN counts as the maximum. Requires a value.
    ArgMax,
    /// Index of the minimum, the first of several; NaN counts as the minimum. Requires a value.
    ArgMin,
}

impl Op {
    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Product { .. } => "product",
            Op::GroupedLeastSquares(_) => "grouped-least-squares",
            Op::SolveCholesky => "solve-cholesky",
            Op::SolveQr => "solve-qr",
            Op::Map(_) => "map",
            Op::Reduce { .. } => "reduce",
            Op::Softmax => "softmax",
            Op::LogSumExp => "log-sum-exp",
            Op::Nearest => "nearest",
            Op::Histogram { .. } => "histogram",
            Op::Take => "take",
            Op::Convert(_) => "convert",
        }
    }

    /// Returns the specs of the outputs.
    ///
    /// # Errors
    /// Fails if the operation does not accept the inputs, or an output is too large.
    pub fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>, DenseError> {
        let wrong = |why: String| DenseError::inputs(self.name(), why);
        self.check_number(inputs)?;
        self.check_types(inputs)?;
        let shapes: Vec<Shape> = inputs.iter().map(|spec| spec.shape).collect();
        let dtype = inputs[0].dtype;
        let disagree = || {
            let all: Vec<String> = inputs.iter().map(Spec::to_string).collect();
            wrong(format!("does not take {}: their shapes don't agree", all.join(", ")))
        };
        let one = |shape: Shape| Ok(vec![Spec { dtype, shape }]);
        match self {
            Op::Product { first_transposed, second_transposed } => {
                let turned = |(count, rows, columns): (usize, usize, usize), is_turned: &bool| match is_turned {
                    true => (count, columns, rows),
                    false => (count, rows, columns),
                };
                let (_, rows, inner) = turned(shapes[0].matrices().ok_or_else(disagree)?, first_transposed);
                let (_, other_inner, columns) = turned(shapes[1].matrices().ok_or_else(disagree)?, second_transposed);
                let stacked = stack(&shapes).ok_or_else(disagree)?;
                if inner != other_inner {
                    return Err(disagree());
                }
                one(matrices(stacked, rows, columns)?)
            }
            Op::GroupedLeastSquares(grouped) => {
                let [columns, target, offsets, weights @ ..] = &shapes[..] else { return Err(disagree()) };
                let [width, rows] = columns.sizes() else { return Err(disagree()) };
                let groups = match offsets.sizes() {
                    [ends] => ends.checked_sub(1).ok_or_else(disagree)?,
                    [groups, 2] => *groups,
                    _ => return Err(disagree()),
                };
                if target.sizes() != [*rows] || weights.iter().any(|weights| weights != target) {
                    return Err(disagree());
                }
                if !(grouped.ridge.is_finite() && grouped.ridge >= 0.0) {
                    let why = format!("its ridge is {}, it must be finite and at least 0", grouped.ridge);
                    return Err(DenseError::Operation { operation: self.name(), why });
                }
                if !(0.0..=1.0).contains(&grouped.pivot_min) {
                    let why = format!("its minimum pivot is {}, it must be from 0 to 1", grouped.pivot_min);
                    return Err(DenseError::Operation { operation: self.name(), why });
                }
                if *width > GROUPED_WIDTH_MAX {
                    return Err(wrong(format!("takes at most {GROUPED_WIDTH_MAX} columns, not {width}")));
                }
                let status = Spec { dtype: Dtype::U32, shape: Shape::from_sizes([groups]) };
                Ok(vec![Spec { dtype, shape: Shape::new(&[groups, width + 1])? }, status])
            }
            Op::SolveCholesky | Op::SolveQr => {
                let (systems, right) = (shapes[0].matrices(), shapes[1].matrices());
                let (Some((_, rows, unknowns)), Some((_, right_rows, columns))) = (systems, right) else {
                    return Err(disagree());
                };
                let is_good = right_rows == rows
                    && rows >= unknowns
                    && (rows == unknowns || *self == Op::SolveQr)
                    && shapes[0].sizes()[..shapes[0].rank() - 2] == shapes[1].sizes()[..shapes[1].rank() - 2];
                if !is_good {
                    return Err(disagree());
                }
                one(matrices(&shapes[0].sizes()[..shapes[0].rank() - 2], unknowns, columns)?)
            }
            Op::Map(map) => {
                map.check(inputs.len())?;
                one(map.shape(&shapes).ok_or_else(disagree)?)
            }
            Op::Reduce { with, along } => {
                let (along, sizes) = (usize::from(*along), shapes[0].sizes());
                let Some(size) = sizes.get(along) else {
                    return Err(wrong(format!(
                        "can't reduce along dimension {along} of {}, which does not exist",
                        inputs[0]
                    )));
                };
                let is_place = matches!(with, Reduction::ArgMax | Reduction::ArgMin);
                if is_place && *size == 0 {
                    return Err(wrong(format!("finds no index along an empty dimension of {}", inputs[0])));
                }
                let dtype = if is_place { Dtype::U32 } else { dtype };
                let sizes: Vec<u32> = sizes[..along].iter().chain(&sizes[along + 1..]).copied().collect();
                Ok(vec![Spec::new(dtype, &sizes)?])
            }
            Op::Softmax if shapes[0].rank() > 0 => one(shapes[0]),
            Op::LogSumExp if shapes[0].rank() > 0 => one(Shape::new(&shapes[0].sizes()[..shapes[0].rank() - 1])?),
            Op::Softmax | Op::LogSumExp => Err(disagree()),
            Op::Nearest => {
                let ([points, width], [centres, of_centres]) = (shapes[0].sizes(), shapes[1].sizes()) else {
                    return Err(disagree());
                };
                if width != of_centres || *centres == 0 {
                    return Err(disagree());
                }
                let shape = Shape::from_sizes([*points]);
                Ok(vec![Spec { dtype: Dtype::U32, shape }, Spec { dtype, shape }])
            }
            Op::Histogram { bins } => {
                let ([features, rows], [of_values, channels]) = (shapes[0].sizes(), shapes[1].sizes()) else {
                    return Err(disagree());
                };
                if rows != of_values {
                    return Err(disagree());
                }
                Ok(vec![Spec::new(inputs[1].dtype, &[*features, *bins, *channels])?])
            }
            Op::Take => {
                let ([_, rest @ ..], [places]) = (shapes[0].sizes(), shapes[1].sizes()) else {
                    return Err(disagree());
                };
                one(Shape::new(&[&[*places], rest].concat())?)
            }
            Op::Convert(to) if to.is_float() => Ok(vec![Spec { dtype: *to, shape: shapes[0] }]),
            Op::Convert(to) => Err(wrong(format!("converts to floats, not to {to}"))),
        }
    }

    fn check_number(&self, inputs: &[Spec]) -> Result<(), DenseError> {
        let (min, max) = match self {
            Op::Map(_) => (1, INPUTS_MAX),
            Op::GroupedLeastSquares(_) => (3, 4),
            Op::Reduce { .. } | Op::Softmax | Op::LogSumExp | Op::Convert(_) => (1, 1),
            _ => (2, 2),
        };
        if (min..=max).contains(&inputs.len()) {
            return Ok(());
        }
        let due = if min == max { min.to_string() } else { format!("{min} to {max}") };
        Err(DenseError::inputs(self.name(), format!("takes {due} tensors, not {}", inputs.len())))
    }

    fn check_types(&self, inputs: &[Spec]) -> Result<(), DenseError> {
        // Index of the input of integers.
        let whole = match self {
            Op::GroupedLeastSquares(_) => Some(2),
            Op::Histogram { .. } => Some(0),
            Op::Take => Some(1),
            _ => None,
        };
        let mut floats = inputs.iter().enumerate().filter(|(at, _)| Some(*at) != whole).map(|(_, spec)| spec.dtype);
        let first = floats.next().unwrap_or(Dtype::F32);
        let is_good = whole.is_none_or(|at| inputs[at].dtype == Dtype::U32)
            && floats.all(|dtype| dtype == first)
            && (first.is_float() || matches!(self, Op::Take | Op::Convert(_)))
            && (first == Dtype::F64 || !matches!(self, Op::GroupedLeastSquares(_)));
        if is_good {
            return Ok(());
        }
        let types: Vec<&str> = inputs.iter().map(|spec| spec.dtype.as_str()).collect();
        let due = match self {
            Op::GroupedLeastSquares(_) => "f64, f64, u32 and optionally f64",
            Op::Histogram { .. } => "u32 and floats",
            Op::Take => "any type and u32",
            _ => "floats of one type",
        };
        Err(DenseError::inputs(self.name(), format!("takes tensors of {due}, not of {}", types.join(", "))))
    }
}

/// Maximum number of columns of grouped least squares.
pub const GROUPED_WIDTH_MAX: u32 = 64;

/// Returns the common leading dimensions of two stacks; one of them may be a single matrix.
fn stack(shapes: &[Shape]) -> Option<&[u32]> {
    let [first, second] = shapes else { return None };
    let (first, second) = (&first.sizes()[..first.rank() - 2], &second.sizes()[..second.rank() - 2]);
    match (first, second) {
        ([], other) | (other, []) => Some(other),
        (first, second) => (first == second).then_some(first),
    }
}

fn matrices(stack: &[u32], rows: usize, columns: usize) -> Result<Shape, DenseError> {
    // Both were the size of a dimension.
    Shape::new(&[stack, &[rows as u32, columns as u32]].concat())
}
