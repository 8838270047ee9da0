//! Lays out record batches: assigns offsets to buffers, without copying them.

use arrow_array::{Array, RecordBatch};
use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_data::transform::MutableArrayData;
use arrow_schema::{DataType, Schema};

use crate::header::{self, ALIGNMENT, HeaderError, NODES_MAX, ROWS_MAX};
use crate::read::BufferLayout;
use crate::{LayoutError, encode_schema};

/// A batch that is laid out but not yet written. The gaps between buffers are padding.
#[derive(Debug, Clone)]
pub struct EncodedBatch {
    /// Complete header.
    pub header: Vec<u8>,
    /// Non-empty buffers with their offsets in the body, ascending.
    pub buffers: Vec<(usize, Buffer)>,
    /// Length of the body, in bytes.
    pub body_bytes: usize,
}

impl EncodedBatch {
    /// Copies the body into one buffer.
    pub fn body(&self) -> Vec<u8> {
        let mut out = vec![0; self.body_bytes];
        for (offset, buffer) in &self.buffers {
            out[*offset..*offset + buffer.len()].copy_from_slice(buffer);
        }
        out
    }
}

/// Lays out `batch`. Shares its buffers, except for slices whose offsets must be rebased.
pub fn encode(batch: &RecordBatch) -> Result<EncodedBatch, LayoutError> {
    let mut body = BodyBuilder { nodes: Vec::new(), buffers: Vec::new(), placed: Vec::new(), end: 0 };
    if batch.num_rows() as u64 > ROWS_MAX {
        return Err(HeaderError(format!("{} rows are over the bound of {ROWS_MAX}", batch.num_rows())).into());
    }
    let schema = encode_schema(batch.schema_ref())?;
    for column in batch.columns() {
        body.push(&column.to_data())?;
    }
    if body.nodes.len() > NODES_MAX {
        return Err(HeaderError(format!(
            "{} columns and children are over the bound of {NODES_MAX}",
            body.nodes.len()
        ))
        .into());
    }
    Ok(EncodedBatch {
        header: header::build(&schema, batch.num_rows(), &body.nodes, &body.buffers, body.end),
        buffers: body.placed,
        body_bytes: body.end,
    })
}

/// Builds the header of a batch whose columns have no children. `columns` holds for each column its null count and the
/// bytes of its buffers (validity first, empty without nulls). The caller places the buffers at ascending multiples of
/// [`ALIGNMENT`], column by column.
pub fn flat_header(schema: &Schema, rows: usize, columns: &[(usize, &[usize])]) -> Result<Vec<u8>, LayoutError> {
    let nodes: Vec<_> = columns.iter().map(|(nulls, _)| (rows as u64, *nulls as u64)).collect();
    let mut buffers = Vec::with_capacity(columns.iter().map(|(_, lengths)| lengths.len()).sum());
    let mut end = 0;
    for len in columns.iter().flat_map(|(_, lengths)| *lengths) {
        buffers.push((end as u64, *len as u64));
        end += len.next_multiple_of(ALIGNMENT);
    }
    Ok(header::build(&encode_schema(schema)?, rows, &nodes, &buffers, end))
}

struct BodyBuilder {
    nodes: Vec<(u64, u64)>,
    buffers: Vec<(u64, u64)>,
    placed: Vec<(usize, Buffer)>,
    end: usize,
}

