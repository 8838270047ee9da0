//! Return types of scalar functions.

use std::fmt::Display;
use std::ops::Range;

use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, Field};

use super::argument::{Argument, bit};
use super::column::{Bits, Column, Lists, Strings, Values};
use super::time::{Date, Timestamp};

/// A return type of a scalar function.
#[diagnostic::on_unimplemented(
    message = "a scalar function can't return `{Self}`",
    label = "not a type of a column",
    note = "a scalar function returns a number, `bool`, `Date`, `Timestamp`, `String`, `&str`, a `Vec` of numbers, an `Option` of one of these, or a `Result` of any"
)]
pub trait Return: Sized {
    /// Storage for the column's values.
    type Values: Values;
    /// Whether a call can return a null.
    const NULLS: bool;

    /// The column's Arrow type.
    fn data_type() -> DataType;

    /// Appends the value and returns true, or returns false for a null.
    ///
    /// # Errors
    /// The call's own error as text.
    fn push(self, values: &mut Self::Values) -> Result<bool, String>;

    /// Appends a value for each of `rows` rows.
    #[inline(always)]
    fn extend(
        values: &mut Self::Values,
        rows: usize,
        mut value: impl FnMut(usize) -> Self,
    ) -> Result<(), (usize, String)> {
        (0..rows).try_for_each(|row| value(row).push(values).map(|_| ()).map_err(|e| (row, e)))
    }

    /// The column's Arrow field.
    fn field(name: &str) -> Field {
        Field::new(name, Self::data_type(), true)
    }
}

/// Collects the results of rows: null if the row's bit in `mask` is unset (without calling `value`), otherwise
/// the result of `value`. `numbers` are the rows' numbers in errors.
///
/// # Errors
/// The first error of a row.
#[inline(always)]
pub fn gather<R: Return>(
    column: &mut Column<R::Values>,
    numbers: Range<usize>,
    mask: Option<&[u8]>,
    mut value: impl FnMut(usize) -> R,
) -> Result<(), String> {
    column.clear();
    let (first_row, rows) = (numbers.start, numbers.len());
    let failed = |(row, e): (usize, String)| format!("row {}: {e}", first_row + row);
    if mask.is_none() && !R::NULLS {
        return R::extend(column.values(), rows, value).map_err(failed);
    }
    for row in 0..rows {
        let computed = mask.is_none_or(|mask| bit(mask, row));
        if !computed || !value(row).push(column.values()).map_err(|e| failed((row, e)))? {
            column.push_null(row, rows);
        }
    }
    Ok(())
}

/// A plain value, as opposed to a wrapper around one.
pub trait Plain: Return {}

impl<P: Plain> Return for Option<P> {
    type Values = P::Values;
    const NULLS: bool = true;

    fn data_type() -> DataType {
        P::data_type()
    }

    #[inline(always)]
    fn push(self, values: &mut P::Values) -> Result<bool, String> {
        match self {
            Some(value) => value.push(values),
            None => Ok(false),
        }
    }
}

impl<R: Return, E: Display> Return for Result<R, E> {
    type Values = R::Values;
    const NULLS: bool = R::NULLS;

    fn data_type() -> DataType {
        R::data_type()
    }

    #[inline(always)]
    fn push(self, values: &mut R::Values) -> Result<bool, String> {
        match self {
            Ok(value) => value.push(values),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// Types stored as numbers.
macro_rules! numbers {
    ($($type:ty => $native:ty, $number:expr;)*) => {$(
        impl Plain for $type {}

        impl Return for $type {
            type Values = Vec<$native>;
            const NULLS: bool = false;

            fn data_type() -> DataType {
                <$type as Argument>::data_type()
            }

            #[inline(always)]
            fn push(self, values: &mut Vec<$native>) -> Result<bool, String> {
                values.push($number(self));
                Ok(true)
            }

            #[inline(always)]
            fn extend(values: &mut Vec<$native>, rows: usize, mut value: impl FnMut(usize) -> Self) -> Result<(), (usize, String)> {
                values.extend((0..rows).map(|row| $number(value(row))));
                Ok(())
            }
        }
    )*};
}

numbers! {
    i8 => i8, std::convert::identity;
    i16 => i16, std::convert::identity;
    i32 => i32, std::convert::identity;
    i64 => i64, std::convert::identity;
    u8 => u8, std::convert::identity;
    u16 => u16, std::convert::identity;
    u32 => u32, std::convert::identity;
    u64 => u64, std::convert::identity;
    f32 => f32, std::convert::identity;
    f64 => f64, std::convert::identity;
    Date => i32, Date::days;
    Timestamp => i64, Timestamp::micros;
}

/// Types with another storage.
macro_rules! gathered {
    ($([$($generics:tt)*] $type:ty => $values:ty, $data_type:expr, |$value:ident| $item:expr;)*) => {$(
        impl<$($generics)*> Plain for $type {}

        impl<$($generics)*> Return for $type {
            type Values = $values;
            const NULLS: bool = false;

            fn data_type() -> DataType {
                $data_type
            }

            #[inline(always)]
            fn push(self, values: &mut $values) -> Result<bool, String> {
                let $value = self;
                values.push($item);
                Ok(true)
            }
        }
    )*};
}

gathered! {
    [] bool => Bits, DataType::Boolean, |value| value;
    [] String => Strings, DataType::Utf8, |value| value.as_bytes();
    [] &str => Strings, DataType::Utf8, |value| value.as_bytes();
    [T: Argument + ArrowNativeType] Vec<T> => Lists<T>, DataType::new_list(T::data_type(), true), |value| &value;
    [T: Argument + ArrowNativeType] &[T] => Lists<T>, DataType::new_list(T::data_type(), true), |value| value;
}
