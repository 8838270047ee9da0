//! Trainers: linear models, regression trees, random forests.

pub mod forest;
pub mod linear;
pub mod tree;

mod trainers;
