//! Least squares of many groups on the processor.
//!
//! Means first, then the sums of products of what is left, then Cholesky: sums of squares of what is far from zero would
//! lose what the groups differ by. Source: Golub and Van Loan, *Matrix Computations*, 4.2 and 5.3.

use crate::Grouped;

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It has its coefficients.
    Solved = 0,
    /// It has no rows, or none of a weight above zero.
    Empty = 1,
    /// Its columns depend on each other, as far as f64 can tell: there are many solutions, and none is given.
    Singular = 2,
    /// A value of it is NaN or infinite, a weight is negative, or a sum is too large.
    NotFinite = 3,
    /// Its offsets are no rows: they fall, or are beyond the last.
    OutOfRange = 4,
}

impl Status {
    /// The status of this number.
    pub fn of(number: u32) -> Option<Status> {
        let all = [Status::Solved, Status::Empty, Status::Singular, Status::NotFinite, Status::OutOfRange];
        all.into_iter().find(|status| *status as u32 == number)
    }
}

/// A pivot below this share of its column's sum of squares is what rounding left of zero.
///
/// Of columns that depend on each other it is of the order of width · 2⁻⁵³; of those that are independent to within half
/// of an f64's digits, 2⁻⁵².
pub const PIVOT_MIN: f64 = 1e-13;
/// What rounding leaves of a value less its mean, at most, where all are the same: this share of the mean.
pub const MEAN_NOISE: f64 = 4.0 * f64::EPSILON;
/// Rows that are at hand at once: with up to 16 columns they stay in the nearest cache.
const BLOCK: usize = 128;
/// Sums that run side by side, whatever the processor: so that they are the same on each.
const LANES: usize = 8;

/// Rows of all groups.
pub(crate) struct Rows<'a> {
    /// Columns, one after another.
    pub(crate) columns: &'a [f64],
    pub(crate) target: &'a [f64],
    pub(crate) weights: Option<&'a [f64]>,
    pub(crate) offsets: &'a [u32],
    /// From one group's first offset to the next one's: 1 where a group ends where the next begins, or 2.
    pub(crate) step: usize,
    pub(crate) width: usize,
}

/// Rows of the next group that are fetched from memory while one is fitted: more would drive each other out of the cache.
const FETCHED: usize = 128;
/// Values of a line of the caches.
const LINE: usize = 8;

impl Rows<'_> {
    /// Has the processor fetch the first of these rows. Their columns lie far apart, as many as there are streams that it
    /// follows by itself, or more.
    #[inline(always)]
    fn fetch(&self, first: usize, end: usize) {
        let length = self.target.len();
        let end = end.min(length).min(first.saturating_add(FETCHED));
        for column in 0..=self.width {
            for row in (first..end).step_by(LINE) {
                let value = if column < self.width { &self.columns[column * length + row] } else { &self.target[row] };
                fetch(value);
            }
        }
    }
}

#[inline(always)]
fn fetch(value: &f64) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has it, and it changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Fits all groups: of each the coefficients, the intercept last, and its status.
pub(crate) fn solve(rows: &Rows<'_>, options: Grouped, coefficients: &mut [f64], statuses: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it.
            return unsafe { avx512(rows, options, coefficients, statuses) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(rows, options, coefficients, statuses) };
        }
    }
    all(rows, options, coefficients, statuses);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rows: &Rows<'_>, options: Grouped, coefficients: &mut [f64], statuses: &mut [u32]) {
    all(rows, options, coefficients, statuses);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(rows: &Rows<'_>, options: Grouped, coefficients: &mut [f64], statuses: &mut [u32]) {
    all(rows, options, coefficients, statuses);
}

#[inline(always)]
fn all(rows: &Rows<'_>, options: Grouped, coefficients: &mut [f64], statuses: &mut [u32]) {
    let mut space = Space::new(rows.width);
    let groups = coefficients.chunks_exact_mut(rows.width + 1).zip(statuses);
    for (group, (coefficients, status)) in groups.enumerate() {
        let ends = &rows.offsets[group * rows.step..][..2];
        if let Some(next) = rows.offsets.get((group + 1) * rows.step..).and_then(|ends| ends.get(..2)) {
            rows.fetch(next[0] as usize, next[1] as usize);
        }
        let found = one(rows, (ends[0] as usize, ends[1] as usize), options, &mut space, coefficients);
        if found != Status::Solved {
            coefficients.fill(f64::NAN);
        }
        *status = found as u32;
    }
}

/// What a group needs: columns are those of the features, and the target last.
struct Space {
    means: Vec<f64>,
    /// Rows less their means, columns of [`BLOCK`].
    block: Vec<[f64; BLOCK]>,
    /// As above, times their weights.
    weighted: [f64; BLOCK],
    /// Sums of products; then, of the features, the factor. The lower half, row by row, all of the same length.
    sums: Vec<f64>,
}

