//! Return types of scalar functions.

use std::fmt::Display;
use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};

use super::argument::{Argument, Timestamp, bit};
use super::emit_column;
use crate::bindings::data;

/// A type that a scalar function can return.
pub trait Return: Sized {
    /// A column being built. Emptied by `emit`, its memory kept.
    type Column: Default;
    /// The value of a row that is null because an argument is.
    const DATA_TYPE_NULLABLE: bool = true;

    /// The type of its column.
    fn data_type() -> DataType;

    /// Appends `rows` rows: null where `mask` has a bit unset, else what `f` gives.
    fn extend(
        column: &mut Self::Column,
        rows: usize,
        mask: Option<&[u8]>,
        f: impl FnMut(usize) -> Self,
    ) -> Result<(), (usize, String)>;

    /// Hands the column to the host.
    fn emit(column: &mut Self::Column, schema: &Schema, rows: usize) -> Result<(), String>;

    /// A column of that name.
    fn field(name: &str) -> Field {
        Field::new(name, Self::data_type(), Self::DATA_TYPE_NULLABLE)
    }
}

/// Values with a validity that is empty while there are no nulls.
pub struct Values<T> {
    values: Vec<T>,
    validity: Vec<u8>,
    nulls: usize,
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Values { values: Vec::new(), validity: Vec::new(), nulls: 0 }
    }
}

impl<T: Default> Values<T> {
    fn push(&mut self, value: Option<T>) {
        let row = self.values.len();
        if value.is_none() {
            self.nulls += 1;
            if self.validity.is_empty() {
                self.validity = vec![0xff; row.div_ceil(8)];
            }
        }
        if !self.validity.is_empty() || self.nulls > 0 {
            self.validity.resize((row + 1).div_ceil(8), 0xff);
            if value.is_none() {
                self.validity[row / 8] &= !(1 << (row % 8));
            }
        }
        self.values.push(value.unwrap_or_default());
    }

    fn clear(&mut self) {
        self.values.clear();
        self.validity.clear();
        self.nulls = 0;
    }

    fn null_buffer(&self) -> Option<NullBuffer> {
        (self.nulls > 0)
            .then(|| NullBuffer::from((0..self.values.len()).map(|row| bit(&self.validity, row)).collect::<Vec<_>>()))
    }
}

#[inline(always)]
fn is_valid(mask: Option<&[u8]>, row: usize) -> bool {
    mask.is_none_or(|m| bit(m, row))
}

/// A type that is a value in a column, as opposed to a wrapper around one.
pub trait Plain: Sized {
    type Item: Default;
    fn item(self) -> Self::Item;
    fn data_type() -> DataType;
    fn emit(column: &mut Values<Self::Item>, schema: &Schema, rows: usize) -> Result<(), String>;
}

impl<P: Plain> Return for P {
    type Column = Values<P::Item>;

    fn data_type() -> DataType {
        P::data_type()
    }

    #[inline(always)]
    fn extend(
        column: &mut Self::Column,
        rows: usize,
        mask: Option<&[u8]>,
        mut f: impl FnMut(usize) -> P,
    ) -> Result<(), (usize, String)> {
        match mask {
            None => column.values.extend((0..rows).map(|row| f(row).item())),
            Some(_) => (0..rows).for_each(|row| column.push(is_valid(mask, row).then(|| f(row).item()))),
        }
        Ok(())
    }

    fn emit(column: &mut Self::Column, schema: &Schema, rows: usize) -> Result<(), String> {
        P::emit(column, schema, rows)?;
        column.clear();
        Ok(())
    }
}

impl<P: Plain> Return for Option<P> {
    type Column = Values<P::Item>;

    fn data_type() -> DataType {
        P::data_type()
    }

    #[inline(always)]
    fn extend(
        column: &mut Self::Column,
        rows: usize,
        mask: Option<&[u8]>,
        mut f: impl FnMut(usize) -> Self,
    ) -> Result<(), (usize, String)> {
        for row in 0..rows {
            let value = if is_valid(mask, row) { f(row) } else { None };
            column.push(value.map(P::item));
        }
        Ok(())
    }

    fn emit(column: &mut Self::Column, schema: &Schema, rows: usize) -> Result<(), String> {
        <P as Return>::emit(column, schema, rows)
    }
}

impl<P: Plain, E: Display> Return for Result<P, E> {
    type Column = Values<P::Item>;

    fn data_type() -> DataType {
        P::data_type()
    }

