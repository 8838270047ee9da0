//! Argument types of scalar functions.

use arrow_schema::{DataType, Field, TimeUnit};

use super::time::{Date, Timestamp};

/// A parameter type of a scalar function.
#[diagnostic::on_unimplemented(
    message = "a scalar function can't take `{Self}`",
    label = "not a type of a column",
    note = "a scalar function takes numbers, `bool`, `Date`, `Timestamp`, `&str`, `String`, slices of numbers such as `&[f64]`, or an `Option` of one of these"
)]
pub trait Argument {
    /// Number of buffers of a column of this type, the validity first.
    const BUFFERS: usize;
    /// Bytes per row, zero for a bit; none if rows differ in size.
    const WIDTH: Option<usize>;
    /// Whether the function handles nulls itself.
    const NULLABLE: bool = false;
    /// A view of a column's rows.
    type Column<'a>;
    /// The argument for one row.
    type Value<'a>;

    /// The column's Arrow type.
    fn data_type() -> DataType;

    /// Views a column's buffers, of which there are [`Argument::BUFFERS`].
    ///
    /// # Errors
    /// Reports values that the function can't take.
    fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<Self::Column<'a>, String>;

    /// Returns the value of a row.
    fn get<'a>(column: &Self::Column<'a>, row: usize) -> Self::Value<'a>;

    /// The column's Arrow field.
    fn field(name: &str) -> Field {
        Field::new(name, Self::data_type(), true)
    }
}

/// The buffers of one column of a chunk.
pub struct Buffers<'a> {
    pub(super) body: &'a [u8],
    /// Start and end of each buffer in the body.
    pub(super) places: &'a [(usize, usize)],
}

impl<'a> Buffers<'a> {
    /// Returns buffer `i` of the column, the validity first; empty if absent.
    #[inline(always)]
    fn get(&self, i: usize) -> &'a [u8] {
        let (from, to) = self.places[i];
        &self.body[from..to]
    }

    /// Returns the validity; empty if the column has no nulls.
    #[inline(always)]
    pub(super) fn validity(&self) -> &'a [u8] {
        self.get(0)
    }
}

/// Views bytes as values.
#[inline(always)]
fn values<T: arrow_buffer::ArrowNativeType>(bytes: &[u8], count: usize) -> &[T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: every bit pattern is a value of a native type.
    let (before, values, _) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty(), "buffers are aligned");
    &values[..count]
}

macro_rules! fixed {
    ($($type:ty => $data_type:expr, $native:ty, $wrap:expr;)*) => {$(
        impl Argument for $type {
            const BUFFERS: usize = 2;
            const WIDTH: Option<usize> = Some(size_of::<$native>());
            type Column<'a> = &'a [$native];
            type Value<'a> = $type;

            fn data_type() -> DataType {
                $data_type
            }

            #[inline(always)]
            fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<&'a [$native], String> {
                Ok(values(buffers.get(1), rows))
            }

            #[inline(always)]
            fn get<'a>(column: &Self::Column<'a>, row: usize) -> Self::Value<'a> {
                $wrap(column[row])
            }
        }
    )*};
}

fixed! {
    i8 => DataType::Int8, i8, std::convert::identity;
    i16 => DataType::Int16, i16, std::convert::identity;
    i32 => DataType::Int32, i32, std::convert::identity;
    i64 => DataType::Int64, i64, std::convert::identity;
    u8 => DataType::UInt8, u8, std::convert::identity;
    u16 => DataType::UInt16, u16, std::convert::identity;
    u32 => DataType::UInt32, u32, std::convert::identity;
    u64 => DataType::UInt64, u64, std::convert::identity;
    f32 => DataType::Float32, f32, std::convert::identity;
    f64 => DataType::Float64, f64, std::convert::identity;
    Date => DataType::Date32, i32, Date::from_days;
    Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None), i64, Timestamp::from_micros;
}

impl Argument for bool {
    const BUFFERS: usize = 2;
    const WIDTH: Option<usize> = Some(0);
    type Column<'a> = &'a [u8];
    type Value<'a> = bool;

    fn data_type() -> DataType {
        DataType::Boolean
    }

