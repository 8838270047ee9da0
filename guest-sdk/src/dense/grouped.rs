use super::{DenseError, contract_sizes, unexpected_result, values};
use crate::bindings::dense::{self as contract, Operation};
use crate::host::dense as host;

/// Options of grouped least squares.
///
/// Each group minimises `Σ wᵢ (yᵢ - xᵢ·c - c₀)² + ridge · ‖c‖²`; the intercept `c₀` is not penalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedOptions {
    /// Whether to fit an intercept; otherwise it is zero.
    pub intercept: bool,
    /// Weight of the penalty, at least 0.
    pub ridge: f64,
    /// Singularity threshold: a group is singular if the columns before some column leave less than this share of that
    /// column's sum of squares.
    pub pivot_min: f64,
}

impl Default for GroupedOptions {
    fn default() -> GroupedOptions {
        GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 }
    }
}

/// The status of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The group has coefficients.
    Solved,
    /// The group has no rows, or no row with a weight above zero.
    Empty,
    /// The group's columns are linearly dependent.
    Singular,
    /// A value is NaN or infinite, a weight is negative, or a sum overflows.
    NotFinite,
    /// The group's offsets are outside the rows.
    OutOfRange,
}

/// The results of grouped least squares.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedFit {
    width: usize,
    coefficients: Vec<f64>,
    statuses: Vec<u32>,
}

impl GroupedFit {
    /// Returns the coefficients and the intercept of a group.
    ///
    /// # Errors
    /// The status of a group without coefficients.
    ///
    /// # Panics
    /// Panics when there is no such group.
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

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.statuses.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.statuses.is_empty()
    }
}

/// Fits least squares for many groups at once. `columns` holds `width` columns, one after another; `target` has the
/// length of one column. `groups` has the first row and the end of each group. The host reads all of them in place.
///
/// # Errors
/// Reports lengths that don't agree, and exhausted memory.
pub fn grouped_least_squares(
    columns: &[f64],
    target: &[f64],
    groups: &[[u32; 2]],
    weights: Option<&[f64]>,
    options: GroupedOptions,
) -> Result<GroupedFit, DenseError> {
    let rows = target.len();
    let width = columns.len().checked_div(rows).unwrap_or(0);
    let sizes = [contract_sizes(&[width, rows]), contract_sizes(&[rows]), contract_sizes(&[groups.len(), 2])];
    let offsets = values(&sizes[2], groups.as_flattened());
    let mut operands = vec![values(&sizes[0], columns), values(&sizes[1], target), offsets];
    operands.extend(weights.map(|weights| values(&sizes[1], weights)));
    let GroupedOptions { intercept, ridge, pivot_min } = options;
    let grouped = contract::Grouped { intercept, ridge, pivot_min };
    let outputs = host::run(Operation::GroupedLeastSquares(grouped), &operands)?;
    let Ok([found, became]) = <[host::Tensor; 2]>::try_from(outputs) else { return Err(unexpected_result()) };
    let (mut coefficients, mut statuses) = (vec![0.0; groups.len() * (width + 1)], vec![0; groups.len()]);
    found.read(0, super::bytes_mut(&mut coefficients))?;
    became.read(0, super::bytes_mut(&mut statuses))?;
    Ok(GroupedFit { width, coefficients, statuses })
}
