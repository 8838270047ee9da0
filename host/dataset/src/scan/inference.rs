//! Type inference for text columns.
//!
//! A type fits a column only if each value is in the type's canonical notation: `01234`, `+5` and integers beyond 64
//! bits are text, because integers would be written differently. Decimal fractions are floats, however many digits they
//! have.

use arrow_array::timezone::Tz;
use arrow_cast::parse::string_to_datetime;
use arrow_schema::{DataType, TimeUnit};
use chrono::NaiveDate;

/// Floats represent every integer below this one exactly, but not all from here on.
pub(super) const EXACT_INT_MAX: u64 = 1 << 53;

/// Class of a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Bool,
    /// Negative integer that fits `i64`.
    Negative,
    /// Integer from 0 to `i64::MAX`.
    Whole,
    /// Integer from `i64::MAX` + 1 to `u64::MAX`.
    Unsigned,
    /// Number with a decimal point or an exponent, or one of `-0`, `NaN` and `inf`.
    Float,
    Date,
    /// Time with the unit of its fraction of a second, and whether it has a time zone.
    Time(TimeUnit, bool),
    Text,
}

/// Classifies a number in the notation of JSON and CSV. Returns `None` for other text and for numbers that are not in
/// canonical notation.
pub(super) fn number(text: &[u8]) -> Option<Class> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if whole > 1 && digits[0] == b'0' {
        return None;
    }
    if whole == digits.len() {
        return integer(text, digits);
    }
    let after = &digits[whole..];
    let fraction = match after.strip_prefix(b".") {
        Some(after) => after.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        None => 0,
    };
    let has_point = after[0] == b'.';
    if whole + fraction == 0 {
        return None;
    }
    let exponent = &after[if has_point { fraction + 1 } else { 0 }..];
    if let Some(exponent) = exponent.strip_prefix(b"e").or_else(|| exponent.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+")).unwrap_or(exponent);
        if exponent.is_empty() || !exponent.iter().all(u8::is_ascii_digit) {
            return None;
        }
    } else if !exponent.is_empty() {
        return None;
    }
    // Up to 15 integer digits and no exponent: the value is finite, and below 2^53 if it is an integer.
    if whole < 16 && exponent.is_empty() {
        return Some(Class::Float);
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    if !value.is_finite() {
        return None;
    }
    // `9007199254740993.0` would parse to a different integer.
    let is_whole = exponent.is_empty() && after[1..].iter().all(|byte| *byte == b'0');
    let exact = !is_whole || std::str::from_utf8(&digits[..whole]).ok()?.parse() == Ok(value.abs() as u128);
    exact.then_some(Class::Float)
}

fn integer(text: &[u8], digits: &[u8]) -> Option<Class> {
    if digits.is_empty() {
        return None;
    }
    if text == b"-0" {
        return Some(Class::Float);
    }
    if digits.len() < 19 {
        return Some(if text[0] == b'-' { Class::Negative } else { Class::Whole });
    }
    let value: i128 = if digits.len() <= 20 { std::str::from_utf8(text).ok()?.parse().ok()? } else { return None };
    match value {
        value if i64::try_from(value).is_ok() => Some(if value < 0 { Class::Negative } else { Class::Whole }),
        value if u64::try_from(value).is_ok() => Some(Class::Unsigned),
        _ => None,
    }
}

/// Classifies a CSV value or a value in a folder name.
pub(super) fn classify(text: &[u8]) -> Class {
    match text.first() {
        Some(b'0'..=b'9') => match number(text) {
            Some(class) => class,
            None if text.get(4) == Some(&b'-') => date_or_time(text).unwrap_or(Class::Text),
            None => Class::Text,
        },
        Some(b'-' | b'.') => number(text).unwrap_or(if text == b"-inf" { Class::Float } else { Class::Text }),
        Some(b't' | b'T' | b'f' | b'F') if is_bool(text) => Class::Bool,
        Some(b'N' | b'n' | b'i') if matches!(text, b"NaN" | b"nan" | b"inf") => Class::Float,
        _ => Class::Text,
    }
}

pub(super) fn is_bool(text: &[u8]) -> bool {
    text.eq_ignore_ascii_case(b"true") || text.eq_ignore_ascii_case(b"false")
}

/// Parses a date like `2019-05-31` to days since 1970.
pub(super) fn date(text: &[u8]) -> Option<i32> {
    let number = |at: usize, len: usize| {
        let digits = &text[at..at + len];
        let all = digits.iter().all(u8::is_ascii_digit);
        all.then(|| digits.iter().fold(0_i32, |number, digit| number * 10 + i32::from(digit - b'0')))
    };
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let date = NaiveDate::from_ymd_opt(number(0, 4)?, number(5, 2)? as u32, number(8, 2)? as u32)?;
    Some(date.signed_duration_since(NaiveDate::default()).num_days() as i32)
}

