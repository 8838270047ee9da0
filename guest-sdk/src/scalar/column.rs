//! Columns that collect the results of scalar functions.

use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray, RecordBatch, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{Field, Schema};

use super::argument::Argument;
use crate::host;

/// Results and their validity. The memory is kept between calls.
#[derive(Default)]
pub struct Column<V> {
    values: V,
    /// One bit per row, set for a value; empty while no row is null.
    validity: Vec<u8>,
    nulls: usize,
    last: CachedHeader,
}

/// The last emitted header, and its key. The next batch mostly has the same key.
#[derive(Default)]
struct CachedHeader {
    bytes: Vec<u8>,
    /// Rows, nulls, bytes of each buffer.
    shape: Option<(usize, usize, [usize; 3])>,
}

/// The values of a column.
pub trait Values: Default {
    /// Removes all values.
    fn clear(&mut self);

    /// Appends a placeholder value for a null.
    fn push_null(&mut self);

    /// Emits the values to the host.
    ///
    /// # Errors
    /// Reports values that can't be laid out.
    fn emit(&self, out: Emission<'_>) -> Result<(), String>;
}

impl<V: Values> Column<V> {
    /// Removes all rows.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.validity.clear();
        self.nulls = 0;
    }

    pub(super) fn values(&mut self) -> &mut V {
        &mut self.values
    }

    /// Appends a null as row `row` of `rows`.
    pub(super) fn push_null(&mut self, row: usize, rows: usize) {
        if self.nulls == 0 {
            self.validity.resize(rows.div_ceil(8), 0xff);
        }
        self.validity[row / 8] &= !(1 << (row % 8));
        self.nulls += 1;
        self.values.push_null();
    }

    /// Emits the column to the host, as the only one of `schema`.
    pub(super) fn emit(&mut self, schema: &Schema, rows: usize) -> Result<(), String> {
        let (nulls, validity) = (self.nulls, &self.validity);
        self.values.emit(Emission { schema, rows, nulls, validity, last: &mut self.last })
    }
}

/// A column to emit, without its values.
pub struct Emission<'a> {
    schema: &'a Schema,
    rows: usize,
    nulls: usize,
    /// Empty if there are no nulls.
    validity: &'a [u8],
    last: &'a mut CachedHeader,
}

impl Emission<'_> {
    /// Emits a column without children: the validity, followed by these one or two buffers.
    fn flat(self, buffers: &[&[u8]]) -> Result<(), String> {
        let (mut all, mut lengths) = ([&[][..]; 3], [0; 3]);
        all[0] = self.validity;
        all[1..=buffers.len()].copy_from_slice(buffers);
        lengths.iter_mut().zip(all).for_each(|(length, buffer)| *length = buffer.len());
        let shape = Some((self.rows, self.nulls, lengths));
        if self.last.shape != shape {
            let lengths = &lengths[..=buffers.len()];
            let header = sandbar_batch::flat_header(self.schema, self.rows, &[(self.nulls, lengths)]);
            *self.last = CachedHeader { bytes: header.map_err(|e| e.to_string())?, shape };
        }
        let mut present = [&[][..]; 3];
        let mut count = 0;
        for buffer in all.iter().filter(|b| !b.is_empty()) {
            present[count] = buffer;
            count += 1;
        }
        host::emit(&self.last.bytes, &present[..count]);
        Ok(())
    }

    fn array(self, array: ArrayRef) -> Result<(), String> {
        let batch = RecordBatch::try_new(Arc::new(self.schema.clone()), vec![array]).map_err(|e| e.to_string())?;
        emit_batch(&batch)
    }

    fn null_buffer(&self) -> Option<NullBuffer> {
        let bits = || BooleanBuffer::new(Buffer::from(self.validity), 0, self.rows);
        (self.nulls > 0).then(|| NullBuffer::new(bits()))
    }
}

/// Emits a batch to the host.
pub(crate) fn emit_batch(batch: &RecordBatch) -> Result<(), String> {
    let out = sandbar_batch::encode(batch).map_err(|e| e.to_string())?;
    let buffers: Vec<&[u8]> = out.buffers.iter().map(|(_, b)| b.as_slice()).collect();
    host::emit(&out.header, &buffers);
    Ok(())
}

impl<T: ArrowNativeType> Values for Vec<T> {
    fn clear(&mut self) {
        self.clear();
    }

    fn push_null(&mut self) {
        self.push(T::default());
    }

    fn emit(&self, out: Emission<'_>) -> Result<(), String> {
        out.flat(&[bytes(self)])
    }
}

fn bytes<T: ArrowNativeType>(values: &[T]) -> &[u8] {
    // SAFETY: native types have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Booleans, one bit each.
#[derive(Default)]
pub struct Bits {
    bits: Vec<u8>,
    count: usize,
}

impl Bits {
    pub(super) fn push(&mut self, value: bool) {
        if self.count.is_multiple_of(8) {
            self.bits.push(0);
        }
        self.bits[self.count / 8] |= u8::from(value) << (self.count % 8);
        self.count += 1;
    }
}

impl Values for Bits {
    fn clear(&mut self) {
        self.bits.clear();
        self.count = 0;
    }

    fn push_null(&mut self) {
        self.push(false);
    }

    fn emit(&self, out: Emission<'_>) -> Result<(), String> {
        out.flat(&[&self.bits])
    }
}

/// Values of variable length, one after another.
pub struct VarLen<T> {
    /// The start of each value, and the end of the last.
    ends: Vec<i32>,
    items: Vec<T>,
}

impl<T> Default for VarLen<T> {
    fn default() -> Self {
        VarLen { ends: vec![0], items: Vec::new() }
    }
}

impl<T: Copy> VarLen<T> {
    /// # Panics
    /// When the column gets more than 2³¹ - 1 items.
    pub(super) fn push(&mut self, items: &[T]) {
        self.items.extend_from_slice(items);
        self.ends.push(
            i32::try_from(self.items.len())
                .expect("the strings or lists of one batch have fewer than 2³¹ bytes or items"),
        );
    }

    fn clear(&mut self) {
        self.ends.truncate(1);
        self.items.clear();
    }
}

/// Strings.
pub type Strings = VarLen<u8>;

impl Values for Strings {
    fn clear(&mut self) {
        self.clear();
    }

    fn push_null(&mut self) {
        self.push(&[]);
    }

    fn emit(&self, out: Emission<'_>) -> Result<(), String> {
        out.flat(&[bytes(&self.ends), &self.items])
    }
}

/// Lists.
#[derive(Default)]
pub struct Lists<T: Copy>(VarLen<T>);

impl<T: Copy> Lists<T> {
    pub(super) fn push(&mut self, items: &[T]) {
        self.0.push(items);
    }
}

impl<T: Argument + ArrowNativeType> Values for Lists<T> {
    fn clear(&mut self) {
        self.0.clear();
    }

    fn push_null(&mut self) {
        self.push(&[]);
    }

    fn emit(&self, out: Emission<'_>) -> Result<(), String> {
        let VarLen { ends, items } = &self.0;
        let data = ArrayData::builder(T::data_type()).len(items.len()).add_buffer(Buffer::from_slice_ref(items));
        let items = make_array(data.build().map_err(|e| e.to_string())?);
        let ends = OffsetBuffer::new(ends.clone().into());
        let field = Arc::new(Field::new_list_field(T::data_type(), true));
        let lists = ListArray::try_new(field, ends, items, out.null_buffer()).map_err(|e| e.to_string())?;
        out.array(Arc::new(lists))
    }
}
