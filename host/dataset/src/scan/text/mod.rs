//! Text files: CSV and JSON lines.
//!
//! [`inspect`] finds the columns of a file, their types and its morsel boundaries. [`TextTable`] reads the morsels.
//! Both read UTF-8 ([`bytes`]) and split it into records and textual values ([`csv`], [`json`]).

mod bytes;
mod column;
mod compression;
mod csv;
mod file;
mod inspector;
mod json;
mod options;
mod reader;
mod record;
mod syntax;

pub(super) use column::{folder_column, key};
pub(super) use compression::Compression;
pub(super) use file::TextFile;
pub(super) use inspector::inspect;
pub use options::{TextOptionError, TextOptions, TextSpec};
pub(super) use reader::{TextError, TextTable};
