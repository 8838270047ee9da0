//! Scalar functions, called through `testing`.

use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::*;
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use sandbar_guest::prelude::*;
use sandbar_guest::testing;

#[scalar]
fn add(a: i64, b: i64) -> i64 {
    a.wrapping_add(b)
}

/// Names that the generated code uses as well.
mod names {
    use super::*;

    #[scalar]
    fn mask(out: i64, chunk: i64) -> i64 {
        out + chunk
    }

    #[scalar]
    fn row(at: i64) -> i64 {
        at
    }

    #[scalar]
    fn arguments(column_0: i64) -> i64 {
        column_0
    }

    #[scalar]
    fn column_0(validity_0: i64) -> i64 {
        validity_0
    }

    #[scalar]
    fn twice(a: i64) -> i64 {
        2 * a
    }

    mod others {
        use super::*;

        #[scalar]
        fn twice(a: i64) -> i64 {
            a + a
        }
    }
}

/// Is not called for rows with a null, where it would divide by zero.
#[scalar]
fn divide(a: i64, b: i64) -> i64 {
    a / b
}

#[scalar]
fn or_zero(a: Option<i64>, b: i64) -> i64 {
    a.unwrap_or(0) + b
}

#[scalar]
fn positive(a: i64) -> Option<i64> {
    (a > 0).then_some(a)
}

#[scalar]
fn root(a: f64) -> Result<f64, String> {
    if a < 0.0 { Err(format!("{a} has no root")) } else { Ok(a.sqrt()) }
}

#[scalar]
fn parse(a: &str) -> Result<Option<i64>, std::num::ParseIntError> {
    if a.is_empty() { Ok(None) } else { a.parse().map(Some) }
}

#[scalar]
fn first_word(a: &str) -> &str {
    a.split(' ').next().unwrap_or("")
}

#[scalar]
fn longer<'a>(a: &'a str, b: &'a str) -> Option<&'a str> {
    (a.len() != b.len()).then_some(if a.len() > b.len() { a } else { b })
}

#[scalar]
fn shout(a: String) -> String {
    a.to_uppercase()
}

#[scalar]
fn not(a: bool) -> bool {
    !a
}

#[scalar]
fn known(a: Option<bool>) -> bool {
    a.is_some()
}

#[scalar]
fn total(a: &[f64]) -> f64 {
    a.iter().fold(0.0, |sum, x| sum + x)
}

#[scalar]
fn repeat(a: i32) -> Vec<i32> {
    vec![a; a as usize]
}

#[scalar]
fn tail(a: Option<&[i64]>) -> Option<&[i64]> {
    a?.get(1..)
}

#[scalar]
fn later(a: Timestamp, micros: i64) -> Timestamp {
    Timestamp::from_micros(a.micros() + micros)
}

#[scalar]
fn first_of_month(a: Date) -> Option<Date> {
    let (year, month, _) = a.ymd();
    Date::from_ymd(year, month, 1)
}

#[scalar]
fn day(a: Option<Timestamp>) -> Date {
    a.map_or(Date::from_days(0), Timestamp::date)
}

#[scalar]
fn r#type(r#in: u8, _: u16) -> u32 {
    u32::from(r#in)
}

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let names = ["a", "b", "c"];
    RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap()
}

fn check(function: &str, columns: Vec<ArrayRef>, expected: impl Array) {
    let output = testing::call(function, "{}", &batch(columns)).unwrap();
    assert_eq!(output.len(), 1);
    assert_eq!(output[0].schema_ref().field(0).name(), function);
    assert_eq!(output[0].column(0).to_data(), expected.to_data(), "{function}");
}

fn fails(function: &str, columns: Vec<ArrayRef>, expected: &str) {
    assert_eq!(testing::call(function, "{}", &batch(columns)).unwrap_err(), expected);
}

fn ints(values: impl IntoIterator<Item = impl Into<Option<i64>>>) -> ArrayRef {
    Arc::new(Int64Array::from_iter(values.into_iter().map(Into::into)))
}