    #[inline(always)]
    fn extend(
        column: &mut Self::Column,
        rows: usize,
        mask: Option<&[u8]>,
        mut f: impl FnMut(usize) -> Self,
    ) -> Result<(), (usize, String)> {
        for row in 0..rows {
            if !is_valid(mask, row) {
                column.push(None);
                continue;
            }
            match f(row) {
                Ok(value) => column.push(Some(value.item())),
                Err(e) => return Err((row, e.to_string())),
            }
        }
        Ok(())
    }

    fn emit(column: &mut Self::Column, schema: &Schema, rows: usize) -> Result<(), String> {
        <P as Return>::emit(column, schema, rows)
    }
}

macro_rules! natives {
    ($($type:ty),*) => {$(
        impl Plain for $type {
            type Item = $type;

            #[inline(always)]
            fn item(self) -> $type {
                self
            }

            fn data_type() -> DataType {
                <$type as Argument>::data_type()
            }

            fn emit(column: &mut Values<$type>, schema: &Schema, rows: usize) -> Result<(), String> {
                emit_column(schema, rows, column.nulls, &[&column.validity, native_bytes(&column.values)])
            }
        }
    )*};
}

natives!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);

fn native_bytes<T: arrow_buffer::ArrowNativeType>(values: &[T]) -> &[u8] {
    // SAFETY: native types have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

impl Plain for Timestamp {
    type Item = i64;

    fn item(self) -> i64 {
        self.micros()
    }

    fn data_type() -> DataType {
        <Timestamp as Argument>::data_type()
    }

    fn emit(column: &mut Values<i64>, schema: &Schema, rows: usize) -> Result<(), String> {
        <i64 as Plain>::emit(column, schema, rows)
    }
}

impl Plain for bool {
    type Item = bool;

    fn item(self) -> bool {
        self
    }

    fn data_type() -> DataType {
        DataType::Boolean
    }

    fn emit(column: &mut Values<bool>, schema: &Schema, rows: usize) -> Result<(), String> {
        let mut bits = vec![0u8; rows.div_ceil(8)];
        for (row, value) in column.values.iter().enumerate() {
            bits[row / 8] |= u8::from(*value) << (row % 8);
        }
        emit_column(schema, rows, column.nulls, &[&column.validity, &bits])
    }
}

impl Plain for String {
    type Item = String;

    fn item(self) -> String {
        self
    }

    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn emit(column: &mut Values<String>, schema: &Schema, _rows: usize) -> Result<(), String> {
        let text = StringArray::from_iter_values(&column.values);
        let (offsets, bytes, _) = text.into_parts();
        emit_array(schema, StringArray::new(offsets, bytes, column.null_buffer()))
    }
}

impl Plain for &str {
    type Item = String;

    fn item(self) -> String {
        self.to_owned()
    }

    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn emit(column: &mut Values<String>, schema: &Schema, rows: usize) -> Result<(), String> {
        <String as Plain>::emit(column, schema, rows)
    }
}

/// A list of values without nulls.
impl<T: Argument + arrow_buffer::ArrowNativeType> Plain for Vec<T> {
    type Item = Vec<T>;

    fn item(self) -> Vec<T> {
        self
    }

    fn data_type() -> DataType {
        DataType::new_list(T::data_type(), true)
    }

    fn emit(column: &mut Values<Vec<T>>, schema: &Schema, _rows: usize) -> Result<(), String> {
        let offsets = OffsetBuffer::<i32>::from_lengths(column.values.iter().map(Vec::len));
        let items: Vec<T> = column.values.iter().flatten().copied().collect();
        let items = arrow_data::ArrayData::builder(T::data_type())
            .len(items.len())
            .add_buffer(arrow_buffer::Buffer::from_vec(items));
        let items = arrow_array::make_array(items.build().map_err(|e| e.to_string())?);
        let field = Arc::new(Field::new_list_field(T::data_type(), true));
        emit_array(
            schema,
            arrow_array::ListArray::try_new(field, offsets, items, column.null_buffer()).map_err(|e| e.to_string())?,
        )
    }
}

fn emit_array(schema: &Schema, array: impl arrow_array::Array + 'static) -> Result<(), String> {
    let batch = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(array)]).map_err(|e| e.to_string())?;
    let out = sandbar_batch::encode(&batch).map_err(|e| e.to_string())?;
    let buffers: Vec<&[u8]> = out.buffers.iter().map(|(_, b)| b.as_slice()).collect();
    data::emit(&out.header, &buffers);
    Ok(())
}