fn date_or_time(text: &[u8]) -> Option<Class> {
    if text.len() == 10 {
        return date(text).map(|_| Class::Date);
    }
    date(text.get(..10)?)?;
    let time = text.get(10..19)?;
    let digit = |at: usize| time[at].is_ascii_digit();
    let is_time = matches!(time[0], b'T' | b' ') && time[3] == b':' && time[6] == b':';
    if !is_time || ![1, 2, 4, 5, 7, 8].into_iter().all(digit) || time[7] == b'6' {
        return None;
    }
    let rest = &text[19..];
    let (unit, zone) = match rest.strip_prefix(b".") {
        None => (TimeUnit::Second, rest),
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let unit = match digits {
                1..=3 => TimeUnit::Millisecond,
                4..=6 => TimeUnit::Microsecond,
                7..=9 => TimeUnit::Nanosecond,
                _ => return None,
            };
            (unit, &rest[digits..])
        }
    };
    let value = string_to_datetime(&chrono::Utc, std::str::from_utf8(text).ok()?).ok()?;
    (unit != TimeUnit::Nanosecond || value.timestamp_nanos_opt().is_some()).then_some(())?;
    Some(Class::Time(unit, !zone.is_empty()))
}

/// A value of a column.
#[derive(Debug, Clone)]
pub(super) struct ValueExcerpt {
    /// Position, in the caller's unit.
    pub(super) at: u64,
    /// Text for a message.
    pub(super) text: String,
}

/// Observed values of a column.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    seen: u16,
    /// The first integer that floats can't distinguish from its neighbours.
    large: Option<ValueExcerpt>,
    /// The first number that is not an integer.
    fraction: Option<ValueExcerpt>,
    /// The first value that only text can represent.
    text: Option<ValueExcerpt>,
    /// Whether a time is outside of the range of 64-bit nanoseconds.
    exceeds_nanos: bool,
}

const BOOL: u16 = 1;
const NEGATIVE: u16 = 1 << 1;
const WHOLE: u16 = 1 << 2;
const UNSIGNED: u16 = 1 << 3;
const FLOAT: u16 = 1 << 4;
const DATE: u16 = 1 << 5;
const SECONDS: u16 = 1 << 6;
const MILLIS: u16 = 1 << 7;
const MICROS: u16 = 1 << 8;
const NANOS: u16 = 1 << 9;
const ZONED: u16 = 1 << 10;
const LOCAL: u16 = 1 << 11;
const TEXT: u16 = 1 << 12;

/// Reason why a column's type can't be inferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TypeProblem {
    /// Position of the value that shows the problem, in the caller's unit.
    pub(super) at: u64,
    pub(super) reason: String,
    /// Whether stating the type of the column in the job solves the problem.
    pub(super) is_of_type: bool,
}

impl Evidence {
    /// Adds the value at position `at`.
    pub(super) fn add(&mut self, text: &[u8], at: u64) {
        if self.seen & TEXT == 0 {
            self.add_class(classify(text), text, at);
        }
    }

    /// Adds the value at position `at`, whose class is known.
    pub(super) fn add_class(&mut self, class: Class, text: &[u8], at: u64) {
        let excerpt = || ValueExcerpt { at, text: excerpt(text) };
        self.seen |= match class {
            Class::Bool => BOOL,
            Class::Negative | Class::Whole | Class::Unsigned => {
                if self.large.is_none() && is_large(text) {
                    self.large = Some(excerpt());
                }
                match class {
                    Class::Negative => NEGATIVE,
                    Class::Whole => WHOLE,
                    _ => UNSIGNED,
                }
            }
            Class::Float => {
                self.fraction.get_or_insert_with(excerpt);
                FLOAT
            }
            Class::Date => {
                self.exceeds_nanos |= exceeds_nanos(text);
                DATE
            }
            Class::Time(unit, zoned) => {
                self.exceeds_nanos |= exceeds_nanos(text);
                let unit = match unit {
                    TimeUnit::Second => SECONDS,
                    TimeUnit::Millisecond => MILLIS,
                    TimeUnit::Microsecond => MICROS,
                    TimeUnit::Nanosecond => NANOS,
                };
                unit | if zoned { ZONED } else { LOCAL }
            }
            Class::Text => {
                self.text.get_or_insert_with(excerpt);
                TEXT
            }
        };
    }

