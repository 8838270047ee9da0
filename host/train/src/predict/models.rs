//! Stored models, by group key.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, StringArray};
use arrow_row::{RowConverter, SortField};
use arrow_schema::DataType;
use futures::TryStreamExt;
use sandbar_core::{Code, Fault, FunctionKind};
use sandbar_dataset::{NamedFile, Scan, ScanOptions, ScanSource, TextOptions};
use sandbar_functions::{FunctionError, FunctionLoader, ModelComponents, ModelFunctions};
use sandbar_worker::Binding;

use super::keys::{KeyColumn, cast_key};
use super::spec::PredictSpec;
use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::TrainSpec;
use crate::metadata::{JobMetadata, invalid_models};
use crate::transform::{TRANSFORM_KINDS, Transform};

/// The selected models of a job's output: those of one label, or the best of each group.
pub(super) struct ModelSet {
    pub(super) train: TrainSpec,
    /// Types of the key columns.
    keys: Vec<DataType>,
    converter: RowConverter,
    /// Index in `stored`, by encoded key.
    by_key: HashMap<Box<[u8]>, u32>,
    stored: Vec<StoredModel>,
    trainers: Vec<Arc<Binding>>,
    /// Training files, for jobs with `per_file`.
    files: BTreeSet<String>,
    /// Training file whose models are used for all rows, if the user names one.
    file: Option<String>,
}

/// A serialized model: a row of a batch of the output.
struct StoredModel {
    batch: BinaryArray,
    row: usize,
    /// Index of the trainer.
    trainer: usize,
}

/// Rows with the model of their group, if it has one.
pub(super) struct RowAssignment {
    pub model: Option<u32>,
    pub rows: Vec<u32>,
}

/// Rows of a chunk that one model predicts, in order.
pub(super) struct ModelRows {
    pub model: u32,
    pub rows: Vec<u32>,
}

/// Rows for models of one trainer.
pub(super) struct ModelCall {
    pub trainer: usize,
    pub groups: Vec<ModelRows>,
}

/// The models of a file, with their job's transforms.
pub(super) struct StoredModels {
    pub models: ModelSet,
    pub transforms: Vec<Transform>,
    /// Options for reading text files.
    pub text: TextOptions,
}

impl ModelSet {
    /// Opens the models in `file`, and binds the functions of their job.
    pub(super) async fn open(
        runner: &JobExecution,
        metadata: JobMetadata,
        spec: &PredictSpec,
        file: &Path,
    ) -> Result<StoredModels, TrainError> {
        let JobMetadata { job, trainers, transforms: origins } = metadata;
        let limits = runner.limits(&job);
        let text = job.input.text_options().map_err(|e| invalid_models(&spec.models, e))?;
        let Some(train) = job.train else {
            return Err(invalid_models(&spec.models, "its metadata is malformed: the job trains no models"));
        };
        if origins.len() != job.transform.len() {
            let message =
                "its metadata lacks the components of the job's transforms, as an older version wrote it: train again";
            return Err(invalid_models(&spec.models, message));
        }
        let labels: Vec<String> = trainers.keys().cloned().collect();
        if let Some(label) = spec.model.as_ref().filter(|l| !labels.contains(l)) {
            let hint = sandbar_core::hint(label, &labels);
            return Err(invalid_models(
                &spec.models,
                format!("it has no models `{label}`{hint}; its models are {}", labels.join(", ")),
            ));
        }
        let components = match &runner.sources {
            Some(sources) => ModelComponents::only(&spec.models, &sources.components),
            None => components(&runner.functions, spec).await?,
        };
        components.check_added(&origins.iter().chain(trainers.values()).collect::<Vec<_>>())?;
        let mut functions = ModelFunctions::new(&runner.functions, components, limits);
        let mut transforms = Vec::new();
        for (transform, origin) in job.transform.iter().zip(&origins) {
            let bound = functions.bind(origin, &TRANSFORM_KINDS, &transform.params).await?;
            transforms.push(Transform::new(bound, transform, runner.progress.clone())?);
        }
        let mut bindings = Vec::new();
        for trainer in trainers.values() {
            let params = serde_json::from_str(&trainer.params).map_err(|e| invalid_models(&spec.models, e))?;
            bindings.push(functions.bind(trainer, &[FunctionKind::Trainer], &params).await?.binding);
        }
        let keys =
            train.per_file.then(|| "file".to_owned()).into_iter().chain(train.group_by.clone()).collect::<Vec<_>>();
        let bytes_max = runner.sources.as_ref().map(|_| runner.options.memory_bytes_max);
        let batches = read_models(spec, file, &keys, bytes_max).await?;
        let mut models = ModelSet::new(train, &batches, keys.len(), bindings)?;
        models.add(spec, &batches, keys.len(), &labels)?;
        // With transforms, the keys are not columns of the input file.
        let text_keys = if transforms.is_empty() { models.text_keys() } else { Vec::new() };
        Ok(StoredModels { models, transforms, text: text.as_hints(text_keys) })
    }

