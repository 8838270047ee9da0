//! Viewing a body as a record batch: checked for bytes that may be anything,
//! and unchecked for bytes that our own writer sealed.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, SchemaRef};

use crate::header::{ALIGNMENT, HeaderError, ROWS_MAX, bad};
use crate::{Header, LayoutError};

/// How the buffers of an array of some type look, after its validity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// No buffers, not even a validity.
    Null,
    /// No buffers of its own.
    Nested,
    /// Values of so many bytes.
    Fixed(usize),
    /// One bit a value.
    Bits,
    /// Offsets, then bytes.
    Binary { wide: bool },
    /// Offsets, then one child.
    List { wide: bool },
}

/// Views `body` as the batch that `header` describes, trusting neither: every
/// length and offset is checked here before arrow sees it, then arrow checks
/// the values (UTF-8, monotonic offsets, dictionary keys).
///
/// `schema` is the decoded [`Header::schema_bytes`]. The body is not copied,
/// unless it is not aligned in memory.
pub fn read(header: &Header<'_>, schema: SchemaRef, body: &Buffer) -> Result<RecordBatch, LayoutError> {
    header.fits(body.len())?;
    checked(header, schema, Body::Whole(aligned(body)))
}

/// As [`read`], of a body whose parts lie apart: as they come one behind another, each at a multiple of
/// [`ALIGNMENT`](crate::ALIGNMENT). A buffer is a part, or lies in one.
pub fn read_parts(header: &Header<'_>, schema: SchemaRef, parts: &[Buffer]) -> Result<RecordBatch, LayoutError> {
    let mut end = 0;
    let place = |part: &Buffer| {
        let at = end;
        end += part.len().next_multiple_of(ALIGNMENT);
        (at, part.clone())
    };
    let parts = parts.iter().filter(|part| !part.is_empty()).map(place).collect();
    header.fits(end)?;
    checked(header, schema, Body::Parts(parts))
}

fn checked(header: &Header<'_>, schema: SchemaRef, body: Body) -> Result<RecordBatch, LayoutError> {
    let mut walk = Walk { header, body, node: 0, buffer: 0 };
    let columns = walk.columns(&schema, |data| {
        // `build` checks everything, values included, before an array is made of it.
        data.align_buffers(true).build().map_err(|e| e.to_string())
    })?;
    walk.finish()?;
    assemble(schema, header.rows(), columns)
}

/// As [`read`], without checking the values.
///
/// # Safety
/// `header` and `body` must be what [`crate::encode`] wrote, unchanged since.
pub unsafe fn read_trusted(header: &Header<'_>, schema: SchemaRef, body: &Buffer) -> Result<RecordBatch, LayoutError> {
    header.fits(body.len())?;
    let mut walk = Walk { header, body: Body::Whole(body.clone()), node: 0, buffer: 0 };
    let columns = walk.columns(&schema, |data| {
        // SAFETY: the caller vouches for the bytes.
        Ok(unsafe { data.build_unchecked() })
    })?;
    assemble(schema, header.rows(), columns)
}

fn assemble(schema: SchemaRef, rows: usize, columns: Vec<ArrayRef>) -> Result<RecordBatch, LayoutError> {
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
        .map_err(|e| HeaderError(e.to_string()).into())
}

fn aligned(body: &Buffer) -> Buffer {
    if body.as_ptr().align_offset(ALIGNMENT) == 0 || body.is_empty() {
        return body.clone();
    }
    let mut copy = MutableBuffer::with_capacity(body.len());
    copy.extend_from_slice(body);
    copy.into()
}

/// The bytes of a batch.
enum Body {
    Whole(Buffer),
    /// None of them empty, each with the offset at which it starts.
    Parts(Vec<(usize, Buffer)>),
}

impl Body {
    /// Some of its bytes, all of which it has.
    fn slice(&self, offset: usize, len: usize) -> Result<Buffer, HeaderError> {
        match self {
            Body::Whole(body) => Ok(body.slice_with_length(offset, len)),
            Body::Parts(parts) => {
                let before = parts.partition_point(|(at, _)| *at <= offset);
                let part = before.checked_sub(1).map(|at| &parts[at]);
                let part = part.filter(|(at, part)| offset - at + len <= part.len());
                let (at, part) = part.ok_or_else(|| HeaderError("a buffer lies in no part of its body".to_owned()))?;
                Ok(part.slice_with_length(offset - at, len))
            }
        }
    }
}

