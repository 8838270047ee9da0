//! The stored models, by group.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, StringArray};
use arrow_row::{RowConverter, SortField};
use arrow_schema::DataType;
use futures::TryStreamExt;
use sandbar_core::{Code, Fault, FunctionKind};
use sandbar_dataset::{Scan, ScanOptions, ScanSource, TextOptions, read_metadata};
use sandbar_functions::ModelFunctions;
use sandbar_machine::missing;
use sandbar_worker::Binding;

use super::{PredictSpec, Rows, as_key};
use crate::error::TrainError;
use crate::job::TrainSpec;
use crate::runner::{JobMetadata, JobRunner, METADATA_KEY};
use crate::transform::{TRANSFORMS, Transform};

/// The models of a job's output that are to be used, and what they came from.
pub(super) struct Models {
    pub(super) train: TrainSpec,
    /// Types of the keys.
    keys: Vec<DataType>,
    converter: RowConverter,
    by_key: HashMap<Box<[u8]>, u32>,
    stored: Vec<Stored>,
    trainers: Vec<Arc<Binding>>,
    /// The training files, for jobs with `per_file`.
    files: BTreeSet<String>,
    /// The one of them whose models are used, when one was asked for.
    file: Option<String>,
}

struct Stored {
    batch: BinaryArray,
    row: usize,
    trainer: usize,
}

/// Rows by model; those of no model under none.
pub(super) type Assigned = Vec<(Option<u32>, Vec<u32>)>;

/// Rows for models of one trainer.
pub(super) struct Call {
    pub(super) trainer: usize,
    pub(super) groups: Vec<Rows>,
}

fn wrong(spec: &PredictSpec, what: impl std::fmt::Display) -> TrainError {
    TrainError::Invalid(format!("{}: {what}", spec.models.display()))
}

/// What a file begins and ends with that is Parquet.
const PARQUET_MAGIC: [&[u8]; 2] = [b"PAR1", b"PARE"];

/// What the file with the models says of its job: data, whose paths are not followed.
pub(super) fn read_job_metadata(spec: &PredictSpec) -> Result<JobMetadata, TrainError> {
    if !is_parquet(&spec.models)? {
        return Err(wrong(spec, "it is no output of `host submit`, which is a Parquet file"));
    }
    let metadata = read_metadata(&spec.models)?;
    let text = metadata.iter().find(|(key, _)| key == METADATA_KEY).map(|(_, value)| value);
    let text =
        text.ok_or_else(|| wrong(spec, "it is no output of `host submit`: it does not say what its models are"))?;
    let malformed = |e: &dyn std::fmt::Display| wrong(spec, format!("what it says of its models is malformed: {e}"));
    let metadata: JobMetadata = serde_json::from_str(text).map_err(|e| malformed(&e))?;
    metadata.job.check().map_err(|e| malformed(&e))?;
    Ok(metadata)
}

/// Whether a file begins as Parquet does.
fn is_parquet(path: &Path) -> Result<bool, TrainError> {
    use std::io::Read as _;
    let metadata = std::fs::metadata(path).map_err(|e| {
        let is_missing = e.kind() == std::io::ErrorKind::NotFound;
        if is_missing { TrainError::NotFound(missing("file of models", path)) } else { TrainError::file(path)(e) }
    })?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "it is a folder" } else { "it is no regular file" };
        return Err(TrainError::file(path)(std::io::Error::other(what)));
    }
    let mut magic = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic));
    read.map_err(TrainError::file(path))?;
    Ok(PARQUET_MAGIC.contains(&&magic[..]))
}

impl Models {
    /// Opens the models of a file, with the transforms of their job, and how it reads text.
    pub(super) async fn open(
        runner: &JobRunner,
        metadata: JobMetadata,
        spec: &PredictSpec,
    ) -> Result<(Models, Vec<Transform>, TextOptions), TrainError> {
        let JobMetadata { job, trainers, transforms: origins } = metadata;
        let text = job.input.text().map_err(|e| wrong(spec, e))?;
        let Some(train) = job.train else {
            return Err(wrong(spec, "what it says of its models is malformed: its job trained none"));
        };
        if origins.len() != job.transform.len() {
            let what = "it does not say which components its job's transforms are of, as files of this version do: train again";
            return Err(wrong(spec, what));
        }
        let labels: Vec<String> = trainers.keys().cloned().collect();
        if let Some(label) = spec.model.as_ref().filter(|l| !labels.contains(l)) {
            let hint = sandbar_core::hint(label, &labels);
            return Err(wrong(spec, format!("it has no models `{label}`{hint}; its models are {}", labels.join(", "))));
        }
        let mut components = ModelFunctions::new(&runner.functions, &spec.models, &spec.components, job.limits).await?;
        components.check_named(&origins.iter().chain(trainers.values()).collect::<Vec<_>>())?;
        let mut transforms = Vec::new();
        for (transform, origin) in job.transform.iter().zip(&origins) {
            let callable = components.bind(origin, &TRANSFORMS, &transform.params).await?;
            transforms.push(Transform::of(runner, callable, transform)?);
        }
        let mut bindings = Vec::new();
        for trainer in trainers.values() {
            let params = serde_json::from_str(&trainer.params).map_err(|e| wrong(spec, e))?;
            bindings.push(components.bind(trainer, &[FunctionKind::Trainer], &params).await?.binding);
        }
        let keys =
            train.per_file.then(|| "file".to_owned()).into_iter().chain(train.group_by.clone()).collect::<Vec<_>>();
        let batches = read(spec, &keys).await?;
        let mut models = Models::new(train, &batches, keys.len(), bindings)?;
        models.take(spec, &batches, keys.len(), &labels)?;
        // Transforms make the keys of other columns.
        let text_keys = if transforms.is_empty() { models.text_keys() } else { Vec::new() };
        Ok((models, transforms, text.as_hints(text_keys)))
    }