impl BodyBuilder {
    fn push(&mut self, data: &ArrayData) -> Result<(), HeaderError> {
        let layout = BufferLayout::for_type(data.data_type());
        if data.offset() != 0 && !matches!(layout, BufferLayout::Fixed(_)) {
            // `MutableArrayData` without room for nulls panics on a validity buffer that has no nulls.
            let mut copy = MutableArrayData::new(vec![data], true, data.len());
            copy.try_extend(0, 0, data.len()).map_err(|e| HeaderError(e.to_string()))?;
            return self.push(&copy.freeze());
        }
        self.nodes.push((data.len() as u64, data.null_count() as u64));
        if layout != BufferLayout::Null {
            match data.nulls().filter(|n| n.null_count() > 0) {
                Some(nulls) => self.place(nulls.inner().sliced().slice_with_length(0, data.len().div_ceil(8))),
                None => self.place(Buffer::from_vec(Vec::<u8>::new())),
            }
        }
        match layout {
            BufferLayout::Null | BufferLayout::Nested => {
                data.child_data().iter().try_for_each(|child| self.push(child))?
            }
            BufferLayout::Fixed(width) => {
                self.place(data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width));
                data.child_data().iter().try_for_each(|child| self.push(child))?;
            }
            BufferLayout::Bits => self.place(data.buffers()[0].slice_with_length(0, data.len().div_ceil(8))),
            BufferLayout::Binary { wide: false } => self.push_binary::<i32>(data),
            BufferLayout::Binary { wide: true } => self.push_binary::<i64>(data),
            BufferLayout::List { wide: false } => self.push_list::<i32>(data)?,
            BufferLayout::List { wide: true } => self.push_list::<i64>(data)?,
        }
        Ok(())
    }

    fn push_binary<O: ArrowNativeType + std::ops::Sub<Output = O>>(&mut self, data: &ArrayData) {
        let (offsets, first, last) = rebase_offsets::<O>(data);
        self.place(offsets);
        self.place(data.buffers()[1].slice_with_length(first, last - first));
    }

    fn push_list<O: ArrowNativeType + std::ops::Sub<Output = O>>(
        &mut self,
        data: &ArrayData,
    ) -> Result<(), HeaderError> {
        let (offsets, first, last) = rebase_offsets::<O>(data);
        self.place(offsets);
        let child = &data.child_data()[0];
        if first == 0 && last == child.len() { self.push(child) } else { self.push(&child.slice(first, last - first)) }
    }

    fn place(&mut self, buffer: Buffer) {
        self.buffers.push((self.end as u64, buffer.len() as u64));
        if !buffer.is_empty() {
            let at = self.end;
            self.end += buffer.len().next_multiple_of(ALIGNMENT);
            self.placed.push((at, buffer));
        }
    }
}

/// Returns the offsets of an array that itself has offset 0, rebased to start at zero, and the range of the values that
/// they cover.
fn rebase_offsets<O: ArrowNativeType + std::ops::Sub<Output = O>>(data: &ArrayData) -> (Buffer, usize, usize) {
    if data.is_empty() {
        return (Buffer::from_vec(vec![O::default()]), 0, 0);
    }
    let offsets = ScalarBuffer::<O>::new(data.buffers()[0].clone(), 0, data.len() + 1);
    let (first, last) = (offsets[0], offsets[data.len()]);
    if first == O::default() {
        return (offsets.into_inner(), 0, last.as_usize());
    }
    let moved: Vec<O> = offsets.iter().map(|o| *o - first).collect();
    (Buffer::from_vec(moved), first.as_usize(), last.as_usize())
}

impl BufferLayout {
    pub(crate) fn for_type(data_type: &DataType) -> BufferLayout {
        match data_type {
            DataType::Null => BufferLayout::Null,
            DataType::Boolean => BufferLayout::Bits,
            DataType::Utf8 | DataType::Binary => BufferLayout::Binary { wide: false },
            DataType::LargeUtf8 | DataType::LargeBinary => BufferLayout::Binary { wide: true },
            DataType::List(_) | DataType::Map(_, _) => BufferLayout::List { wide: false },
            DataType::LargeList(_) => BufferLayout::List { wide: true },
            DataType::Struct(_) | DataType::FixedSizeList(_, _) => BufferLayout::Nested,
            DataType::FixedSizeBinary(size) => BufferLayout::Fixed(*size as usize),
            DataType::Dictionary(keys, _) => BufferLayout::for_type(keys),
            DataType::Interval(arrow_schema::IntervalUnit::MonthDayNano) => BufferLayout::Fixed(16),
            other => BufferLayout::Fixed(
                other.primitive_width().unwrap_or_else(|| unreachable!("{other} has passed encode_schema")),
            ),
        }
    }
}
