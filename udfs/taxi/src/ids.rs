//! Location ids of any numeric type, as int64.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, Int64Array, PrimitiveArray, RecordBatch};
use arrow_schema::DataType;

use crate::columns::{MISSING, column, fill_nulls};

/// Returns the column `name` as integers, with [`MISSING`] for null and NaN. Shares the column's memory if nothing
/// changes.
///
/// # Errors
/// Names a column that is missing or not numeric, or has a value outside int64.
pub(crate) fn location_ids(batch: &RecordBatch, name: &str) -> Result<Int64Array, String> {
    let ids = column(batch, name)?;
    match ids.data_type() {
        DataType::Int64 if ids.null_count() == 0 => {
            Ok(Int64Array::new(ids.as_primitive::<Int64Type>().values().clone(), None))
        }
        DataType::Int64 => Ok(converted(ids.as_primitive::<Int64Type>(), |id| id)),
        DataType::Int32 => Ok(converted(ids.as_primitive::<Int32Type>(), i64::from)),
        DataType::Int16 => Ok(converted(ids.as_primitive::<Int16Type>(), i64::from)),
        DataType::Int8 => Ok(converted(ids.as_primitive::<Int8Type>(), i64::from)),
        DataType::UInt64 => checked(ids.as_primitive::<UInt64Type>(), name, |id| id as i64, |id| id <= i64::MAX as u64),
        DataType::UInt32 => Ok(converted(ids.as_primitive::<UInt32Type>(), i64::from)),
        DataType::UInt16 => Ok(converted(ids.as_primitive::<UInt16Type>(), i64::from)),
        DataType::UInt8 => Ok(converted(ids.as_primitive::<UInt8Type>(), i64::from)),
        DataType::Float64 => from_floats(ids.as_primitive::<Float64Type>(), name),
        DataType::Float32 => from_floats(ids.as_primitive::<Float32Type>(), name),
        DataType::Null => Ok(Int64Array::from_value(MISSING, ids.len())),
        other => {
            Err(format!("column `{name}` has type {other}, a location id is an integer or a float: cast it first"))
        }
    }
}

/// Upper bound of the magnitudes for which the low bits of `id` + [`SHIFT`] are the integer value of a whole float.
const WHOLE_MAX: f64 = 2_251_799_813_685_248.0;
/// 1.5 · 2⁵²: a float of about this size has 1 as its unit in the last place.
const SHIFT: f64 = 6_755_399_441_055_744.0;

/// Converts an id. pandas writes a missing id as NaN.
fn from_float(id: f64) -> i64 {
    if id.is_nan() { MISSING } else { id as i64 }
}

/// Returns whether the value is an int64; 2⁶³ is the first that is too large.
fn is_whole(id: f64) -> bool {
    id.is_nan() || (id == (id as i64) as f64 && id < 9_223_372_036_854_775_808.0)
}

fn converted<T: ArrowPrimitiveType>(ids: &PrimitiveArray<T>, convert: impl Fn(T::Native) -> i64) -> Int64Array {
    let mut values: Vec<i64> = ids.values().iter().map(|id| convert(*id)).collect();
    fill_nulls(&mut values, ids.nulls(), MISSING);
    Int64Array::new(values.into(), None)
}

/// Like [`checked`], with a loop that has no data-dependent branch for the common case.
fn from_floats<T: ArrowPrimitiveType>(ids: &PrimitiveArray<T>, name: &str) -> Result<Int64Array, String>
where
    T::Native: Into<f64>,
{
    let mut all_small = true;
    let values = ids.values().iter().map(|id| {
        let id: f64 = (*id).into();
        let shifted = id + SHIFT;
        all_small &= (shifted - SHIFT == id) & (id.abs() < WHOLE_MAX);
        (shifted.to_bits() as i64).wrapping_sub(SHIFT.to_bits() as i64)
    });
    let mut values: Vec<i64> = values.collect();
    if !all_small {
        return checked(ids, name, |id| from_float(id.into()), |id| is_whole(id.into()));
    }
    fill_nulls(&mut values, ids.nulls(), MISSING);
    Ok(Int64Array::new(values.into(), None))
}

fn checked<T: ArrowPrimitiveType>(
    ids: &PrimitiveArray<T>,
    name: &str,
    convert: impl Fn(T::Native) -> i64,
    fits: impl Fn(T::Native) -> bool,
) -> Result<Int64Array, String> {
    // The value of a null row is arbitrary. The row is searched only if some value does not fit.
    if !ids.values().iter().fold(true, |all, id| all & fits(*id))
        && let Some(row) = (0..ids.len()).find(|row| ids.is_valid(*row) && !fits(ids.value(*row)))
    {
        let (id, data_type) = (ids.value(row), ids.data_type());
        return Err(format!(
            "column `{name}` of type {data_type} is {id:?} in row {row}, which is not an int64: round or drop it"
        ));
    }
    Ok(converted(ids, convert))
}
