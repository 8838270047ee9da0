//! Scalar functions: columns in, one column out, looped here so that a row costs
//! a few instructions and no call across the boundary.

mod argument;
mod returned;

use std::marker::PhantomData;

use arrow_buffer::Buffer;
use arrow_schema::{Field, Schema};
use sandbar_batch::{ALIGNMENT, Header};

pub use argument::{Argument, Timestamp};
pub use returned::Return;

use crate::bindings::data;
use crate::bindings::guest::Kind;
use crate::input::{self, Region};
use crate::registry::{Function, Opened};

/// Fixed-width columns of a larger body than this stream through a chunk of
/// about this size, which stays in the second-level cache.
const CHUNK_BYTES: usize = 128 << 10;
/// Chunks start at a multiple of this, so that a chunk's validity starts at a byte.
const CHUNK_ROWS_MULTIPLE: usize = 512;

/// What [`macro@crate::scalar`] makes of a function.
pub trait Scalar: 'static {
    /// What it returns.
    type Output: Return;
    /// Its name.
    const NAME: &'static str;
    /// Bytes a row takes in each argument, where all are of fixed width.
    const WIDTHS: &'static [Option<usize>];
    /// Evaluates all rows of a chunk, or says which row failed and why.
    fn evaluate(chunk: &Chunk<'_>, out: &mut <Self::Output as Return>::Column) -> Result<(), (usize, String)>;
}

impl Function {
    /// Announces a scalar function.
    pub const fn scalar<F: Scalar>(about: &'static str, arguments: fn() -> Vec<Field>) -> Function {
        Function { name: F::NAME, kind: Kind::Scalar, about, arguments, returns: returns::<F>, open: open::<F> }
    }
}

fn returns<F: Scalar>() -> Vec<Field> {
    vec![F::Output::field(F::NAME)]
}

fn open<F: Scalar>(_params: &str) -> Result<Box<dyn Opened>, String> {
    let schema = Schema::new(returns::<F>());
    Ok(Box::new(OpenedScalar::<F> { out: Default::default(), schema, regions: Vec::new(), function: PhantomData }))
}

/// Some rows of the argument columns: their buffers, validity first, an empty
/// one where there are no nulls.
pub struct Chunk<'a> {
    rows: usize,
    buffers: &'a [&'a [u8]],
}

impl<'a> Chunk<'a> {
    /// Rows of the chunk.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Validity of the column whose first buffer is `at`: empty when it has no nulls.
    pub fn validity(&self, at: usize) -> &'a [u8] {
        self.buffers[at]
    }

    /// The next column's buffers, from buffer `at` on.
    #[inline(always)]
    pub fn column<A: Argument>(&self, at: &mut usize) -> A::Column<'a> {
        let first = *at;
        *at += A::BUFFERS;
        A::column(&self.buffers[first..*at], self.rows)
    }
}

/// One validity of several columns: a bit is set where all have a value. None
/// when none of them has nulls.
pub fn mask(validities: &[&[u8]]) -> Option<Vec<u8>> {
    let mut present = validities.iter().filter(|v| !v.is_empty());
    let mut mask = present.next()?.to_vec();
    for other in present {
        mask.iter_mut().zip(*other).for_each(|(m, o)| *m &= o);
    }
    Some(mask)
}

struct OpenedScalar<F: Scalar> {
    out: <F::Output as Return>::Column,
    schema: Schema,
    /// Chunk memory, one region for each buffer; kept between calls.
    regions: Vec<Region>,
    function: PhantomData<F>,
}

impl<F: Scalar> Opened for OpenedScalar<F> {
    fn process(&mut self, header: &[u8]) -> Result<(), String> {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        if header.body_bytes() > CHUNK_BYTES && F::WIDTHS.iter().all(Option::is_some) {
            self.stream(&header)
        } else {
            self.whole(&header)
        }
    }
}

