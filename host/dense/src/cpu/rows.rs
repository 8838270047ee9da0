//! Reductions along a dimension, row selection, and histograms.

use super::real::Real;
use crate::steps::Steps;
use crate::{DenseError, OwnedValues, Reduction, Shape, Spec, Tensor, Values};

/// Values of a row that are processed at once.
const PART: usize = 1 << 16;

/// Splits a shape at a dimension: the product of the sizes before it, its size, and the product of those after it.
fn around(shape: Shape, along: usize) -> (usize, usize, usize) {
    let product = |sizes: &[u32]| sizes.iter().map(|size| *size as usize).product();
    let sizes = shape.sizes();
    (product(&sizes[..along]), sizes[along] as usize, product(&sizes[along + 1..]))
}

/// Reduces along a dimension. Sums are in f64 for every type.
pub(super) fn reduce<T: Real>(
    values: &[T],
    shape: Shape,
    along: usize,
    with: Reduction,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let (_, size, after) = around(shape, along);
    if matches!(with, Reduction::Sum | Reduction::Mean) {
        let divisor = if with == Reduction::Mean { size as f64 } else { 1.0 };
        if after == 1 {
            // Each line is contiguous.
            for (at, out) in out.iter_mut().enumerate() {
                steps.next(size / LANES)?;
                *out = T::from_f64(sum(&values[at * size..][..size]) / divisor);
            }
            return Ok(());
        }
        let mut sums = vec![0.0; after];
        for (at, out) in out.chunks_mut(after.max(1)).enumerate() {
            sums.fill(0.0);
            for row in values[at * size * after..][..size * after].chunks(after) {
                steps.next(after)?;
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.wide());
            }
            out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::from_f64(sum / divisor));
        }
        return Ok(());
    }
    let is_max = with == Reduction::Max;
    for (at, out) in out.chunks_mut(after.max(1)).enumerate() {
        out.fill(if is_max { T::neg_infinity() } else { T::infinity() });
        for row in values[at * size * after..][..size * after].chunks(after) {
            steps.next(after)?;
            for (out, value) in out.iter_mut().zip(row).filter(|(out, value)| is_beyond(is_max, **value, **out)) {
                *out = *value;
            }
        }
    }
    Ok(())
}

/// Number of parallel partial sums: a single one waits for each addition.
const LANES: usize = 16;

fn sum<T: Real>(values: &[T]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum += value.wide());
    }
    sums.iter().sum::<f64>() + rest.iter().map(|value| value.wide()).sum::<f64>()
}

/// Whether a value is beyond the best so far. NaN is beyond all, and the first of equals stays.
fn is_beyond<T: Real>(is_max: bool, value: T, found: T) -> bool {
    !found.is_nan() && (value.is_nan() || if is_max { value > found } else { value < found })
}

/// Returns the index of the maximum or minimum.
pub(super) fn arg_extremum<T: Real>(
    values: &[T],
    shape: Shape,
    along: usize,
    is_max: bool,
    steps: &mut Steps,
) -> Result<Vec<u32>, DenseError> {
    let (before, size, after) = around(shape, along);
    let mut indices = Vec::with_capacity(before * after);
    for first in (0..before).flat_map(|at| (0..after).map(move |column| at * size * after + column)) {
        steps.next(size)?;
        let mut best = 0;
        for at in 1..size {
            if is_beyond(is_max, values[first + at * after], values[first + best * after]) {
                best = at;
            }
        }
        indices.push(best as u32);
    }
    Ok(indices)
}

pub(super) fn softmax<T: Real>(
    values: &[T],
    columns: usize,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    if columns == 0 {
        return Ok(());
    }
    for (row, out) in values.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let (largest, sum) = exponents(row, steps)?;
        let sum = T::from_f64(sum);
        for (out, row) in out.chunks_mut(PART).zip(row.chunks(PART)) {
            steps.next(FUNCTION_OPERATIONS * row.len())?;
            out.iter_mut().zip(row).for_each(|(out, value)| *out = (*value - largest).exp() / sum);
        }
    }
    Ok(())
}

pub(super) fn log_sum_exp<T: Real>(
    values: &[T],
    columns: usize,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    if columns == 0 {
        out.fill(T::neg_infinity());
        return Ok(());
    }
    for (row, out) in values.chunks_exact(columns).zip(out) {
        let (largest, sum) = exponents(row, steps)?;
        // Avoids subtracting infinities.
        *out = if largest.wide().is_infinite() { largest } else { largest + T::from_f64(sum.ln()) };
    }
    Ok(())
}

/// Number of simple operations that an exponential takes.
const FUNCTION_OPERATIONS: usize = 8;

/// Returns the maximum, and the sum of the exponentials of the differences to it.
fn exponents<T: Real>(row: &[T], steps: &mut Steps) -> Result<(T, f64), DenseError> {
    let beyond = |found: T, value: &T| if is_beyond(true, *value, found) { *value } else { found };
    let largest = row.iter().fold(T::neg_infinity(), beyond);
    let mut sum = 0.0;
    for row in row.chunks(PART) {
        steps.next(FUNCTION_OPERATIONS * row.len())?;
        row.iter().for_each(|value| sum += (*value - largest).exp().wide());
    }
    Ok((largest, sum))
}

/// Sums the values of each bin, in f64 for every type.
pub(super) fn histogram<T: Real>(
    indices: &[u32],
    values: &[T],
    channels: usize,
    bins: usize,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    if bins * channels == 0 {
        return Ok(());
    }
    let rows = values.len() / channels;
    let mut sums = vec![0.0; bins * channels];
    for (feature, out) in out.chunks_exact_mut(bins * channels).enumerate() {
        sums.fill(0.0);
        let indices = &indices[feature * rows..][..rows];
        for (bin, values) in indices.iter().zip(values.chunks_exact(channels)) {
            steps.next(channels)?;
            let Some(sums) = sums.chunks_exact_mut(channels).nth(*bin as usize) else { continue };
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.wide());
        }
        out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::from_f64(*sum));
    }
    Ok(())
}

/// Selects rows by index.
pub(super) fn take(from: &Tensor<'_>, indices: &[u32], out: Spec) -> OwnedValues {
    fn rows<T: Copy>(values: &[T], indices: &[u32], zero: T, count: usize) -> Vec<T> {
        let width = count.checked_div(indices.len()).unwrap_or(0);
        let mut out = vec![zero; count];
        for (out, index) in out.chunks_exact_mut(width.max(1)).zip(indices) {
            let row = (*index as usize).checked_mul(width).and_then(|first| values.get(first..first + width));
            if let Some(row) = row {
                out.copy_from_slice(row);
            }
        }
        out
    }
    let count = out.shape.count();
    match from.values() {
        Values::F16(values) => OwnedValues::F16(rows(values, indices, half::f16::ZERO, count)),
        Values::F32(values) => OwnedValues::F32(rows(values, indices, 0.0, count)),
        Values::F64(values) => OwnedValues::F64(rows(values, indices, 0.0, count)),
        Values::U32(values) => OwnedValues::U32(rows(values, indices, 0, count)),
    }
}
