//! Made data for demos, tests and benchmarks.
//!
//! Goals: the same arguments give the same bytes, on every machine; a file appears whole or not at all; memory does not
//! grow with the file. No goal: data that anybody could mistake for the real thing.
//!
//! Same bytes means no clock, no hash map order, no thread order, and no sine or logarithm: those differ between C
//! libraries. Square roots and the four operations do not.

pub mod csvs;
pub mod housing;
mod parquet_file;
mod random;
pub mod small;
pub mod taxi;
mod whole;