impl Space {
    fn new(width: usize) -> Space {
        let columns = width + 1;
        Space {
            means: vec![0.0; columns],
            block: vec![[0.0; BLOCK]; columns],
            weighted: [0.0; BLOCK],
            sums: vec![0.0; columns * columns],
        }
    }
}

#[inline(always)]
fn one(
    rows: &Rows<'_>,
    (first, end): (usize, usize),
    options: Grouped,
    space: &mut Space,
    coefficients: &mut [f64],
) -> Status {
    let (width, length) = (rows.width, rows.target.len());
    if first > end || end > length {
        return Status::OutOfRange;
    }
    let weights = rows.weights.map(|weights| &weights[first..end]);
    let weight = weights.map_or((end - first) as f64, sum);
    if weights.is_some_and(|weights| weights.iter().any(|weight| weight.is_nan() || *weight < 0.0)) {
        return Status::NotFinite;
    }
    if weight == 0.0 {
        return Status::Empty;
    }
    let column = |at: usize| match at < width {
        true => &rows.columns[at * length + first..at * length + end],
        false => &rows.target[first..end],
    };
    space.means.fill(0.0);
    if options.intercept {
        for (at, mean) in space.means.iter_mut().enumerate() {
            let sum = weights.map_or_else(|| sum(column(at)), |weights| dot(column(at), weights));
            *mean = sum / weight;
        }
    }
    space.sums.fill(0.0);
    let mut from = 0;
    while from < end - first {
        let count = (end - first - from).min(BLOCK);
        // What is not there adds nothing.
        let padded = count.next_multiple_of(LANES);
        for (at, (block, mean)) in space.block.iter_mut().zip(&space.means).enumerate() {
            for (to, value) in block.iter_mut().zip(&column(at)[from..from + count]) {
                *to = value - mean;
            }
            block[count..padded].fill(0.0);
        }
        for i in 0..=width {
            let left = match weights {
                None => &space.block[i][..padded],
                Some(weights) => {
                    let both = space.block[i].iter().zip(&weights[from..from + count]);
                    space.weighted.iter_mut().zip(both).for_each(|(to, (value, weight))| *to = value * weight);
                    space.weighted[count..padded].fill(0.0);
                    &space.weighted[..padded]
                }
            };
            for j in 0..=i {
                space.sums[i * (width + 1) + j] += lanes(left, &space.block[j][..padded]);
            }
        }
        from += count;
    }
    if space.sums.iter().any(|sum| !sum.is_finite()) {
        return Status::NotFinite;
    }
    let noise = space.means.iter().map(|mean| (mean * MEAN_NOISE).powi(2) * weight);
    if !factor(&mut space.sums, width, options, noise) {
        return Status::Singular;
    }
    substitute(&space.sums, width, coefficients);
    let at_means: f64 = coefficients.iter().zip(&space.means[..width]).map(|(c, mean)| c * mean).sum();
    coefficients[width] = if options.intercept { space.means[width] - at_means } else { 0.0 };
    match coefficients.iter().all(|c| c.is_finite()) {
        true => Status::Solved,
        false => Status::NotFinite,
    }
}

/// Cholesky's factor of the features' sums, and of the row of the target below what solves for it. False if there is none,
/// as far as can be told where each sum of squares has so much noise.
#[inline(always)]
fn factor(sums: &mut [f64], width: usize, options: Grouped, noise: impl Iterator<Item = f64>) -> bool {
    let (stride, ridge, pivot_min) = (width + 1, options.ridge, options.pivot_min.max(PIVOT_MIN));
    for (j, noise) in (0..width).zip(noise) {
        let whole = sums[j * stride + j] + ridge;
        let behind: f64 = (0..j).map(|k| sums[j * stride + k] * sums[j * stride + k]).sum();
        let pivot = whole - behind;
        if pivot <= (whole * pivot_min).max(noise) {
            return false;
        }
        let root = pivot.sqrt();
        sums[j * stride + j] = root;
        for i in j + 1..stride {
            let behind: f64 = (0..j).map(|k| sums[i * stride + k] * sums[j * stride + k]).sum();
            sums[i * stride + j] = (sums[i * stride + j] - behind) / root;
        }
    }
    true
}

/// The coefficients, of the factor and the target's row below it.
#[inline(always)]
fn substitute(sums: &[f64], width: usize, coefficients: &mut [f64]) {
    let stride = width + 1;
    for i in (0..width).rev() {
        let behind: f64 = (i + 1..width).map(|k| sums[k * stride + i] * coefficients[k]).sum();
        coefficients[i] = (sums[width * stride + i] - behind) / sums[i * stride + i];
    }
}

