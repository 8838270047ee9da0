//! Read-only queries of the scheduler's state.

pub(crate) mod deadlock;
pub(crate) mod unmet_demand;
mod views;
