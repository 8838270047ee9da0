//! Regression trees: CART with squared error, with the semantics of scikit-learn's `DecisionTreeRegressor`.
//!
//! Goals: the same splits as scikit-learn, up to ties and rounding; the same bits on every platform for the same seed;
//! no panic on any input; one sort per data set, shared by all trees grown from it ([`TrainingSet`]). Non-goals:
//! classification, sample weights from the caller, missing values, pruning.
//!
//! scikit-learn casts features to `f32`; this implementation keeps `f64`.
//!
//! Sources: Breiman, Friedman, Olshen and Stone, *Classification and Regression Trees* (1984); the documented behaviour of
//! `sklearn.tree.DecisionTreeRegressor`.

mod data;
mod draws;
mod error;
mod grow;
mod limits;
mod model;
mod params;
mod split;
mod traits;

#[cfg(test)]
mod tests;

pub use data::TrainingSet;
pub use error::TreeError;
pub use limits::{ROWS_MAX, TARGET_MAGNITUDE_MAX};
pub use model::RegressionTree;
pub use params::{RegressionTreeParams, Splitter};

pub(crate) use draws::Draws;
pub(crate) use grow::Grower;
pub(crate) use model::{Block, blocks, check_columns};
pub(crate) use traits::predict_records;