    fn new(
        train: TrainSpec,
        batches: &[RecordBatch],
        keys: usize,
        trainers: Vec<Arc<Binding>>,
    ) -> Result<ModelSet, TrainError> {
        let types =
            batches.first().map(|b| b.columns()[..keys].iter().map(|c| c.data_type().clone()).collect::<Vec<_>>());
        let keys = types.unwrap_or_default();
        let converter = RowConverter::new(keys.iter().cloned().map(SortField::new).collect())
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))?;
        Ok(ModelSet {
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

    /// Adds the models of `batches`, whose first `keys` columns are the key.
    fn add(
        &mut self,
        spec: &PredictSpec,
        batches: &[RecordBatch],
        keys: usize,
        labels: &[String],
    ) -> Result<(), TrainError> {
        let malformed = || invalid_models(&spec.models, "its columns are not those of an output of `host submit`");
        for batch in batches {
            let rows = self.encode_keys(&batch.columns()[..keys], batch.num_rows())?;
            let label = batch.column(keys).as_string_opt::<i32>().ok_or_else(malformed)?;
            let stored = batch.column(keys + 1).as_binary_opt::<i32>().ok_or_else(malformed)?;
            let file = self.train.per_file.then(|| batch.column(0).as_string_opt::<i32>()).flatten();
            for row in 0..batch.num_rows() {
                if let Some(name) = file.map(|f| f.value(row)).filter(|name| !self.files.contains(*name)) {
                    self.files.insert(name.to_owned());
                }
                let trainer = labels.iter().position(|l| l == label.value(row)).ok_or_else(malformed)?;
                let number = self.stored.len() as u32;
                self.stored.push(StoredModel { batch: stored.clone(), row, trainer });
                self.by_key.insert(rows.row(row).as_ref().into(), number);
            }
        }
        self.file = spec.file.as_ref().map(|name| find_training_file(spec, name, &self.files)).transpose()?;
        Ok(())
    }

    fn encode_keys(&self, keys: &[ArrayRef], rows: usize) -> Result<KeyRows, Fault> {
        if keys.is_empty() {
            return Ok(KeyRows::None(rows));
        }
        self.converter.convert_columns(keys).map(KeyRows::Some).map_err(|e| Fault::new(Code::Columns, e.to_string()))
    }

    /// Assigns the rows of a batch of `file` to models, in the order of first appearance.
    pub(super) fn assign(&self, batch: &RecordBatch, file: &str) -> Result<Vec<RowAssignment>, Fault> {
        let mut types = self.keys.iter();
        let mut keys: Vec<ArrayRef> = Vec::new();
        let mut is_exact: Vec<BooleanArray> = Vec::new();
        if self.train.per_file {
            types.next();
            let name = self.file.as_deref().unwrap_or(file);
            keys.push(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(name, batch.num_rows()))));
        }
        for (name, data_type) in self.train.group_by.iter().zip(types) {
            let missing =
                || Fault::new(Code::Columns, format!("the models are grouped by `{name}`, which the input lacks"));
            let column = batch.column_by_name(name).ok_or_else(missing)?;
            let KeyColumn { values, is_exact: is_exact_key } =
                cast_key(column, data_type).map_err(|e| Fault::new(Code::Columns, format!("key `{name}`: {e}")))?;
            keys.push(values);
            is_exact.push(is_exact_key);
        }
        if self.stored.is_empty() {
            return Ok(vec![RowAssignment { model: None, rows: (0..batch.num_rows() as u32).collect() }]);
        }
        let encoded = self.encode_keys(&keys, batch.num_rows())?;
        let mut indices: HashMap<Option<u32>, usize> = HashMap::new();
        let mut assigned: Vec<RowAssignment> = Vec::new();
        for row in 0..batch.num_rows() {
            let is_key = is_exact.iter().all(|is_exact| is_exact.value(row));
            let model = self.by_key.get(encoded.row(row).as_ref()).filter(|_| is_key).copied();
            let index = *indices.entry(model).or_insert_with(|| {
                assigned.push(RowAssignment { model, rows: Vec::new() });
                assigned.len() - 1
            });
            assigned[index].rows.push(row as u32);
        }
        Ok(assigned)
    }

    /// Returns the text columns among the keys, with their type. Text files are read with these types, so that the
    /// version `1.10` is not read as a number.
    fn text_keys(&self) -> Vec<(String, DataType)> {
        let types = self.keys.iter().skip(usize::from(self.train.per_file));
        let keys = self.train.group_by.iter().zip(types);
        keys.filter(|(_, key)| **key == DataType::Utf8).map(|(name, key)| (name.clone(), key.clone())).collect()
    }

    /// Returns advice for the case that no row has a model, if the names of files may be the reason.
    pub(super) fn missing_models_advice(&self) -> Option<String> {
        let is_by_file = self.train.per_file && self.file.is_none();
        is_by_file.then(|| {
            let files = list_files(self.files.iter());
            format!(
                "no row has a model: the models are per file; name the training file with --file; there are {files}"
            )
        })
    }

    /// Groups rows into calls, each with models of one trainer and at most `bytes_max` bytes of stored models, unless a
    /// single model is larger.
    pub(super) fn calls(&self, groups: Vec<ModelRows>, bytes_max: usize) -> Vec<ModelCall> {
        /// The last call of a trainer, with the bytes of its models.
        struct OpenCall {
            index: usize,
            bytes: usize,
        }
        let mut calls: Vec<ModelCall> = Vec::new();
        let mut open: HashMap<usize, OpenCall> = HashMap::new();
        for group in groups {
            let trainer = self.stored[group.model as usize].trainer;
            let bytes = self.stored(group.model).len();
            let call = open.entry(trainer).or_insert(OpenCall { index: usize::MAX, bytes: 0 });
            if call.index == usize::MAX || call.bytes + bytes > bytes_max {
                calls.push(ModelCall { trainer, groups: Vec::new() });
                *call = OpenCall { index: calls.len() - 1, bytes: 0 };
            }
            call.bytes += bytes;
            calls[call.index].groups.push(group);
        }
        calls
    }

    /// Returns the serialized form of a model.
    pub(super) fn stored(&self, model: u32) -> &[u8] {
        let stored = &self.stored[model as usize];
        stored.batch.value(stored.row)
    }

    pub(super) fn binding(&self, trainer: usize) -> &Arc<Binding> {
        &self.trainers[trainer]
    }
}

