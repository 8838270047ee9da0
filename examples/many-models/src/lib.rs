//! Many models: several kinds of models for each group of rows, and the best of them. The groups are found at run time:
//! a task per group submits a task per kind.
//!
//! ```text
//! cargo xtask data housing data/housing.csv
//! host submit examples/many-models --arg data=@data/housing.csv --arg group_by=housing_median_age \
//!     --arg target=median_house_value --arg 'features=["median_income", "latitude", "longitude"]'
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array};
use models::linear::LinearParams;
use models::tree::{RegressionTreeParams, Splitter};
use sandbar_guest::prelude::*;

/// One of this many rows is a test row.
const TEST_EVERY: usize = 5;
/// Minimum number of rows of a group.
const ROWS_MIN: usize = 10;

/// A kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Linear,
    Tree,
    RandomTree,
}

/// The rows of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Rows {
    key: String,
    at: Range<usize>,
}

/// The best model of a group, and its mean absolute error on the test rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BestModel {
    key: String,
    kind: Kind,
    mean_absolute_error: f64,
}

/// Returns the rows of a file sorted by group (features, then the target), and the groups.
#[task(returns = 2)]
fn group_rows(data: Bytes, by: String, target: String, features: Vec<String>) -> Result<(Batch, Vec<Rows>), String> {
    let text = std::str::from_utf8(&data).map_err(|e| format!("the file is not UTF-8 text: {e}"))?;
    let mut lines = (1..).zip(text.lines());
    let header: Vec<&str> = lines.next().map(|(_, line)| line.split(',').collect()).unwrap_or_default();
    let place =
        |name: &str| header.iter().position(|column| *column == name).ok_or(format!("the file has no column `{name}`"));
    let by = place(&by)?;
    let column_indices: Vec<usize> =
        features.iter().chain([&target]).map(|name| place(name)).collect::<Result<_, _>>()?;
    let mut groups: BTreeMap<&str, Vec<Vec<f64>>> = BTreeMap::new();
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let field =
            |place: usize| fields.get(place).copied().ok_or(format!("line {number} has {} fields", fields.len()));
        let values: Vec<&str> = column_indices.iter().map(|place| field(*place)).collect::<Result<_, _>>()?;
        if values.contains(&"") {
            continue;
        }
        let values: Result<Vec<f64>, _> = values.iter().map(|value| value.parse()).collect();
        groups.entry(field(by)?).or_default().push(values.map_err(|e| format!("line {number}: {e}"))?);
    }
    let mut columns = vec![Vec::new(); column_indices.len()];
    let mut found = Vec::new();
    for (key, rows) in groups.into_iter().filter(|(_, rows)| rows.len() >= ROWS_MIN) {
        let start = columns[0].len();
        found.push(Rows { key: key.to_owned(), at: start..start + rows.len() });
        rows.iter().for_each(|row| columns.iter_mut().zip(row).for_each(|(column, value)| column.push(*value)));
    }
    let columns = columns.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
    let names = features.into_iter().chain([target]);
    let batch = RecordBatch::try_from_iter(names.zip(columns)).map_err(|e| e.to_string())?;
    Ok((Batch(batch), found))
}

/// The training or test rows of a group: the features, column by column, and the target.
fn part(rows: &Batch, at: &Range<usize>, is_test: bool) -> (Vec<f64>, Vec<f64>) {
    let picked = |column: &ArrayRef| {
        let values = &column.as_primitive::<Float64Type>().values()[at.clone()];
        let rows = values.iter().enumerate().filter(|(row, _)| (row % TEST_EVERY == 0) == is_test);
        rows.map(|(_, value)| *value).collect::<Vec<f64>>()
    };
    let columns = rows.columns();
    let (target, features) = columns.split_last().expect("there is a target");
    (features.iter().flat_map(picked).collect(), picked(target))
}

