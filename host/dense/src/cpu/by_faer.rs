//! Products and systems of equations by faer.
//!
//! faer does not check for cancellation, so large problems are divided into steps. The division depends on the sizes
//! alone: equal problems have equal results.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_transpose_on_the_left_in_place_scratch as transpose_scratch,
    apply_block_householder_sequence_transpose_on_the_left_in_place_with_conj as apply_transpose,
};
use faer::linalg::matmul::matmul;
use faer::linalg::solvers::{Qr, Solve as _, SolveLstsq as _};
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::prelude::{Reborrow as _, ReborrowMut as _};
use faer::{Accum, Conj, MatMut, MatRef, Par, Side};

use super::matrix::Matrix;
use super::real::Real;
use crate::DenseError;
use crate::steps::Steps;

/// Multiplications per step: about ten milliseconds.
const STEP_PRODUCTS: usize = 1 << 28;
/// Minimum rows and columns of a step's product.
const SIDE_MIN: usize = 16;
/// Maximum columns per block of a factor, and rows or columns to which a block is applied at once.
const BLOCK: usize = 256;
const APPLIED: usize = 1024;

/// Multiplies two matrices into a row-major result.
pub(super) fn multiply<T: Real>(
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let ((rows, inner), columns) = (left.sizes(), right.sizes().1);
    let mut out = MatMut::from_row_major_slice_mut(out, rows, columns);
    let (left, right) = (view(left), view(right));
    if let Some(products) = products([rows, inner, columns]) {
        steps.next(products / BLOCK)?;
        matmul(out, Accum::Replace, left, right, T::one(), Par::Seq);
        return Ok(());
    }
    let side = (STEP_PRODUCTS / inner.max(1)).isqrt().max(SIDE_MIN);
    let side_columns = side.min(columns);
    let side_rows = (STEP_PRODUCTS / inner.max(1) / side_columns).max(SIDE_MIN);
    for (row, row_count) in parts(0..rows, side_rows) {
        for (column, column_count) in parts(0..columns, side_columns) {
            steps.check()?;
            let out = out.rb_mut().submatrix_mut(row, column, row_count, column_count);
            let (left, right) = (left.subrows(row, row_count), right.subcols(column, column_count));
            matmul(out, Accum::Replace, left, right, T::one(), Par::Seq);
        }
    }
    Ok(())
}

/// Solves a symmetric system in place by its Cholesky factor; NaN if it has none.
pub(super) fn solve_cholesky<T: Real>(
    system: Matrix<'_, T>,
    right: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    let n = system.rows;
    if let Some(products) = products([n, n, n + right.len() / n]) {
        steps.next(products / BLOCK)?;
        match view(system).llt(Side::Lower) {
            Ok(factor) => factor.solve_in_place(columns(system, right)),
            Err(_) => right.fill(T::nan()),
        }
        return Ok(());
    }
    let mut factor = view(system).to_owned();
    for (start, count) in parts(0..n, BLOCK) {
        let next = start + count;
        let Ok(block) = factor.as_ref().submatrix(start, start, count, count).llt(Side::Lower) else {
            right.fill(T::nan());
            return Ok(());
        };
        factor.as_mut().submatrix_mut(start, start, count, count).copy_from_triangular_lower(block.L());
        let (done, mut trailing) = factor.as_mut().split_at_col_mut(next);
        let mut panel = done.get_mut(.., start..);
        for (row, row_count) in parts(next..n, APPLIED) {
            steps.check()?;
            let rows = panel.rb_mut().subrows_mut(row, row_count).transpose_mut();
            solve_lower_triangular_in_place(block.L(), rows, Par::Seq);
        }
        for (column, column_count) in parts(next..n, BLOCK) {
            for (row, row_count) in parts(column..n, APPLIED) {
                steps.check()?;
                let out = trailing.rb_mut().submatrix_mut(row, column - next, row_count, column_count);
                let panel = panel.rb();
                let (left, right) = (panel.subrows(row, row_count), panel.subrows(column, column_count));
                matmul(out, Accum::Add, left, right.transpose(), -T::one(), Par::Seq);
            }
        }
    }
    let mut right = columns(system, right);
    solve_lower(factor.as_ref(), right.rb_mut(), steps)?;
    solve_upper(factor.as_ref().transpose(), right, steps)
}

