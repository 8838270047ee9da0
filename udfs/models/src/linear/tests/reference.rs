//! Random data against normal equations in double-double arithmetic, whose twice as many digits make the loss
//! irrelevant.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{LinearParams, fit};
use crate::tree::Draws;

/// A sum of two floats, the second at most half a unit in the last place of the first.
///
/// Source: Dekker, *A floating-point technique for extending the available precision* (1971).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Double(f64, f64);

impl From<f64> for Double {
    fn from(value: f64) -> Self {
        Double(value, 0.0)
    }
}

impl Add for Double {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let sum = self.0 + other.0;
        let back = sum - self.0;
        let lost = (self.0 - (sum - back)) + (other.0 - back) + self.1 + other.1;
        Double(sum + lost, lost - ((sum + lost) - sum))
    }
}

impl Neg for Double {
    type Output = Self;
    fn neg(self) -> Self {
        Double(-self.0, -self.1)
    }
}

impl Sub for Double {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Double {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let product = self.0 * other.0;
        let lost = self.0.mul_add(other.0, -product) + (self.0 * other.1 + self.1 * other.0);
        Double(product + lost, lost - ((product + lost) - product))
    }
}

impl Div for Double {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let first = Double::from(self.0 / other.0);
        let left = self - first * other;
        first + Double::from(left.0 / other.0)
    }
}

/// The coefficients, followed by the intercept, by elimination with pivoting on `[1 X]ᵀ · [1 X | y]`.
fn reference(columns: &[&[f64]], target: &[f64]) -> Vec<f64> {
    let ones = vec![1.0; target.len()];
    let all: Vec<&[f64]> = columns.iter().copied().chain([&*ones, target]).collect();
    let product = |a: &[f64], b: &[f64]| {
        a.iter().zip(b).fold(Double::from(0.0), |sum, (a, b)| sum + Double::from(*a) * Double::from(*b))
    };
    let width = columns.len() + 1;
    let mut system: Vec<Vec<Double>> =
        (0..width).map(|j| all.iter().map(|column| product(all[j], column)).collect()).collect();
    for j in 0..width {
        let pivot = (j..width).max_by(|a, b| system[*a][j].0.abs().total_cmp(&system[*b][j].0.abs())).unwrap();
        system.swap(j, pivot);
        let pivot = system[j].clone();
        for (_, row) in system.iter_mut().enumerate().filter(|(i, _)| *i != j) {
            let factor = row[j] / pivot[j];
            row.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value = *value - factor * *pivot);
        }
    }
    (0..width).map(|j| (system[j][width] / system[j][j]).0).collect()
}

/// Random columns, each with its own offset and scale. Every third column is another column plus a small difference.
fn data(draws: &mut Draws) -> (Vec<Vec<f64>>, Vec<f64>) {
    let width = 1 + draws.below(12) as usize;
    let more = if draws.below(2) == 0 { 30 } else { 2000 };
    let rows = width + 2 + draws.below(more) as usize;
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let mut scales = Vec::new();
    for j in 0..width {
        let other = (j % 3 == 2).then(|| j - 1 - draws.below(2) as usize);
        let scale = other.map_or_else(|| 10_f64.powi(draws.below(7) as i32 - 3), |other| scales[other]);
        let share = other.map_or(1.0, |_| 10_f64.powi(-(draws.below(4) as i32)));
        let offset = scale * 10_f64.powi(draws.below(5) as i32) * (draws.unit() - 0.5);
        let own = (0..rows).map(|row| other.map_or(offset, |other| columns[other][row]) + share * scale * draws.unit());
        columns.push(own.collect());
        scales.push(scale);
    }
    let target = (0..rows).map(|row| columns.iter().map(|c| c[row]).sum::<f64>() + draws.unit()).collect();
    (columns, target)
}

#[test]
fn random_data() {
    // SEED=n runs that seed only.
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..400).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let (columns, target) = data(&mut Draws::stream(seed, 0));
        let slices: Vec<&[f64]> = columns.iter().map(|c| &**c).collect();
        let model = fit(LinearParams::default(), &slices, &target).unwrap();
        let expected = reference(&slices, &target);
        let magnitude =
            |j: usize| slices.get(j).map_or(1.0, |column| column.iter().fold(0.0_f64, |max, x| max.max(x.abs())));
        let shares: Vec<f64> = expected.iter().enumerate().map(|(j, expected)| expected.abs() * magnitude(j)).collect();
        let largest = shares.iter().copied().fold(0.0, f64::max);
        for (j, found) in model.coefficients().iter().chain([&model.intercept()]).enumerate() {
            let error = (found - expected[j]).abs() / expected[j].abs().max(largest / magnitude(j) * 1e-6);
            assert!(error < 1e-9, "{found} is not {}, {error:e} off: failed with SEED={seed}", expected[j]);
        }
    }
}
