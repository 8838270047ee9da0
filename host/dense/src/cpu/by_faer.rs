//! Products and systems of equations by faer.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::{Solve as _, SolveLstsq as _};
use faer::{Accum, MatMut, MatRef, Par, Side};

use super::matrix::Matrix;
use super::real::Real;

/// Multiplies two matrices into a row-major result.
pub(super) fn multiply<T: Real>(left: Matrix<'_, T>, right: Matrix<'_, T>, out: &mut [T]) {
    let out = MatMut::from_row_major_slice_mut(out, left.sizes().0, right.sizes().1);
    matmul(out, Accum::Replace, view(left), view(right), T::one(), Par::Seq);
}

/// Solves a symmetric system in place by its Cholesky factor; NaN if it has none.
pub(super) fn solve_cholesky<T: Real>(system: Matrix<'_, T>, right: &mut [T]) {
    match view(system).llt(Side::Lower) {
        Ok(factor) => factor.solve_in_place(columns(system, right)),
        Err(_) => right.fill(T::nan()),
    }
}

/// Solves least squares in place by QR: the first rows become the solution.
pub(super) fn solve_qr<T: Real>(system: Matrix<'_, T>, right: &mut [T]) {
    view(system).qr().solve_lstsq_in_place(columns(system, right));
}

fn view<T>(matrix: Matrix<'_, T>) -> MatRef<'_, T> {
    let stored = MatRef::from_row_major_slice(matrix.values, matrix.rows, matrix.columns);
    if matrix.is_transposed { stored.transpose() } else { stored }
}

/// Returns the right sides of a system.
fn columns<'a, T>(system: Matrix<'_, T>, right: &'a mut [T]) -> MatMut<'a, T> {
    let columns = right.len() / system.rows;
    MatMut::from_row_major_slice_mut(right, system.rows, columns)
}
