//! Times from timestamps of any unit, or from text.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, GenericStringArray, OffsetSizeTrait, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, TimeUnit};

use crate::columns::column;

const MICROS: i64 = 1_000_000;

/// A view of a column of times.
pub(crate) struct Instants<'a> {
    name: &'a str,
    values: Values<'a>,
    /// Null rows, including rows with an empty text.
    nulls: Option<NullBuffer>,
}

enum Values<'a> {
    /// Units since 1970-01-01T00:00:00, and units per second.
    Counted(&'a [i64], i64),
    Text(&'a GenericStringArray<i32>),
    LargeText(&'a GenericStringArray<i64>),
    /// A column of nulls.
    Missing,
}

impl<'a> Instants<'a> {
    /// Views the column `name` of `batch`.
    ///
    /// # Errors
    /// Reports a column that is missing, or has neither timestamps nor text.
    pub(crate) fn from_column(batch: &'a RecordBatch, name: &'a str) -> Result<Self, String> {
        let times = column(batch, name)?;
        let (values, nulls) = match times.data_type() {
            DataType::Timestamp(unit, _) => (counted(times.as_ref(), *unit), times.nulls().cloned()),
            DataType::Utf8 => (Values::Text(times.as_string()), with_empty(times.as_string::<i32>())),
            DataType::LargeUtf8 => (Values::LargeText(times.as_string()), with_empty(times.as_string::<i64>())),
            DataType::Null => (Values::Missing, Some(NullBuffer::new_null(times.len()))),
            other => {
                return Err(format!(
                    "column `{name}` has type {other}, a time is a timestamp or text like 2015-01-31 23:59:59: cast it first"
                ));
            }
        };
        Ok(Instants { name, values, nulls })
    }

    /// Resolution of the values, in units per second.
    pub(crate) fn per_second(&self) -> i64 {
        match self.values {
            Values::Counted(_, per_second) => per_second,
            Values::Text(_) | Values::LargeText(_) => MICROS,
            Values::Missing => 1,
        }
    }

    /// The null rows.
    pub(crate) fn nulls(&self) -> Option<&NullBuffer> {
        self.nulls.as_ref()
    }

    /// Returns some rows in units of `per_second`, which is at least the column's own resolution. `scratch` has at
    /// least as many elements as rows. Values of null rows are arbitrary.
    ///
    /// # Errors
    /// Reports a text that is not a time.
    pub(crate) fn block<'s>(
        &'s self,
        rows: Range<usize>,
        per_second: i64,
        scratch: &'s mut [i64],
    ) -> Result<&'s [i64], String> {
        let scratch = &mut scratch[..rows.len()];
        match &self.values {
            Values::Counted(values, own) if *own == per_second => return Ok(&values[rows]),
            Values::Counted(values, own) => {
                let factor = per_second / own;
                scratch.iter_mut().zip(&values[rows]).for_each(|(to, from)| *to = from.wrapping_mul(factor));
            }
            Values::Text(text) => self.parse(text, rows, per_second, scratch)?,
            Values::LargeText(text) => self.parse(text, rows, per_second, scratch)?,
            Values::Missing => scratch.fill(0),
        }
        Ok(scratch)
    }

    fn parse<O: OffsetSizeTrait>(
        &self,
        text: &GenericStringArray<O>,
        rows: Range<usize>,
        per_second: i64,
        to: &mut [i64],
    ) -> Result<(), String> {
        let factor = per_second / MICROS;
        let bytes = text.value_data();
        let bounds = text.value_offsets()[rows.start..=rows.end].windows(2);
        for ((row, bounds), to) in rows.zip(bounds).zip(to) {
            *to = match micros(&bytes[bounds[0].as_usize()..bounds[1].as_usize()]) {
                Some(micros) => micros.wrapping_mul(factor),
                None if self.nulls.as_ref().is_some_and(|n| n.is_null(row)) => 0,
                None => return Err(self.unreadable(text.value(row), row)),
            };
        }
        Ok(())
    }

    #[cold]
    fn unreadable(&self, text: &str, row: usize) -> String {
        let name = self.name;
        format!(
            "column `{name}` of type text is {text:?} in row {row}, not a time like 2015-01-31 23:59:59: parse it first"
        )
    }
}

