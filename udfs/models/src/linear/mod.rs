//! Linear models: ordinary and penalised least squares, with the objectives of scikit-learn's `LinearRegression`, `Ridge`,
//! `Lasso` and `ElasticNet`.
//!
//! Goals: a constant or redundant feature is not an error (it gets the coefficients of least norm, which is zero for a
//! constant one); offsets cost no digits; the same bits on every platform; one pass over the rows for well-conditioned
//! features; for small groups, no heap allocation except the coefficients. Non-goals: sample weights, standard errors.
//!
//! The normal equations of centred columns apply while each feature has at least 10⁻⁴ of its variation to itself.
//! Otherwise orthogonal transformations of the rows apply.

mod cholesky;
mod elastic_net;
mod error;
mod model;
mod moments;
mod orthogonal;
mod params;
mod ridge;
mod traits;

#[cfg(test)]
mod tests;

pub use elastic_net::{ElasticNetModel, ElasticNetParams};
pub use error::LinearError;
pub use model::LinearModel;
pub use params::LinearParams;
pub use ridge::RidgeParams;

pub(crate) use moments::{Moments, MomentsOptions, Workspace, dot};
pub(crate) use params::{checked_moments, not_negative, through, why_not_finite};
pub(crate) use traits::{fit_dataset, predict_records};
