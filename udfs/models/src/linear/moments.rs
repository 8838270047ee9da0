//! Means and centred sums of products of all columns, in one pass over the rows.

use sandbar_guest::Features;

/// Rows per block: a block of a few columns stays in the first-level cache.
const BLOCK_ROWS: usize = 256;
/// Number of parallel partial sums. Their order is fixed, so that every platform gets the same bits.
const LANES: usize = 8;
/// Maximum number of values without a heap allocation: enough for small groups with few features.
const FEW: usize = 128;
/// A column is constant if its standard deviation is at most this many units of rounding of its mean.
const CONSTANT_ULPS: f64 = 4.0;

/// The sums of products to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MomentsOptions {
    /// Whether to subtract the columns' means.
    pub(crate) centred: bool,
    /// Whether to include the target's sum of squares.
    pub(crate) target_square: bool,
}

/// Moments of the columns: the features, followed by the target. Means are stored relative to the first row, so that a
/// common offset costs no digits.
pub(crate) struct Moments<'s> {
    rows: usize,
    columns: usize,
    /// Consecutive arrays: shifts, means relative to the shifts, sums of products (row-major, upper triangle).
    numbers: &'s [f64],
}

/// Memory for moments: on the stack for few values, otherwise on the heap.
pub(crate) struct Workspace {
    few: [f64; FEW],
    many: Vec<f64>,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Workspace { few: [0.0; FEW], many: Vec::new() }
    }

    /// Returns `len` zeros. Called once.
    fn zeros(&mut self, len: usize) -> &mut [f64] {
        match len <= FEW {
            true => &mut self.few[..len],
            false => {
                self.many = vec![0.0; len];
                &mut self.many
            }
        }
    }
}

impl<'s> Moments<'s> {
    /// Sums up all rows, of which at least one exists.
    ///
    /// Each block of rows is centred at the mean of the preceding rows (the first block at its own mean), corrected for
    /// the difference, and merged: Chan, Golub and LeVeque, *Algorithms for Computing the Sample Variance* (1983). The
    /// rounding error of a sum of squares stays a small multiple of the unit roundoff times the sum, for any order of
    /// rows.
    pub(crate) fn new(
        features: Features<'_>,
        target: &[f64],
        options: MomentsOptions,
        workspace: &'s mut Workspace,
    ) -> Self {
        let (rows, columns) = (features.rows(), features.width() + 1);
        let column = |j: usize| if j + 1 < columns { features.column(j) } else { target };
        let block_rows = rows.min(BLOCK_ROWS);
        let (numbers, rest) =
            workspace.zeros(columns * (4 + columns + block_rows)).split_at_mut(columns * (2 + columns));
        let (centre, rest) = rest.split_at_mut(columns);
        let (block_mean, scratch) = rest.split_at_mut(columns);
        let (shift, rest) = numbers.split_at_mut(columns);
        let (mean, scatter) = rest.split_at_mut(columns);
        if options.centred {
            for j in 0..columns {
                shift[j] = column(j)[0];
                centre[j] = sum(&column(j)[..block_rows]) / block_rows as f64;
            }
        }
        let products_of = if options.target_square { columns } else { columns - 1 };
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let len = BLOCK_ROWS.min(rows - first);
            for j in 0..columns {
                let block = &mut scratch[j * block_rows..][..len];
                block_mean[j] = subtract(&column(j)[first..first + len], centre[j], block) / len as f64;
            }
            let weight = first as f64 * len as f64 / (first + len) as f64;
            for j in 0..products_of {
                let step = centre[j] - shift[j] + block_mean[j] - mean[j];
                for k in j..columns {
                    let products = dot(&scratch[j * block_rows..][..len], &scratch[k * block_rows..][..len]);
                    let sum = &mut scatter[j * columns + k];
                    *sum += products;
                    if options.centred {
                        let other_step = centre[k] - shift[k] + block_mean[k] - mean[k];
                        *sum += weight * (step * other_step) - len as f64 * (block_mean[j] * block_mean[k]);
                    }
                }
            }
            if options.centred {
                for j in 0..columns {
                    let of_block = centre[j] - shift[j] + block_mean[j];
                    mean[j] += (of_block - mean[j]) * (len as f64 / (first + len) as f64);
                    centre[j] = shift[j] + of_block;
                }
            }
        }
        Moments { rows, columns, numbers }
    }

    /// Number of features.
    pub(crate) fn width(&self) -> usize {
        self.columns - 1
    }

    /// The mean of column `j`, zero if not centred; `j = width` is the target.
    pub(crate) fn mean(&self, j: usize) -> f64 {
        self.numbers[j] + self.numbers[self.columns + j]
    }

    /// The sum of products of columns `j ≤ k`.
    #[inline]
    pub(crate) fn products(&self, j: usize, k: usize) -> f64 {
        self.numbers[(2 + j) * self.columns + k]
    }

    /// Whether all sums are finite. Otherwise the data contains a NaN, an infinity or a value that is too large.
    pub(crate) fn is_finite(&self) -> bool {
        self.numbers.iter().all(|v| v.is_finite())
    }

    /// Appends `values` of column `j` minus its mean; zeros for a constant feature.
    pub(crate) fn centre(&self, j: usize, values: &[f64], into: &mut Vec<f64>) {
        if j < self.width() && self.is_constant(j) {
            return into.resize(into.len() + values.len(), 0.0);
        }
        // Subtracts the mean and its rounding error. A remainder shared by all rows would add a direction of its own
        // where features depend on each other.
        let (shift, step, mean) = (self.numbers[j], self.numbers[self.columns + j], self.mean(j));
        let of_step = mean - shift;
        let rest = (shift - (mean - of_step)) + (step - of_step);
        into.extend(values.iter().map(|value| value - mean - rest));
    }

    /// Whether feature `j` is the same in all rows, except for rounding; if not centred, whether it is zero.
    #[inline]
    pub(crate) fn is_constant(&self, j: usize) -> bool {
        let deviation = (self.products(j, j).max(0.0) / self.rows as f64).sqrt();
        deviation <= CONSTANT_ULPS * f64::EPSILON * self.mean(j).abs()
    }
}

/// Writes `from[i] - centre` to `to[i]`. Returns the sum of the differences.
fn subtract(from: &[f64], centre: f64, to: &mut [f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (from_lanes, from_rest) = from.as_chunks::<LANES>();
    let (to_lanes, to_rest) = to.as_chunks_mut::<LANES>();
    for (from, to) in from_lanes.iter().zip(to_lanes) {
        for lane in 0..LANES {
            to[lane] = from[lane] - centre;
            lanes[lane] += to[lane];
        }
    }
    let mut total = add_up(lanes);
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = from - centre;
        total += *to;
    }
    total
}

fn sum(values: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane];
        }
    }
    rest.iter().fold(add_up(lanes), |total, value| total + value)
}

/// The sum of products of two columns of the same length.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    a_rest.iter().zip(b_rest).fold(add_up(lanes), |total, (a, b)| total + a * b)
}

fn add_up(lanes: [f64; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
