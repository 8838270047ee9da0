//! The transform, called through `testing`.

use std::sync::Arc;

use arrow_array::*;
use arrow_schema::{DataType, Field, Schema};
use sandbar_guest::testing;

fn batch(pickup_at: ArrayRef, dropoff_at: ArrayRef, pickup_id: ArrayRef, dropoff_id: ArrayRef) -> RecordBatch {
    let names = ["pickup_at", "dropoff_at", "pickup_location_id", "dropoff_location_id"];
    RecordBatch::try_from_iter(names.into_iter().zip([pickup_at, dropoff_at, pickup_id, dropoff_id])).unwrap()
}

fn clean(batch: &RecordBatch) -> Result<RecordBatch, String> {
    testing::call("clean", "{}", batch).map(|mut batches| batches.remove(0))
}

fn cleaned(pickup_ids: &[i64], dropoff_ids: &[i64], durations: &[f64]) -> RecordBatch {
    let field = |name, data_type| Field::new(name, data_type, false);
    let schema = Schema::new(vec![
        field("pickup_location_id", DataType::Int64),
        field("dropoff_location_id", DataType::Int64),
        field("trip_duration", DataType::Float64),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(pickup_ids.to_vec())),
        Arc::new(Int64Array::from(dropoff_ids.to_vec())),
        Arc::new(Float64Array::from(durations.to_vec())),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn micros(values: &[i64]) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(values.to_vec()))
}

fn text(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn ids(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn nothing(rows: usize) -> ArrayRef {
    Arc::new(NullArray::new(rows))
}

#[test]
fn ids_of_any_type() {
    let check = |input: ArrayRef, expected: &[i64]| {
        let times = micros(&vec![0; input.len()]);
        let batch = batch(times.clone(), times, input.clone(), ids(expected));
        assert_eq!(clean(&batch).unwrap(), cleaned(expected, expected, &vec![0.0; input.len()]), "{input:?}");
    };
    check(Arc::new(Int8Array::from(vec![Some(1), None, Some(-3)])), &[1, -1, -3]);
    check(Arc::new(Int16Array::from(vec![300, 2])), &[300, 2]);
    check(Arc::new(Int32Array::from(vec![Some(i32::MAX), None])), &[2_147_483_647, -1]);
    check(Arc::new(Int64Array::from(vec![7, 8])), &[7, 8]);
    check(Arc::new(Int64Array::from(vec![Some(7), None])), &[7, -1]);
    check(Arc::new(UInt8Array::from(vec![255])), &[255]);
    check(Arc::new(UInt16Array::from(vec![Some(65_535), None])), &[65_535, -1]);
    check(Arc::new(UInt32Array::from(vec![u32::MAX])), &[4_294_967_295]);
    check(Arc::new(UInt64Array::from(vec![Some(1 << 62), None])), &[1 << 62, -1]);
    check(Arc::new(Float32Array::from(vec![Some(142.0), None, Some(f32::NAN), Some(-0.0)])), &[142, -1, -1, 0]);
    check(Arc::new(Float64Array::from(vec![Some(264.0), None, Some(-5.0)])), &[264, -1, -5]);
    check(
        Arc::new(Float64Array::from(vec![9e18, -9_223_372_036_854_775_808.0])),
        &[9_000_000_000_000_000_000, i64::MIN],
    );
    check(nothing(3), &[-1, -1, -1]);
    // Spans several words of the validity, and ignores the values of null rows.
    let some = |i: i64| (i % 3 != 0).then_some(i);
    let expected: Vec<i64> = (0..200).map(|i| some(i).unwrap_or(-1)).collect();
    check(Arc::new(Int64Array::from_iter((0..200).map(some))), &expected);
    let half = Float64Array::new(vec![0.5, 2.0].into(), Some(vec![false, true].into()));
    check(Arc::new(half), &[-1, 2]);
}

#[test]
fn times_of_any_type() {
    let check = |pickup: ArrayRef, dropoff: ArrayRef, expected: &[f64]| {
        let zeros = ids(&vec![0; expected.len()]);
        let input = batch(pickup.clone(), dropoff.clone(), zeros.clone(), zeros);
        let zeros = vec![0; expected.len()];
        assert_eq!(clean(&input).unwrap(), cleaned(&zeros, &zeros, expected), "{pickup:?} {dropoff:?}");
    };
    check(micros(&[0, 5_000_000]), micros(&[1_500_000, 2_000_000]), &[1.5, -3.0]);
    let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(vec![Some(10), None, Some(3)]));
    let millis: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(12_250), Some(1), None]));
    check(seconds.clone(), millis, &[2.25, -1.0, -1.0]);
    let nanos = TimestampNanosecondArray::from(vec![1_000_000_001, 0, 0]).with_timezone("America/New_York");
    check(Arc::new(nanos), seconds, &[8.999_999_999, -1.0, 3.0]);
    check(nothing(2), micros(&[1, 2]), &[-1.0, -1.0]);
    let rows = 2000;
    let some = |i: i64| (i % 7 != 0).then_some(i * 1_000_000);
    let expected: Vec<f64> =
        (0..rows).map(|i| some(i).map_or(-1.0, |micros| (2_000_000_000 - micros) as f64 / 1e6)).collect();
    check(
        Arc::new(TimestampMicrosecondArray::from_iter((0..rows).map(some))),
        micros(&vec![2_000_000_000; 2000]),
        &expected,
    );
}

