//! Process-level tests: run the `host` program as users do.
//!
//! [`Lab`] is a temporary folder in which a test writes files and runs the host. [`CommandOutput`] holds the exit status and
//! the output of a run; [`models`] reads the models that a job wrote. All runs of one test process share a cache that
//! starts empty, so that each component is compiled once and no artifact of an older build is reused.
//!
//! Goals: a test reads as a table of inputs and expectations; no process or file outlives its test. Non-goals: behavior
//! that a unit test of one crate can check.

mod output;
mod rows;
mod watched;

pub use output::{Model, column_of_numbers, models};
pub use rows::{TaxiTrip, large_taxi_files, least_squares, taxi_files, taxi_line, taxi_trips};
pub use sandbar_testnet::{
    CommandOutput, Lab, Running, cache, children, component, host, is_alive, print_line, processor_time, workspace,
};
pub use watched::{Access, AccessKind, watch};