/// The sum of products of columns whose length is a multiple of [`LANES`].
#[inline(always)]
fn lanes(left: &[f64], right: &[f64]) -> f64 {
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
    lanes(&left[..whole], &right[..whole]) + rest
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

    fn fit(columns: &[f64], target: &[f64], weights: Option<&[f64]>, ridge: f64) -> (Vec<f64>, Status) {
        let width = columns.len().checked_div(target.len()).unwrap_or(1);
        let rows = Rows { columns, target, weights, offsets: &[0, target.len() as u32], step: 1, width };
        let (mut coefficients, mut status) = (vec![0.0; width + 1], [9]);
        solve(&rows, Grouped { intercept: true, ridge, pivot_min: 0.0 }, &mut coefficients, &mut status);
        (coefficients, Status::of(status[0]).unwrap())
    }

    #[test]
    fn what_becomes_of_groups() {
        let (line, far): (Vec<f64>, Vec<f64>) = (0..9).map(|at| (f64::from(at), 1e8 + f64::from(at))).unzip();
        let [twice, target] = [2.0, 3.0].map(|times| line.iter().map(|x| 1.0 + times * x).collect::<Vec<f64>>());
        for (name, columns, weights, ridge, status) in [
            ("a line", line.clone(), None, 0.0, Status::Solved),
            ("far from zero", far.clone(), None, 0.0, Status::Solved),
            ("a column and its double", [line.clone(), twice.clone()].concat(), None, 0.0, Status::Singular),
            ("the same, with a ridge", [line.clone(), twice].concat(), None, 1.0, Status::Solved),
            ("a constant", vec![0.1; 9], None, 0.0, Status::Singular),
            ("weights of zero", line.clone(), Some(vec![0.0; 9]), 0.0, Status::Empty),
            ("one weight", line.clone(), Some([vec![0.0; 8], vec![3.0]].concat()), 0.0, Status::Singular),
            ("a weight below zero", line.clone(), Some([vec![1.0; 8], vec![-3.0]].concat()), 0.0, Status::NotFinite),
            ("a weight that is none", line.clone(), Some(vec![f64::NAN; 9]), 0.0, Status::NotFinite),
            ("NaN", [vec![f64::NAN], line[1..].to_vec()].concat(), None, 0.0, Status::NotFinite),
            ("infinity", [vec![f64::INFINITY], line[1..].to_vec()].concat(), None, 0.0, Status::NotFinite),
            ("sums that are too large", line.iter().map(|x| x * 1e200).collect(), None, 0.0, Status::NotFinite),
        ] {
            let (coefficients, found) = fit(&columns, &target, weights.as_deref(), ridge);
            assert_eq!(found, status, "{name}");
            assert_eq!(coefficients.iter().any(|c| c.is_nan()), status != Status::Solved, "{name}: {coefficients:?}");
            if status == Status::Solved && ridge == 0.0 {
                assert!((coefficients[0] - 3.0).abs() < 1e-9, "{name}: {coefficients:?}");
            }
        }
        assert_eq!(fit(&[], &[], None, 0.0).1, Status::Empty);
    }

    #[test]
    fn offsets_that_are_no_rows() {
        let line: Vec<f64> = (0..9).map(f64::from).collect();
        let rows = Rows { columns: &line, target: &line, weights: None, offsets: &[0, 3, 2, 9, 10], step: 1, width: 1 };
        let (mut coefficients, mut statuses) = ([0.0; 8], [9; 4]);
        solve(&rows, Grouped { intercept: true, ridge: 0.0, pivot_min: 0.0 }, &mut coefficients, &mut statuses);
        assert_eq!(statuses.map(Status::of), [0, 4, 0, 4].map(Status::of));
        assert_eq!(coefficients.map(f64::is_nan), [false, false, true, true, false, false, true, true]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn bits_are_the_same_on_all_processors() {
        let values: Vec<f64> = (0..4000).map(|at| f64::from(at * 7919 % 1009) / 17.0).collect();
        let rows = Rows {
            columns: &values[..3000],
            target: &values[3000..],
            weights: None,
            offsets: &[0, 5, 300, 301, 1000],
            step: 1,
            width: 3,
        };
        let options = Grouped { intercept: true, ridge: 0.0, pivot_min: 0.0 };
        let run = |way: &dyn Fn(&mut [f64], &mut [u32])| {
            let (mut coefficients, mut statuses) = (vec![0.0; 16], vec![9; 4]);
            way(&mut coefficients, &mut statuses);
            (coefficients.iter().map(|c| c.to_bits()).collect::<Vec<u64>>(), statuses)
        };
        let plain = run(&|coefficients, statuses| all(&rows, options, coefficients, statuses));
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            assert_eq!(run(&|coefficients, statuses| unsafe { avx2(&rows, options, coefficients, statuses) }), plain);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: as above.
            assert_eq!(run(&|coefficients, statuses| unsafe { avx512(&rows, options, coefficients, statuses) }), plain);
        }
    }
}
