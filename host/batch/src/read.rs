//! Views a body as a record batch: checked for untrusted bytes, and unchecked for bytes that our own writer sealed.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, SchemaRef};

use crate::header::{ALIGNMENT, HeaderError, ROWS_MAX, invalid};
use crate::{Header, LayoutError};

/// Buffers of an array of some type, after its validity buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferLayout {
    /// No buffers, not even a validity buffer.
    Null,
    /// No buffers of its own.
    Nested,
    /// Values of this many bytes each.
    Fixed(usize),
    /// One bit per value.
    Bits,
    /// Offsets, then bytes.
    Binary { wide: bool },
    /// Offsets, then one child.
    List { wide: bool },
}

/// Views `body` as the batch that `header` describes. Trusts neither: checks every length and offset before Arrow sees
/// it, then Arrow checks the values (UTF-8, monotonic offsets, dictionary keys).
///
/// `schema` is the decoded [`Header::schema_bytes`]. The body is copied only if it is not aligned in memory.
pub fn read(header: &Header<'_>, schema: SchemaRef, body: &Buffer) -> Result<RecordBatch, LayoutError> {
    header.check_bounds(body.len())?;
    read_checked(header, schema, BodySource::Whole(align(body)))
}

/// Like [`read`], for a body in separate parts. In the body's offsets the parts follow each other, each at a multiple
/// of [`ALIGNMENT`](crate::ALIGNMENT). Each buffer must be inside one part.
pub fn read_parts(header: &Header<'_>, schema: SchemaRef, parts: &[Buffer]) -> Result<RecordBatch, LayoutError> {
    let mut end = 0;
    let place = |part: &Buffer| {
        let at = end;
        end += part.len().next_multiple_of(ALIGNMENT);
        (at, part.clone())
    };
    let parts = parts.iter().filter(|part| !part.is_empty()).map(place).collect();
    header.check_bounds(end)?;
    read_checked(header, schema, BodySource::Parts(parts))
}

fn read_checked(header: &Header<'_>, schema: SchemaRef, body: BodySource) -> Result<RecordBatch, LayoutError> {
    let mut reader = ArrayReader { header, body, node: 0, buffer: 0 };
    let columns = reader.columns(&schema, |data| {
        // `build` checks everything, values included, before it returns an array.
        data.align_buffers(true).build().map_err(|e| e.to_string())
    })?;
    reader.finish()?;
    assemble(schema, header.rows(), columns)
}

/// Like [`read`], without checking the values.
///
/// # Safety
/// `header` and `body` must be the unchanged output of [`crate::encode`].
pub unsafe fn read_trusted(header: &Header<'_>, schema: SchemaRef, body: &Buffer) -> Result<RecordBatch, LayoutError> {
    header.check_bounds(body.len())?;
    let mut reader = ArrayReader { header, body: BodySource::Whole(body.clone()), node: 0, buffer: 0 };
    let columns = reader.columns(&schema, |data| {
        // SAFETY: the caller guarantees that our own encoder wrote the bytes.
        Ok(unsafe { data.build_unchecked() })
    })?;
    assemble(schema, header.rows(), columns)
}

fn assemble(schema: SchemaRef, rows: usize, columns: Vec<ArrayRef>) -> Result<RecordBatch, LayoutError> {
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
        .map_err(|e| HeaderError(e.to_string()).into())
}

fn align(body: &Buffer) -> Buffer {
    if body.as_ptr().align_offset(ALIGNMENT) == 0 || body.is_empty() {
        return body.clone();
    }
    let mut copy = MutableBuffer::with_capacity(body.len());
    copy.extend_from_slice(body);
    copy.into()
}

/// Bytes of a batch's body.
enum BodySource {
    Whole(Buffer),
    /// Non-empty parts, each with its offset in the body.
    Parts(Vec<(usize, Buffer)>),
}

impl BodySource {
    /// Returns a range of the body. The range must be in bounds.
    fn slice(&self, offset: usize, len: usize) -> Result<Buffer, HeaderError> {
        match self {
            BodySource::Whole(body) => Ok(body.slice_with_length(offset, len)),
            BodySource::Parts(parts) => {
                let before = parts.partition_point(|(at, _)| *at <= offset);
                let part = before.checked_sub(1).map(|at| &parts[at]);
                let part = part.filter(|(at, part)| offset - at + len <= part.len());
                let (at, part) = part.ok_or_else(|| HeaderError("a buffer lies in no part of its body".to_owned()))?;
                Ok(part.slice_with_length(offset - at, len))
            }
        }
    }
}

