//! Points in time from timestamps of any unit, or from text.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, GenericStringArray, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, TimeUnit};

use crate::clean::column;

const MICROS: i64 = 1_000_000;

/// A column of times, viewed as what it is.
pub(crate) struct Instants<'a> {
    name: &'a str,
    values: Values<'a>,
    /// Null rows, those of an empty text among them.
    nulls: Option<NullBuffer>,
}

enum Values<'a> {
    /// Since 1970-01-01T00:00:00, this many per second.
    Counted(&'a [i64], i64),
    Text(&'a GenericStringArray<i32>),
    LargeText(&'a GenericStringArray<i64>),
    /// All null.
    Missing,
}

impl<'a> Instants<'a> {
    /// The column `name` of `batch`.
    ///
    /// # Errors
    /// When it is missing, or holds neither timestamps nor text.
    pub(crate) fn of(batch: &'a RecordBatch, name: &'a str) -> Result<Self, String> {
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

    /// The finest step of its values.
    pub(crate) fn per_second(&self) -> i64 {
        match self.values {
            Values::Counted(_, per_second) => per_second,
            Values::Text(_) | Values::LargeText(_) => MICROS,
            Values::Missing => 1,
        }
    }

    /// The rows that are null.
    pub(crate) fn nulls(&self) -> Option<&NullBuffer> {
        self.nulls.as_ref()
    }

    /// Some rows at `per_second` steps a second, at least as many as its own; `scratch` is as long or longer. What it gives
    /// for null rows means nothing.
    ///
    /// # Errors
    /// When a text is no time.
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
            Values::Text(text) => self.parse(rows, |row| text.value(row), per_second, scratch)?,
            Values::LargeText(text) => self.parse(rows, |row| text.value(row), per_second, scratch)?,
            Values::Missing => scratch.fill(0),
        }
        Ok(scratch)
    }

    fn parse<'t>(
        &self,
        rows: Range<usize>,
        text: impl Fn(usize) -> &'t str,
        per_second: i64,
        to: &mut [i64],
    ) -> Result<(), String> {
        let factor = per_second / MICROS;
        for (row, to) in rows.zip(to) {
            *to = match micros(text(row).as_bytes()) {
                Some(micros) => micros.wrapping_mul(factor),
                None if self.nulls.as_ref().is_some_and(|n| n.is_null(row)) => 0,
                None => {
                    return Err(format!(
                        "column `{}` of type text is {:?} in row {row}, not a time like 2015-01-31 23:59:59: parse it first",
                        self.name,
                        text(row)
                    ));
                }
            };
        }
        Ok(())
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

/// Its nulls, with those rows whose text is empty.
fn with_empty<O: arrow_array::OffsetSizeTrait>(text: &GenericStringArray<O>) -> Option<NullBuffer> {
    if text.value_offsets().windows(2).all(|pair| pair[0] != pair[1]) {
        return text.nulls().cloned();
    }
    let filled = (0..text.len()).map(|row| text.is_valid(row) && text.value_length(row) != O::usize_as(0));
    Some(NullBuffer::from_iter(filled))
}

/// Microseconds since 1970-01-01T00:00:00 of `YYYY-MM-DD HH:MM:SS`, with or without a fraction of up to nine digits (those
/// behind the sixth are dropped); a `T` may stand for the space.
fn micros(text: &[u8]) -> Option<i64> {
    let (whole, fraction) = text.split_first_chunk::<19>()?;
    let date = digits(whole[..8].try_into().ok()?, *b"0000-00-")?;
    let time = digits(whole[11..].try_into().ok()?, *b"00:00:00")?;
    let [ten, one] = [whole[8], whole[9]].map(|digit| digit.wrapping_sub(b'0'));
    if ten > 9 || one > 9 || !matches!(whole[10], b' ' | b'T') {
        return None;
    }
    let pair = |of: [u8; 8], at: usize| i64::from(of[at]) * 10 + i64::from(of[at + 1]);
    let (year, month, day) = (pair(date, 0) * 100 + pair(date, 2), pair(date, 5), i64::from(ten) * 10 + i64::from(one));
    let (hour, minute, second) = (pair(time, 0), pair(time, 3), pair(time, 6));
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * MICROS + micros_of(fraction)?)
}

/// The digits of a text where `pattern` has zeros; none when it differs from `pattern` elsewhere. All eight bytes at once.
fn digits(text: [u8; 8], pattern: [u8; 8]) -> Option<[u8; 8]> {
    let values = u64::from_le_bytes(text) ^ u64::from_le_bytes(pattern);
    // Adding this carries into a byte's top bit when the byte is over 9, or over 0 where it must match.
    let over = pattern.map(|byte| if byte == b'0' { 0x76 } else { 0x7f });
    let wrong = (values.wrapping_add(u64::from_le_bytes(over)) | values) & 0x8080_8080_8080_8080;
    (wrong == 0).then(|| values.to_le_bytes())
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

/// Days since 1970-01-01 in the Gregorian calendar; none where there is no such day.
///
/// Source: Howard Hinnant, *chrono-Compatible Low-Level Date Algorithms*, `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    const LENGTHS: [i64; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if !(1..=12).contains(&month)
        || day < 1
        || day > LENGTHS[month as usize - 1]
        || (month == 2 && day == 29 && !is_leap)
    {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468)
}
