//! Operations: what each takes, and what comes of it. Whether an operation takes some tensors is decided here alone, before
//! any device sees them.

use serde::{Deserialize, Serialize};

use crate::map::Map;
use crate::{DenseError, Dtype, Shape, Spec};

/// Inputs of an operation at most.
pub const INPUTS_MAX: usize = 8;

/// An operation on tensors. Where not said otherwise all are of one type, which is a float's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Products of matrices: of the stacks `[.., m, k]` and `[.., k, n]`, `[.., m, n]`. Each factor may be taken
    /// transposed. A single matrix on either side is multiplied with each of the other.
    Product {
        /// The first is `[.., k, m]`.
        first_transposed: bool,
        /// The second is `[.., n, k]`.
        second_transposed: bool,
    },
    /// Least squares of many groups: of columns `[width, rows]`, a target `[rows]`, offsets `[groups + 1]` (whole numbers:
    /// group `g` has the rows from `offsets[g]` to before `offsets[g + 1]`) or `[groups, 2]` (where each begins, and where it
    /// ends) and, perhaps, weights `[rows]`, the
    /// coefficients `[groups, width + 1]`, of which the last is the intercept, and what became of each group `[groups]`
    /// (see [`Status`](crate::Status)). Of f64, since sums of squares square the condition number.
    GroupedLeastSquares(Grouped),
    /// The solutions of a stack of systems `[.., n, n]` that are symmetric and positive definite, for `[.., n, m]`:
    /// `[.., n, m]`. Of a system that is not, all are NaN.
    SolveCholesky,
    /// The least squares solutions of a stack of systems `[.., rows, n]`, at least as many rows as unknowns, for
    /// `[.., rows, m]`: `[.., n, m]`. Of a system without full rank they may be anything, infinity and NaN among it.
    SolveQr,
    /// A function of each value of up to [`INPUTS_MAX`] tensors: of the shape of one of them, the first to which
    /// the others can be stretched. They are of that shape, one value, a row `[columns]`, or a column `[.., 1]`.
    Map(Map),
    /// What comes of the values along a direction, which the result lacks. Places are whole numbers.
    Reduce {
        /// What comes of them.
        with: Reduction,
        /// The direction, from 0.
        along: u8,
    },
    /// `exp(x - max) / sum(exp(x - max))` along the last direction.
    Softmax,
    /// `log(sum(exp(x)))` along the last direction, which the result lacks.
    LogSumExp,
    /// Of points `[n, d]` and centres `[k, d]`: the place of the nearest centre of each point, of several the first
    /// (whole numbers, `[n]`), and the squares of the distances to them, `[n]`.
    Nearest,
    /// Of bins (whole numbers, `[features, rows]`) and values `[rows, channels]`: the sums of the values of each bin,
    /// `[features, bins, channels]`. A row whose bin is not below `bins` is of none.
    Histogram {
        /// How many bins each feature has.
        bins: u32,
    },
    /// The rows of `[n, ..]` at these places (whole numbers, `[m]`): `[m, ..]`. A place that is none gives zeros.
    Take,
    /// The values of a tensor of any type as floats of this one, rounded where it has not as many digits.
    Convert(Dtype),
}

/// Least squares of many groups.
///
/// Minimises `Σ wᵢ (yᵢ - xᵢ·c - c₀)² + ridge · ‖c‖²`; the intercept `c₀` is not penalised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Grouped {
    /// Whether there is an intercept. Otherwise it is zero.
    pub intercept: bool,
    /// The weight of the penalty, at least 0.
    pub ridge: f64,
    /// A group is singular if of the sum of squares of one of its columns less than this share is left by those before it,
    /// from 0 to 1. Less than [`PIVOT_MIN`](crate::PIVOT_MIN) is what rounding leaves of zero.
    pub pivot_min: f64,
}

