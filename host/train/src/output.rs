//! Where outputs go: what is wrong with a place is known before rows are read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandbar_dataset::{OutputFormat, ParquetOutput, RowTarget};

use crate::error::TrainError;
use crate::job::{Job, JobMistake, OutputSpec};

/// Whether an output of models, or else of rows, can be written and read again.
pub(crate) fn check(output: &OutputSpec, is_of_models: bool) -> Result<(), JobMistake> {
    let wrong = |key: &str, message: String| Err(JobMistake::of_key(key, message));
    if is_of_models {
        if !output.partition_by.is_empty() {
            let message =
                "`output.partition_by` is for rows: models are one file, from which `host predict` reads them";
            return wrong("output.partition_by", message.to_owned());
        }
        if output.format.is_some_and(|format| format != OutputFormat::Parquet) {
            return wrong("output.format", format!("models are written as Parquet, {MODELS_NEED}"));
        }
        return check_models(&output.path).or_else(|message| wrong("output.path", message));
    }
    target(output).map(drop).or_else(|message| wrong("output.path", message))
}

/// Why models go to no other format.
const MODELS_NEED: &str = "which keeps their bytes, and what `host predict` needs to know of them";

/// Whether `path` names a file that models can be read from again; says what is wrong with it.
fn check_models(path: &str) -> Result<(), String> {
    is_path(path)?;
    if path.is_empty() || path.ends_with('/') {
        return Err(format!("the output `{path}` is no file: name one that ends in .parquet"));
    }
    if !Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet")) {
        return Err(format!(
            "the output `{path}` does not end in .parquet: models are written as Parquet, {MODELS_NEED}"
        ));
    }
    Ok(())
}

/// Where rows go; or what is wrong with it.
fn target(output: &OutputSpec) -> Result<RowTarget, String> {
    let OutputSpec { path, format, partition_by } = output;
    is_path(path)?;
    if path.is_empty() {
        return Err("the output `` is no file: name one".to_owned());
    }
    if partition_by.is_empty() && path.ends_with('/') {
        return Err(format!("the output `{path}` is no file: name one, or columns for folders with `partition_by`"));
    }
    let by_extension = OutputFormat::of(Path::new(path));
    let format = match (*format, by_extension, partition_by.is_empty()) {
        (Some(format), ..) => format,
        (None, Some(format), _) => format,
        (None, None, false) => OutputFormat::Parquet,
        (None, None, true) => {
            return Err(format!(
                "the output `{path}` does not say its format: end it in one of {}, or set `output.format`",
                OutputFormat::EXTENSIONS
            ));
        }
    };
    Ok(RowTarget { path: PathBuf::from(path), format, partition_by: partition_by.clone() })
}

fn is_path(path: &str) -> Result<(), String> {
    if path.contains("://") {
        return Err(format!("the output `{path}` is a URL: name a file of this machine, and copy it there"));
    }
    Ok(())
}

/// Where the rows of a job go, which reads these files: it can be written, and is none of them.
pub(crate) fn rows_target<'a>(
    output: &OutputSpec,
    read: impl Iterator<Item = &'a str>,
) -> Result<RowTarget, TrainError> {
    let target = target(output).map_err(TrainError::Invalid)?;
    check_replaced(&target.path, read)?;
    target.probe()?;
    Ok(target)
}

/// Checks that the models of a job, which reads these files, can be written, to none of them.
pub(crate) fn check_place<'a>(job: &Job, read: impl Iterator<Item = &'a str>) -> Result<(), TrainError> {
    let path = Path::new(&job.output.path);
    check_replaced(path, read)?;
    Ok(ParquetOutput::probe(path)?)
}

/// Checks that `path` is none of the files that are read.
fn check_replaced<'a>(path: &Path, mut read: impl Iterator<Item = &'a str>) -> Result<(), TrainError> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if let Some(own) = identity(path)
        && let Some(same) = read.find(|file| identity(Path::new(file)) == Some(own))
    {
        let what = format!("the output `{}` would replace `{same}`, which is read: name another file", path.display());
        return Err(TrainError::Invalid(what));
    }
    Ok(())
}