#[test]
fn times_as_text() {
    let check = |pickup: &str, dropoff: &str, expected: f64| {
        for pickup in [text(&[Some(pickup)]), Arc::new(LargeStringArray::from(vec![pickup]))] {
            let input = batch(pickup, text(&[Some(dropoff)]), ids(&[0]), ids(&[0]));
            assert_eq!(clean(&input).unwrap(), cleaned(&[0], &[0], &[expected]), "{dropoff}");
        }
    };
    check("2019-03-23 20:21:09", "2019-03-23 20:27:24", 375.0);
    check("2019-12-31 23:59:59", "2020-01-01 00:00:01", 2.0);
    check("2020-02-28T12:00:00", "2020-03-01T12:00:00", 2.0 * 86_400.0);
    check("1900-02-28 12:00:00", "1900-03-01 12:00:00", 86_400.0);
    check("0000-03-01 00:00:00", "0000-02-29 00:00:00", -86_400.0);
    check("1970-01-01 00:00:00", "2000-02-29 00:00:00", 951_782_400.0);
    check("1970-01-01 00:00:00.25", "1970-01-01 00:00:01.123456789", 0.873_456);
    check("", "1970-01-01 00:00:00", -1.0);
    let input = batch(text(&[None, Some("1970-01-01 00:00:10")]), micros(&[0, 12_000_000]), ids(&[1, 2]), ids(&[3, 4]));
    assert_eq!(clean(&input).unwrap(), cleaned(&[1, 2], &[3, 4], &[-1.0, 2.0]));
    let nanos: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![1_500_000_000]));
    let input = batch(nanos, text(&[Some("1970-01-01 00:00:02")]), ids(&[1]), ids(&[3]));
    assert_eq!(clean(&input).unwrap(), cleaned(&[1], &[3], &[0.5]));
}

#[test]
fn every_day_of_eight_hundred_years() {
    let mut days = Vec::new();
    for year in 1600..2400 {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, length) in lengths.into_iter().enumerate() {
            days.extend((1..=length).map(|day| format!("{year}-{:02}-{day:02} 00:00:00", month + 1)));
        }
    }
    let rows = days.len();
    let times: ArrayRef = Arc::new(StringArray::from(days));
    let first: ArrayRef = Arc::new(StringArray::from(vec!["1600-01-01 00:00:00"; rows]));
    let cleaned = clean(&batch(first, times, nothing(rows), nothing(rows))).unwrap();
    let durations = cleaned.column(2).as_any().downcast_ref::<Float64Array>().unwrap();
    assert!(durations.values().iter().enumerate().all(|(day, seconds)| *seconds == day as f64 * 86_400.0));
}

