//! Reading, grouping and writing of record batches: the one room that knows
//! DataFusion.
//!
//! [`Scan`] finds files and reads them as an ordered list of morsels.
//! [`Grouper`] takes their rows, or blocks of them that a [`BlockWriter`] made
//! elsewhere, in memory and on disk, and [`Partitions`] gives them back as [`WorkUnit`]s: groups of rows, split into those to train on
//! and those to test with. [`ParquetOutput`] writes models, [`RowOutput`] rows.
//!
//! Goals: what comes out depends on the files and the arguments alone, bit for
//! bit, whatever the number of threads and the size of batches and morsels;
//! memory stays within a budget; no input makes it panic; each error names the
//! file, line, column or limit. Non-goals: running user's functions (callers
//! do, between reading and grouping), joins and SQL queries, other machines.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod error;
mod group;
mod output;
mod position;
mod scan;

pub use error::DatasetError;
pub use group::{
    BlockWriter, FailedGroup, FinishedBlock, Grouper, Grouping, HeapUnitMemory, MemoryBudget, MorselGrouper,
    Partitions, UnitGroup, UnitMemory, UnitShape, WorkUnit, describe_key, to_float64,
};
pub use output::{OutputFormat, ParquetOutput, RowOutput, RowTarget, WriteSummary, read_metadata};
pub use position::find_row_in_file;
pub use scan::{
    BatchStream, Morsel, RowGroup, RowGroupReader, Scan, ScanOptions, ScanSource, TextOptions, TextSpec, find_files,
};
