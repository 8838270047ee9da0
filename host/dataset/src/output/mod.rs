//! Atomic output of rows to a file or to a folder of files.

mod csv;
mod file;
mod folders;
mod json;
mod parquet;
mod rows;
mod table;
mod temporary;

pub use file::OutputFormat;
pub use parquet::{MetadataEntry, ParquetOutput, read_metadata};
pub use rows::{RowOutput, RowTarget, WriteSummary};
pub use table::{TableColumn, write_table};