struct ArrayReader<'a> {
    header: &'a Header<'a>,
    body: BodySource,
    node: usize,
    buffer: usize,
}

impl ArrayReader<'_> {
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
            return invalid("it has more nodes or buffers than its schema needs");
        }
        Ok(())
    }

    /// Reads one array and its children. `rows` is the length that the parent prescribes, if it does.
    fn array(
        &mut self,
        data_type: &DataType,
        rows: Option<usize>,
        build: impl Fn(ArrayDataBuilder) -> Result<ArrayData, String> + Copy,
    ) -> Result<ArrayData, HeaderError> {
        let len = self.length(rows)?;
        let layout = BufferLayout::for_type(data_type);
        let mut data = ArrayData::builder(data_type.clone()).len(len);
        if layout != BufferLayout::Null {
            let validity = self.next_buffer()?;
            if !validity.is_empty() {
                data = data.null_bit_buffer(Some(require_bytes(validity, len.div_ceil(8), "validity")?));
            }
        }
        match layout {
            BufferLayout::Null | BufferLayout::Nested => {}
            BufferLayout::Fixed(width) => {
                data = data.add_buffer(require_bytes(self.next_buffer()?, values_bytes(width, len)?, "values")?)
            }
            BufferLayout::Bits => {
                data = data.add_buffer(require_bytes(self.next_buffer()?, len.div_ceil(8), "values")?)
            }
            BufferLayout::List { wide } => data = data.add_buffer(self.offsets(len, wide)?),
            BufferLayout::Binary { wide } => {
                data = data.add_buffer(self.offsets(len, wide)?).add_buffer(self.next_buffer()?)
            }
        }
        for (child, rows) in children(data_type, len)? {
            data = data.add_child_data(self.array(child, rows, build)?);
        }
        build(data).map_err(HeaderError)
    }

    fn length(&mut self, rows: Option<usize>) -> Result<usize, HeaderError> {
        if self.node == self.header.node_count() {
            return invalid("it has fewer nodes than its schema needs");
        }
        let (len, _) = self.header.node(self.node);
        self.node += 1;
        match rows {
            Some(rows) if rows as u64 != len => invalid(format!("{len} rows where {rows} are due")),
            _ if len > ROWS_MAX => invalid(format!("{len} rows are over the bound of {ROWS_MAX}")),
            _ => Ok(len as usize),
        }
    }

    fn next_buffer(&mut self) -> Result<Buffer, HeaderError> {
        if self.buffer == self.header.buffer_count() {
            return invalid("it has fewer buffers than its schema needs");
        }
        let (offset, len) = self.header.buffer(self.buffer);
        self.buffer += 1;
        if len == 0 { Ok(MutableBuffer::new(0).into()) } else { self.body.slice(offset, len) }
    }

    fn offsets(&mut self, len: usize, wide: bool) -> Result<Buffer, HeaderError> {
        require_bytes(self.next_buffer()?, values_bytes(if wide { 8 } else { 4 }, len + 1)?, "offsets")
    }
}

fn values_bytes(width: usize, len: usize) -> Result<usize, HeaderError> {
    width.checked_mul(len).ok_or_else(|| HeaderError(format!("{len} values of {width} bytes can't be addressed here")))
}

fn require_bytes(buffer: Buffer, bytes: usize, buffer_name: &str) -> Result<Buffer, HeaderError> {
    if buffer.len() != bytes {
        return invalid(format!("its {buffer_name} take {} bytes where {bytes} are due", buffer.len()));
    }
    Ok(buffer)
}

/// Returns the types of the children, with the length that the parent prescribes, if it does.
fn children(data_type: &DataType, len: usize) -> Result<Vec<(&DataType, Option<usize>)>, HeaderError> {
    Ok(match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => vec![(item.data_type(), None)],
        DataType::FixedSizeList(item, size) => vec![(item.data_type(), Some(values_bytes(*size as usize, len)?))],
        DataType::Struct(fields) => fields.iter().map(|f| (f.data_type(), Some(len))).collect(),
        DataType::Dictionary(_, values) => vec![(values.as_ref(), None)],
        _ => Vec::new(),
    })
}
