//! Least squares by orthogonal transformations, for nearly or exactly dependent features.

use sandbar_guest::Features;

use super::moments::{Moments, dot};

/// Rows per block that is folded into the triangular factor.
const BLOCK_ROWS: usize = 128;
/// A pivot is zero if it is at most this many units of rounding of the first pivot; more with more rows.
const RANK_ULPS_MIN: f64 = 16.0;

/// The triangular factor of the centred rows `[X | y]`, after orthogonal transformations from the left: `X = Q · R`.
#[derive(Debug)]
pub(crate) struct Factor {
    width: usize,
    /// `R` followed by `Qᵀ · y`: `width` rows of `width + 1` values.
    rows: Vec<f64>,
    /// The sum of squares of `y` that no combination of features explains.
    pub(crate) residual: f64,
}

impl Factor {
    /// Folds the rows in block by block, with Householder reflections that keep the part above triangular.
    ///
    /// Source: Demmel, Grigori, Hoemmen and Langou, *Communication-optimal parallel and sequential QR and LU
    /// factorizations* (2012), sequential TSQR.
    pub(crate) fn new(features: Features<'_>, target: &[f64], moments: &Moments<'_>) -> Self {
        let width = features.width();
        let mut factor = Factor { width, rows: vec![0.0; width * (width + 1)], residual: 0.0 };
        let block_rows = BLOCK_ROWS.max(2 * width);
        let mut block = Vec::with_capacity((width + 1) * block_rows.min(target.len()));
        for first in (0..target.len()).step_by(block_rows) {
            let rows = first..target.len().min(first + block_rows);
            block.clear();
            for j in 0..width {
                moments.centre(j, &features.column(j)[rows.clone()], &mut block);
            }
            moments.centre(width, &target[rows.clone()], &mut block);
            factor.fold(&mut block, rows.len());
        }
        factor
    }

    /// Entry (`i`, `j`) of `R`, or of `Qᵀ · y` for `j = width`.
    pub(crate) fn at(&self, i: usize, j: usize) -> f64 {
        self.rows[i * (self.width + 1) + j]
    }

    /// Folds in a block of `width + 1` columns with `len` rows.
    fn fold(&mut self, block: &mut [f64], len: usize) {
        for j in 0..self.width {
            let (done, rest) = block.split_at_mut((j + 1) * len);
            let below = &mut done[j * len..];
            let row = &mut self.rows[j * (self.width + 1)..][..self.width + 1];
            let Some(reflector) = Reflector::new(row[j], below) else { continue };
            row[j] = reflector.onto;
            for (k, column) in rest.chunks_exact_mut(len).enumerate() {
                reflector.apply(below, &mut row[j + 1 + k], column);
            }
        }
        let target = &block[self.width * len..];
        self.residual += dot(target, target);
    }

    /// Folds in rows that penalise squared coefficients: `√weight` times the identity, with targets of zero.
    pub(crate) fn fold_penalty(&mut self, weight: f64) {
        let mut block = vec![0.0; self.width * (self.width + 1)];
        block.iter_mut().step_by(self.width + 1).for_each(|diagonal| *diagonal = weight.sqrt());
        self.fold(&mut block, self.width);
    }

    /// The coefficients of least squared error, and among those the ones of least norm. Features are scaled to norm 1
    /// before their independence is judged.
    ///
    /// Source: Golub and Van Loan, *Matrix Computations*, 5.4.2 (column pivoting) and 5.5.2 (complete orthogonal
    /// decomposition).
    pub(crate) fn solve(&self, rows: usize) -> Vec<f64> {
        let width = self.width;
        // Column by column, with the right-hand side last.
        let mut columns: Vec<Vec<f64>> = (0..=width).map(|j| (0..width).map(|i| self.at(i, j)).collect()).collect();
        let mut right = columns.pop().unwrap_or_default();
        let scales: Vec<f64> = columns.iter().map(|c| norm(c)).collect();
        for (column, scale) in columns.iter_mut().zip(&scales).filter(|(_, scale)| **scale > 0.0) {
            column.iter_mut().for_each(|value| *value /= scale);
        }
        let mut order: Vec<usize> = (0..width).collect();
        let rank = triangulate(&mut columns, &mut right, &mut order, rows);
        let mut coefficients = vec![0.0; width];
        if rank == width {
            for j in (0..width).rev() {
                let behind: f64 = (j + 1..width).map(|k| columns[k][j] * right[k]).sum();
                right[j] = (right[j] - behind) / columns[j][j];
                coefficients[order[j]] = right[j] / scales[order[j]];
            }
            return coefficients;
        }
        // Row i of the rank × width system for the unscaled coefficients.
        let entry = |i: usize, j: usize| if i <= j { columns[j][i] * scales[order[j]] } else { 0.0 };
        let mut system: Vec<Vec<f64>> = (0..rank).map(|i| (0..width).map(|j| entry(i, j)).collect()).collect();
        for (value, &j) in least_norm(&mut system, &mut right[..rank]).iter().zip(&order) {
            coefficients[j] = *value;
        }
        coefficients
    }
}

