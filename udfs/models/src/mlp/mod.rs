//! Multilayer perceptrons: dense neural networks for regression, with the objective, the optimiser and the defaults of
//! scikit-learn's `MLPRegressor`.
//!
//! The host runs the dense algebra in f32, on its processor or a GPU; this module decides the operations. Goals:
//! features and target of any scale, which are standardised to mean 0 and variance 1; the same bits for the same seed
//! on the processor. Non-goals: activations other than `relu`, early stopping on held-out rows.

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
