//! Products and systems of equations by simple loops, for tests of functions: faer takes longer to compile than those
//! run.
//!
//! The results equal faer's within rounding, which a test below verifies.

use super::matrix::Matrix;
use super::real::Real;
use crate::DenseError;
use crate::steps::Steps;

/// Multiplies two matrices into a row-major result.
pub(super) fn multiply<T: Real>(
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let ((rows, inner), columns) = (left.sizes(), right.sizes().1);
    for i in 0..rows {
        for j in 0..columns {
            steps.next(inner)?;
            out[i * columns + j] = (0..inner).fold(T::zero(), |sum, k| sum + at(left, i, k) * at(right, k, j));
        }
    }
    Ok(())
}

fn at<T: Copy>(matrix: Matrix<'_, T>, row: usize, column: usize) -> T {
    let (row, column) = if matrix.is_transposed { (column, row) } else { (row, column) };
    matrix.values[row * matrix.columns + column]
}

/// Solves a symmetric system in place by its Cholesky factor; NaN if it has none.
pub(super) fn solve_cholesky<T: Real>(
    system: Matrix<'_, T>,
    right: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let (n, columns) = (system.rows, right.len() / system.rows);
    let mut factor = system.values.to_vec();
    for j in 0..n {
        for i in j..n {
            steps.next(j)?;
            let previous = (0..j).fold(T::zero(), |sum, k| sum + factor[i * n + k] * factor[j * n + k]);
            factor[i * n + j] -= previous;
        }
        let pivot = factor[j * n + j].sqrt();
        if pivot.is_nan() || pivot == T::zero() {
            right.fill(T::nan());
            return Ok(());
        }
        (j..n).for_each(|i| factor[i * n + j] /= pivot);
    }
    let entry = |i: usize, k: usize| factor[i * n + k];
    for i in 0..n {
        substitute(right, columns, i, 0..i, entry, steps)?;
    }
    for i in (0..n).rev() {
        substitute(right, columns, i, i + 1..n, |i, k| entry(k, i), steps)?;
    }
    Ok(())
}

/// Solves least squares in place by QR: the first rows become the solution.
pub(super) fn solve_qr<T: Real>(system: Matrix<'_, T>, right: &mut [T], steps: &mut Steps) -> Result<(), DenseError> {
    let (rows, unknowns, columns) = (system.rows, system.columns, right.len() / system.rows);
    let mut factor = system.values.to_vec();
    for j in 0..unknowns {
        let column: Vec<T> = (j..rows).map(|i| factor[i * unknowns + j]).collect();
        let norm = column.iter().fold(T::zero(), |norm, value| norm.hypot(*value));
        if norm == T::zero() {
            continue;
        }
        // The Householder reflection maps the column to a multiple of the first unit vector.
        let mut normal: Vec<T> = column.iter().map(|value| *value / norm).collect();
        normal[0] = normal[0] + T::one().copysign(normal[0]);
        reflect(&mut factor[j * unknowns..], unknowns, &normal, steps)?;
        reflect(&mut right[j * columns..], columns, &normal, steps)?;
    }
    for i in (0..unknowns).rev() {
        substitute(right, columns, i, i + 1..unknowns, |i, k| factor[i * unknowns + k], steps)?;
    }
    Ok(())
}

/// Returns row `i` of the solution, given the rows in `known`.
fn substitute<T: Real>(
    right: &mut [T],
    columns: usize,
    i: usize,
    known: std::ops::Range<usize>,
    entry: impl Fn(usize, usize) -> T,
    steps: &mut Steps,
) -> Result<(), DenseError> {
    for c in 0..columns {
        steps.next(known.len())?;
        let previous = known.clone().fold(T::zero(), |sum, k| sum + entry(i, k) * right[k * columns + c]);
        right[i * columns + c] = (right[i * columns + c] - previous) / entry(i, i);
    }
    Ok(())
}

/// Reflects each column of a matrix at the hyperplane with this normal.
fn reflect<T: Real>(values: &mut [T], columns: usize, normal: &[T], steps: &mut Steps) -> Result<(), DenseError> {
    let square = normal.iter().fold(T::zero(), |sum, value| sum + *value * *value);
    for c in 0..columns {
        steps.next(2 * normal.len())?;
        let along = normal.iter().enumerate().fold(T::zero(), |sum, (i, by)| sum + *by * values[i * columns + c]);
        let twice = (along + along) / square;
        for (i, by) in normal.iter().enumerate() {
            values[i * columns + c] -= twice * *by;
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "faer"))]
mod tests {
    use super::super::by_faer;
    use super::*;
    use crate::Cancellation;

    /// Returns pseudo-random values between -1 and 1.
    fn values(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn matrix(values: &[f64], rows: usize, columns: usize, is_transposed: bool) -> Matrix<'_, f64> {
        Matrix { values, rows, columns, is_transposed }
    }