impl<F: Scalar> OpenedScalar<F> {
    fn whole(&mut self, header: &Header<'_>) -> Result<(), String> {
        let body = small_or_own(&mut self.regions, header.body_bytes());
        let body = match &body {
            Body::Kept(region, len) => region.filled(*len),
            Body::Own(buffer) => buffer.as_slice(),
        };
        let buffers: Vec<&[u8]> = (0..header.buffer_count())
            .map(|i| {
                let (offset, len) = header.buffer(i);
                &body[offset..offset + len]
            })
            .collect();
        let chunk = Chunk { rows: header.rows(), buffers: &buffers };
        F::evaluate(&chunk, &mut self.out).map_err(|(row, e)| format!("row {row}: {e}"))?;
        F::Output::emit(&mut self.out, &self.schema, header.rows())
    }

    fn stream(&mut self, header: &Header<'_>) -> Result<(), String> {
        let row_bytes: usize = F::WIDTHS.iter().flatten().sum();
        let chunk_rows = (CHUNK_BYTES / row_bytes.max(1)).next_multiple_of(CHUNK_ROWS_MULTIPLE);
        self.reserve(header, chunk_rows);
        let mut start = 0;
        while start < header.rows() {
            let rows = chunk_rows.min(header.rows() - start);
            let mut filled = Vec::with_capacity(header.buffer_count());
            for (i, region) in self.regions.iter_mut().enumerate() {
                let (offset, len) = header.buffer(i);
                let (skip, take) = piece(F::WIDTHS[i / 2], i % 2 == 0, start, rows, len);
                if take > 0 {
                    region.read(offset + skip, take);
                }
                filled.push(region.filled(take));
            }
            let chunk = Chunk { rows, buffers: &filled };
            F::evaluate(&chunk, &mut self.out).map_err(|(row, e)| format!("row {}: {e}", start + row))?;
            F::Output::emit(&mut self.out, &self.schema, rows)?;
            start += rows;
        }
        Ok(())
    }

    fn reserve(&mut self, header: &Header<'_>, chunk_rows: usize) {
        let needed = |i: usize| piece(F::WIDTHS[i / 2], i.is_multiple_of(2), 0, chunk_rows, header.buffer(i).1).1;
        if self.regions.len() != header.buffer_count()
            || (0..self.regions.len()).any(|i| self.regions[i].len() < needed(i))
        {
            self.regions = (0..header.buffer_count()).map(|i| Region::new(needed(i), ALIGNMENT)).collect();
        }
    }
}

/// Small bodies are read into a region that stays for the next call.
fn small_or_own(regions: &mut Vec<Region>, bytes: usize) -> Body<'_> {
    if bytes == 0 || bytes > CHUNK_BYTES {
        return Body::Own(input::body(bytes));
    }
    if regions.first().is_none_or(|r| r.len() < bytes) {
        *regions = vec![Region::new(bytes.next_power_of_two(), ALIGNMENT)];
    }
    regions[0].read(0, bytes);
    Body::Kept(&regions[0], bytes)
}

enum Body<'a> {
    Kept(&'a Region, usize),
    Own(Buffer),
}

impl Region {
    /// The first `len` bytes, which the host has filled.
    fn filled(&self, len: usize) -> &[u8] {
        assert!(len <= self.len());
        // SAFETY: in bounds, and filled by a `read` of at least `len` bytes just before.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), len) }
    }
}

/// Where rows `start..start+rows` lie in a buffer of `len` bytes: bytes to skip, bytes to take.
fn piece(width: Option<usize>, validity: bool, start: usize, rows: usize, len: usize) -> (usize, usize) {
    if len == 0 {
        return (0, 0);
    }
    match width.filter(|w| *w > 0 && !validity) {
        Some(width) => (start * width, rows * width),
        None => (start / 8, rows.div_ceil(8)),
    }
}

/// Hands one column without children to the host.
fn emit_column(schema: &Schema, rows: usize, nulls: usize, buffers: &[&[u8]]) -> Result<(), String> {
    let mut lengths = [0; 3];
    for (slot, buffer) in lengths.iter_mut().zip(buffers) {
        *slot = buffer.len();
    }
    let header = sandbar_batch::single_column_header(schema, rows, nulls, &lengths[..buffers.len()])
        .map_err(|e| e.to_string())?;
    let mut present = [&[][..]; 3];
    let mut count = 0;
    for buffer in buffers.iter().filter(|b| !b.is_empty()) {
        present[count] = buffer;
        count += 1;
    }
    data::emit(&header, &present[..count]);
    Ok(())
}
