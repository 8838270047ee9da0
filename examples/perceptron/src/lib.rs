//! A neural network: a task trains a perceptron, and actors keep its weights, on a GPU if they have one, and predict
//! the test rows batch by batch.
//!
//! ```text
//! cargo xtask data housing data/housing.csv
//! host submit examples/perceptron --arg data=@data/housing.csv --arg target=median_house_value
//! host submit examples/perceptron --arg data=@data/housing.csv --arg target=median_house_value \
//!     --arg gpus=0.5 --arg actors=2 --arg batch_size=4096
//! ```
//!
//! `gpus` is the share of a GPU for the training and for each actor. The host uses the GPU or its processor, whichever
//! is faster, unless `device` is `gpu` or `cpu`.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array};
use models::mlp::{LoadedMlp, MlpModel, MlpParams};
use sandbar_guest::dense::{self, use_device};
use sandbar_guest::prelude::*;
use sandbar_guest::random::{self, rand_core::RngCore};

/// Seed of the train-test split and of the training.
const SEED: u64 = 1;
/// One of this many rows is a test row.
const TEST_EVERY: u64 = 5;

/// The device for dense algebra.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Device {
    /// The faster one.
    #[default]
    Auto,
    Gpu,
    Cpu,
}

impl Device {
    /// Selects the device for all later operations.
    fn activate(self) {
        use_device(match self {
            Device::Auto => dense::Device::Auto,
            Device::Gpu => dense::Device::Gpu,
            Device::Cpu => dense::Device::Cpu,
        });
    }
}

/// The quality on the test rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Evaluation {
    rows_train: usize,
    rows_test: usize,
    epochs: u32,
    batches: usize,
    root_mean_squared_error: f64,
    /// Explained share of the variance.
    r2: f64,
}

/// Splits the complete rows of a file into training and test rows. The target is the last column. Columns without a
/// number in the first row are ignored.
#[task(returns = 2)]
fn rows(data: Bytes, target: String) -> Result<(Batch, Batch), String> {
    let text = std::str::from_utf8(&data).map_err(|e| format!("the file is not UTF-8 text: {e}"))?;
    let mut lines = (1..).zip(text.lines());
    let header: Vec<&str> = lines.next().map(|(_, line)| line.split(',').collect()).unwrap_or_default();
    let at = header.iter().position(|name| *name == target).ok_or(format!("the file has no column `{target}`"))?;
    let mut lines = lines.peekable();
    let first: Vec<&str> = lines.peek().map(|(_, line)| line.split(',').collect()).unwrap_or_default();
    let is_number = |place: usize| first.get(place).is_some_and(|field| field.parse::<f64>().is_ok());
    let selected: Vec<usize> =
        (0..header.len()).filter(|place| *place != at && is_number(*place)).chain([at]).collect();
    let mut random = random::seeded(SEED);
    let mut parts = [vec![Vec::new(); selected.len()], vec![Vec::new(); selected.len()]];
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let picked: Option<Vec<&str>> = selected.iter().map(|place| fields.get(*place).copied()).collect();
        let picked = picked.ok_or(format!("line {number} has {} fields", fields.len()))?;
        if picked.contains(&"") {
            continue;
        }
        let values: Result<Vec<f64>, _> = picked.iter().map(|value| value.parse()).collect();
        let values = values.map_err(|e| format!("line {number}: {e}"))?;
        let part = &mut parts[usize::from(random.next_u64().is_multiple_of(TEST_EVERY))];
        part.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }
    let [train, test] = parts.map(|columns| {
        let columns = columns.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
        let named = selected.iter().map(|place| header[*place]).zip(columns);
        RecordBatch::try_from_iter(named).map(Batch).map_err(|e| e.to_string())
    });
    Ok((train?, test?))
}

/// The features of some rows, column by column, and the target.
fn part(rows: &Batch, at: Range<usize>) -> (Vec<f64>, Vec<f64>) {
    let mut columns = rows.columns().iter().map(|column| &column.as_primitive::<Float64Type>().values()[at.clone()]);
    let target = columns.next_back().unwrap_or_default().to_vec();
    (columns.flatten().copied().collect(), target)
}

#[task]
fn train(rows: Batch, params: MlpParams, device: Device) -> Result<MlpModel, String> {
    device.activate();
    let (features, target) = part(&rows, 0..rows.num_rows());
    let features = Features::new(&features, target.len(), target.len(), rows.num_columns() - 1);
    params.fit_features(features, &target, random::seeded(SEED)).map_err(|e| e.to_string())
}

