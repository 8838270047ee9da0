//! Normal equations of few, well conditioned features.

use super::moments::Moments;

/// The smallest share of a feature's variation that the features before it must leave unexplained. Below it, the normal
/// equations lose more than four of sixteen digits, and an orthogonal method is called for.
pub(crate) const PIVOT_MIN: f64 = 1e-4;
/// Widths that need no allocation.
const FEW: usize = 8;

/// Solves `(G + penalty · I) · coefficients = g`, with `G` the features' sums of products and `g` those with the target,
/// by a root-free Cholesky decomposition `L · D · Lᵀ`. Constant features get zero. None when a pivot is below
/// [`PIVOT_MIN`] of its diagonal, which is that of the matrix scaled to a unit diagonal.
///
/// Source: Golub and Van Loan, *Matrix Computations*, 4.1.
pub(crate) fn solve(moments: &Moments<'_>, penalty: f64, coefficients: &mut [f64]) -> Option<()> {
    let width = moments.width();
    match width {
        0..=FEW => solve_in(moments, penalty, coefficients, &mut [0.0; FEW * FEW]),
        _ => solve_in(moments, penalty, coefficients, &mut vec![0.0; width * width]),
    }
}

/// As [`solve`]; `l` takes the factor, row-major, its diagonal the pivots.
fn solve_in(moments: &Moments<'_>, penalty: f64, x: &mut [f64], l: &mut [f64]) -> Option<()> {
    let width = moments.width();
    for j in 0..width {
        if moments.is_constant(j) {
            continue;
        }
        for i in 0..=j {
            // Becomes L·D until its column is divided; a constant feature's column stays zero.
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
