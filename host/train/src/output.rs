//! Validation of output paths, before rows are read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandbar_dataset::{OutputFormat, ParquetOutput, RowTarget};

use crate::error::TrainError;
use crate::job::{Job, OutputSpec, ValidationError};

/// Checks that an output of models or of rows is valid.
pub(crate) fn check(output: &OutputSpec, is_of_models: bool) -> Result<(), ValidationError> {
    if !is_of_models {
        return row_target(output).map(drop);
    }
    if !output.partition_by.is_empty() {
        let message = "`output.partition_by` is for rows; models are written to one file, which `host predict` reads";
        return Err(ValidationError::of_key("output.partition_by", message));
    }
    if output.format.is_some_and(|format| format != OutputFormat::Parquet) {
        let message = format!("models are written as Parquet, {PARQUET_REASON}");
        return Err(ValidationError::of_key("output.format", message));
    }
    check_models_path(&output.path)
}

/// Reason for writing models as Parquet.
const PARQUET_REASON: &str = "which stores their bytes and the metadata that `host predict` needs";

fn invalid_path(message: String) -> ValidationError {
    ValidationError::of_key("output.path", message)
}

/// Checks that `path` names a Parquet file.
fn check_models_path(path: &str) -> Result<(), ValidationError> {
    check_local(path)?;
    if path.is_empty() || path.ends_with('/') {
        return Err(invalid_path(format!("the output `{path}` is no file: name a file that ends in .parquet")));
    }
    if !Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet")) {
        return Err(invalid_path(format!(
            "the output `{path}` does not end in .parquet: models are written as Parquet, {PARQUET_REASON}"
        )));
    }
    Ok(())
}

/// Returns the destination of rows.
fn row_target(output: &OutputSpec) -> Result<RowTarget, ValidationError> {
    let OutputSpec { path, format, partition_by } = output;
    check_local(path)?;
    if path.is_empty() {
        return Err(invalid_path("the output `` is no file: name a file".to_owned()));
    }
    if partition_by.is_empty() && path.ends_with('/') {
        return Err(invalid_path(format!(
            "the output `{path}` is no file: name a file, or set `partition_by` to write folders"
        )));
    }
    let by_extension = OutputFormat::from_path(Path::new(path));
    let format = match (*format, by_extension, partition_by.is_empty()) {
        (Some(format), ..) => format,
        (None, Some(format), _) => format,
        (None, None, false) => OutputFormat::Parquet,
        (None, None, true) => {
            return Err(invalid_path(format!(
                "the output `{path}` does not say its format: name a file that ends in one of {}, or set `output.format`",
                OutputFormat::EXTENSIONS
            )));
        }
    };
    Ok(RowTarget { path: PathBuf::from(path), format, partition_by: partition_by.clone() })
}

fn check_local(path: &str) -> Result<(), ValidationError> {
    if path.contains("://") {
        return Err(invalid_path(format!("the output `{path}` is a URL: name a local file, and upload it afterwards")));
    }
    Ok(())
}

/// Returns the destination of a job's rows, with another path.
pub(crate) fn row_target_at(output: &OutputSpec, path: &Path) -> Result<RowTarget, TrainError> {
    let target = row_target(output).map_err(|e| TrainError::Invalid(e.to_string()))?;
    Ok(RowTarget { path: path.to_owned(), ..target })
}

/// Returns the destination of a job's rows, after checking that it is writable and none of the `inputs`.
pub(crate) fn writable_row_target<'a>(
    output: &OutputSpec,
    inputs: impl Iterator<Item = &'a str>,
) -> Result<RowTarget, TrainError> {
    let target = row_target(output).map_err(|e| TrainError::Invalid(e.to_string()))?;
    check_is_no_input(&target.path, inputs)?;
    target.probe()?;
    Ok(target)
}

/// Checks that the output of a job's models is writable and none of the `inputs`.
pub(crate) fn check_writable_models<'a>(job: &Job, inputs: impl Iterator<Item = &'a str>) -> Result<(), TrainError> {
    let path = Path::new(&job.output.path);
    check_is_no_input(path, inputs)?;
    Ok(ParquetOutput::probe(path)?)
}

/// Checks that `path` is none of the `inputs`, by device and inode.
fn check_is_no_input<'a>(path: &Path, mut inputs: impl Iterator<Item = &'a str>) -> Result<(), TrainError> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if let Some(output) = identity(path)
        && let Some(input) = inputs.find(|file| identity(Path::new(file)) == Some(output))
    {
        let message =
            format!("the output `{}` would replace `{input}`, which is read: name another file", path.display());
        return Err(TrainError::Invalid(message));
    }
    Ok(())
}
