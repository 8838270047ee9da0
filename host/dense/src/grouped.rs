//! Least squares of many groups on the processor.
//!
//! Computes the means, then the sums of products of the centred values, then a Cholesky factor. Without centring, sums
//! of squares of values far from zero would lose the differences within a group. Source: Golub and Van Loan, *Matrix
//! Computations*, 4.2 and 5.3.

use std::ops::Range;

use crate::steps::Steps;
use crate::{DenseError, GroupedOptions};

/// Status of a fitted group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GroupStatus {
    /// The coefficients are valid.
    Solved = 0,
    /// The group has no rows, or no positive weight.
    Empty = 1,
    /// The columns are linearly dependent within the accuracy of f64; no solution is returned.
    Singular = 2,
    /// A value is NaN or infinite, a weight is negative, or a sum overflowed.
    NotFinite = 3,
    /// The offsets decrease or exceed the number of rows.
    OutOfRange = 4,
}

impl GroupStatus {
    /// Returns the status with this number.
    pub fn from_number(number: u32) -> Option<GroupStatus> {
        let all = [
            GroupStatus::Solved,
            GroupStatus::Empty,
            GroupStatus::Singular,
            GroupStatus::NotFinite,
            GroupStatus::OutOfRange,
        ];
        all.into_iter().find(|status| *status as u32 == number)
    }
}

/// Minimum share of a column's sum of squares that a pivot must have; smaller ones are rounding errors of zero.
///
/// For dependent columns the share is of the order of width · 2⁻⁵³; for columns that are independent to half of f64's
/// digits, 2⁻⁵².
pub const PIVOT_MIN: f64 = 1e-13;
/// Maximum rounding error of centred constant values, as a share of their mean.
pub const MEAN_NOISE: f64 = 4.0 * f64::EPSILON;
/// Rows per block: up to 16 columns of them fit the first-level cache.
const BLOCK: usize = 128;
/// Number of parallel partial sums on every processor, so that results have the same bits.
const LANES: usize = 8;

/// Input of all groups.
pub(crate) struct GroupRows<'a> {
    /// Columns, one after another.
    pub(crate) columns: &'a [f64],
    pub(crate) target: &'a [f64],
    pub(crate) weights: Option<&'a [f64]>,
    pub(crate) offsets: &'a [u32],
    /// Distance of consecutive groups in `offsets`: 1 for shared ends, 2 for separate ones.
    pub(crate) step: usize,
    pub(crate) width: usize,
}

/// Maximum number of the next group's rows to prefetch while one is fitted; more would evict each other from the cache.
const PREFETCH_ROWS: usize = 128;
/// Values per cache line.
const LINE: usize = 8;

impl GroupRows<'_> {
    /// Prefetches the first rows of a group. Its columns are far apart, and more than the streams that the hardware
    /// prefetcher follows.
    #[inline(always)]
    fn prefetch(&self, first: usize, end: usize) {
        let length = self.target.len();
        let end = end.min(length).min(first.saturating_add(PREFETCH_ROWS));
        for column in 0..=self.width {
            for row in (first..end).step_by(LINE) {
                let value = if column < self.width { &self.columns[column * length + row] } else { &self.target[row] };
                prefetch(value);
            }
        }
    }
}

#[inline(always)]
fn prefetch(value: &f64) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it has no effect on memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Groups to fit.
pub(crate) struct GroupFits<'a> {
    pub(crate) rows: &'a GroupRows<'a>,
    pub(crate) options: GroupedOptions,
    /// Receives the coefficients of each group, the intercept last.
    pub(crate) coefficients: &'a mut [f64],
    /// Receives the status of each group.
    pub(crate) statuses: &'a mut [u32],
}