fn floats(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn numbers() {
    check("add", vec![ints([1, 2, i64::MAX]), ints([10, 20, 1])], Int64Array::from(vec![11, 22, i64::MIN]));
    check("add", vec![ints([0; 0]), ints([0; 0])], Int64Array::from(vec![0; 0]));
    check(
        "type",
        vec![Arc::new(UInt8Array::from(vec![7])), Arc::new(UInt16Array::from(vec![9]))],
        UInt32Array::from(vec![7]),
    );
    let times = TimestampMicrosecondArray::from(vec![5, 6]);
    check("later", vec![Arc::new(times), ints([1, -10])], TimestampMicrosecondArray::from(vec![6, -4]));
}

#[test]
fn dates() {
    let dates = Date32Array::from(vec![Some(18_019), None, Some(0), Some(-1)]);
    let expected = Date32Array::from(vec![Some(18_017), None, Some(0), Some(-31)]);
    check("first_of_month", vec![Arc::new(dates)], expected);
    let times = TimestampMicrosecondArray::from(vec![Some(-1), None, Some(86_400_000_000)]);
    check("day", vec![Arc::new(times)], Date32Array::from(vec![-1, 0, 1]));
}

#[test]
fn rows_with_a_null_are_not_computed() {
    let (a, b) = (ints([Some(8), None, Some(6), None]), ints([Some(2), Some(0), None, None]));
    check("divide", vec![a.clone(), b.clone()], Int64Array::from(vec![Some(4), None, None, None]));
    check("or_zero", vec![a.clone(), b], Int64Array::from(vec![Some(10), Some(0), None, None]));
    check("divide", vec![a, ints([1; 4])], Int64Array::from(vec![Some(8), None, Some(6), None]));
    check("divide", vec![ints([None, None]), ints([Some(0); 2])], Int64Array::from(vec![None, None]));
}

#[test]
fn nulls_of_its_own() {
    check("positive", vec![ints([1, -1, 2])], Int64Array::from(vec![Some(1), None, Some(2)]));
    check("positive", vec![ints([Some(1), None, Some(-2)])], Int64Array::from(vec![Some(1), None, None]));
    check("positive", vec![ints([1, 2])], Int64Array::from(vec![1, 2]));
    // Spans several bytes of the validity.
    let some = |i: i64| (i % 3 != 0 && i % 5 != 0).then_some(i);
    let values = ints((0..100).map(|i| if i % 5 == 0 { None } else { Some(if i % 3 == 0 { -i } else { i }) }));
    check("positive", vec![values], Int64Array::from_iter((0..100).map(some)));
}

#[test]
fn errors_name_the_row() {
    check("root", vec![floats(&[4.0, 9.0])], Float64Array::from(vec![2.0, 3.0]));
    fails("root", vec![floats(&[4.0, -9.0, -1.0])], "row 1: -9 has no root");
    check("parse", vec![texts(&[Some("12"), Some(""), None])], Int64Array::from(vec![Some(12), None, None]));
    fails("parse", vec![texts(&[None, Some("12"), Some("x")])], "row 2: invalid digit found in string");
}

#[test]
fn text() {
    let words = texts(&[Some("a b"), None, Some(""), Some("ünï code")]);
    check("first_word", vec![words.clone()], StringArray::from(vec![Some("a"), None, Some(""), Some("ünï")]));
    check("shout", vec![words.clone()], StringArray::from(vec![Some("A B"), None, Some(""), Some("ÜNÏ CODE")]));
    let others = texts(&[Some("abcd"), Some("x"), Some(""), Some("y")]);
    check("longer", vec![words, others], StringArray::from(vec![Some("abcd"), None, None, Some("ünï code")]));
    check("shout", vec![texts(&[])], StringArray::from(vec![""; 0]));
}

#[test]
fn booleans() {
    let some = |i: i64| (i % 7 != 0).then_some(i % 3 == 0);
    let bools: ArrayRef = Arc::new(BooleanArray::from_iter((0..50).map(some)));
    check("not", vec![bools.clone()], BooleanArray::from_iter((0..50).map(|i| some(i).map(|b| !b))));
    check("known", vec![bools], BooleanArray::from_iter((0..50).map(|i| Some(some(i).is_some()))));
}

#[test]
fn names() {
    check("mask", vec![ints([1]), ints([2])], Int64Array::from(vec![3]));
    for function in ["row", "arguments", "column_0"] {
        check(function, vec![ints([7])], Int64Array::from(vec![7]));
    }
    fails("twice", vec![ints([1])], "there are 2 functions called twice; rename all but one");
}

#[test]
fn lists() {
    use arrow_array::types::{Float64Type, Int32Type};
    let lists =
        ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(1.0), Some(2.5)]), None, Some(vec![])]);
    check("total", vec![Arc::new(lists)], Float64Array::from(vec![Some(3.5), None, Some(0.0)]));
    let expected = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(2), Some(2)]), Some(vec![])]);
    check("repeat", vec![Arc::new(Int32Array::from(vec![2, 0]))], expected);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), None, Some(vec![])]);
    let expected = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(2)]), None, None]);
    check("tail", vec![Arc::new(lists)], expected);
    // A null list may have items, null or not.
    let items = Arc::new(Float64Array::from(vec![None, Some(3.0)]));
    let offsets = OffsetBuffer::new(vec![0, 1, 2].into());
    let item = Arc::new(Field::new_list_field(DataType::Float64, true));
    let behind = ListArray::new(item, offsets, items, Some(vec![false, true].into()));
    check("total", vec![Arc::new(behind)], Float64Array::from(vec![None, Some(3.0)]));
    let holes = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(1.0), None])]);
    fails("total", vec![Arc::new(holes)], "column `a`: a list has nulls among its items: drop or fill them");
}

