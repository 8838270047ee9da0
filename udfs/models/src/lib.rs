//! Trainers: linear and logistic models, multilayer perceptrons, regression trees, random forests.
//!
//! | trainer | parameters, as JSON | predicts | displayed parameters of a model |
//! |---|---|---|---|
//! | `linear` | [`LinearParams`](linear::LinearParams) | the target | `coefficients`, `intercept` |
//! | `ridge` | [`RidgeParams`](linear::RidgeParams) | the target | `coefficients`, `intercept` |
//! | `lasso` | [`ElasticNetParams`](linear::ElasticNetParams) without `l1_ratio` | the target | and `iterations`, `converged` |
//! | `elastic_net` | [`ElasticNetParams`](linear::ElasticNetParams) | the target | and `iterations`, `converged` |
//! | `logistic` | [`LogisticParams`](logistic::LogisticParams) | the probability that the target is 1 | as `lasso` |
//! | `mlp` | [`MlpParams`](mlp::MlpParams) | the target | `layers`, `epochs`, `loss` |
//! | `tree` | [`RegressionTreeParams`](tree::RegressionTreeParams) | the target | `leaves`, `depth` |
//! | `forest` | [`RandomForestParams`](forest::RandomForestParams) | the target | `trees`, `mean_depth` |
//!
//! Every parameter has a default; unknown parameters are rejected. A group that can't be fitted reports an error,
//! without affecting other groups.

pub mod forest;
pub mod linear;
pub mod logistic;
pub mod mlp;
pub mod tree;

mod trainers;
