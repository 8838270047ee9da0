//! Scalar functions: columns in, one column out. The loop over rows runs in the guest, so that a row costs a few
//! instructions and no call across the boundary.

mod argument;
mod column;
mod returns;
mod time;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use arrow_buffer::Buffer;
use arrow_schema::{Field, Schema};
use sandbar_batch::{ALIGNMENT, Header};

pub use argument::{Argument, Buffers};
pub use column::Column;
pub use returns::{Return, gather};
pub use time::{Date, Timestamp};

pub(crate) use column::emit_batch;

use crate::bindings::guest::Kind;
use crate::input::{self, HUGE_PAGE_BYTES, Region};
use crate::params::{NoParams, parse};
use crate::registry::{BoundFunction, Function};

/// Target size of a chunk, in bytes. Fixed-width columns in a larger body are evaluated in chunks of this size, so that
/// inputs and results stay in the second-level cache. A chunk costs about 1 µs.
const CHUNK_BYTES: usize = 512 << 10;
/// Target size of a chunk of a mapped body, in bytes. A mapped body is not in a cache, so that longer alternating turns
/// of reads and writes use the memory better. With chunks larger by half, a cache of 2 MiB no longer holds the results.
const MAPPED_CHUNK_BYTES: usize = 2 * CHUNK_BYTES;
/// Chunks start at a multiple of this number of rows, so that a chunk's validity starts at a whole byte.
const CHUNK_ROWS_MULTIPLE: usize = 512;

/// A scalar function, as [`macro@crate::scalar`] implements it.
pub trait Scalar: 'static {
    /// The return type, with `'static` for all lifetimes.
    type Output: Return;
    /// Its name.
    const NAME: &'static str;
    /// Bytes per row of each parameter; none for variable width.
    const WIDTHS: &'static [Option<usize>];

    /// Evaluates all rows of a chunk.
    ///
    /// # Errors
    /// Names the row that failed, and the reason.
    fn evaluate(chunk: &Chunk<'_>, out: &mut ColumnOf<Self>) -> Result<(), String>;
}

/// The column for a function's results.
pub type ColumnOf<F> = Column<<<F as Scalar>::Output as Return>::Values>;

impl Function {
    /// Registers a scalar function.
    pub const fn scalar<F: Scalar>(about: &'static str, arguments: fn() -> Vec<Field>) -> Function {
        let (name, kind, returns, parameters) = (F::NAME, Kind::Scalar, returns::<F> as _, Vec::new as _);
        Function { name, kind, about, arguments, returns, parameters, open: open::<F> }
    }
}

fn returns<F: Scalar>() -> Vec<Field> {
    vec![F::Output::field(F::NAME)]
}

fn open<F: Scalar>(params: &str) -> Result<Box<dyn BoundFunction>, String> {
    let NoParams {} = parse(params)?;
    Ok(Box::new(BoundScalar::<F> {
        out: Default::default(),
        schema: Schema::new(returns::<F>()),
        region: Region::new(0, ALIGNMENT),
        places: Vec::new(),
        function: PhantomData,
    }))
}

/// A range of rows of the argument columns.
pub struct Chunk<'a> {
    first_row: usize,
    rows: usize,
    buffers: Buffers<'a>,
}

impl<'a> Chunk<'a> {
    /// The rows' numbers in the input.
    #[inline(always)]
    pub fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.rows
    }

    /// Views the column whose buffers start at index `at`, and advances `at` past it. Also returns the column's
    /// validity if a null skips the row, and an empty slice otherwise. `name` is for errors.
    ///
    /// # Errors
    /// Reports values that the function can't take.
    #[inline(always)]
    pub fn column<A: Argument>(&self, name: &str, at: &mut usize) -> Result<(&'a [u8], A::Column<'a>), String> {
        let places = &self.buffers.places[*at..*at + A::BUFFERS];
        *at += A::BUFFERS;
        let buffers = Buffers { body: self.buffers.body, places };
        let column = A::column(&buffers, self.rows).map_err(|e| format!("column `{name}`: {e}"))?;
        Ok((if A::NULLABLE { &[] } else { buffers.validity() }, column))
    }
}

