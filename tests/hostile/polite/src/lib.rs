//! Guests that mean harm, in ordinary Rust: what a user of the SDK can do by
//! accident.
//!
//! Each function of this component is one attack, named after what it does.
//! What must come of it stands in the table of `tests/process/hostile`.

mod batches;
mod outside;
mod trainers;