/// Fits all groups.
pub(crate) fn solve(fits: GroupFits<'_>, steps: &mut Steps) -> Result<(), DenseError> {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            return unsafe { avx512(fits, steps) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2(fits, steps) };
        }
    }
    fit_groups(fits, steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(fits: GroupFits<'_>, steps: &mut Steps) -> Result<(), DenseError> {
    fit_groups(fits, steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(fits: GroupFits<'_>, steps: &mut Steps) -> Result<(), DenseError> {
    fit_groups(fits, steps)
}

#[inline(always)]
fn fit_groups(fits: GroupFits<'_>, steps: &mut Steps) -> Result<(), DenseError> {
    let GroupFits { rows, options, coefficients, statuses } = fits;
    let mut workspace = Workspace::new(rows.width);
    let groups = coefficients.chunks_exact_mut(rows.width + 1).zip(statuses);
    for (group, (coefficients, status)) in groups.enumerate() {
        let ends = &rows.offsets[group * rows.step..][..2];
        if let Some(next) = rows.offsets.get((group + 1) * rows.step..).and_then(|ends| ends.get(..2)) {
            rows.prefetch(next[0] as usize, next[1] as usize);
        }
        let range = ends[0] as usize..ends[1] as usize;
        let found = fit_group(rows, range, options, &mut workspace, coefficients, steps)?;
        if found != GroupStatus::Solved {
            coefficients.fill(f64::NAN);
        }
        *status = found as u32;
    }
    Ok(())
}

/// Buffers for fitting one group. The target is the last column.
struct Workspace {
    means: Vec<f64>,
    /// Centred rows, in columns of [`BLOCK`].
    block: Vec<[f64; BLOCK]>,
    /// One centred column times the weights.
    weighted: [f64; BLOCK],
    /// Sums of products, then the factor, as a row-major lower triangle with full row stride.
    sums: Vec<f64>,
}

impl Workspace {
    fn new(width: usize) -> Workspace {
        let columns = width + 1;
        Workspace {
            means: vec![0.0; columns],
            block: vec![[0.0; BLOCK]; columns],
            weighted: [0.0; BLOCK],
            sums: vec![0.0; columns * columns],
        }
    }
}

#[inline(always)]
fn fit_group(
    rows: &GroupRows<'_>,
    range: Range<usize>,
    options: GroupedOptions,
    workspace: &mut Workspace,
    coefficients: &mut [f64],
    steps: &mut Steps,
) -> Result<GroupStatus, DenseError> {
    let (width, length) = (rows.width, rows.target.len());
    let Range { start: first, end } = range;
    if first > end || end > length {
        return Ok(GroupStatus::OutOfRange);
    }
    // Sums take a few operations at once.
    steps.next((end - first) * (width + 1) / LANES)?;
    let weights = rows.weights.map(|weights| &weights[first..end]);
    let weight = weights.map_or((end - first) as f64, sum);
    if weights.is_some_and(|weights| weights.iter().any(|weight| weight.is_nan() || *weight < 0.0)) {
        return Ok(GroupStatus::NotFinite);
    }
    if weight == 0.0 {
        return Ok(GroupStatus::Empty);
    }
    let column = |at: usize| match at < width {
        true => &rows.columns[at * length + first..at * length + end],
        false => &rows.target[first..end],
    };
    workspace.means.fill(0.0);
    if options.intercept {
        for (at, mean) in workspace.means.iter_mut().enumerate() {
            let sum = weights.map_or_else(|| sum(column(at)), |weights| dot(column(at), weights));
            *mean = sum / weight;
        }
    }
    workspace.sums.fill(0.0);
    let mut from = 0;
    while from < end - first {
        steps.next(BLOCK * (width + 1) * (width + 1) / LANES)?;
        let count = (end - first - from).min(BLOCK);
        // Padding with zeros adds nothing.
        let padded = count.next_multiple_of(LANES);
        for (at, (block, mean)) in workspace.block.iter_mut().zip(&workspace.means).enumerate() {
            for (to, value) in block.iter_mut().zip(&column(at)[from..from + count]) {
                *to = value - mean;
            }
            block[count..padded].fill(0.0);
        }
        for i in 0..=width {
            let left = match weights {
                None => &workspace.block[i][..padded],
                Some(weights) => {
                    let both = workspace.block[i].iter().zip(&weights[from..from + count]);
                    workspace.weighted.iter_mut().zip(both).for_each(|(to, (value, weight))| *to = value * weight);
                    workspace.weighted[count..padded].fill(0.0);
                    &workspace.weighted[..padded]
                }
            };
            for j in 0..=i {
                workspace.sums[i * (width + 1) + j] += dot_lanes(left, &workspace.block[j][..padded]);
            }
        }
        from += count;
    }
    if workspace.sums.iter().any(|sum| !sum.is_finite()) {
        return Ok(GroupStatus::NotFinite);
    }
    let noise = workspace.means.iter().map(|mean| (mean * MEAN_NOISE).powi(2) * weight);
    if !factor(&mut workspace.sums, width, options, noise) {
        return Ok(GroupStatus::Singular);
    }
    substitute(&workspace.sums, width, coefficients);
    let at_means: f64 = coefficients.iter().zip(&workspace.means[..width]).map(|(c, mean)| c * mean).sum();
    coefficients[width] = if options.intercept { workspace.means[width] - at_means } else { 0.0 };
    Ok(match coefficients.iter().all(|c| c.is_finite()) {
        true => GroupStatus::Solved,
        false => GroupStatus::NotFinite,
    })
}

/// Computes the Cholesky factor of the features' sums in place, and the transformed target row below it. Returns false
/// if the matrix is singular within the noise of its sums of squares.
#[inline(always)]
fn factor(sums: &mut [f64], width: usize, options: GroupedOptions, noise: impl Iterator<Item = f64>) -> bool {
    let (stride, ridge, pivot_min) = (width + 1, options.ridge, options.pivot_min.max(PIVOT_MIN));
    for (j, noise) in (0..width).zip(noise) {
        let whole = sums[j * stride + j] + ridge;
        let previous: f64 = (0..j).map(|k| sums[j * stride + k] * sums[j * stride + k]).sum();
        let pivot = whole - previous;
        if pivot <= (whole * pivot_min).max(noise) {
            return false;
        }
        let root = pivot.sqrt();
        sums[j * stride + j] = root;
        for i in j + 1..stride {
            let previous: f64 = (0..j).map(|k| sums[i * stride + k] * sums[j * stride + k]).sum();
            sums[i * stride + j] = (sums[i * stride + j] - previous) / root;
        }
    }
    true
}

/// Computes the coefficients from the factor and the target row below it.
#[inline(always)]
fn substitute(sums: &[f64], width: usize, coefficients: &mut [f64]) {
    let stride = width + 1;
    for i in (0..width).rev() {
        let previous: f64 = (i + 1..width).map(|k| sums[k * stride + i] * coefficients[k]).sum();
        coefficients[i] = (sums[width * stride + i] - previous) / sums[i * stride + i];
    }
}

/// Returns the dot product of columns whose length is a multiple of [`LANES`].
#[inline(always)]
fn dot_lanes(left: &[f64], right: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    for (left, right) in left.as_chunks::<LANES>().0.iter().zip(right.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    sums.iter().sum()
}

#[inline(always)]
fn dot(left: &[f64], right: &[f64]) -> f64 {
    let whole = left.len() - left.len() % LANES;
    let rest: f64 = left[whole..].iter().zip(&right[whole..]).map(|(left, right)| left * right).sum();
    dot_lanes(&left[..whole], &right[..whole]) + rest
}

#[inline(always)]
fn sum(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += chunk[lane];
        }
    }
    sums.iter().sum::<f64>() + rest.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancellation;

    fn steps() -> Steps {
        Steps::new(Cancellation::NEVER)
    }

    fn fit(columns: &[f64], target: &[f64], weights: Option<&[f64]>, ridge: f64) -> (Vec<f64>, GroupStatus) {
        let width = columns.len().checked_div(target.len()).unwrap_or(1);
        let rows = GroupRows { columns, target, weights, offsets: &[0, target.len() as u32], step: 1, width };
        let (mut coefficients, mut status) = (vec![0.0; width + 1], [9]);
        let options = GroupedOptions { intercept: true, ridge, pivot_min: 0.0 };
        let fits = GroupFits { rows: &rows, options, coefficients: &mut coefficients, statuses: &mut status };
        solve(fits, &mut steps()).unwrap();
        (coefficients, GroupStatus::from_number(status[0]).unwrap())
    }

    #[test]
    fn statuses_of_groups() {
        let (line, far): (Vec<f64>, Vec<f64>) = (0..9).map(|at| (f64::from(at), 1e8 + f64::from(at))).unzip();
        let [twice, target] = [2.0, 3.0].map(|times| line.iter().map(|x| 1.0 + times * x).collect::<Vec<f64>>());
        for (name, columns, weights, ridge, status) in [
            ("a line", line.clone(), None, 0.0, GroupStatus::Solved),
            ("far from zero", far.clone(), None, 0.0, GroupStatus::Solved),
            ("a column and its double", [line.clone(), twice.clone()].concat(), None, 0.0, GroupStatus::Singular),
            ("the same, with a ridge", [line.clone(), twice].concat(), None, 1.0, GroupStatus::Solved),
            ("a constant", vec![0.1; 9], None, 0.0, GroupStatus::Singular),
            ("weights of zero", line.clone(), Some(vec![0.0; 9]), 0.0, GroupStatus::Empty),
            ("one weight", line.clone(), Some([vec![0.0; 8], vec![3.0]].concat()), 0.0, GroupStatus::Singular),
            (
                "a weight below zero",
                line.clone(),
                Some([vec![1.0; 8], vec![-3.0]].concat()),
                0.0,
                GroupStatus::NotFinite,
            ),
            ("a weight that is none", line.clone(), Some(vec![f64::NAN; 9]), 0.0, GroupStatus::NotFinite),
            ("NaN", [vec![f64::NAN], line[1..].to_vec()].concat(), None, 0.0, GroupStatus::NotFinite),
            ("infinity", [vec![f64::INFINITY], line[1..].to_vec()].concat(), None, 0.0, GroupStatus::NotFinite),
            ("sums that are too large", line.iter().map(|x| x * 1e200).collect(), None, 0.0, GroupStatus::NotFinite),
        ] {
            let (coefficients, found) = fit(&columns, &target, weights.as_deref(), ridge);
            assert_eq!(found, status, "{name}");
            assert_eq!(
                coefficients.iter().any(|c| c.is_nan()),
                status != GroupStatus::Solved,
                "{name}: {coefficients:?}"
            );
            if status == GroupStatus::Solved && ridge == 0.0 {
                assert!((coefficients[0] - 3.0).abs() < 1e-9, "{name}: {coefficients:?}");
            }
        }
        assert_eq!(fit(&[], &[], None, 0.0).1, GroupStatus::Empty);
    }

    #[test]
    fn offsets_that_are_no_rows() {
        let line: Vec<f64> = (0..9).map(f64::from).collect();
        let rows =
            GroupRows { columns: &line, target: &line, weights: None, offsets: &[0, 3, 2, 9, 10], step: 1, width: 1 };
        let (mut coefficients, mut statuses) = ([0.0; 8], [9; 4]);
        let options = GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 };
        let fits = GroupFits { rows: &rows, options, coefficients: &mut coefficients, statuses: &mut statuses };
        solve(fits, &mut steps()).unwrap();
        assert_eq!(statuses.map(GroupStatus::from_number), [0, 4, 0, 4].map(GroupStatus::from_number));
        assert_eq!(coefficients.map(f64::is_nan), [false, false, true, true, false, false, true, true]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn bits_are_the_same_on_all_processors() {
        let values: Vec<f64> = (0..4000).map(|at| f64::from(at * 7919 % 1009) / 17.0).collect();
        let rows = GroupRows {
            columns: &values[..3000],
            target: &values[3000..],
            weights: None,
            offsets: &[0, 5, 300, 301, 1000],
            step: 1,
            width: 3,
        };
        let options = GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 };
        let run = |way: &dyn Fn(GroupFits<'_>) -> Result<(), DenseError>| {
            let (mut coefficients, mut statuses) = (vec![0.0; 16], vec![9; 4]);
            way(GroupFits { rows: &rows, options, coefficients: &mut coefficients, statuses: &mut statuses }).unwrap();
            (coefficients.iter().map(|c| c.to_bits()).collect::<Vec<u64>>(), statuses)
        };
        let plain = run(&|fits| fit_groups(fits, &mut steps()));
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            assert_eq!(run(&|fits| unsafe { avx2(fits, &mut steps()) }), plain);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            assert_eq!(run(&|fits| unsafe { avx512(fits, &mut steps()) }), plain);
        }
    }
}