    #[inline(always)]
    fn column<'a>(buffers: &Buffers<'a>, _rows: usize) -> Result<&'a [u8], String> {
        Ok(buffers.get(1))
    }

    #[inline(always)]
    fn get<'a>(column: &Self::Column<'a>, row: usize) -> Self::Value<'a> {
        bit(column, row)
    }
}

#[inline(always)]
pub(super) fn bit(bits: &[u8], row: usize) -> bool {
    bits[row / 8] >> (row % 8) & 1 == 1
}

impl Argument for &str {
    const BUFFERS: usize = 3;
    const WIDTH: Option<usize> = None;
    type Column<'a> = (&'a [i32], &'a [u8]);
    type Value<'a> = &'a str;

    fn data_type() -> DataType {
        DataType::Utf8
    }

    #[inline(always)]
    fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<Self::Column<'a>, String> {
        Ok((values(buffers.get(1), rows + 1), buffers.get(2)))
    }

    #[inline(always)]
    fn get<'a>((offsets, bytes): &Self::Column<'a>, row: usize) -> Self::Value<'a> {
        let text = &bytes[offsets[row] as usize..offsets[row + 1] as usize];
        // SAFETY: the values of a string column are UTF-8: the host checks all strings from outside.
        unsafe { std::str::from_utf8_unchecked(text) }
    }
}

impl Argument for String {
    const BUFFERS: usize = <&str as Argument>::BUFFERS;
    const WIDTH: Option<usize> = None;
    type Column<'a> = <&'static str as Argument>::Column<'a>;
    type Value<'a> = String;

    fn data_type() -> DataType {
        DataType::Utf8
    }

    #[inline(always)]
    fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<Self::Column<'a>, String> {
        <&str as Argument>::column(buffers, rows)
    }

    fn get<'a>(column: &Self::Column<'a>, row: usize) -> Self::Value<'a> {
        <&str as Argument>::get(column, row).to_owned()
    }
}

/// Returns whether a row has a value. An empty validity means that no row is null.
fn is_set(validity: &[u8], at: usize) -> bool {
    validity.is_empty() || bit(validity, at)
}

/// A list of values without nulls.
impl<T: Argument + arrow_buffer::ArrowNativeType> Argument for &[T] {
    const BUFFERS: usize = 4;
    const WIDTH: Option<usize> = None;
    type Column<'a> = (&'a [i32], &'a [T]);
    type Value<'a> = &'a [T];

    fn data_type() -> DataType {
        DataType::new_list(T::data_type(), true)
    }

    #[inline(always)]
    fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<Self::Column<'a>, String> {
        let (offsets, items) = (values(buffers.get(1), rows + 1), buffers.get(3));
        let (valid, valid_items) = (buffers.validity(), buffers.get(2));
        // Null lists may have items, which are ignored.
        let has_nulls = |row: usize| {
            let mut items = offsets[row] as usize..offsets[row + 1] as usize;
            is_set(valid, row) && items.any(|item| !is_set(valid_items, item))
        };
        if !valid_items.is_empty() && (0..rows).any(has_nulls) {
            return Err("a list has nulls among its items: drop or fill them".to_owned());
        }
        Ok((offsets, values(items, items.len() / size_of::<T>())))
    }

    #[inline(always)]
    fn get<'a>((offsets, items): &Self::Column<'a>, row: usize) -> Self::Value<'a> {
        &items[offsets[row] as usize..offsets[row + 1] as usize]
    }
}

impl<T: Argument> Argument for Option<T> {
    const BUFFERS: usize = T::BUFFERS;
    const WIDTH: Option<usize> = T::WIDTH;
    const NULLABLE: bool = true;
    type Column<'a> = (&'a [u8], T::Column<'a>);
    type Value<'a> = Option<T::Value<'a>>;

    fn data_type() -> DataType {
        T::data_type()
    }

    #[inline(always)]
    fn column<'a>(buffers: &Buffers<'a>, rows: usize) -> Result<Self::Column<'a>, String> {
        Ok((buffers.validity(), T::column(buffers, rows)?))
    }

    #[inline(always)]
    fn get<'a>((validity, column): &Self::Column<'a>, row: usize) -> Self::Value<'a> {
        is_set(validity, row).then(|| T::get(column, row))
    }
}
