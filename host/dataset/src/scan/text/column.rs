//! Conversion of textual values to typed columns.

use std::str::FromStr;
use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::timezone::Tz;
use arrow_array::types::{
    ArrowPrimitiveType, ArrowTimestampType, Date32Type, Float64Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt64Type,
};
use arrow_array::{Array as _, ArrayRef, NullArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use datafusion::arrow::json::ReaderBuilder;

use super::super::inference::{self, Class, Evidence};
use super::options::TextOptions;
use super::record::RawValue;
use super::syntax::Syntax;

/// Name and type of a column.
#[derive(Debug, Clone)]
pub(super) struct ColumnSpec {
    pub(super) name: String,
    pub(super) data_type: DataType,
    /// Whether the job states the type: then `007` is a number.
    pub(super) is_declared: bool,
}

/// Row whose value can't be converted, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueError {
    pub(super) row: usize,
    pub(super) reason: String,
}

/// Values of a batch's column, as text.
#[derive(Debug)]
pub(super) struct TextColumn {
    offsets: Vec<i32>,
    data: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl TextColumn {
    pub(super) fn new(rows: usize) -> TextColumn {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        TextColumn { offsets, data: Vec::new(), nulls: NullBufferBuilder::new(rows) }
    }

    /// Returns the bytes of all values.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Appends a value.
    pub(super) fn push(
        &mut self,
        value: RawValue<'_>,
        syntax: Syntax,
        options: &TextOptions,
    ) -> Result<(), &'static str> {
        let before = self.data.len();
        match value {
            RawValue::Absent | RawValue::Null => {}
            RawValue::Text(text) | RawValue::Bool(text) | RawValue::Number(text) | RawValue::Nested(text) => {
                self.data.extend_from_slice(text);
            }
            RawValue::Escaped(text) => syntax.unescape(text, &mut self.data)?,
            RawValue::Bad(reason) => return Err(reason),
        }
        let written = &self.data[before..];
        let is_null = match (value, syntax) {
            (RawValue::Absent | RawValue::Null, _) => true,
            (RawValue::Text(_) | RawValue::Escaped(_), Syntax::Csv(_)) => options.is_null(written),
            (RawValue::Text(_) | RawValue::Escaped(_), Syntax::Json) => options.is_null_string(written),
            _ => false,
        };
        if is_null {
            self.data.truncate(before);
        }
        // The values of a batch are limited to far less.
        self.offsets.push(i32::try_from(self.data.len()).map_err(|_| "is too long")?);
        self.nulls.append(!is_null);
        Ok(())
    }

    /// Converts the values to a column.
    pub(super) fn finish(mut self, spec: &ColumnSpec) -> Result<ArrayRef, ValueError> {
        let nulls = self.nulls.finish();
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let data = Buffer::from_vec(self.data);
        let texts =
            StringArray::try_new(offsets.clone(), data.clone(), nulls).map_err(|_| not_utf8(&offsets, &data))?;
        convert(texts, spec)
    }
}

fn not_utf8(offsets: &OffsetBuffer<i32>, data: &[u8]) -> ValueError {
    let value = |row: usize| &data[offsets[row] as usize..offsets[row + 1] as usize];
    let row = (0..offsets.len() - 1).find(|row| std::str::from_utf8(value(*row)).is_err()).unwrap_or_default();
    ValueError { row, reason: not_utf8_reason(value(row)) }
}

/// Returns the message for text that is not UTF-8.
pub(super) fn not_utf8_reason(text: &[u8]) -> String {
    format!("{} is not UTF-8; declare the encoding, as in [input] encoding = \"latin-1\"", inference::excerpt(text))
}

/// Converts values of folder names to a column of the type that the job states, or else of the inferred type.
///
/// # Errors
/// The row whose value does not have the type, and why.
pub(in super::super) fn folder_column(
    name: &str,
    evidence: &Evidence,
    options: &TextOptions,
    values: StringArray,
) -> Result<ArrayRef, (usize, String)> {
    let declared = options.declared(name).cloned();
    let is_declared = declared.is_some();
    // Without a common type the values stay text.
    let found = evidence.data_type().ok().filter(|found| !found.is_null()).unwrap_or(DataType::Utf8);
    let spec = ColumnSpec { name: name.to_owned(), data_type: declared.unwrap_or(found), is_declared };
    convert(values, &spec).map_err(|fault| (fault.row, fault.reason))
}