    /// Returns the type that holds all values: [`DataType::Null`] without values.
    ///
    /// # Errors
    /// If the column has integers that floats can't distinguish as well as fractions: either type would change values.
    pub(super) fn data_type(&self) -> Result<DataType, TypeProblem> {
        const NUMBERS: u16 = NEGATIVE | WHOLE | UNSIGNED | FLOAT;
        const TIMES: u16 = DATE | SECONDS | MILLIS | MICROS | NANOS | ZONED | LOCAL;
        let only = |kinds: u16| self.seen & !kinds == 0;
        Ok(match self.seen {
            0 => DataType::Null,
            BOOL => DataType::Boolean,
            _ if only(NEGATIVE | WHOLE) => DataType::Int64,
            _ if only(WHOLE | UNSIGNED) => DataType::UInt64,
            _ if only(NUMBERS) && self.seen & FLOAT != 0 => match (&self.large, &self.fraction) {
                (Some(large), Some(fraction)) => return Err(mixed(large, fraction)),
                _ => DataType::Float64,
            },
            DATE => DataType::Date32,
            _ if only(TIMES) && self.seen & (ZONED | LOCAL) != ZONED | LOCAL => self.time(),
            _ => DataType::Utf8,
        })
    }

    fn time(&self) -> DataType {
        let unit = match self.seen {
            seen if seen & NANOS != 0 => TimeUnit::Nanosecond,
            seen if seen & MICROS != 0 => TimeUnit::Microsecond,
            seen if seen & MILLIS != 0 => TimeUnit::Millisecond,
            _ => TimeUnit::Second,
        };
        if unit == TimeUnit::Nanosecond && self.exceeds_nanos {
            return DataType::Utf8;
        }
        DataType::Timestamp(unit, (self.seen & ZONED != 0).then(|| "UTC".into()))
    }

    /// Combines the observations with those of `other`.
    pub(super) fn with(mut self, other: &Evidence) -> Evidence {
        self.seen |= other.seen;
        self.large = self.large.or_else(|| other.large.clone());
        self.fraction = self.fraction.or_else(|| other.fraction.clone());
        self.text = self.text.or_else(|| other.text.clone());
        self.exceeds_nanos |= other.exceeds_nanos;
        self
    }

    /// Returns the first value that only text can represent.
    pub(super) fn text(&self) -> Option<&ValueExcerpt> {
        self.text.as_ref()
    }

    /// Returns whether the column is text, whatever values follow.
    pub(super) fn is_text(&self) -> bool {
        self.seen & TEXT != 0
    }
}

fn mixed(large: &ValueExcerpt, fraction: &ValueExcerpt) -> TypeProblem {
    let reason = format!(
        "has the integer {} and elsewhere the number {}; floats can't represent all integers from 2^53 on",
        large.text, fraction.text
    );
    TypeProblem { at: large.at, reason, is_of_type: true }
}

/// Returns whether floats can't distinguish an integer from its neighbours.
pub(super) fn is_large(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    digits.len() > 15
        && std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).is_none_or(|n: u64| n >= EXACT_INT_MAX)
}

/// Returns whether a time is outside of the range of 64-bit nanoseconds.
fn exceeds_nanos(text: &[u8]) -> bool {
    !(b"1678"..=b"2261").contains(&text.get(..4).and_then(|year| year.try_into().ok()).unwrap_or(b"0000"))
}

/// Parses a time to a count of `unit`. A time without a time zone is in `zone`. Returns `None` if the text is no time
/// or has a finer fraction.
pub(super) fn time(text: &str, unit: TimeUnit, zone: &Tz) -> Option<i64> {
    let value = string_to_datetime(zone, text).ok()?;
    let (time, nanos) = match unit {
        TimeUnit::Second => (value.timestamp(), 1_000_000_000),
        TimeUnit::Millisecond => (value.timestamp_millis(), 1_000_000),
        TimeUnit::Microsecond => (value.timestamp_micros(), 1_000),
        TimeUnit::Nanosecond => (value.timestamp_nanos_opt()?, 1),
    };
    (value.timestamp_subsec_nanos() % nanos == 0).then_some(time)
}

/// Maximum characters of a value in a message.
const SHOWN_CHARS_MAX: usize = 60;

