//! Scans, groups and writes record batches: the only crate that depends on DataFusion.
//!
//! [`Scan`] finds files and reads them as an ordered list of morsels. [`Grouper`] collects their rows, or the blocks
//! that a [`BlockWriter`] encoded in a worker process, in memory and on disk. [`Partitions`] returns them as
//! [`WorkUnit`]s: whole groups, split into training and test rows. [`ParquetOutput`] writes models, [`RowOutput`]
//! writes rows.
//!
//! Guarantees: the output depends on the files and the arguments alone, bit for bit, whatever the number of threads and
//! the size of batches and morsels; memory stays within a budget; no input causes a panic; each error names the file,
//! line, column or limit. Non-goals: running user functions (callers do, between reading and grouping), joins and SQL
//! queries, and reading on other nodes.

// Input from a guest, a peer, a file or a user must not panic this process.
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
pub use output::{
    MetadataEntry, OutputFormat, ParquetOutput, RowOutput, RowTarget, TableColumn, WriteSummary, read_metadata,
    write_table,
};
pub use position::find_row_in_file;
pub use scan::{
    BatchStream, Morsel, NamedFile, RowGroup, RowGroupReader, Scan, ScanOptions, ScanSource, TextOptionError,
    TextOptions, TextSpec, find_files, list_local_files,
};