/// The reflection `I - v·vᵀ·scale` that zeroes a column below its head. `v` is 1 at the head; below it, `v` is `below`
/// divided by the change of the head.
struct Reflector {
    scale: f64,
    /// New value of the head.
    onto: f64,
}

impl Reflector {
    /// Overwrites `below` with the rest of `v`. None if `below` is zero already.
    fn new(head: f64, below: &mut [f64]) -> Option<Self> {
        let square = dot(below, below);
        if square == 0.0 {
            return None;
        }
        let onto = -(head * head + square).sqrt().copysign(head);
        let first = head - onto;
        below.iter_mut().for_each(|value| *value /= first);
        Some(Reflector { scale: -first / onto, onto })
    }

    fn apply(&self, v: &[f64], head: &mut f64, below: &mut [f64]) {
        let along = self.scale * (*head + dot(v, below));
        *head -= along;
        below.iter_mut().zip(v).for_each(|(value, v)| *value -= along * v);
    }
}

/// Householder triangularisation with column pivoting. Returns the rank. `order[j]` is the original position of column
/// `j`.
fn triangulate(columns: &mut [Vec<f64>], right: &mut [f64], order: &mut [usize], rows: usize) -> usize {
    let width = columns.len();
    let tolerance = f64::EPSILON * RANK_ULPS_MIN.max(rows.max(width) as f64);
    let mut largest = 0.0;
    for j in 0..width {
        let left = |column: &Vec<f64>| norm(&column[j..]);
        let pivot = (j..width).max_by(|a, b| left(&columns[*a]).total_cmp(&left(&columns[*b]))).unwrap_or(j);
        columns.swap(j, pivot);
        order.swap(j, pivot);
        let remaining_norm = norm(&columns[j][j..]);
        if j == 0 {
            largest = remaining_norm;
        }
        if remaining_norm <= tolerance * largest {
            return j;
        }
        reflect(columns, right, j);
    }
    width
}

/// Zeroes column `j` below its diagonal, and applies the reflection to all later columns and to `right`.
fn reflect(columns: &mut [Vec<f64>], right: &mut [f64], j: usize) {
    let (done, rest) = columns.split_at_mut(j + 1);
    let (head, below) = done[j][j..].split_at_mut(1);
    let Some(reflector) = Reflector::new(head[0], below) else { return };
    head[0] = reflector.onto;
    for column in rest.iter_mut().map(Vec::as_mut_slice).chain([right]) {
        let (head, rest) = column[j..].split_at_mut(1);
        reflector.apply(below, &mut head[0], rest);
    }
}

/// The shortest solution of a system with independent rows: `x = Q · (Rᵀ)⁻¹ · right` with `systemᵀ = Q · R`.
fn least_norm(system: &mut [Vec<f64>], right: &mut [f64]) -> Vec<f64> {
    let rank = system.len();
    let width = system.first().map_or(0, Vec::len);
    let mut reflectors = Vec::with_capacity(rank);
    for j in 0..rank {
        let (done, rest) = system.split_at_mut(j + 1);
        let (head, below) = done[j][j..].split_at_mut(1);
        let reflector = Reflector::new(head[0], below);
        if let Some(reflector) = &reflector {
            head[0] = reflector.onto;
            for row in rest {
                let (head, rest) = row[j..].split_at_mut(1);
                reflector.apply(below, &mut head[0], rest);
            }
        }
        reflectors.push(reflector);
    }
    let mut x = vec![0.0; width];
    for j in 0..rank {
        let explained: f64 = (0..j).map(|k| system[j][k] * x[k]).sum();
        x[j] = (right[j] - explained) / system[j][j];
    }
    for j in (0..rank).rev() {
        if let Some(reflector) = &reflectors[j] {
            let (head, below) = x[j..].split_at_mut(1);
            reflector.apply(&system[j][j + 1..], &mut head[0], below);
        }
    }
    x
}

fn norm(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}