/// Predicts with weights that stay on the device.
struct Predictor {
    model: LoadedMlp,
}

#[actor]
impl Predictor {
    pub fn new(model: MlpModel, device: Device) -> Result<Predictor, String> {
        device.activate();
        Ok(Predictor { model: model.load()? })
    }

    /// Predicts some rows of a table, without using its last column.
    pub fn predict(&self, rows: Batch, at: Range<usize>) -> Result<Vec<f64>, String> {
        let count = at.len();
        let (features, _) = part(&rows, at);
        Ok(self.model.predict(Features::new(&features, count, count, rows.num_columns() - 1))?)
    }
}

#[task]
fn main(
    data: File,
    target: String,
    params: Option<MlpParams>,
    gpus: Option<f64>,
    device: Option<Device>,
    actors: Option<usize>,
    batch_size: Option<usize>,
) -> Result<Evaluation, TaskError> {
    let (gpus, device) = (gpus.unwrap_or(0.0), device.unwrap_or_default());
    let batch_size = batch_size.unwrap_or(1024).max(1);
    let (train_rows, test_rows) = rows::submit(data.open(), target);
    let model = train::options().gpus(gpus).submit(&train_rows, params.unwrap_or_default(), device);
    let predictors: Vec<_> =
        (0..actors.unwrap_or(1).max(1)).map(|_| Predictor::options().gpus(gpus).submit(&model, device)).collect();
    let test = test_rows.get()?;
    let starts: Vec<usize> = (0..test.num_rows()).step_by(batch_size).collect();
    let pending: Vec<_> = starts
        .iter()
        .zip(predictors.iter().cycle())
        .map(|(start, predictor)| predictor.predict(&test_rows, *start..(start + batch_size).min(test.num_rows())))
        .collect();
    let predicted = get_all(&pending)?.concat();
    let (_, expected) = part(&test, 0..test.num_rows());
    let mean = expected.iter().sum::<f64>() / expected.len() as f64;
    let squares = |predictions: &mut dyn Iterator<Item = f64>| -> f64 {
        predictions.zip(&expected).map(|(value, expected)| (value - expected).powi(2)).sum()
    };
    let error = squares(&mut predicted.iter().copied());
    Ok(Evaluation {
        rows_train: train_rows.get()?.num_rows(),
        rows_test: expected.len(),
        epochs: model.get()?.epochs,
        batches: pending.len(),
        root_mean_squared_error: (error / expected.len() as f64).sqrt(),
        r2: 1.0 - error / squares(&mut std::iter::repeat(mean)),
    })
}

#[cfg(test)]
mod tests {
    use sandbar_guest::testing;

    use super::*;

    fn run(text: &str, more: serde_json::Value) -> Result<Evaluation, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.csv");
        std::fs::write(&path, text).unwrap();
        let mut arguments = serde_json::json!({"data": testing::file(path), "target": "y"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        testing::run("main", &arguments.to_string())
    }

    /// A curved surface, with a text column and an incomplete row.
    fn surface() -> String {
        let mut text = "name,x,z,y\n".to_owned();
        for row in 0..2000_u32 {
            let (x, z) = (f64::from(row * 389 % 997) / 997.0, f64::from(row * 631 % 991));
            text += &format!("a,{x},{z},{}\n", 50.0 + 10.0 * (x - 0.5).abs() + z / 100.0 * x);
        }
        text + "a,,1,1\n"
    }

    #[test]
    fn it_predicts_rows_that_it_was_not_trained_on() {
        let evaluation = run(&surface(), serde_json::json!({"batch_size": 100, "actors": 3})).unwrap();
        assert_eq!(evaluation.rows_train + evaluation.rows_test, 2000);
        assert_eq!(evaluation.batches, evaluation.rows_test.div_ceil(100));
        assert!(evaluation.r2 > 0.99, "{evaluation:?}");
        let at_once = run(&surface(), serde_json::json!({"batch_size": 10_000})).unwrap();
        assert!((at_once.root_mean_squared_error / evaluation.root_mean_squared_error - 1.0).abs() < 1e-5);
    }

    #[test]
    fn rows_without_usable_data_are_errors() {
        for (text, expected_text) in [
            ("x,z\n1,2", "the file has no column `y`"),
            ("x,y\n1,2\n1", "line 3 has 1 fields"),
            ("x,y\n1,2\na,1", "line 3: invalid float"),
            ("x,y\n", "no rows"),
        ] {
            let error = run(text, serde_json::json!({})).unwrap_err();
            assert!(error.contains(expected_text), "{error}");
        }
    }
}
