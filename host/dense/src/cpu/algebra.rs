//! Products, systems of equations, and distances.

#[cfg(feature = "faer")]
use super::by_faer as kernels;
use super::matrix::Matrix;
#[cfg(not(feature = "faer"))]
use super::plain as kernels;
use super::real::Real;
use crate::steps::Steps;
use crate::{DenseError, Shape};

/// Number of values per partial sum.
const PARTIAL_SUM_VALUES: usize = 256;
/// Points per block of distances, and distances per block, unless one point has more.
const POINTS: usize = 256;
const DISTANCES: usize = 1 << 16;

/// A stack of matrices.
#[derive(Clone, Copy)]
pub(super) struct MatrixStack<'a, T> {
    pub(super) values: &'a [T],
    pub(super) shape: Shape,
    pub(super) is_transposed: bool,
}

impl<'a, T> MatrixStack<'a, T> {
    /// Creates a stack that is not transposed.
    pub(super) fn new(values: &'a [T], shape: Shape) -> MatrixStack<'a, T> {
        MatrixStack { values, shape, is_transposed: false }
    }

    /// Returns the number of matrices.
    fn count(&self) -> usize {
        self.shape.matrices().map_or(0, |(count, ..)| count)
    }

    /// Returns a matrix.
    fn matrix(&self, at: usize) -> Matrix<'a, T> {
        let (_, rows, columns) = self.shape.matrices().unwrap_or_default();
        let values = &self.values[at * rows * columns..][..rows * columns];
        Matrix { values, rows, columns, is_transposed: self.is_transposed }
    }
}

/// Points of the same number of dimensions, one after another.
#[derive(Clone, Copy)]
pub(super) struct Points<'a, T> {
    pub(super) values: &'a [T],
    /// Number of points.
    pub(super) count: usize,
}

/// Multiplies two stacks of matrices, each optionally transposed.
pub(super) fn product<T: Real>(
    first: MatrixStack<'_, T>,
    second: MatrixStack<'_, T>,
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    // A single matrix is multiplied with each matrix of the other stack.
    let at_most = |shape: Shape, at: usize| if shape.rank() > 2 { at } else { 0 };
    for at in 0..if first.shape.rank() > 2 { first.count() } else { second.count() } {
        let left = first.matrix(at_most(first.shape, at));
        let right = second.matrix(at_most(second.shape, at));
        let length = left.sizes().0 * right.sizes().1;
        kernels::multiply(left, right, &mut out[at * length..][..length], steps)?;
    }
    Ok(())
}

/// Solves a stack of systems by Cholesky factors; NaN for systems without one.
pub(super) fn solve_cholesky<T: Real>(
    systems: MatrixStack<'_, T>,
    right: &[T],
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    solve(systems, right, out, |system, right| kernels::solve_cholesky(system, right, steps))
}

/// Solves a stack of least squares problems by QR.
pub(super) fn solve_qr<T: Real>(
    systems: MatrixStack<'_, T>,
    right: &[T],
    out: &mut [T],
    steps: &mut Steps,
) -> Result<(), DenseError> {
    solve(systems, right, out, |system, right| kernels::solve_qr(system, right, steps))
}

/// Solves each system in place of its right side, whose first rows become the solution.
fn solve<T: Real>(
    systems: MatrixStack<'_, T>,
    right: &[T],
    out: &mut [T],
    mut one: impl FnMut(Matrix<'_, T>, &mut [T]) -> Result<(), DenseError>,
) -> Result<(), DenseError> {
    let (count, rows, unknowns) = systems.shape.matrices().unwrap_or_default();
    if right.is_empty() || out.is_empty() {
        return Ok(());
    }
    let columns = right.len() / (count * rows);
    let mut space = vec![T::zero(); rows * columns];
    let stacks = right.chunks_exact(rows * columns).zip(out.chunks_exact_mut(unknowns * columns));
    for (at, (right, out)) in stacks.enumerate() {
        space.copy_from_slice(right);
        one(systems.matrix(at), &mut space)?;
        out.copy_from_slice(&space[..unknowns * columns]);
    }
    Ok(())
}

/// Returns the nearest centre of each point, and the squared distance to it.
///
/// Finds the centre by `‖p‖² - 2 p·c + ‖c‖²`, whose product is fast, and then sums squared differences for the distance
/// to it, which keeps the digits of small distances.
pub(super) fn nearest<T: Real>(
    points: Points<'_, T>,
    centres: &[T],
    width: usize,
    steps: &mut Steps,
) -> Result<(Vec<u32>, Vec<T>), DenseError> {
    let Points { values, count } = points;
    if width == 0 {
        // Points of width 0 are all equal.
        return Ok((vec![0; count], vec![T::zero(); count]));
    }
    let of_centres = centres.len() / width;
    let norms: Vec<T> = centres.chunks_exact(width).map(|centre| dot(centre, centre)).collect();
    let (mut places, mut squares) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let at_once = (DISTANCES / of_centres).clamp(1, POINTS);
    let mut space = vec![T::zero(); at_once * of_centres];
    for block in values.chunks(at_once * width) {
        let rows = block.len() / width;
        let products = &mut space[..rows * of_centres];
        let left = Matrix { values: block, rows, columns: width, is_transposed: false };
        let right = Matrix { values: centres, rows: of_centres, columns: width, is_transposed: true };
        kernels::multiply(left, right, products, steps)?;
        for (point, products) in block.chunks_exact(width).zip(products.chunks_exact(of_centres)) {
            steps.next(of_centres + width)?;
            let (mut best, mut least) = (0, T::infinity());
            for (at, (product, norm)) in products.iter().zip(&norms).enumerate() {
                let distance = *norm - (*product + *product);
                if distance < least {
                    (best, least) = (at, distance);
                }
            }
            places.push(best as u32);
            squares.push(sum_pairs(point, &centres[best * width..][..width], |point, centre| {
                let by = point - centre;
                by * by
            }));
        }
    }
    Ok((places, squares))
}

fn dot<T: Real>(left: &[T], right: &[T]) -> T {
    sum_pairs(left, right, |left, right| left * right)
}

/// Sums a function of pairs, as a sum of short partial sums for little rounding error.
fn sum_pairs<T: Real>(left: &[T], right: &[T], term: impl Fn(T, T) -> T) -> T {
    let parts = left.chunks(PARTIAL_SUM_VALUES).zip(right.chunks(PARTIAL_SUM_VALUES));
    let sums = parts.map(|(left, right)| left.iter().zip(right).fold(T::zero(), |sum, (l, r)| sum + term(*l, *r)));
    sums.fold(T::zero(), |sum, part| sum + part)
}