    fn new(
        train: TrainSpec,
        batches: &[RecordBatch],
        keys: usize,
        trainers: Vec<Arc<Binding>>,
    ) -> Result<Models, TrainError> {
        let types =
            batches.first().map(|b| b.columns()[..keys].iter().map(|c| c.data_type().clone()).collect::<Vec<_>>());
        let keys = types.unwrap_or_default();
        let converter = RowConverter::new(keys.iter().cloned().map(SortField::new).collect())
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))?;
        Ok(Models {
            train,
            keys,
            converter,
            by_key: HashMap::new(),
            stored: Vec::new(),
            trainers,
            files: BTreeSet::new(),
            file: None,
        })
    }

    fn take(
        &mut self,
        spec: &PredictSpec,
        batches: &[RecordBatch],
        keys: usize,
        labels: &[String],
    ) -> Result<(), TrainError> {
        let malformed = || wrong(spec, "its columns are not those of an output of `host submit`");
        for batch in batches {
            let rows = self.rows(&batch.columns()[..keys], batch.num_rows())?;
            let label = batch.column(keys).as_string_opt::<i32>().ok_or_else(malformed)?;
            let stored = batch.column(keys + 1).as_binary_opt::<i32>().ok_or_else(malformed)?;
            let file = self.train.per_file.then(|| batch.column(0).as_string_opt::<i32>()).flatten();
            for row in 0..batch.num_rows() {
                if let Some(name) = file.map(|f| f.value(row)).filter(|name| !self.files.contains(*name)) {
                    self.files.insert(name.to_owned());
                }
                let trainer = labels.iter().position(|l| l == label.value(row)).ok_or_else(malformed)?;
                let number = self.stored.len() as u32;
                self.stored.push(Stored { batch: stored.clone(), row, trainer });
                self.by_key.insert(rows.row(row).as_ref().into(), number);
            }
        }
        self.file = spec.file.as_ref().map(|asked| file_named(spec, asked, &self.files)).transpose()?;
        Ok(())
    }

    fn rows(&self, keys: &[ArrayRef], rows: usize) -> Result<KeyRows, Fault> {
        if keys.is_empty() {
            return Ok(KeyRows::None(rows));
        }
        self.converter.convert_columns(keys).map(KeyRows::Some).map_err(|e| Fault::new(Code::Columns, e.to_string()))
    }

    /// The rows of each model, in the order of first appearance; those of no
    /// model under none.
    pub(super) fn assign(&self, batch: &RecordBatch, file: &str) -> Result<Assigned, Fault> {
        let mut types = self.keys.iter();
        let mut keys: Vec<ArrayRef> = Vec::new();
        let mut same: Vec<BooleanArray> = Vec::new();
        if self.train.per_file {
            types.next();
            let name = self.file.as_deref().unwrap_or(file);
            keys.push(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(name, batch.num_rows()))));
        }
        for (name, data_type) in self.train.group_by.iter().zip(types) {
            let missing =
                || Fault::new(Code::Columns, format!("the models are by `{name}`, which the input does not have"));
            let column = batch.column_by_name(name).ok_or_else(missing)?;
            let (key, kept) =
                as_key(column, data_type).map_err(|e| Fault::new(Code::Columns, format!("key `{name}`: {e}")))?;
            keys.push(key);
            same.push(kept);
        }
        if self.stored.is_empty() {
            return Ok(vec![(None, (0..batch.num_rows() as u32).collect())]);
        }
        let rows = self.rows(&keys, batch.num_rows())?;
        let mut places: HashMap<Option<u32>, usize> = HashMap::new();
        let mut out: Assigned = Vec::new();
        for row in 0..batch.num_rows() {
            let is_key = same.iter().all(|same| same.value(row));
            let model = self.by_key.get(rows.row(row).as_ref()).filter(|_| is_key).copied();
            let place = *places.entry(model).or_insert_with(|| {
                out.push((model, Vec::new()));
                out.len() - 1
            });
            out[place].1.push(row as u32);
        }
        Ok(out)
    }

    /// Keys of the input that are text for the models. In a file of text they are read as text too: `1.10` is no number
    /// among versions.
    fn text_keys(&self) -> Vec<(String, DataType)> {
        let types = self.keys.iter().skip(usize::from(self.train.per_file));
        let keys = self.train.group_by.iter().zip(types);
        keys.filter(|(_, key)| **key == DataType::Utf8).map(|(name, key)| (name.clone(), key.clone())).collect()
    }

    /// What to do when no row found a model, if the names of files may be why.
    pub(super) fn advice(&self) -> Option<String> {
        let differ = self.train.per_file && self.file.is_none();
        differ.then(|| {
            let files = listed(self.files.iter());
            format!(
                "no row has a model, for the models are by file; name the training file with --file; there are {files}"
            )
        })
    }

    /// Calls for these rows: one trainer each, and not more than `bytes_max` of
    /// stored models unless one is larger.
    pub(super) fn calls(&self, groups: Vec<Rows>, bytes_max: usize) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        let mut open: HashMap<usize, (usize, usize)> = HashMap::new();
        for group in groups {
            let trainer = self.stored[group.model as usize].trainer;
            let bytes = self.stored(group.model).len();
            let (call, held) = open.entry(trainer).or_insert((usize::MAX, 0));
            if *call == usize::MAX || *held + bytes > bytes_max {
                calls.push(Call { trainer, groups: Vec::new() });
                (*call, *held) = (calls.len() - 1, 0);
            }
            *held += bytes;
            calls[*call].groups.push(group);
        }
        calls
    }

    /// The serialised form of a model.
    pub(super) fn stored(&self, model: u32) -> &[u8] {
        let stored = &self.stored[model as usize];
        stored.batch.value(stored.row)
    }

    pub(super) fn binding(&self, trainer: usize) -> &Arc<Binding> {
        &self.trainers[trainer]
    }
}

