//! Normal equations for few, well-conditioned features.

use super::moments::Moments;

/// Minimum share of a feature's variation that the preceding features leave unexplained. Below it, the normal equations
/// lose more than four of sixteen digits, and an orthogonal method is necessary.
pub(crate) const PIVOT_MIN: f64 = 1e-4;
/// Maximum width that needs no heap allocation.
const FEW: usize = 8;

/// Solves `(G + penalty · I) · coefficients = g` by a root-free Cholesky decomposition `L · D · Lᵀ`. `G` is the
/// features' sums of products, `g` their sums of products with the target. Constant features get zero. Returns none if
/// a pivot is below [`PIVOT_MIN`] of its diagonal entry, which equals the pivot of the matrix scaled to a unit
/// diagonal.
///
/// Source: Golub and Van Loan, *Matrix Computations*, 4.1.
pub(crate) fn solve(moments: &Moments<'_>, penalty: f64, coefficients: &mut [f64]) -> Option<()> {
    let width = moments.width();
    match width {
        0..=FEW => solve_in(moments, penalty, coefficients, &mut [0.0; FEW * FEW]),
        _ => solve_in(moments, penalty, coefficients, &mut vec![0.0; width * width]),
    }
}

/// Like [`solve`]. `l` receives the factor in row-major order, with the pivots on its diagonal.
fn solve_in(moments: &Moments<'_>, penalty: f64, x: &mut [f64], l: &mut [f64]) -> Option<()> {
    let width = moments.width();
    for j in 0..width {
        if moments.is_constant(j) {
            continue;
        }
        for i in 0..=j {
            // The entry is that of L·D until its column is divided. The column of a constant feature stays zero.
            let mut value = moments.products(i, j) + if i == j { penalty } else { 0.0 };
            let diagonal = value;
            if i < j && l[i * width + i] == 0.0 {
                continue;
            }
            for k in 0..i {
                value -= l[j * width + k] * l[i * width + k] * l[k * width + k];
            }
            if i < j {
                l[j * width + i] = value / l[i * width + i];
            } else if value > PIVOT_MIN * diagonal {
                l[j * width + j] = value;
            } else {
                return None;
            }
        }
    }
    for j in 0..width {
        let explained: f64 = (0..j).map(|k| l[j * width + k] * x[k]).sum();
        x[j] = if l[j * width + j] == 0.0 { 0.0 } else { moments.products(j, width) - explained };
    }
    for j in (0..width).rev() {
        if l[j * width + j] != 0.0 {
            let behind: f64 = (j + 1..width).map(|k| l[k * width + j] * x[k]).sum();
            x[j] = x[j] / l[j * width + j] - behind;
        }
    }
    Some(())
}