fn counted(times: &dyn Array, unit: TimeUnit) -> Values<'_> {
    match unit {
        TimeUnit::Second => Values::Counted(times.as_primitive::<TimestampSecondType>().values(), 1),
        TimeUnit::Millisecond => Values::Counted(times.as_primitive::<TimestampMillisecondType>().values(), 1_000),
        TimeUnit::Microsecond => Values::Counted(times.as_primitive::<TimestampMicrosecondType>().values(), MICROS),
        TimeUnit::Nanosecond => {
            Values::Counted(times.as_primitive::<TimestampNanosecondType>().values(), 1_000_000_000)
        }
    }
}

/// The column's nulls, plus the rows with an empty text.
fn with_empty<O: OffsetSizeTrait>(text: &GenericStringArray<O>) -> Option<NullBuffer> {
    if text.value_offsets().windows(2).all(|pair| pair[0] != pair[1]) {
        return text.nulls().cloned();
    }
    let filled = (0..text.len()).map(|row| text.is_valid(row) && text.value_length(row) != O::usize_as(0));
    Some(NullBuffer::from_iter(filled))
}

/// Parses `YYYY-MM-DD HH:MM:SS` to microseconds since 1970-01-01T00:00:00. A fraction of up to nine digits is optional
/// (truncated to six); a `T` can replace the space.
#[inline]
fn micros(text: &[u8]) -> Option<i64> {
    let (whole, fraction) = text.split_first_chunk::<19>()?;
    let eight = |from: usize| whole[from..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let (date, wrong_date) = pairs(eight(0), *b"0000-00-");
    let (time, wrong_time) = pairs(eight(11), *b"00:00:00");
    let pair = |word: u64, at: u32| (word >> (8 * at) & 0xff) as u32;
    let [ten, one] = [whole[8], whole[9]].map(|digit| digit.wrapping_sub(b'0'));
    let (hour, minute, second) = (pair(time, 0), pair(time, 3), pair(time, 6));
    let wrong = wrong_date | wrong_time != 0 || ten > 9 || one > 9 || !matches!(whole[10], b' ' | b'T');
    if wrong || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days(pair(date, 0) * 100 + pair(date, 2), pair(date, 5), u32::from(ten * 10 + one))?;
    let seconds = days * 86_400 + i64::from(hour * 3_600 + minute * 60 + second);
    Some(seconds * MICROS + if fraction.is_empty() { 0 } else { micros_of(fraction)? })
}

/// Parses eight bytes of text at once. `pattern` has a zero where a digit is required, and the required byte elsewhere.
/// Byte `i` of the first result is the number formed by digits `i` and `i + 1`. The second result is zero if the text
/// matches.
#[inline]
fn pairs(text: u64, pattern: [u8; 8]) -> (u64, u64) {
    let values = text ^ u64::from_le_bytes(pattern);
    // The addition carries into a byte's top bit if the byte is over 9 (for a digit), or over 0 (for another byte).
    let over = pattern.map(|byte| if byte == b'0' { 0x76 } else { 0x7f });
    let wrong = (values.wrapping_add(u64::from_le_bytes(over)) | values) & 0x8080_8080_8080_8080;
    (values.wrapping_mul(10).wrapping_add(values >> 8), wrong)
}

fn micros_of(fraction: &[u8]) -> Option<i64> {
    match fraction.split_first() {
        None => Some(0),
        Some((b'.', digits)) if matches!(digits.len(), 1..=9) && digits.iter().all(u8::is_ascii_digit) => {
            let six = digits.iter().chain(&[b'0'; 6]).take(6);
            Some(six.fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
        }
        Some(_) => None,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar; none if the date does not exist.
///
/// Source: Howard Hinnant, *chrono-Compatible Low-Level Date Algorithms*, `days_from_civil`.
#[inline]
fn days(year: u32, month: u32, day: u32) -> Option<i64> {
    const LENGTHS: [u32; 16] = [0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0];
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = if month == 2 && !is_leap { 28 } else { LENGTHS[month as usize % 16] };
    if month > 12 || day < 1 || day > length {
        return None;
    }
    // Years start in March. The shift by 400 years keeps all of them non-negative.
    let (year, month) = if month > 2 { (year + 400, month - 3) } else { (year + 399, month + 9) };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
    Some(i64::from(era * 146_097 + day_of_era) - 146_097 - 719_468)
}