enum KeyRows {
    /// Without keys all rows are of one group.
    None(usize),
    Some(arrow_row::Rows),
}

impl KeyRows {
    fn row(&self, row: usize) -> KeyRow<'_> {
        match self {
            KeyRows::None(rows) => {
                assert!(row < *rows);
                KeyRow::None
            }
            KeyRows::Some(rows) => KeyRow::Some(rows.row(row)),
        }
    }
}

enum KeyRow<'a> {
    None,
    Some(arrow_row::Row<'a>),
}

impl AsRef<[u8]> for KeyRow<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            KeyRow::None => &[],
            KeyRow::Some(row) => row.as_ref(),
        }
    }
}

/// The best models of all groups, or those of one label: keys, label, model.
async fn read(spec: &PredictSpec, keys: &[String]) -> Result<Vec<RecordBatch>, TrainError> {
    let filter = match &spec.model {
        Some(label) => format!("model = '{}'", label.replace('\'', "''")),
        None => "rank = 1".to_owned(),
    };
    let columns = keys.iter().cloned().chain(["model".to_owned(), "model_bytes".to_owned()]).collect();
    let paths = vec![spec.models.display().to_string()];
    let source = ScanSource { paths, filter: Some(filter), columns: Some(columns), ..ScanSource::default() };
    let scan = Scan::open(source, ScanOptions::default()).await?;
    let mut batches = Vec::new();
    for morsel in 0..scan.morsels().len() {
        batches.extend(scan.read(morsel)?.try_collect::<Vec<_>>().await?);
    }
    Ok(batches)
}

/// The training file of this name, or the one whose path ends so.
fn file_named(spec: &PredictSpec, asked: &str, files: &BTreeSet<String>) -> Result<String, TrainError> {
    if files.contains(asked) {
        return Ok(asked.to_owned());
    }
    let end = asked.strip_prefix("./").unwrap_or(asked);
    let mut found = files.iter().filter(|file| Path::new(file).ends_with(end));
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file.clone()),
        (None, _) => {
            let files = listed(files.iter());
            Err(wrong(spec, format!("it has no models of file `{asked}`; its files are {files}")))
        }
        (Some(one), Some(two)) => {
            let all = listed([one, two].into_iter().chain(found));
            Err(wrong(spec, format!("file `{asked}` may be any of {all}; name more of its path")))
        }
    }
}

/// Names of files, not too many of them.
fn listed<'a>(files: impl Iterator<Item = &'a String>) -> String {
    const LISTED_MAX: usize = 20;
    let mut names: Vec<&str> = files.map(String::as_str).collect();
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}