/// Formats a value for a message.
pub(super) fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(SHOWN_CHARS_MAX * 4)]).into_owned();
    let mut characters = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let excerpt: String = characters.by_ref().take(SHOWN_CHARS_MAX).collect();
    if characters.next().is_some() { format!("`{excerpt}…`") } else { format!("`{excerpt}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(values: &[&str]) -> Result<DataType, TypeProblem> {
        let mut evidence = Evidence::default();
        values.iter().enumerate().for_each(|(at, value)| evidence.add(value.as_bytes(), at as u64));
        evidence.data_type()
    }

    #[test]
    fn a_column_has_a_type_if_all_its_values_read_back_as_they_are_written() {
        use DataType::{Boolean, Date32, Float64, Int64, Null, UInt64, Utf8};
        let time = |unit| DataType::Timestamp(unit, None);
        for (values, expected) in [
            (&[][..], Null),
            (&["1", "0", "-7"], Int64),
            (&["9223372036854775807", "-9223372036854775808"], Int64),
            (&["9223372036854775808", "1"], UInt64),
            (&["18446744073709551615"], UInt64),
            (&["18446744073709551615", "-1"], Utf8),
            (&["18446744073709551616"], Utf8),
            (&["-9223372036854775809"], Utf8),
            (&["123456789012345678901234567890"], Utf8),
            (&["01234", "1234"], Utf8),
            (&["1", "-01"], Utf8),
            (&["00"], Utf8),
            (&["+5"], Utf8),
            (&["5 "], Utf8),
            (&["1_000"], Utf8),
            (&["1,000"], Utf8),
            (&["0x10"], Utf8),
            (&["-"], Utf8),
            (&["."], Utf8),
            (&["1.5.2"], Utf8),
            (&["1e"], Utf8),
            (&["1e+"], Utf8),
            (&["e5"], Utf8),
            (&["0.50", "1", "-2"], Float64),
            (&[".5", "5.", "1e5", "1E-5", "2.5e+3"], Float64),
            (&["-0"], Float64),
            (&["NaN", "inf", "-inf", "1"], Float64),
            (&["nan"], Float64),
            (&["00.5"], Utf8),
            (&["1e400"], Utf8),
            (&["1e99999999999999999999"], Utf8),
            (&["9007199254740992.0"], Float64),
            (&["9007199254740993.0"], Utf8),
            (&["0.1234567890123456789"], Float64),
            (&["9007199254740991", "0.5"], Float64),
            (&["true", "False", "TRUE"], Boolean),
            (&["true", "1"], Utf8),
            (&["yes", "no"], Utf8),
            (&["t", "f"], Utf8),
            (&["2019-01-31", "2020-02-29"], Date32),
            (&["2019-02-29"], Utf8),
            (&["0000-00-00"], Utf8),
            (&["2019-01-31", "5"], Utf8),
            (&["2019-1-31"], Utf8),
            (&["31.01.2019"], Utf8),
            (&["2019-01-31 10:00:00", "2019-01-31"], time(TimeUnit::Second)),
            (&["2019-01-31T10:00:00.5"], time(TimeUnit::Millisecond)),
            (&["2019-01-31T10:00:00.5", "2019-01-31T10:00:00.000001"], time(TimeUnit::Microsecond)),
            (&["2019-01-31 10:00:00.123456789"], time(TimeUnit::Nanosecond)),
            (&["2019-01-31 10:00:00.123456789", "1600-01-01"], Utf8),
            (&["1600-01-31 10:00:00.123456789"], Utf8),
            (&["1600-01-01 00:00:00"], time(TimeUnit::Second)),
            (
                &["2019-01-31 10:00:00Z", "2019-01-31 10:00:00+02:00"],
                DataType::Timestamp(TimeUnit::Second, Some("UTC".into())),
            ),
            (&["2019-01-31 10:00:00Z", "2019-01-31 10:00:00"], Utf8),
            (&["2019-01-31 25:00:00"], Utf8),
            (&["2019-01-31 10:00:60"], Utf8),
            (&["2019-01-31 10:00:00 or so"], Utf8),
            (&["12", "A7"], Utf8),
            (&["日本"], Utf8),
        ] {
            assert_eq!(infer(values), Ok(expected), "{values:?}");
        }
    }

    #[test]
    fn whole_numbers_beyond_floats_and_fractions_are_no_column() {
        for (values, at) in [
            (["1", "9007199254740993", "0.5"], 1),
            (["0.5", "-9007199254740992", "3"], 1),
            (["1e5", "1", "18446744073709551615"], 2),
        ] {
            let problem = infer(&values).expect_err("a problem");
            assert_eq!(problem.at, at, "{values:?}");
            assert!(problem.reason.contains("2^53"), "{}", problem.reason);
        }
    }

    #[test]
    fn dates_are_days() {
        for (text, expected) in [("1970-01-01", Some(0)), ("1969-12-31", Some(-1)), ("0001-01-01", Some(-719_162))] {
            assert_eq!(date(text.as_bytes()), expected, "{text}");
        }
    }
}