/// Converts text to a column of the type of `spec`.
pub(super) fn convert(texts: StringArray, spec: &ColumnSpec) -> Result<ArrayRef, ValueError> {
    use DataType::*;
    let declared = spec.is_declared;
    let converted = match &spec.data_type {
        Utf8 => return Ok(Arc::new(texts)),
        Null if texts.null_count() == texts.len() => return Ok(Arc::new(NullArray::new(texts.len()))),
        Int64 => each::<Int64Type>(&texts, |text| whole(text, declared)),
        UInt64 => each::<UInt64Type>(&texts, |text| whole(text, declared)),
        Float64 => each::<Float64Type>(&texts, |text| float(text, declared)),
        Boolean if !declared => bools(&texts),
        Date32 => each::<Date32Type>(&texts, |text| inference::date(text.as_bytes())),
        Timestamp(unit, zone) => times(&texts, *unit, zone.as_ref()),
        List(_) | Struct(_) => return nested(&texts, &spec.data_type),
        Float16 | Float32 => each::<Float64Type>(&texts, |text| float(text, declared)).map(|wide| cast(&wide, spec)),
        Date64 => each::<Date32Type>(&texts, |text| inference::date(text.as_bytes())).map(|days| cast(&days, spec)),
        Decimal128(_, scale) => decimals(&texts, *scale, spec),
        _ => cast_all(&texts, spec),
    };
    converted.map_err(|row| ValueError { row, reason: mismatch_reason(texts.value(row), spec) })
}

/// Returns the message for a value that does not have a column's type.
fn mismatch_reason(value: &str, spec: &ColumnSpec) -> String {
    let (name, data_type, excerpt) = (&spec.name, &spec.data_type, inference::excerpt(value.as_bytes()));
    if spec.is_declared {
        return format!("{excerpt} in column `{name}` is not a valid {data_type}, the type declared in `input.types`");
    }
    let number = inference::number(value.as_bytes());
    let remedy = format!("declare the column's type, as in [input] types = {{ {} = \"utf8\" }}", key(name));
    if data_type.is_floating() && matches!(number, Some(Class::Whole | Class::Negative | Class::Unsigned)) {
        return format!(
            "column `{name}` has the integer {excerpt} here, and fractions here or in another file: floats can't \
             represent all integers from 2^53 on; {remedy}"
        );
    }
    format!(
        "{excerpt} in column `{name}` is not in the canonical form of {data_type}, unlike the values that its type was \
         inferred from; {remedy}"
    )
}

/// Formats a name as a TOML key.
pub(in super::super) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if bare { name.to_owned() } else { format!("{name:?}") }
}

/// Parses each value. Returns the first row that fails.
fn each<T: ArrowPrimitiveType>(
    texts: &StringArray,
    parse: impl Fn(&str) -> Option<T::Native>,
) -> Result<ArrayRef, usize> {
    let mut values = Vec::with_capacity(texts.len());
    for row in 0..texts.len() {
        values.push(match texts.is_valid(row) {
            true => parse(texts.value(row)).ok_or(row)?,
            false => T::Native::default(),
        });
    }
    Ok(Arc::new(PrimitiveArray::<T>::new(values.into(), texts.nulls().cloned())))
}

fn whole<T: FromStr>(text: &str, declared: bool) -> Option<T> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = digits.as_bytes().first().is_some_and(|first| match first {
        b'0' => text.len() == 1,
        first => first.is_ascii_digit(),
    });
    if canonical || declared { text.parse().ok() } else { None }
}

