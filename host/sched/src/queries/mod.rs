//! Read-only questions about the scheduler's state.

pub(crate) mod deadlock;
pub(crate) mod unmet_demand;
mod views;
