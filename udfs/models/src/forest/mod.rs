//! Random forests: the mean of regression trees grown on bootstrap samples, with the semantics of scikit-learn's
//! `RandomForestRegressor`.
//!
//! Goals: those of [`crate::tree`]; a tree depends only on the seed and its index in the forest, so that parts of a
//! forest can be grown separately. Non-goals: out-of-bag scores, feature importances, threads.
//!
//! Sources: Breiman, *Random Forests* (Machine Learning 45, 2001); the documented behaviour of
//! `sklearn.ensemble.RandomForestRegressor`.

mod model;
mod params;

#[cfg(test)]
mod tests;

pub use model::RandomForest;
pub use params::RandomForestParams;
