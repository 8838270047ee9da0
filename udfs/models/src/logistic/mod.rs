//! Logistic regression: the probability of one of two outcomes, with the objective of scikit-learn's
//! `LogisticRegression`.
//!
//! linfa's optimiser (L-BFGS), given centred features: the solution is the same, and is found where offsets are large.
//! Features should be of like scales, as for any such optimiser. Goals: targets are 0 and 1 and nothing else; a constant
//! feature is no error. Non-goals: more than two classes, the same last bits on every platform (`exp` differs).

mod error;
mod model;
mod params;

#[cfg(test)]
mod tests;

pub use error::LogisticError;
pub use model::LogisticModel;
pub use params::LogisticParams;