    /// Runs both implementations in place.
    #[track_caller]
    fn check(
        out: &[f64],
        plain: impl FnOnce(&mut [f64], &mut Steps) -> Result<(), DenseError>,
        faer: impl FnOnce(&mut [f64], &mut Steps) -> Result<(), DenseError>,
    ) {
        let [mut found, mut expected] = [out.to_vec(), out.to_vec()];
        plain(&mut found, &mut Steps::new(Cancellation::NEVER)).unwrap();
        faer(&mut expected, &mut Steps::new(Cancellation::NEVER)).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            let is_near = (found - expected).abs() <= 1e-9 * expected.abs().max(1.0);
            assert!(is_near || found.is_nan() && expected.is_nan(), "{found}, not {expected}");
        }
    }

    #[test]
    fn products_are_those_of_faer() {
        for (rows, inner, columns) in [(1, 1, 1), (2, 3, 4), (7, 5, 1), (1, 16, 9), (3, 0, 2)] {
            for (first, second) in [(false, false), (true, false), (false, true), (true, true)] {
                let (one, other) = (values(rows * inner, 1), values(inner * columns, 2));
                let left = if first { (inner, rows) } else { (rows, inner) };
                let right = if second { (columns, inner) } else { (inner, columns) };
                let left = matrix(&one, left.0, left.1, first);
                let right = matrix(&other, right.0, right.1, second);
                let out = vec![9.0; rows * columns];
                check(
                    &out,
                    |out, steps| multiply(left, right, out, steps),
                    |out, steps| by_faer::multiply(left, right, out, steps),
                );
            }
        }
    }

    /// Returns a positive definite system of size `n`.
    fn definite(n: usize) -> Vec<f64> {
        let root = values(n * n, 3);
        let mut system = vec![0.0; n * n];
        let (one, other) = (matrix(&root, n, n, false), matrix(&root, n, n, true));
        by_faer::multiply(one, other, &mut system, &mut Steps::new(Cancellation::NEVER)).unwrap();
        (0..n).for_each(|i| system[i * n + i] += 1.0);
        system
    }

    #[test]
    fn systems_are_solved_as_by_faer() {
        for (n, columns) in [(1, 1), (2, 3), (5, 1), (12, 4)] {
            let system = definite(n);
            let (right, mut negative) = (values(n * columns, 4), system.clone());
            negative[n * n - 1] = -1.0;
            for system in [&system, &negative] {
                let system = matrix(system, n, n, false);
                check(
                    &right,
                    |out, steps| solve_cholesky(system, out, steps),
                    |out, steps| by_faer::solve_cholesky(system, out, steps),
                );
            }
        }
    }

    type Solve = fn(Matrix<'_, f64>, &mut [f64], &mut Steps) -> Result<(), DenseError>;

    /// Solves least squares, and clears the rows behind the solution, which are arbitrary.
    fn first_rows(
        system: Matrix<'_, f64>,
        columns: usize,
        solve: Solve,
    ) -> impl FnOnce(&mut [f64], &mut Steps) -> Result<(), DenseError> {
        move |out: &mut [f64], steps: &mut Steps| {
            solve(system, out, steps)?;
            out[system.columns * columns..].fill(0.0);
            Ok(())
        }
    }

    #[test]
    fn least_squares_are_those_of_faer() {
        for (rows, unknowns, columns) in [(1, 1, 1), (4, 2, 1), (9, 5, 3), (6, 6, 2)] {
            let (system, right) = (values(rows * unknowns, 5), values(rows * columns, 6));
            let system = matrix(&system, rows, unknowns, false);
            check(&right, first_rows(system, columns, solve_qr), first_rows(system, columns, by_faer::solve_qr));
        }
    }

    /// Problems that faer solves in several steps.
    #[test]
    fn large_problems_are_solved_in_steps() {
        let (rows, inner, columns) = (700, 1100, 650);
        let (one, other) = (values(rows * inner, 1), values(inner * columns, 2));
        let (left, right) = (matrix(&one, inner, rows, true), matrix(&other, inner, columns, false));
        check(
            &vec![9.0; rows * columns],
            |out, steps| multiply(left, right, out, steps),
            |out, steps| by_faer::multiply(left, right, out, steps),
        );
        let (n, columns) = (700, 3);
        let (mut system, right) = (definite(n), values(n * columns, 4));
        for is_definite in [true, false] {
            if !is_definite {
                system[n * n - 1] = -1.0;
            }
            let system = matrix(&system, n, n, false);
            check(
                &right,
                |out, steps| solve_cholesky(system, out, steps),
                |out, steps| by_faer::solve_cholesky(system, out, steps),
            );
        }
        let (rows, unknowns, columns) = (1500, 430, 2);
        let (system, right) = (values(rows * unknowns, 5), values(rows * columns, 6));
        let system = matrix(&system, rows, unknowns, false);
        check(&right, first_rows(system, columns, solve_qr), first_rows(system, columns, by_faer::solve_qr));
    }
}
