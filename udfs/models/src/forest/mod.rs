//! Random forests: the mean of regression trees grown on bootstrap samples, with the semantics of scikit-learn's
//! `RandomForestRegressor`.
//!
//! Goals: as for [`crate::tree`]; a tree depends on the seed and on its place in the forest alone, so that parts of a
//! forest can be grown apart. Non-goals: out-of-bag scores, feature importances, threads.
//!
//! Sources: Breiman, *Random Forests* (Machine Learning 45, 2001); the documented behaviour of
//! `sklearn.ensemble.RandomForestRegressor`.

mod model;
mod params;

#[cfg(test)]
mod tests;

pub use model::RandomForest;
pub use params::RandomForestParams;
