//! Metadata of model files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use sandbar_core::{Code, ComponentId, Fault};
use sandbar_dataset::{DatasetError, MetadataEntry, read_metadata};
use sandbar_functions::{FunctionLoader, FunctionOrigin};
use sandbar_machine::missing;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::job::Job;

/// Key of [`JobMetadata`] in the metadata of the output file.
const METADATA_KEY: &str = "sandbar";

/// Magic numbers at the start of Parquet files.
const PARQUET_MAGIC: [&[u8]; 2] = [b"PAR1", b"PARE"];

/// Metadata of a model file about its job. It is untrusted data: its paths are for messages only.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobMetadata {
    pub job: Job,
    /// Origin of each model's trainer, by the model's label.
    pub trainers: BTreeMap<String, FunctionOrigin>,
    /// Origins of the job's transforms. Files of older versions lack them.
    #[serde(default)]
    pub transforms: Vec<FunctionOrigin>,
}

impl JobMetadata {
    /// Reads and validates the metadata of the model file `file`, which messages call `models`.
    pub(crate) fn read(file: &Path, models: &Path) -> Result<JobMetadata, TrainError> {
        if !is_parquet(file)? {
            return Err(invalid_models(models, "it is no output of `host submit`, which is a Parquet file"));
        }
        let entries = read_metadata(file).map_err(|error| match error {
            DatasetError::Read { line, reason, .. } => {
                DatasetError::Read { file: models.display().to_string(), line, reason }
            }
            error => error,
        })?;
        let text =
            entries.iter().find(|entry| entry.key == METADATA_KEY).map(|entry| &entry.value).ok_or_else(|| {
                invalid_models(models, "it is no output of `host submit`: it lacks the metadata of a job")
            })?;
        JobMetadata::parse(text).map_err(|e| invalid_models(models, format!("its metadata is malformed: {e}")))
    }

    fn parse(text: &str) -> Result<JobMetadata, String> {
        let metadata: JobMetadata = serde_json::from_str(text).map_err(|e| e.to_string())?;
        metadata.job.check().map_err(|e| e.to_string())?;
        Ok(metadata)
    }

    /// Encodes the metadata for the model file.
    pub(crate) fn encode(&self) -> Result<MetadataEntry, Fault> {
        let value =
            serde_json::to_string(self).map_err(|e| Fault::new(Code::Host, format!("the job's metadata: {e}")))?;
        Ok(MetadataEntry { key: METADATA_KEY.to_owned(), value })
    }

    /// Opens the cached components of the trainers.
    pub(crate) fn open_components(&self, functions: &FunctionLoader) -> Result<Vec<(ComponentId, File)>, TrainError> {
        let components = self.trainers.values().map(|origin| {
            let path = functions.cached_component(origin.component);
            Ok((origin.component, File::open(&path).map_err(TrainError::file(&path))?))
        });
        components.collect()
    }
}

/// Fuzz harness: parses the metadata of a model file. Returns whether it is accepted.
///
/// # Panics
/// Panics if accepted metadata is rejected after it was encoded again.
pub fn fuzz_model_metadata(bytes: &[u8]) -> bool {
    let Ok(metadata) = std::str::from_utf8(bytes).map_err(|e| e.to_string()).and_then(JobMetadata::parse) else {
        return false;
    };
    let again = metadata.encode().map_err(|e| e.to_string()).and_then(|entry| JobMetadata::parse(&entry.value));
    assert!(again.is_ok(), "{metadata:?} is rejected after it was encoded: {:?}", again.err());
    true
}

/// Returns an error about a model file.
pub(crate) fn invalid_models(models: &Path, reason: impl std::fmt::Display) -> TrainError {
    TrainError::Invalid(format!("{}: {reason}", models.display()))
}

/// Returns whether a file starts with the magic number of Parquet.
fn is_parquet(path: &Path) -> Result<bool, TrainError> {
    let metadata = std::fs::metadata(path).map_err(|e| {
        let is_missing = e.kind() == io::ErrorKind::NotFound;
        if is_missing { TrainError::NotFound(missing("file of models", path)) } else { TrainError::file(path)(e) }
    })?;
    if !metadata.is_file() {
        let file_kind = if metadata.is_dir() { "it is a folder" } else { "it is no regular file" };
        return Err(TrainError::file(path)(io::Error::other(file_kind)));
    }
    let mut magic = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic));
    read.map_err(TrainError::file(path))?;
    Ok(PARQUET_MAGIC.contains(&&magic[..]))
}
