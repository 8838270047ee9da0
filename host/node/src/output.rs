//! Where outputs go: what is wrong with a place is known before rows are read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sandbar_dataset::ParquetOutput;

use crate::NodeError;

/// Whether `path` names a file that can be read again; says what is wrong with it.
pub(crate) fn check_name(path: &str) -> Result<(), String> {
    if path.contains("://") {
        return Err(format!("the output `{path}` is a URL: name a file of this machine, and copy it there"));
    }
    if path.is_empty() || path.ends_with('/') {
        return Err(format!("the output `{path}` is no file: name one that ends in .parquet"));
    }
    if !Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet")) {
        return Err(format!("the output `{path}` does not end in .parquet, by which its format is known"));
    }
    Ok(())
}

/// Checks that a file can be written at `path`, and is none of those that are read.
pub(crate) fn check_place<'a>(path: &Path, mut read: impl Iterator<Item = &'a str>) -> Result<(), NodeError> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if let Some(own) = identity(path)
        && let Some(same) = read.find(|file| identity(Path::new(file)) == Some(own))
    {
        let what = format!("the output `{}` would replace `{same}`, which is read: name another file", path.display());
        return Err(NodeError::Job(what));
    }
    Ok(ParquetOutput::probe(path)?)
}
