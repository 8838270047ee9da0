//! The objective with its first two derivatives, and Newton's method on it.

use sandbar_guest::Features;

use crate::linear::{Moments, dot};

/// Rows per block. The product of this many numbers up to 2 is finite.
const BLOCK_ROWS: usize = 256;
/// Maximum number of halvings of a step.
const HALVINGS_MAX: u32 = 40;
/// Minimum curvature of a coordinate, as a share of its curvature alone. Below it, others explain the coordinate, and
/// it stays fixed.
const PIVOT_MIN: f64 = 1e-12;

/// The objective `Σ log-loss + alpha / 2 · ‖w‖²`. The weights are those of the centred features, followed by the
/// intercept if there is one.
pub(super) struct Objective<'a> {
    pub(super) features: Features<'a>,
    pub(super) target: &'a [f64],
    pub(super) moments: &'a Moments<'a>,
    pub(super) alpha: f64,
}

/// The result of the minimisation.
pub(super) struct Minimum {
    pub(super) weights: Vec<f64>,
    pub(super) iterations: u32,
    pub(super) converged: bool,
}

/// The objective and its derivatives at some weights.
struct Evaluation {
    value: f64,
    gradient: Vec<f64>,
    /// Row-major, upper triangle.
    curvature: Vec<f64>,
}

impl Objective<'_> {
    /// Minimises from `weights` on, until a step's expected gain is less than `tolerance` of the objective.
    pub(super) fn minimise(&self, mut weights: Vec<f64>, iterations_max: u32, tolerance: f64) -> Minimum {
        let mut at = self.evaluate(&weights);
        for iterations in 0..iterations_max {
            let step = solve(&at.curvature, &at.gradient);
            let gain = dot(&step, &at.gradient) / 2.0;
            if gain.is_nan() {
                return Minimum { weights, iterations, converged: false };
            }
            let Some((next, found)) = self.descend(&weights, &step, &at) else {
                // No step is lower: either the remaining gain is below rounding, or the step's direction is invalid.
                return Minimum { weights, iterations, converged: gain <= f64::EPSILON.sqrt() * at.value };
            };
            (weights, at) = (next, found);
            if gain <= tolerance * at.value {
                return Minimum { weights, iterations: iterations + 1, converged: true };
            }
        }
        Minimum { weights, iterations: iterations_max, converged: false }
    }

    /// Returns the first lower point along `step`, halving the step as often as needed.
    fn descend(&self, weights: &[f64], step: &[f64], at: &Evaluation) -> Option<(Vec<f64>, Evaluation)> {
        let mut share = 1.0;
        for _ in 0..HALVINGS_MAX {
            let next: Vec<f64> = weights.iter().zip(step).map(|(w, step)| w - share * step).collect();
            let found = self.evaluate(&next);
            if found.value <= at.value && next != weights {
                return Some((next, found));
            }
            share /= 2.0;
        }
        None
    }

    fn evaluate(&self, weights: &[f64]) -> Evaluation {
        let (width, count) = (self.features.width(), weights.len());
        let (slopes, constant) = weights.split_at(width);
        let mut at = Evaluation { value: 0.0, gradient: vec![0.0; count], curvature: vec![0.0; count * count] };
        let (mut columns, mut weighted) = (Vec::new(), Vec::new());
        let (mut errors, mut spreads) = (Vec::new(), Vec::new());
        for (block, target) in self.target.chunks(BLOCK_ROWS).enumerate() {
            let rows = block * BLOCK_ROWS..block * BLOCK_ROWS + target.len();
            columns.clear();
            (0..width).for_each(|j| self.moments.centre(j, &self.features.column(j)[rows.clone()], &mut columns));
            columns.resize(count * target.len(), 1.0);
            errors.clear();
            errors.resize(target.len(), constant.first().copied().unwrap_or(0.0));
            for (column, slope) in columns.chunks_exact(target.len()).zip(slopes) {
                errors.iter_mut().zip(column).for_each(|(odds, x)| *odds += slope * x);
            }
            at.value += losses(&mut errors, target, &mut spreads);
            for (j, column) in columns.chunks_exact(target.len()).enumerate() {
                at.gradient[j] += dot(column, &errors);
                weighted.clear();
                weighted.extend(column.iter().zip(&spreads).map(|(x, spread)| x * spread));
                for (k, other) in columns.chunks_exact(target.len()).enumerate().skip(j) {
                    at.curvature[j * count + k] += dot(&weighted, other);
                }
            }
        }
        at.value += self.alpha / 2.0 * dot(slopes, slopes);
        for (j, slope) in slopes.iter().enumerate() {
            at.gradient[j] += self.alpha * slope;
            at.curvature[j * count + j] += self.alpha;
        }
        at
    }
}

/// Returns the loss of a block. Replaces the log odds by the errors of the probabilities, and fills `spreads` with
/// their variances.
fn losses(odds: &mut [f64], target: &[f64], spreads: &mut Vec<f64>) -> f64 {
    spreads.clear();
    let (mut sum, mut product) = (0.0, 1.0);
    for (odds, y) in odds.iter_mut().zip(target) {
        let small = (-odds.abs()).exp();
        let share = 1.0 / (1.0 + small);
        let probability = if *odds >= 0.0 { share } else { small * share };
        // ln(1 + e^odds) = max(odds, 0) + ln(1 + small), and the logarithm of a product is the sum of the logarithms.
        sum += odds.max(0.0) - y * *odds;
        product *= 1.0 + small;
        spreads.push(small * share * share);
        *odds = probability - y;
    }
    sum + product.ln()
}

/// Solves for the step by a root-free Cholesky decomposition. Coordinates without curvature of their own stay fixed.
fn solve(curvature: &[f64], gradient: &[f64]) -> Vec<f64> {
    let count = gradient.len();
    let mut l = vec![0.0; count * count];
    for j in 0..count {
        for i in 0..=j {
            let explained: f64 = (0..i).map(|k| l[j * count + k] * l[i * count + k] * l[k * count + k]).sum();
            let left = curvature[i * count + j] - explained;
            let pivot = l[i * count + i];
            if i < j {
                l[j * count + i] = if pivot > 0.0 { left / pivot } else { 0.0 };
            } else if left > PIVOT_MIN * curvature[j * count + j] {
                l[j * count + j] = left;
            }
        }
    }
    let mut x = vec![0.0; count];
    for j in 0..count {
        let explained: f64 = (0..j).map(|k| l[j * count + k] * x[k]).sum();
        x[j] = if l[j * count + j] > 0.0 { gradient[j] - explained } else { 0.0 };
    }
    for j in (0..count).rev().filter(|j| l[j * count + j] > 0.0).collect::<Vec<_>>() {
        let behind: f64 = (j + 1..count).map(|k| l[k * count + j] * x[k]).sum();
        x[j] = x[j] / l[j * count + j] - behind;
    }
    x
}