/// Trains a model of a group, and returns its error on the test rows.
#[task]
fn train(kind: Kind, group: Rows, rows: Batch) -> Result<f64, String> {
    let (train, target) = part(&rows, &group.at, false);
    let (test, expected) = part(&rows, &group.at, true);
    let width = rows.num_columns() - 1;
    let features = Features::new(&train, target.len(), target.len(), width);
    let test = Features::new(&test, expected.len(), expected.len(), width);
    let columns: Vec<&[f64]> = (0..width).map(|feature| features.column(feature)).collect();
    let tree = |splitter| RegressionTreeParams { splitter, max_depth: Some(6), ..RegressionTreeParams::default() };
    let mut predicted = vec![0.0; expected.len()];
    let failure = |e: &dyn std::fmt::Display| format!("group {}: {e}", group.key);
    match kind {
        Kind::Linear => {
            let model = LinearParams::default().fit_features(features, &target).map_err(|e| failure(&e))?;
            model.predict(test, &mut predicted);
        }
        Kind::Tree => {
            let model = tree(Splitter::Best).fit_columns(&columns, &target).map_err(|e| failure(&e))?;
            model.predict(test, &mut predicted);
        }
        Kind::RandomTree => {
            let model = tree(Splitter::Random).fit_columns(&columns, &target).map_err(|e| failure(&e))?;
            model.predict(test, &mut predicted);
        }
    }
    let sum: f64 = predicted.iter().zip(&expected).map(|(predicted, is)| (predicted - is).abs()).sum();
    Ok(sum / expected.len() as f64)
}

/// Finds the best model of a group. It passes the handle of the rows on, without reading them.
#[task]
fn best(group: Rows, rows: ObjectRef<Batch>) -> Result<BestModel, TaskError> {
    let kinds = [Kind::Linear, Kind::Tree, Kind::RandomTree];
    let errors = kinds.map(|kind| train::submit(kind, group.clone(), &rows));
    let errors = kinds.into_iter().zip(get_all(&errors)?);
    let (kind, mean_absolute_error) = errors.min_by(|(_, a), (_, b)| a.total_cmp(b)).expect("there are kinds");
    Ok(BestModel { key: group.key, kind, mean_absolute_error })
}

#[task]
fn main(data: File, group_by: String, target: String, features: Vec<String>) -> Result<Vec<BestModel>, TaskError> {
    let (rows, groups) = group_rows::submit(data.open(), group_by, target, features);
    let best: Vec<_> = groups.get()?.into_iter().map(|group| best::submit(group, &rows)).collect();
    get_all(&best)
}

#[cfg(test)]
mod tests {
    use sandbar_guest::testing;

    use super::*;

    fn run(text: &str, features: &[&str]) -> Result<Vec<BestModel>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.csv");
        std::fs::write(&path, text).unwrap();
        let (data, target) = (testing::file(path), "y");
        let arguments = serde_json::json!({"data": data, "group_by": "key", "target": target, "features": features});
        testing::run("main", &arguments.to_string())
    }

    /// The best model of `line` is a plane, that of `steps` a tree; `few` has too few rows.
    #[test]
    fn each_group_has_the_model_that_suits_it() {
        let mut text = "x,key,y,z\n".to_owned();
        for i in 0..100_u32 {
            let z = i * 7 % 13;
            text += &format!("{i},line,{},{z}\n{i},steps,{},{z}\n", 3 * i + z, i / 25 * 1000 % 3000);
        }
        text += "1,few,1,1\n,line,5,5\n";
        let best = run(&text, &["x", "z"]).unwrap();
        let kinds: Vec<(&str, bool)> = best.iter().map(|best| (best.key.as_str(), best.kind == Kind::Linear)).collect();
        assert_eq!(kinds, [("line", true), ("steps", false)], "{best:?}");
        assert!(best.iter().all(|best| best.mean_absolute_error < 1e-6), "{best:?}");
    }

    #[test]
    fn rows_without_usable_data_are_errors() {
        let check = |text: &str, failure: &str| {
            let error = run(text, &["x"]).unwrap_err();
            assert!(error.contains(failure), "{error}");
        };
        check("x,y\n1,2", "the file has no column `key`");
        check("x,key,y\n1", "line 2 has 1 fields");
        check("x,key,y\n1,a,b", "line 2: invalid float");
    }
}