/// What comes of values along a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Their sum; of none 0.
    Sum,
    /// Their mean; of none NaN.
    Mean,
    /// The largest, which is NaN if one is; of none -∞.
    Max,
    /// The smallest, which is NaN if one is; of none ∞.
    Min,
    /// The place of the largest, of several the first; NaN counts as the largest. There has to be one.
    ArgMax,
    /// The place of the smallest, of several the first; NaN counts as the smallest. There has to be one.
    ArgMin,
}

impl Op {
    /// What it is called.
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

    /// What comes of it.
    ///
    /// # Errors
    /// When it does not take these, or what comes of it is too large.
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
                let first = turned(shapes[0].matrices().ok_or_else(disagree)?, first_transposed);
                let second = turned(shapes[1].matrices().ok_or_else(disagree)?, second_transposed);
                let stacked = stack(&shapes).ok_or_else(disagree)?;
                if first.2 != second.1 {
                    return Err(disagree());
                }
                one(matrices(stacked, first.1, second.2)?)
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
                    let why = format!("its ridge is {}, it is at least 0 and finite", grouped.ridge);
                    return Err(DenseError::Operation { operation: self.name(), why });
                }
                if !(0.0..=1.0).contains(&grouped.pivot_min) {
                    let why = format!("its least pivot is {}, it is from 0 to 1", grouped.pivot_min);
                    return Err(DenseError::Operation { operation: self.name(), why });
                }
                if *width > GROUPED_WIDTH_MAX {
                    return Err(wrong(format!("takes {GROUPED_WIDTH_MAX} columns at most, not {width}")));
                }
                let status = Spec { dtype: Dtype::U32, shape: Shape::of([groups]) };
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
                    return Err(wrong(format!("reduces along direction {along} of {}, which it lacks", inputs[0])));
                };
                let is_place = matches!(with, Reduction::ArgMax | Reduction::ArgMin);
                if is_place && *size == 0 {
                    return Err(wrong(format!("finds no place along an empty direction of {}", inputs[0])));
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
                let shape = Shape::of([*points]);
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
            Op::Convert(to) => Err(wrong(format!("does not make {to}, but floats"))),
        }
    }

    fn check_number(&self, inputs: &[Spec]) -> Result<(), DenseError> {
        let (least, most) = match self {
            Op::Map(_) => (1, INPUTS_MAX),
            Op::GroupedLeastSquares(_) => (3, 4),
            Op::Reduce { .. } | Op::Softmax | Op::LogSumExp | Op::Convert(_) => (1, 1),
            _ => (2, 2),
        };
        if (least..=most).contains(&inputs.len()) {
            return Ok(());
        }
        let due = if least == most { least.to_string() } else { format!("{least} to {most}") };
        Err(DenseError::inputs(self.name(), format!("takes {due} tensors, not {}", inputs.len())))
    }

    fn check_types(&self, inputs: &[Spec]) -> Result<(), DenseError> {
        // Which of them are whole numbers.
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
            Op::GroupedLeastSquares(_) => "f64, f64, u32 and, perhaps, f64",
            Op::Histogram { .. } => "u32 and floats",
            Op::Take => "anything and u32",
            _ => "floats of one type",
        };
        Err(DenseError::inputs(self.name(), format!("takes tensors of {due}, not of {}", types.join(", "))))
    }
}

/// Columns of grouped least squares at most.
pub const GROUPED_WIDTH_MAX: u32 = 64;

/// What stands before the matrices of two stacks, of which one may be a single matrix.
fn stack(shapes: &[Shape]) -> Option<&[u32]> {
    let [first, second] = shapes else { return None };
    let (first, second) = (&first.sizes()[..first.rank() - 2], &second.sizes()[..second.rank() - 2]);
    match (first, second) {
        ([], other) | (other, []) => Some(other),
        (first, second) => (first == second).then_some(first),
    }
}

fn matrices(stack: &[u32], rows: usize, columns: usize) -> Result<Shape, DenseError> {
    // Each was the size of a direction.
    Shape::new(&[stack, &[rows as u32, columns as u32]].concat())
}