struct Walk<'a> {
    header: &'a Header<'a>,
    body: Body,
    node: usize,
    buffer: usize,
}

impl Walk<'_> {
    fn columns(
        &mut self,
        schema: &SchemaRef,
        build: impl Fn(ArrayDataBuilder) -> Result<ArrayData, String> + Copy,
    ) -> Result<Vec<ArrayRef>, LayoutError> {
        let mut columns = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let data = self
                .array(field.data_type(), Some(self.header.rows()), build)
                .map_err(|reason| LayoutError::Array { column: field.name().clone(), reason: reason.0 })?;
            columns.push(make_array(data));
        }
        Ok(columns)
    }

    fn finish(&self) -> Result<(), HeaderError> {
        if (self.node, self.buffer) != (self.header.node_count(), self.header.buffer_count()) {
            return bad("it has more nodes or buffers than its schema needs");
        }
        Ok(())
    }

    /// One array and its children; `rows` is its length where its parent says it.
    fn array(
        &mut self,
        data_type: &DataType,
        rows: Option<usize>,
        build: impl Fn(ArrayDataBuilder) -> Result<ArrayData, String> + Copy,
    ) -> Result<ArrayData, HeaderError> {
        let len = self.length(rows)?;
        let shape = Shape::of(data_type);
        let mut data = ArrayData::builder(data_type.clone()).len(len);
        if shape != Shape::Null {
            let validity = self.next_buffer()?;
            if !validity.is_empty() {
                data = data.null_bit_buffer(Some(exactly(validity, len.div_ceil(8), "validity")?));
            }
        }
        match shape {
            Shape::Null | Shape::Nested => {}
            Shape::Fixed(width) => {
                data = data.add_buffer(exactly(self.next_buffer()?, width_times(width, len)?, "values")?)
            }
            Shape::Bits => data = data.add_buffer(exactly(self.next_buffer()?, len.div_ceil(8), "values")?),
            Shape::List { wide } => data = data.add_buffer(self.offsets(len, wide)?),
            Shape::Binary { wide } => data = data.add_buffer(self.offsets(len, wide)?).add_buffer(self.next_buffer()?),
        }
        for (child, rows) in children(data_type, len)? {
            data = data.add_child_data(self.array(child, rows, build)?);
        }
        build(data).map_err(HeaderError)
    }

    fn length(&mut self, rows: Option<usize>) -> Result<usize, HeaderError> {
        if self.node == self.header.node_count() {
            return bad("it has fewer nodes than its schema needs");
        }
        let (len, _) = self.header.node(self.node);
        self.node += 1;
        match rows {
            Some(rows) if rows as u64 != len => bad(format!("{len} rows where {rows} are due")),
            _ if len > ROWS_MAX => bad(format!("{len} rows are over the bound of {ROWS_MAX}")),
            _ => Ok(len as usize),
        }
    }

    fn next_buffer(&mut self) -> Result<Buffer, HeaderError> {
        if self.buffer == self.header.buffer_count() {
            return bad("it has fewer buffers than its schema needs");
        }
        let (offset, len) = self.header.buffer(self.buffer);
        self.buffer += 1;
        if len == 0 { Ok(MutableBuffer::new(0).into()) } else { self.body.slice(offset, len) }
    }

    fn offsets(&mut self, len: usize, wide: bool) -> Result<Buffer, HeaderError> {
        exactly(self.next_buffer()?, width_times(if wide { 8 } else { 4 }, len + 1)?, "offsets")
    }
}

fn width_times(width: usize, len: usize) -> Result<usize, HeaderError> {
    width.checked_mul(len).ok_or_else(|| HeaderError(format!("{len} values of {width} bytes can't be addressed here")))
}

fn exactly(buffer: Buffer, bytes: usize, what: &str) -> Result<Buffer, HeaderError> {
    if buffer.len() != bytes {
        return bad(format!("its {what} take {} bytes where {bytes} are due", buffer.len()));
    }
    Ok(buffer)
}

/// Types of the children, with their length where the parent's says it.
fn children(data_type: &DataType, len: usize) -> Result<Vec<(&DataType, Option<usize>)>, HeaderError> {
    Ok(match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => vec![(item.data_type(), None)],
        DataType::FixedSizeList(item, size) => vec![(item.data_type(), Some(width_times(*size as usize, len)?))],
        DataType::Struct(fields) => fields.iter().map(|f| (f.data_type(), Some(len))).collect(),
        DataType::Dictionary(_, values) => vec![(values.as_ref(), None)],
        _ => Vec::new(),
    })
}
