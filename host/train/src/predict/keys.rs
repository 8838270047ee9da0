//! Group keys of the input, in the types of the models' keys.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_buffer::BooleanBuffer;
use arrow_cast::cast;
use arrow_ord::cmp::not_distinct;
use arrow_schema::{ArrowError, DataType};

/// A key column of the input.
pub(super) struct KeyColumn {
    /// Values in the type of the models' keys.
    pub values: ArrayRef,
    /// Whether the cast kept each row's value.
    pub is_exact: BooleanArray,
}

/// Casts a key column to the type of the models' keys. A value that the cast changes is not a key of the models: text
/// that is not a number, or a fraction among integers.
pub(super) fn cast_key(column: &ArrayRef, data_type: &DataType) -> Result<KeyColumn, ArrowError> {
    let column = normalise(column)?;
    let values = normalise(&cast(&column, data_type)?)?;
    // No cast to the null type exists; nulls are all equal.
    if column.data_type() == data_type || column.data_type().is_null() {
        let is_exact = BooleanArray::new(BooleanBuffer::new_set(column.len()), None);
        return Ok(KeyColumn { values, is_exact });
    }
    let back = normalise(&cast(&values, column.data_type())?)?;
    let is_exact = not_distinct(&column, &back)?;
    Ok(KeyColumn { values, is_exact })
}

/// Normalises a key column as grouping does: no -0.0, and one NaN.
fn normalise(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(match column.data_type() {
        DataType::Float64 => Arc::new(
            column
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + 0.0 }),
        ),
        DataType::Float32 => Arc::new(
            column
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + 0.0 }),
        ),
        DataType::Float16 => cast(&normalise(&cast(column, &DataType::Float32)?)?, &DataType::Float16)?,
        _ => column.clone(),
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float32Array, Float64Array, Int64Array, NullArray, StringArray, TimestampMillisecondArray};

    use super::*;

    /// Checks which rows of `column` are exact and equal to the models' keys in the same row of `keys`.
    #[track_caller]
    fn check(keys: impl Array + 'static, column: impl Array + 'static, found: &[bool]) {
        let (keys, column): (ArrayRef, ArrayRef) = (Arc::new(keys), Arc::new(column));
        let key = cast_key(&column, keys.data_type()).unwrap();
        let keys = normalise(&keys).unwrap();
        let equal = not_distinct(&key.values, &keys).unwrap();
        let equal_rows: Vec<bool> = (0..column.len()).map(|row| key.is_exact.value(row) && equal.value(row)).collect();
        assert_eq!(equal_rows, found, "{column:?} among {keys:?}");
    }

    #[test]
    fn a_key_is_found_by_the_same_value_alone() {
        let whole = || Int64Array::from(vec![Some(1), Some(2), None]);
        check(whole(), whole(), &[true; 3]);
        check(whole(), StringArray::from(vec![Some("1"), Some("2"), None]), &[true; 3]);
        check(whole(), StringArray::from(vec!["zone-1", "99999999999999999999", "abc"]), &[false; 3]);
        check(whole(), Float64Array::from(vec![Some(1.0), Some(2.0), None]), &[true; 3]);
        check(whole(), Float64Array::from(vec![1.7, 2.9, f64::NAN]), &[false; 3]);
        check(Int64Array::from(vec![None, None]), NullArray::new(2), &[true; 2]);
        check(Int64Array::from(vec![1 << 53]), Float64Array::from(vec![(1u64 << 53) as f64]), &[true]);
        let floats = || Float64Array::from(vec![0.0, f64::NAN, 0.5]);
        check(floats(), Float64Array::from(vec![-0.0, -f64::NAN, 0.5]), &[true; 3]);
        check(floats(), Float32Array::from(vec![-0.0, f32::NAN, 0.5]), &[true; 3]);
        check(Float32Array::from(vec![0.1]), Float64Array::from(vec![0.1]), &[false]);
        let times = || TimestampMillisecondArray::from(vec![5_000, 5_500]);
        let seconds = arrow_array::TimestampSecondArray::from(vec![5, 5]);
        check(times(), seconds, &[true, false]);
    }
}
