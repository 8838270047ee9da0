//! Forest tuning: finds the number of trees, 8, 12, … 84, with which a random forest best predicts the value of
//! Californian houses.
//!
//! Generates data, and runs the forests concurrently, on rows that are stored once for all of them, or sequentially:
//!
//! ```text
//! cargo xtask data housing data/housing.csv
//! host submit examples/forests --arg data=@data/housing.csv
//! host submit examples/forests#sequential --arg data=@data/housing.csv
//! ```

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array};
use models::forest::RandomForestParams;
use sandbar_guest::prelude::*;
use sandbar_guest::random::{self, rand_core::RngCore};

/// Eight features, followed by the target: the first columns of the file.
const COLUMNS: [&str; 9] = [
    "longitude",
    "latitude",
    "housing_median_age",
    "total_rooms",
    "total_bedrooms",
    "population",
    "households",
    "median_income",
    "median_house_value",
];

/// Seed of the train-test split and of the forests.
const SEED: u64 = 1;

/// A forest, and its mean absolute error on the test rows, in dollars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ForestScore {
    trees: u32,
    error: f64,
}

/// All forests, the best first; the smaller one of equals.
type Ranking = Vec<ForestScore>;

/// Sizes of the forests; 20 by default.
fn sizes(forests: Option<u32>) -> impl DoubleEndedIterator<Item = u32> {
    (0..forests.unwrap_or(20)).map(|place| 8 + 4 * place)
}

/// Splits the rows of a file: four fifths to train on, the rest to test on.
#[task(returns = 2)]
fn rows(data: Bytes) -> Result<(Batch, Batch), String> {
    let text = std::str::from_utf8(&data).map_err(|e| format!("the file is not UTF-8 text: {e}"))?;
    let mut random = random::seeded(SEED);
    let mut parts = [vec![Vec::new(); COLUMNS.len()], vec![Vec::new(); COLUMNS.len()]];
    for (number, line) in (1..).zip(text.lines()).skip(1) {
        let fields: Vec<&str> = line.split(',').take(COLUMNS.len()).collect();
        if fields.contains(&"") {
            // The number of bedrooms is unknown for some districts.
            continue;
        }
        let values: Result<Vec<f64>, _> = fields.iter().map(|field| field.parse()).collect();
        let values = values.map_err(|e| format!("line {number}: {e}"))?;
        if values.len() < COLUMNS.len() {
            return Err(format!("line {number}: {} of {} columns", values.len(), COLUMNS.len()));
        }
        let part = &mut parts[usize::from(random.next_u64().is_multiple_of(5))];
        part.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }
    let [train, test] = parts.map(|columns| {
        let columns = columns.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
        RecordBatch::try_from_iter(COLUMNS.into_iter().zip(columns)).map(Batch).map_err(|e| e.to_string())
    });
    Ok((train?, test?))
}

/// Views the features and the target of some rows.
fn columns(rows: &Batch) -> (Vec<&[f64]>, &[f64]) {
    let mut columns: Vec<&[f64]> =
        rows.columns().iter().map(|column| &column.as_primitive::<Float64Type>().values()[..]).collect();
    let target = columns.pop().unwrap_or_default();
    (columns, target)
}

/// Grows a forest, and returns its error.
#[task]
fn grow(trees: u32, train: Batch, test: Batch) -> Result<ForestScore, String> {
    let (features, target) = columns(&train);
    let params = RandomForestParams { n_estimators: trees, seed: Some(SEED), ..RandomForestParams::default() };
    let forest = params.fit_columns(&features, target).map_err(|e| e.to_string())?;
    let (features, target) = columns(&test);
    let predicted = forest.predict_columns(&features).map_err(|e| e.to_string())?;
    let sum: f64 = predicted.iter().zip(target).map(|(predicted, is)| (predicted - is).abs()).sum();
    Ok(ForestScore { trees, error: sum / target.len() as f64 })
}

fn rank(mut scores: Vec<ForestScore>) -> Ranking {
    scores.sort_by(|a, b| a.error.total_cmp(&b.error).then(a.trees.cmp(&b.trees)));
    scores
}

/// Runs a task for each forest. The rows are objects: read once, and viewed by all tasks without a copy.
#[task]
fn main(data: File, forests: Option<u32>) -> Result<Ranking, TaskError> {
    let (train, test) = rows::submit(data.open());
    // The largest forest starts first, so that none runs alone at the end.
    let scores: Vec<_> = sizes(forests).rev().map(|trees| grow::submit(trees, &train, &test)).collect();
    Ok(rank(get_all(&scores)?))
}

/// Runs one forest after another.
#[task]
fn sequential(data: File, forests: Option<u32>) -> Result<Ranking, TaskError> {
    let (train, test) = rows::submit(data.open());
    let scores = sizes(forests).map(|trees| grow::submit(trees, &train, &test).get());
    Ok(rank(scores.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use sandbar_guest::testing;

    use super::*;

    /// The value of a district depends on its income, and one in ten has no number of bedrooms.
    fn generate(rows: u32) -> String {
        let row = |i: u32| {
            let bedrooms = if i.is_multiple_of(10) { String::new() } else { i.to_string() };
            format!("-122.1,37.{},{i},{i},{bedrooms},{i},{i},{},{},NEAR BAY\n", i % 10, i % 7, 1000 * (i % 7) + i % 50)
        };
        format!("{},ocean_proximity\n{}", COLUMNS.join(","), (0..rows).map(row).collect::<String>())
    }

    fn run(task: &str, text: &str) -> Result<Ranking, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("housing.csv");
        std::fs::write(&path, text).unwrap();
        let arguments = serde_json::json!({ "data": testing::file(path), "forests": 3 });
        testing::run(task, &arguments.to_string())
    }

    #[test]
    fn forests_are_the_same_side_by_side_and_one_after_another() {
        let text = generate(300);
        let ranking = run("main", &text).unwrap();
        let mut trees: Vec<u32> = ranking.iter().map(|score| score.trees).collect();
        trees.sort_unstable();
        assert_eq!(trees, [8, 12, 16]);
        assert!(ranking.is_sorted_by(|a, b| a.error <= b.error) && ranking[0].error < 300.0, "{ranking:?}");
        assert_eq!(run("sequential", &text).unwrap(), ranking);
    }

    #[test]
    fn rows_without_usable_data_are_errors() {
        for (text, expected_text) in [("a\nb,2", "line 2: "), ("a\n1,2", "line 2: 2 of 9"), ("a\n", "no rows")] {
            let error = run("main", text).unwrap_err();
            assert!(error.contains(expected_text), "{error}");
        }
    }
}
