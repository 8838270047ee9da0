//! Linear models: ordinary and penalised least squares, with the objectives of scikit-learn's `LinearRegression`, `Ridge`,
//! `Lasso` and `ElasticNet`.
//!
//! Goals: a constant or redundant feature is no error (it gets the coefficients of least norm, so zero where it is
//! constant); offsets cost no digits; the same bits on every platform; one pass over the rows where features are well
//! conditioned; no allocation but the coefficients for small groups. Non-goals: sample weights, standard errors.
//!
//! Features go by the normal equations of centred columns while each has at least 10⁻⁴ of its variation to itself, and by
//! orthogonal transformations of the rows otherwise.

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

pub(crate) use moments::{Moments, Space, Wanted, dot};
pub(crate) use params::{checked_moments, not_negative, through, why_not_finite};
pub(crate) use traits::{fit_dataset, predict_records};
