//! Reading, grouping and writing of record batches.
mod error;
mod scan;
pub use error::DatasetError;
pub use scan::{BatchStream, Morsel, Scan, ScanOptions, Source};
