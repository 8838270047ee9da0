//! Trainers: linear and logistic models, regression trees, random forests.

pub mod forest;
pub mod linear;
pub mod logistic;
pub mod tree;

mod trainers;
