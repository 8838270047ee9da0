//! Writing rows: to one file or to folders of files, whole or not at all.

mod csv;
mod file;
mod folders;
mod json;
mod parquet;
mod rows;
mod temporary;

pub use file::OutputFormat;
pub use parquet::{ParquetOutput, read_metadata};
pub use rows::{RowOutput, RowTarget, WriteSummary};