fn float(text: &str, declared: bool) -> Option<f64> {
    let bytes = text.as_bytes();
    let is_word = matches!(bytes, b"NaN" | b"nan" | b"inf" | b"-inf");
    if declared {
        let value: f64 = text.parse().ok()?;
        return (value.is_finite() || !bytes.iter().any(u8::is_ascii_digit)).then_some(value);
    }
    let fits = match inference::number(bytes) {
        Some(Class::Float) => true,
        Some(_) => !inference::is_large(bytes),
        None => is_word,
    };
    if fits { text.parse().ok() } else { None }
}

fn bools(texts: &StringArray) -> Result<ArrayRef, usize> {
    let mut values = BooleanBuilder::with_capacity(texts.len());
    for row in 0..texts.len() {
        let text = texts.value(row).as_bytes();
        match texts.is_valid(row) {
            false => values.append_null(),
            true if inference::is_bool(text) => values.append_value(matches!(text[0], b't' | b'T')),
            true => return Err(row),
        }
    }
    Ok(Arc::new(values.finish()))
}

fn times(texts: &StringArray, unit: TimeUnit, zone: Option<&Arc<str>>) -> Result<ArrayRef, usize> {
    let tz: Tz = match zone.map_or("+00:00", |zone| zone).parse() {
        Ok(tz) => tz,
        Err(_) => return Err(0),
    };
    fn to_zone<T: ArrowTimestampType>(
        texts: &StringArray,
        tz: &Tz,
        zone: Option<&Arc<str>>,
    ) -> Result<ArrayRef, usize> {
        let column = each::<T>(texts, |text| inference::time(text, T::UNIT, tz))?;
        let column = arrow_array::cast::AsArray::as_primitive::<T>(&column).clone();
        Ok(Arc::new(column.with_timezone_opt(zone.cloned())))
    }
    match unit {
        TimeUnit::Second => to_zone::<TimestampSecondType>(texts, &tz, zone),
        TimeUnit::Millisecond => to_zone::<TimestampMillisecondType>(texts, &tz, zone),
        TimeUnit::Microsecond => to_zone::<TimestampMicrosecondType>(texts, &tz, zone),
        TimeUnit::Nanosecond => to_zone::<TimestampNanosecondType>(texts, &tz, zone),
    }
}

fn decimals(texts: &StringArray, scale: i8, spec: &ColumnSpec) -> Result<ArrayRef, usize> {
    // The cast would round longer fractions.
    let fits = |text: &str| {
        let digits = text.split_once('.').map_or("", |(_, digits)| digits).trim_end_matches('0');
        digits.len() <= scale.max(0) as usize && !text.contains(['e', 'E'])
    };
    match (0..texts.len()).find(|row| texts.is_valid(*row) && !fits(texts.value(*row))) {
        Some(row) => Err(row),
        None => cast_all(texts, spec),
    }
}

/// Casts text. Returns the first row that fails.
fn cast_all(texts: &StringArray, spec: &ColumnSpec) -> Result<ArrayRef, usize> {
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let column = cast_with_options(texts, &spec.data_type, &options).map_err(|_| 0_usize)?;
    match (0..texts.len()).find(|row| texts.is_valid(*row) && column.is_null(*row)) {
        Some(row) => Err(row),
        None => Ok(column),
    }
}

/// Casts values that are known to fit.
fn cast(column: &ArrayRef, spec: &ColumnSpec) -> ArrayRef {
    let options = CastOptions { safe: true, ..CastOptions::default() };
    cast_with_options(column, &spec.data_type, &options).unwrap_or_else(|_| Arc::clone(column))
}

