//! Limits of training data.

/// Maximum number of rows: nodes, fewer than twice as many, have 32-bit indices.
pub const ROWS_MAX: usize = 1 << 31;

/// Maximum magnitude of a target: with at most [`ROWS_MAX`] rows, no sum of squares overflows.
pub const TARGET_MAGNITUDE_MAX: f64 = 2.582_249_878_086_908_6e120;