/// Encoded keys of the rows of a batch.
enum KeyRows {
    /// Rows without keys, which are all of one group, by number.
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

/// Returns the components that the models of this machine may use: cached ones, and those that the user names, which are
/// built if they are crates.
async fn components<'a>(loader: &'a FunctionLoader, spec: &'a PredictSpec) -> Result<ModelComponents<'a>, TrainError> {
    let mut components = ModelComponents::cached(&spec.models, &loader.options().cache);
    for path in &spec.components {
        let found = loader.find("--component", path)?;
        let file = loader.component_file(&found).await.map_err(FunctionError::from)?;
        components.add(path, file)?;
    }
    Ok(components)
}

/// Reads the best models of all groups, or those of one label: key columns, label and serialized model. Fails if they
/// have more than `bytes_max` bytes in memory.
async fn read_models(
    spec: &PredictSpec,
    file: &Path,
    keys: &[String],
    bytes_max: Option<u64>,
) -> Result<Vec<RecordBatch>, TrainError> {
    let filter = match &spec.model {
        Some(label) => format!("model = '{}'", label.replace('\'', "''")),
        None => "rank = 1".to_owned(),
    };
    let columns = keys.iter().cloned().chain(["model".to_owned(), "model_bytes".to_owned()]).collect();
    let name = spec.models.display().to_string();
    let named = Some([NamedFile { name: name.clone(), path: file.to_owned() }].into());
    let source =
        ScanSource { paths: vec![name], named, filter: Some(filter), columns: Some(columns), ..ScanSource::default() };
    let scan = Scan::open(source, ScanOptions::default()).await?;
    let (mut batches, mut bytes) = (Vec::new(), 0);
    for morsel in 0..scan.morsels().len() {
        let mut read = scan.read(morsel)?;
        while let Some(batch) = read.try_next().await? {
            bytes += batch.get_array_memory_size() as u64;
            if let Some(max) = bytes_max.filter(|max| bytes > *max) {
                let message = format!(
                    "{}: its models have more than {max} bytes in memory, the limit (memory-bytes-max): predict with fewer \
                     models, or ask the operator",
                    spec.models.display()
                );
                return Err(Fault::new(Code::TenantLimit, message).into());
            }
            batches.push(batch);
        }
    }
    Ok(batches)
}

/// Returns the training file with this path, or the only one whose path ends with it.
fn find_training_file(spec: &PredictSpec, name: &str, files: &BTreeSet<String>) -> Result<String, TrainError> {
    if files.contains(name) {
        return Ok(name.to_owned());
    }
    let suffix = name.strip_prefix("./").unwrap_or(name);
    let mut matching = files.iter().filter(|file| Path::new(file).ends_with(suffix));
    match (matching.next(), matching.next()) {
        (Some(file), None) => Ok(file.clone()),
        (None, _) => {
            let files = list_files(files.iter());
            Err(invalid_models(&spec.models, format!("it has no models of file `{name}`; its files are {files}")))
        }
        (Some(one), Some(two)) => {
            let all = list_files([one, two].into_iter().chain(matching));
            Err(invalid_models(&spec.models, format!("file `{name}` may be any of {all}; name more of its path")))
        }
    }
}

/// Lists the first files, with the number of further ones.
fn list_files<'a>(files: impl Iterator<Item = &'a String>) -> String {
    const LISTED_MAX: usize = 20;
    let mut names: Vec<&str> = files.map(String::as_str).collect();
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}
