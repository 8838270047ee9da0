//! Logistic regression: the probability of one of two outcomes, with the objective of scikit-learn's
//! `LogisticRegression`.
//!
//! Goals: targets are exactly 0 and 1; offsets and scales of features do not affect the convergence; a constant or
//! redundant feature is not an error. Non-goals: more than two classes, the same last bits on every platform (`exp`
//! differs).
//!
//! The optimiser is Newton's method, implemented here. linfa's optimiser (L-BFGS, with a line search of unbounded
//! steps) does not return on data where its digits are exhausted before it reaches its tolerance.

mod error;
mod model;
mod newton;
mod params;
mod traits;

#[cfg(test)]
mod tests;

pub use error::LogisticError;
pub use model::LogisticModel;
pub use params::LogisticParams;
