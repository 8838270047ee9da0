//! Hostile guests in ordinary Rust: what a user of the SDK can do by accident.
//!
//! Each function of this component is one attack, named after what it does. The table in `tests/process/hostile` has
//! the expected outcomes.

mod batches;
mod outside;
mod trainers;
