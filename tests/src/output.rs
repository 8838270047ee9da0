//! Reads the models that a job wrote.

use std::fs::File;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use arrow_cast::display::array_value_to_string;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

/// A row of a job's output.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Key of the group as text, one entry per key column. With `per_file`, the file comes first.
    pub key: Vec<String>,
    /// Name of the model in the job file.
    pub model: String,
    /// Rank among the models of the group, from 1.
    pub rank: u32,
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Mean squared error.
    pub mse: Option<f64>,
    /// Root of `mse`.
    pub rmse: Option<f64>,
    /// Coefficient of determination.
    pub r2: Option<f64>,
    /// Number of training rows.
    pub rows_train: u32,
    /// Number of test rows.
    pub rows_test: u32,
    /// Parameters of the model.
    pub params: Value,
    /// Serialized model.
    pub bytes: Vec<u8>,
}

/// Reads the output file of a training job.
///
/// # Panics
/// Panics if the file is not the output of a training job.
pub fn models(path: &Path) -> Vec<Model> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|b| b.build());
    let reader = reader.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    reader.flat_map(|batch| rows(&batch.expect("the output can be read"))).collect()
}

fn rows(batch: &RecordBatch) -> Vec<Model> {
    let column = |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("the output has no column {name}"));
    let keys = batch.schema().index_of("model").expect("the keys come before the column model");
    let number = |name: &str| column(name).as_primitive::<Float64Type>().clone();
    let count = |name: &str| column(name).as_primitive::<UInt32Type>().clone();
    let (mae, mse, rmse, r2) = (number("mae"), number("mse"), number("rmse"), number("r2"));
    let (rank, train, test) = (count("rank"), count("rows_train"), count("rows_test"));
    let (model, params) = (column("model").as_string::<i32>(), column("params").as_string::<i32>());
    let bytes = column("model_bytes").as_binary::<i32>();
    let at = |row: usize| Model {
        key: batch.columns()[..keys]
            .iter()
            .map(|k| array_value_to_string(k, row).expect("a key has a text form"))
            .collect(),
        model: model.value(row).to_owned(),
        rank: rank.value(row),
        mae: mae.is_valid(row).then(|| mae.value(row)),
        mse: mse.is_valid(row).then(|| mse.value(row)),
        rmse: rmse.is_valid(row).then(|| rmse.value(row)),
        r2: r2.is_valid(row).then(|| r2.value(row)),
        rows_train: train.value(row),
        rows_test: test.value(row),
        params: serde_json::from_str(params.value(row)).expect("parameters are JSON"),
        bytes: bytes.value(row).to_vec(),
    };
    (0..batch.num_rows()).map(at).collect()
}

/// Returns a column of a Parquet file as `f64` values.
///
/// # Panics
/// Panics if the file can't be read as Parquet, or has no numeric column `name`.
pub fn column_of_numbers(path: &Path, name: &str) -> Vec<Option<f64>> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|b| b.build()).expect("it is Parquet");
    let mut all = Vec::new();
    for batch in reader {
        let batch = batch.expect("it can be read");
        let column = batch.column_by_name(name).unwrap_or_else(|| panic!("{} has no column {name}", path.display()));
        let numbers = arrow_cast::cast(column, &arrow_schema::DataType::Float64).expect("it has numbers");
        all.extend(numbers.as_primitive::<Float64Type>().iter());
    }
    all
}