/// The rows of a large body arrive in several chunks, copied or mapped, each with its part of the validity.
#[test]
fn large_inputs_come_in_chunks() {
    let some = |i: i64| (i % 11 != 0).then_some(i);
    for rows in [100_003, 300_007] {
        let output = testing::call("add", "{}", &batch(vec![ints((0..rows).map(some)), ints(0..rows)])).unwrap();
        assert!(output.len() > 1);
        let gathered: Vec<_> =
            output.iter().flat_map(|b| b.column(0).as_any().downcast_ref::<Int64Array>().unwrap().iter()).collect();
        assert_eq!(gathered, (0..rows).map(|i| some(i).map(|i| 2 * i)).collect::<Vec<_>>());
    }
    let output = testing::call(
        "not",
        "{}",
        &batch(vec![Arc::new(BooleanArray::from_iter((0..2_000_000).map(|i| Some(i % 3 == 0))))]),
    )
    .unwrap();
    let count: usize =
        output.iter().map(|b| b.column(0).as_any().downcast_ref::<BooleanArray>().unwrap().true_count()).sum();
    assert_eq!(count, 1_333_333);
    let many: Vec<Option<&str>> = vec![Some("some text"); 50_000];
    let output = testing::call("first_word", "{}", &batch(vec![texts(&many)])).unwrap();
    assert_eq!(output[0].num_rows(), 50_000);
    let wrong = (0..100_003).map(|i| if i == 99_000 { -1.0 } else { 1.0 }).collect::<Vec<_>>();
    fails("root", vec![floats(&wrong)], "row 99000: -1 has no root");
}

#[test]
fn takes_no_parameters() {
    let input = batch(vec![ints([1]), ints([2])]);
    let refused = testing::call("add", r#"{"c": 1}"#, &input).unwrap_err();
    assert!(refused.starts_with("invalid parameters: unknown field `c`"), "{refused}");
    assert_eq!(testing::call("nothing", "{}", &input).unwrap_err(), "there is no function nothing");
}

/// The result column is nullable even if the function never returns a null: rows may be skipped.
#[test]
fn the_result_may_be_null() {
    let output = testing::call("add", "{}", &batch(vec![ints([1]), ints([2])])).unwrap();
    assert_eq!(**output[0].schema_ref(), Schema::new(vec![Field::new("add", DataType::Int64, true)]));
}
