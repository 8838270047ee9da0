//! Generated data for demos, tests and benchmarks.
//!
//! Goals: the same arguments give the same bytes on every machine; a file appears completely or not at all; memory does not
//! grow with the file. Non-goal: realistic data.
//!
//! Equal bytes require that nothing depends on clocks, the order of hash maps or threads, or sines and logarithms, which
//! differ between C libraries. Square roots and the four operations do not differ.

mod atomic_file;
pub mod csvs;
pub mod housing;
mod parquet_file;
mod random;
pub mod small;
pub mod taxi;
