//! Process-level tests: the `host` program as its users meet it.
//!
//! [`Lab`] is a folder in which a test writes its files and runs the host; what
//! the host printed is an [`Ended`], what it wrote is read by [`models`]. All
//! runs of one test process share a cache that is made anew for it, so that
//! components are compiled once and nothing of an older build is trusted.
//!
//! Goals: a test reads as a table of inputs and expectations; nothing here
//! outlives its test, whatever the test does. Non-goals: what can be asked of a
//! function in its own room.

mod output;
mod rows;
mod watched;

pub use output::{Model, column_of_numbers, models};
pub use rows::{TaxiTrip, large_taxi_files, least_squares, taxi_files, taxi_line, taxi_trips};
pub use sandbar_testnet::{
    Ended, Lab, Running, cache, children, component, host, is_alive, processor_time, say, workspace,
};
pub use watched::{Access, Way, watch};