/// Solves least squares in place by QR: the first rows become the solution.
pub(super) fn solve_qr<T: Real>(system: Matrix<'_, T>, right: &mut [T], steps: &mut Steps) -> Result<(), DenseError> {
    let (rows, unknowns) = (system.rows, system.columns);
    if let Some(products) = products([rows, unknowns, unknowns + right.len() / rows]) {
        steps.next(products / BLOCK)?;
        view(system).qr().solve_lstsq_in_place(columns(system, right));
        return Ok(());
    }
    let mut factor = view(system).to_owned();
    let mut right = columns(system, right);
    let block = (STEP_PRODUCTS / rows).isqrt().clamp(1, BLOCK);
    for (start, count) in parts(0..unknowns, block) {
        steps.check()?;
        let panel = factor.as_ref().submatrix(start, start, rows - start, count).qr();
        factor.as_mut().submatrix_mut(start, start, count, count).copy_from_triangular_upper(panel.thin_R());
        let trailing = factor.as_mut().submatrix_mut(start, start + count, rows - start, unknowns - start - count);
        reflect(&panel, trailing, steps)?;
        reflect(&panel, right.rb_mut().subrows_mut(start, rows - start), steps)?;
    }
    solve_upper(factor.as_ref().subrows(0, unknowns), right.subrows_mut(0, unknowns), steps)
}

/// Multiplies a matrix with the transpose of a panel's orthogonal factor.
fn reflect<T: Real>(panel: &Qr<T>, mut matrix: MatMut<'_, T>, steps: &mut Steps) -> Result<(), DenseError> {
    let (basis, factor) = (panel.Q_basis(), panel.Q_coeff());
    let applied = (STEP_PRODUCTS / (basis.nrows() * basis.ncols())).clamp(1, APPLIED);
    let scratch = transpose_scratch::<T>(basis.nrows(), factor.nrows(), applied);
    let mut scratch = MemBuffer::new(scratch);
    for (column, count) in parts(0..matrix.ncols(), applied) {
        steps.check()?;
        let columns = matrix.rb_mut().subcols_mut(column, count);
        apply_transpose(basis, factor, Conj::Yes, columns, Par::Seq, MemStack::new(&mut scratch));
    }
    Ok(())
}

/// Solves a lower triangular system in place.
fn solve_lower<T: Real>(factor: MatRef<'_, T>, mut right: MatMut<'_, T>, steps: &mut Steps) -> Result<(), DenseError> {
    let n = factor.nrows();
    for (column, column_count) in parts(0..right.ncols(), APPLIED) {
        let mut right = right.rb_mut().subcols_mut(column, column_count);
        for (start, count) in parts(0..n, BLOCK) {
            let next = start + count;
            steps.check()?;
            let (solved, mut below) = right.rb_mut().split_at_row_mut(next);
            let mut solved = solved.get_mut(start.., ..);
            solve_lower_triangular_in_place(factor.submatrix(start, start, count, count), solved.rb_mut(), Par::Seq);
            for (row, row_count) in parts(next..n, APPLIED) {
                steps.check()?;
                let out = below.rb_mut().subrows_mut(row - next, row_count);
                let left = factor.submatrix(row, start, row_count, count);
                matmul(out, Accum::Add, left, solved.rb(), -T::one(), Par::Seq);
            }
        }
    }
    Ok(())
}

/// Solves an upper triangular system in place.
fn solve_upper<T: Real>(factor: MatRef<'_, T>, mut right: MatMut<'_, T>, steps: &mut Steps) -> Result<(), DenseError> {
    let n = factor.nrows();
    for (column, column_count) in parts(0..right.ncols(), APPLIED) {
        let mut right = right.rb_mut().subcols_mut(column, column_count);
        for (start, count) in parts(0..n, BLOCK).rev() {
            steps.check()?;
            let (mut above, solved) = right.rb_mut().split_at_row_mut(start);
            let mut solved = solved.subrows_mut(0, count);
            solve_upper_triangular_in_place(factor.submatrix(start, start, count, count), solved.rb_mut(), Par::Seq);
            for (row, row_count) in parts(0..start, APPLIED) {
                steps.check()?;
                let out = above.rb_mut().subrows_mut(row, row_count);
                let left = factor.submatrix(row, start, row_count, count);
                matmul(out, Accum::Add, left, solved.rb(), -T::one(), Par::Seq);
            }
        }
    }
    Ok(())
}

/// Returns the number of multiplications with these factors, if one step can do all.
fn products(factors: [usize; 3]) -> Option<usize> {
    let products = factors.iter().try_fold(1_usize, |product, factor| product.checked_mul(*factor));
    products.filter(|products| *products <= STEP_PRODUCTS)
}

/// Divides a range into parts of a length: their starts and lengths.
fn parts(range: std::ops::Range<usize>, length: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| (start, length.min(end - start)))
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