/// Combines validities: a bit is set if all columns have a value. None if no column has nulls.
pub fn mask<'a>(validities: &[&'a [u8]]) -> Option<Cow<'a, [u8]>> {
    let mut present = validities.iter().filter(|v| !v.is_empty());
    let mut mask = Cow::Borrowed(*present.next()?);
    for other in present {
        mask.to_mut().iter_mut().zip(*other).for_each(|(m, o)| *m &= o);
    }
    Some(mask)
}

struct BoundScalar<F: Scalar> {
    out: ColumnOf<F>,
    schema: Schema,
    /// Memory for the input, kept between calls.
    region: Region,
    /// Start and end of each buffer in `region`.
    places: Vec<(usize, usize)>,
    function: PhantomData<F>,
}

impl<F: Scalar> BoundFunction for BoundScalar<F> {
    fn process(&mut self, header: &[u8]) -> Result<(), String> {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        let bytes = header.body_bytes();
        if bytes > CHUNK_BYTES && F::WIDTHS.iter().all(Option::is_some) {
            return self.in_chunks(&header);
        }
        let body: Buffer;
        let body = if bytes > CHUNK_BYTES {
            body = input::body(bytes);
            body.as_slice()
        } else {
            self.region.reserve(bytes);
            if bytes > 0 {
                self.region.append(0, bytes);
            }
            self.region.filled()
        };
        self.places.clear();
        self.places
            .extend((0..header.buffer_count()).map(|i| header.buffer(i)).map(|(offset, len)| (offset, offset + len)));
        let chunk = Chunk { first_row: 0, rows: header.rows(), buffers: Buffers { body, places: &self.places } };
        F::evaluate(&chunk, &mut self.out)?;
        self.out.emit(&self.schema, chunk.rows)
    }
}

impl<F: Scalar> BoundScalar<F> {
    fn in_chunks(&mut self, header: &Header<'_>) -> Result<(), String> {
        let mapped = (header.body_bytes() >= HUGE_PAGE_BYTES).then(|| Region::map(header.body_bytes()));
        let row_bytes: usize = F::WIDTHS.iter().flatten().sum();
        let chunk_bytes = if mapped.is_some() { MAPPED_CHUNK_BYTES } else { CHUNK_BYTES };
        let chunk_rows = (chunk_bytes / row_bytes.max(1)).next_multiple_of(CHUNK_ROWS_MULTIPLE);
        let place =
            |i: usize, start, rows| piece(F::WIDTHS[i / 2], i.is_multiple_of(2), start, rows, header.buffer(i).1);
        let room = |i| place(i, 0, chunk_rows).1.next_multiple_of(ALIGNMENT);
        let room = (0..header.buffer_count()).map(room).sum();
        for first_row in (0..header.rows()).step_by(chunk_rows) {
            let rows = chunk_rows.min(header.rows() - first_row);
            if mapped.is_none() {
                self.region.reserve(room);
            }
            self.places.clear();
            for i in 0..header.buffer_count() {
                let (skip, take) = place(i, first_row, rows);
                let at = header.buffer(i).0 + skip;
                let from = match (take, &mapped) {
                    (0, _) => 0,
                    (_, Some(_)) => at,
                    (_, None) => self.region.append(at, take),
                };
                self.places.push((from, from + take));
            }
            let body = mapped.as_ref().unwrap_or(&self.region).filled();
            let chunk = Chunk { first_row, rows, buffers: Buffers { body, places: &self.places } };
            F::evaluate(&chunk, &mut self.out)?;
            self.out.emit(&self.schema, rows)?;
        }
        Ok(())
    }
}

/// Byte range of rows `start..start+rows` in a buffer of `len` bytes: bytes to skip, bytes to take.
fn piece(width: Option<usize>, validity: bool, start: usize, rows: usize, len: usize) -> (usize, usize) {
    if len == 0 {
        return (0, 0);
    }
    match width.filter(|w| *w > 0 && !validity) {
        Some(width) => (start * width, rows * width),
        None => (start / 8, rows.div_ceil(8)),
    }
}
