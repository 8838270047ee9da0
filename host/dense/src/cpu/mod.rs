//! Operations on one core of the processor: parallelism comes from the number of workers.
//!
//! Computes f16 in f32, and rounds at the end.

mod algebra;
#[cfg(feature = "faer")]
mod by_faer;
mod maps;
mod matrix;
#[cfg(any(test, not(feature = "faer")))]
mod plain;
mod real;
mod rows;

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt as _;

use self::algebra::{MatrixStack, Points};
use self::maps::MapInput;
use self::real::Real;
use crate::grouped::{self, GroupFits, GroupRows};
use crate::map::broadcast;
use crate::steps::Steps;
use crate::{Cancellation, DenseError, Dtype, Op, OwnedValues, Reduction, Shape, Spec, Tensor, Values};

/// Runs an operation. Allocates the outputs of [`Op::outputs`], and f32 copies of f16 inputs.
///
/// # Errors
/// Errors of [`Op::outputs`].
pub fn run(op: &Op, inputs: &[Tensor<'_>]) -> Result<Vec<OwnedValues>, DenseError> {
    run_until(op, inputs, Cancellation::NEVER)
}

/// Like [`run`], but ends early when it is cancelled.
///
/// # Errors
/// Errors of [`Op::outputs`], and [`DenseError::Cancelled`].
pub fn run_until(op: &Op, inputs: &[Tensor<'_>], cancellation: Cancellation) -> Result<Vec<OwnedValues>, DenseError> {
    let specs: Vec<Spec> = inputs.iter().map(Tensor::spec).collect();
    let outputs = op.outputs(&specs)?;
    // Type of the inputs that are not integers.
    let dtype = match op {
        Op::Histogram { .. } => specs[1].dtype,
        _ => specs[0].dtype,
    };
    let steps = &mut Steps::new(cancellation);
    match dtype {
        Dtype::F64 => run_as::<f64>(op, inputs, &outputs, steps, |values| match values {
            Values::F64(values) => Cow::Borrowed(values),
            _ => Cow::Borrowed(&[]),
        }),
        _ => run_as::<f32>(op, inputs, &outputs, steps, |values| match values {
            Values::F32(values) => Cow::Borrowed(values),
            Values::F16(values) => Cow::Owned(values.to_f32_vec()),
            _ => Cow::Borrowed(&[]),
        }),
    }
}

/// Runs an operation that computes in `T`.
fn run_as<T: Real>(
    op: &Op,
    inputs: &[Tensor<'_>],
    outputs: &[Spec],
    steps: &mut Steps,
    values: impl for<'a> Fn(Values<'a>) -> Cow<'a, [T]>,
) -> Result<Vec<OwnedValues>, DenseError> {
    let shapes: Vec<Shape> = inputs.iter().map(|tensor| tensor.spec().shape).collect();
    let all: Vec<Cow<'_, [T]>> = inputs.iter().map(|tensor| values(tensor.values())).collect();
    let whole = |at: usize| match inputs[at].values() {
        Values::U32(values) => values,
        // The types were validated.
        _ => &[],
    };
    let first = outputs[0];
    let mut out = vec![T::zero(); if first.dtype.is_float() { first.shape.count() } else { 0 }];
    let mut indices = Vec::new();
    match op {
        Op::Product { first_transposed, second_transposed } => {
            let first = MatrixStack { values: &all[0], shape: shapes[0], is_transposed: *first_transposed };
            let second = MatrixStack { values: &all[1], shape: shapes[1], is_transposed: *second_transposed };
            algebra::product(first, second, &mut out, steps)?;
        }
        Op::GroupedLeastSquares(options) => {
            return grouped_least_squares(*options, inputs, outputs, whole(2), steps);
        }
        Op::SolveCholesky => {
            algebra::solve_cholesky(MatrixStack::new(&all[0], shapes[0]), &all[1], &mut out, steps)?;
        }
        Op::SolveQr => algebra::solve_qr(MatrixStack::new(&all[0], shapes[0]), &all[1], &mut out, steps)?,
        Op::Map(map) => {
            let all = all.iter().zip(&shapes);
            let stretched =
                all.filter_map(|(values, shape)| Some(MapInput { values, broadcast: broadcast(*shape, first.shape)? }));
            let inputs: Vec<MapInput<'_, T>> = stretched.collect();
            maps::map(map, &inputs, first.shape.last(), &mut out, steps)?;
        }
        Op::Reduce { with: with @ (Reduction::ArgMax | Reduction::ArgMin), along } => {
            let is_max = *with == Reduction::ArgMax;
            indices = rows::arg_extremum(&all[0], shapes[0], usize::from(*along), is_max, steps)?;
        }
        Op::Reduce { with, along } => {
            rows::reduce(&all[0], shapes[0], usize::from(*along), *with, &mut out, steps)?;
        }
        Op::Softmax => rows::softmax(&all[0], shapes[0].last(), &mut out, steps)?,
        Op::LogSumExp => rows::log_sum_exp(&all[0], shapes[0].last(), &mut out, steps)?,
        Op::Nearest => {
            let points = Points { values: &all[0], count: shapes[0].sizes()[0] as usize };
            let (found, squares) = algebra::nearest(points, &all[1], shapes[0].last(), steps)?;
            let squares = T::owned(squares, outputs[1].dtype);
            return Ok(vec![OwnedValues::U32(found), squares]);
        }
        Op::Histogram { bins } => {
            rows::histogram(whole(0), &all[1], shapes[1].last(), *bins as usize, &mut out, steps)?;
        }
        Op::Take => return Ok(vec![rows::take(&inputs[0], whole(1), first)]),
        Op::Convert(to) => return Ok(vec![inputs[0].values().convert(*to)]),
    }
    Ok(vec![match first.dtype {
        Dtype::U32 => OwnedValues::U32(indices),
        dtype => T::owned(out, dtype),
    }])
}

fn grouped_least_squares(
    options: crate::GroupedOptions,
    inputs: &[Tensor<'_>],
    outputs: &[Spec],
    offsets: &[u32],
    steps: &mut Steps,
) -> Result<Vec<OwnedValues>, DenseError> {
    let values = |at: usize| match inputs.get(at).map(Tensor::values) {
        Some(Values::F64(values)) => Some(values),
        _ => None,
    };
    let rows = GroupRows {
        columns: values(0).unwrap_or_default(),
        target: values(1).unwrap_or_default(),
        weights: values(3),
        offsets,
        step: inputs[2].spec().shape.rank(),
        width: inputs[0].spec().shape.sizes()[0] as usize,
    };
    let mut coefficients = vec![0.0; outputs[0].shape.count()];
    let mut statuses = vec![0; outputs[1].shape.count()];
    let fits = GroupFits { rows: &rows, options, coefficients: &mut coefficients, statuses: &mut statuses };
    grouped::solve(fits, steps)?;
    Ok(vec![OwnedValues::F64(coefficients), OwnedValues::U32(statuses)])
}