#[test]
fn refused() {
    let (time, id) = (micros(&[0]), ids(&[0]));
    let check = |input: RecordBatch, expected: &str| assert_eq!(clean(&input).unwrap_err(), expected);
    let names: ArrayRef = text(&[Some("JFK")]);
    check(
        batch(time.clone(), time.clone(), names.clone(), id.clone()),
        "column `pickup_location_id` has type Utf8, a location id is an integer or a float: cast it first",
    );
    check(
        batch(id.clone(), time.clone(), id.clone(), id.clone()),
        "column `pickup_at` has type Int64, a time is a timestamp or text like 2015-01-31 23:59:59: cast it first",
    );
    check(
        batch(time.clone(), time.clone(), id.clone(), Arc::new(Float64Array::from(vec![1.5]))),
        "column `dropoff_location_id` of type Float64 is 1.5 in row 0, which is not an int64: round or drop it",
    );
    check(
        batch(time.clone(), time.clone(), id.clone(), Arc::new(UInt64Array::from(vec![u64::MAX]))),
        "column `dropoff_location_id` of type UInt64 is 18446744073709551615 in row 0, which is not an int64: round or drop it",
    );
    let input = RecordBatch::try_from_iter([("pickup_at", time.clone()), ("zone", names)]).unwrap();
    check(input, "column `pickup_location_id` is missing; the batch has pickup_at, zone: select or rename it");
    let wrong = [
        "2019-03-23",
        "2019-03-23 20:21",
        "2019-13-23 20:21:09",
        "2019-00-23 20:21:09",
        "2019-02-29 20:21:09",
        "2019-04-31 20:21:09",
        "2019-03-00 20:21:09",
        "2019-03-23 24:21:09",
        "2019-03-23 20:60:09",
        "2019-03-23 20:21:60",
        "2019/03/23 20:21:09",
        "2019-03-23_20:21:09",
        "2019-03-23 20:21:09.",
        "2019-03-23 20:21:09.1234567890",
        "2019-03-23 20:21:09Z",
        "2019-03-2x 20:21:09",
        "x019-03-23 20:21:09",
        "2019-03-23 20:21:0\u{e9}",
        " 2019-03-23 20:21:09",
        "not a time at all..",
    ];
    for wrong in wrong {
        check(
            batch(time.clone(), text(&[Some(wrong)]), id.clone(), id.clone()),
            &format!(
                "column `dropoff_at` of type text is {wrong:?} in row 0, not a time like 2015-01-31 23:59:59: parse it first"
            ),
        );
    }
}

#[test]
fn scalar_functions() {
    let times =
        RecordBatch::try_from_iter([("pickup_at", micros(&[0, 10])), ("dropoff_at", micros(&[1_500_000, 0]))]).unwrap();
    let output = testing::call("duration", "{}", &times).unwrap();
    assert_eq!(*output[0].column(0).as_ref(), Float64Array::from(vec![1.5, -1e-5]));
    let sums = RecordBatch::try_from_iter([("a", ids(&[1, i64::MAX])), ("b", ids(&[2, 1]))]).unwrap();
    let output = testing::call("add", "{}", &sums).unwrap();
    assert_eq!(*output[0].column(0).as_ref(), Int64Array::from(vec![3, i64::MIN]));
}

/// The host reads only the registered columns; `clean` ignores others.
#[test]
fn empty_batches() {
    let input = batch(micros(&[]), micros(&[]), ids(&[]), ids(&[]));
    assert_eq!(clean(&input).unwrap(), cleaned(&[], &[], &[]));
}
