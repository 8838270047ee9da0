//! Multilayer perceptrons: dense neural networks for regression, with the objective, the optimiser and the defaults of
//! scikit-learn's `MLPRegressor`.
//!
//! The host does the dense algebra, on its processor or on a GPU, in f32; here is what to do next. Goals: features and
//! target of any scale, which are brought to mean 0 and variance 1 first; the same bits for the same seed on the processor.
//! Non-goals: other activations than `relu`, early stopping by held-out rows.

mod error;
mod loaded;
mod model;
mod params;
mod train;

#[cfg(test)]
mod tests;

pub use error::MlpError;
pub use loaded::LoadedMlp;
pub use model::MlpModel;
pub use params::MlpParams;
