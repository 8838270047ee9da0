//! Logistic regression: the probability of one of two outcomes, with the objective of scikit-learn's
//! `LogisticRegression`.
//!
//! Goals: targets are 0 and 1 and nothing else; offsets and scales of features do not matter to how it converges; a constant
//! or redundant feature is no error. Non-goals: more than two classes, the same last bits on every platform (`exp` differs).
//!
//! Newton's method, of our own: linfa's optimiser (L-BFGS, with a line search whose steps are not bounded) does not return
//! on data where it comes to the end of its digits before its tolerance.

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
