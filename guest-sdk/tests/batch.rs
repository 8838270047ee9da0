//! Batch functions, called through `testing`.

use std::sync::Arc;

use arrow_array::*;
use sandbar_guest::prelude::*;
use sandbar_guest::testing;

#[batch]
fn same(batch: RecordBatch) -> RecordBatch {
    batch
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    from: usize,
    rows: usize,
}

/// A range of the rows.
#[batch(columns("a"))]
fn slice(batch: RecordBatch, params: &Slice) -> Result<RecordBatch, String> {
    match params.from + params.rows <= batch.num_rows() {
        true => Ok(batch.slice(params.from, params.rows)),
        false => Err(format!("there are only {} rows", batch.num_rows())),
    }
}

/// Names that the generated code uses as well.
mod names {
    use super::*;

    #[batch]
    fn params(input: RecordBatch, params: &Slice) -> RecordBatch {
        input.slice(params.from, params.rows)
    }
}

#[batch]
fn by_value(batch: RecordBatch, params: Slice) -> Result<RecordBatch, std::fmt::Error> {
    Ok(batch.slice(params.from, params.rows))
}

fn input(rows: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let texts: ArrayRef = Arc::new(StringArray::from_iter((0..rows).map(|i| (i % 2 == 0).then(|| format!("row {i}")))));
    RecordBatch::try_from_iter([("a", numbers), ("b", texts)]).unwrap()
}

fn check(function: &str, params: &str, input: &RecordBatch, expected: Result<RecordBatch, &str>) {
    assert_eq!(testing::call(function, params, input), expected.map(|batch| vec![batch]).map_err(str::to_owned));
}

#[test]
fn batches() {
    // Small bodies are copied; bodies from 1 MiB on are mapped.
    for rows in [0, 1, 1000, 100_000] {
        check("same", "{}", &input(rows), Ok(input(rows)));
    }
    check("slice", r#"{"from": 3, "rows": 2}"#, &input(9), Ok(input(9).slice(3, 2)));
    check("slice", r#"{"from": 3, "rows": 7}"#, &input(9), Err("there are only 9 rows"));
    check("params", r#"{"from": 1, "rows": 2}"#, &input(9), Ok(input(9).slice(1, 2)));
    check("by_value", r#"{"from": 0, "rows": 1}"#, &input(9), Ok(input(9).slice(0, 1)));
    let refused = testing::call("slice", r#"{"from": 3}"#, &input(9)).unwrap_err();
    assert!(refused.starts_with("invalid parameters: missing field `rows`"), "{refused}");
    assert_eq!(testing::fit("same", "{}", &input(1), &[]).unwrap_err(), "this function takes batches, not groups");
}
