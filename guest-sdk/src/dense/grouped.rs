use super::{DenseError, directions, of_host, values};
use crate::bindings::dense::{self as contract, Operation};
use crate::host::dense as host;

/// How least squares of many groups are fitted.
///
/// Minimises `Σ wᵢ (yᵢ - xᵢ·c - c₀)² + ridge · ‖c‖²` in each group; the intercept `c₀` is not penalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grouped {
    /// Whether there is an intercept; otherwise it is zero.
    pub intercept: bool,
    /// The weight of the penalty, at least 0.
    pub ridge: f64,
    /// A group is singular if of the sum of squares of one of its columns less than this share is left by those before it.
    pub pivot_min: f64,
}

impl Default for Grouped {
    fn default() -> Grouped {
        Grouped { intercept: true, ridge: 0.0, pivot_min: 0.0 }
    }
}

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It has its coefficients.
    Solved,
    /// It has no rows, or none of a weight above zero.
    Empty,
    /// Its columns depend on each other.
    Singular,
    /// A value of it is NaN or infinite, a weight is negative, or a sum is too large.
    NotFinite,
    /// Its offsets are no rows.
    OutOfRange,
}

/// Groups that were fitted.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedFit {
    width: usize,
    coefficients: Vec<f64>,
    statuses: Vec<u32>,
}

impl GroupedFit {
    /// The coefficients of a group and its intercept, or why it has none.
    ///
    /// # Errors
    /// What became of it instead.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn group(&self, group: usize) -> Result<(&[f64], f64), Status> {
        let own = &self.coefficients[group * (self.width + 1)..][..self.width + 1];
        match (self.statuses[group], own) {
            (0, [coefficients @ .., intercept]) => Ok((coefficients, *intercept)),
            (1, _) => Err(Status::Empty),
            (2, _) => Err(Status::Singular),
            (3, _) => Err(Status::NotFinite),
            _ => Err(Status::OutOfRange),
        }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.statuses.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.statuses.is_empty()
    }
}

/// Fits least squares of many groups at once: of `width` columns, one behind another, a target as long as each, the rows of
/// each group (where they begin, and where they end) and, perhaps, weights. They are looked at where they are.
///
/// # Errors
/// When lengths don't agree, or there is no room.
pub fn grouped_least_squares(
    columns: &[f64],
    target: &[f64],
    groups: &[[u32; 2]],
    weights: Option<&[f64]>,
    options: Grouped,
) -> Result<GroupedFit, DenseError> {
    let rows = target.len();
    let width = columns.len().checked_div(rows).unwrap_or(0);
    let sizes = [directions(&[width, rows]), directions(&[rows]), directions(&[groups.len(), 2])];
    let offsets = values(&sizes[2], groups.as_flattened());
    let mut operands = vec![values(&sizes[0], columns), values(&sizes[1], target), offsets];
    operands.extend(weights.map(|weights| values(&sizes[1], weights)));
    let Grouped { intercept, ridge, pivot_min } = options;
    let grouped = contract::Grouped { intercept, ridge, pivot_min };
    let made = host::run(Operation::GroupedLeastSquares(grouped), &operands)?;
    let Ok([found, became]) = <[host::Tensor; 2]>::try_from(made) else { return Err(of_host()) };
    let (mut coefficients, mut statuses) = (vec![0.0; groups.len() * (width + 1)], vec![0; groups.len()]);
    found.read(0, super::bytes_mut(&mut coefficients))?;
    became.read(0, super::bytes_mut(&mut statuses))?;
    Ok(GroupedFit { width, coefficients, statuses })
}
