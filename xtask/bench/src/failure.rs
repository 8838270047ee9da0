//! Errors of benchmarks.

/// An error that ends the program.
pub type Failure = Box<dyn std::error::Error>;