/// Parses lists and objects of JSON.
fn nested(texts: &StringArray, data_type: &DataType) -> Result<ArrayRef, ValueError> {
    let fault = |row: usize, reason: String| ValueError { row, reason };
    let schema = Arc::new(Schema::new(vec![Field::new("c", data_type.clone(), true)]));
    let read = |rows: std::ops::Range<usize>| -> Result<Option<RecordBatch>, String> {
        let mut lines = Vec::new();
        for row in rows.clone() {
            let value = if texts.is_valid(row) { texts.value(row) } else { "null" };
            lines.extend([b"{\"c\":", value.as_bytes(), b"}\n"].concat());
        }
        let reader = ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(rows.len().max(1));
        let mut decoder = reader.with_coerce_primitive(true).build_decoder().map_err(|e| e.to_string())?;
        decoder.decode(&lines).and_then(|_| decoder.flush()).map_err(|e| e.to_string())
    };
    match read(0..texts.len()) {
        Ok(Some(batch)) if batch.num_rows() == texts.len() => Ok(Arc::clone(batch.column(0))),
        Ok(_) => Ok(arrow_array::new_null_array(data_type, texts.len())),
        Err(_) => {
            let wrong = |row: usize| read(row..row + 1).err().map(|reason| (row, reason));
            let (row, reason) = (0..texts.len()).find_map(wrong).unwrap_or((0, "it can't be read".to_owned()));
            Err(fault(row, format!("{} is no {data_type}: {reason}", inference::excerpt(texts.value(row).as_bytes()))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_cast::display::{ArrayFormatter, FormatOptions};

    fn converted(value: &str, data_type: DataType, is_declared: bool) -> Result<String, String> {
        let spec = ColumnSpec { name: "a b".to_owned(), data_type, is_declared };
        let column = convert(StringArray::from(vec![Some(value), None]), &spec).map_err(|fault| fault.reason)?;
        assert_eq!(column.data_type(), &spec.data_type);
        let options = FormatOptions::default();
        let formatter = ArrayFormatter::try_new(&column, &options).expect("a formatter");
        Ok(formatter.value(0).to_string())
    }

    #[test]
    fn no_value_is_changed_but_by_the_users_word() {
        use DataType::*;
        let time = |unit| Timestamp(unit, None);
        for (value, data_type, inferred, declared) in [
            ("12", Int64, Some("12"), Some("12")),
            ("-9223372036854775808", Int64, Some("-9223372036854775808"), Some("-9223372036854775808")),
            ("012", Int64, None, Some("12")),
            ("+5", Int64, None, Some("5")),
            ("-0", Int64, None, Some("0")),
            ("--5", Int64, None, None),
            ("1.0", Int64, None, None),
            ("", Int64, None, None),
            ("9223372036854775808", Int64, None, None),
            ("18446744073709551615", UInt64, Some("18446744073709551615"), Some("18446744073709551615")),
            ("0.50", Float64, Some("0.5"), Some("0.5")),
            ("9007199254740991", Float64, Some("9007199254740991.0"), Some("9007199254740991.0")),
            ("9007199254740992", Float64, None, Some("9007199254740992.0")),
            ("007.5", Float64, None, Some("7.5")),
            ("1e400", Float64, None, None),
            ("inf", Float64, Some("inf"), Some("inf")),
            ("0.1", Float32, Some("0.1"), Some("0.1")),
            ("TRUE", Boolean, Some("true"), Some("true")),
            ("yes", Boolean, None, Some("true")),
            ("2019-02-29", Date32, None, None),
            ("2019-02-28", Date32, Some("2019-02-28"), Some("2019-02-28")),
            ("2019-02-28T10:00:00.5", time(TimeUnit::Second), None, None),
            ("2019-02-28T10:00:00.500", time(TimeUnit::Millisecond), Some("2019-02-28T10:00:00.500"), {
                Some("2019-02-28T10:00:00.500")
            }),
            ("9999-12-31T00:00:00", time(TimeUnit::Microsecond), Some("9999-12-31T00:00:00"), {
                Some("9999-12-31T00:00:00")
            }),
            ("9999-12-31T00:00:00", time(TimeUnit::Nanosecond), None, None),
            ("1.25", Decimal128(10, 2), Some("1.25"), Some("1.25")),
            ("1.255", Decimal128(10, 2), None, None),
            ("300", Int8, None, None),
            ("x", Null, None, None),
        ] {
            for (is_declared, expected) in [(false, inferred), (true, declared)] {
                let found = converted(value, data_type.clone(), is_declared);
                assert_eq!(found.as_deref().ok(), expected, "{value} {data_type} {is_declared}: {found:?}");
            }
        }
        let reason = converted("012", Int64, false).expect_err("an error");
        assert!(reason.ends_with("as in [input] types = { \"a b\" = \"utf8\" }"), "{reason}");
    }
}
