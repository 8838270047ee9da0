//! Encodings of keys inside blocks and partitions, and their decoding.
//!
//! A single key of at most eight bytes is encoded as one word, whose unsigned order is the order of the keys. All other
//! keys are encoded as arrow-row bytes, whose byte order is that of the keys. Both encodings are canonical: -0.0 is
//! 0.0, and all NaNs are one NaN. Null is a key of its own and sorts last.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array as _, ArrayRef, BooleanArray, PrimitiveArray, RecordBatch};
use arrow_buffer::ArrowNativeType;
use arrow_cast::cast;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, SortOptions, TimeUnit};

use crate::DatasetError;

/// Encoding of the keys of a grouping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// No key columns.
    None,
    /// One word, for a single key of this type.
    Word(DataType),
    /// Bytes, for keys of these types.
    Bytes(Vec<DataType>),
}

impl KeyKind {
    /// Returns the encoding of keys of these types, for all of which [`is_key`] holds.
    pub(super) fn for_types(types: &[DataType]) -> KeyKind {
        match types {
            [] => KeyKind::None,
            [one] if carrier(one).is_some() => KeyKind::Word(one.clone()),
            several => KeyKind::Bytes(several.to_vec()),
        }
    }
}

/// Returns whether rows can be grouped by values of this type.
pub(super) fn is_key(data_type: &DataType) -> bool {
    use DataType::*;
    carrier(data_type).is_some()
        || data_type.is_decimal()
        || matches!(
            data_type,
            Float16 | Utf8 | LargeUtf8 | Binary | LargeBinary | FixedSizeBinary(_) | Time32(_) | Time64(_)
        )
}

/// Returns the type of at most eight bytes that represents the values of `data_type`.
fn carrier(data_type: &DataType) -> Option<DataType> {
    use DataType::*;
    match data_type {
        Date32 => Some(Int32),
        Date64 | Timestamp(_, _) => Some(Int64),
        Boolean | Float32 | Float64 => Some(data_type.clone()),
        other if other.is_integer() => Some(data_type.clone()),
        _ => None,
    }
}

/// Order-preserving encoding of a number as an unsigned word.
trait KeyWord: ArrowNativeType {
    fn word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

macro_rules! impl_key_word {
    ($($signed:ty)*; $($unsigned:ty)*) => {
        $(impl KeyWord for $signed {
            #[inline]
            fn word(self) -> u64 {
                (self as i64 as u64) ^ (1 << 63)
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                (word ^ (1 << 63)) as i64 as $signed
            }
        })*
        $(impl KeyWord for $unsigned {
            #[inline]
            fn word(self) -> u64 {
                self as u64
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                word as $unsigned
            }
        })*
    };
}

impl_key_word!(i8 i16 i32 i64; u8 u16 u32 u64);

impl KeyWord for f64 {
    #[inline]
    fn word(self) -> u64 {
        let bits = normal(self).to_bits();
        if bits >> 63 == 0 { bits | (1 << 63) } else { !bits }
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        f64::from_bits(if word >> 63 == 1 { word & !(1 << 63) } else { !word })
    }
}

impl KeyWord for f32 {
    #[inline]
    fn word(self) -> u64 {
        f64::from(self).word()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        f64::from_word(word) as f32
    }
}

/// Returns the canonical representation of a number: no -0.0, one NaN.
fn normal(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

macro_rules! by_carrier {
    ($carrier:expr, $f:ident($($arg:expr),*)) => {
        match $carrier {
            DataType::Int8 => $f::<Int8Type>($($arg),*),
            DataType::Int16 => $f::<Int16Type>($($arg),*),
            DataType::Int32 => $f::<Int32Type>($($arg),*),
            DataType::Int64 => $f::<Int64Type>($($arg),*),
            DataType::UInt8 => $f::<UInt8Type>($($arg),*),
            DataType::UInt16 => $f::<UInt16Type>($($arg),*),
            DataType::UInt32 => $f::<UInt32Type>($($arg),*),
            DataType::UInt64 => $f::<UInt64Type>($($arg),*),
            DataType::Float32 => $f::<Float32Type>($($arg),*),
            DataType::Float64 => $f::<Float64Type>($($arg),*),
            other => return Err(DatasetError::internal(format!("{other} is no word"))),
        }
    };
}

/// Encodes a key column as words. Words of nulls are arbitrary.
pub(super) fn encode_words(column: &ArrayRef) -> Result<Vec<u64>, DatasetError> {
    fn words<T: ArrowPrimitiveType<Native: KeyWord>>(column: &ArrayRef) -> Vec<u64> {
        column.as_primitive::<T>().values().iter().map(|v| v.word()).collect()
    }
    let carrier = carrier(column.data_type()).unwrap_or(DataType::Null);
    if carrier == DataType::Boolean {
        return Ok(column.as_boolean().values().iter().map(u64::from).collect());
    }
    let column = cast(column, &carrier).map_err(DatasetError::internal)?;
    Ok(by_carrier!(&carrier, words(&column)))
}

/// Decodes words to a key column; `None` is a null.
pub(super) fn decode_words(words: &[Option<u64>], data_type: &DataType) -> Result<ArrayRef, DatasetError> {
    fn array<T: ArrowPrimitiveType<Native: KeyWord>>(words: &[Option<u64>]) -> ArrayRef {
        Arc::new(words.iter().map(|w| w.map(T::Native::from_word)).collect::<PrimitiveArray<T>>())
    }
    let carrier = carrier(data_type).unwrap_or(DataType::Null);
    if carrier == DataType::Boolean {
        return Ok(Arc::new(words.iter().map(|w| w.map(|w| w != 0)).collect::<BooleanArray>()));
    }
    let array = by_carrier!(&carrier, array(words));
    cast(&array, data_type).map_err(DatasetError::internal)
}

/// Returns arrow-row's converter for keys of these types.
pub(super) fn converter(types: &[DataType]) -> Result<RowConverter, DatasetError> {
    let options = SortOptions { descending: false, nulls_first: false };
    let fields = types.iter().map(|t| SortField::new_with_options(t.clone(), options)).collect();
    RowConverter::new(fields).map_err(DatasetError::internal)
}

/// Returns a key column without -0.0 and with a single NaN.
pub(super) fn normalised(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(normal)),
        DataType::Float32 => {
            Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(|v| normal(f64::from(v)) as f32))
        }
        DataType::Float16 => match cast(column, &DataType::Float32) {
            Ok(wide) => cast(&normalised(&wide), &DataType::Float16).unwrap_or_else(|_| Arc::clone(column)),
            Err(_) => Arc::clone(column),
        },
        _ => Arc::clone(column),
    }
}

/// Key column in the form from which seeds are derived: independent of the width of its type, with a tag for the kind
/// and a length for variable-length values, so that ("a", "bc") and ("ab", "c") are different keys.
pub(super) enum CanonicalColumn {
    Signed(u8, PrimitiveArray<Int64Type>),
    Unsigned(PrimitiveArray<UInt64Type>),
    Float(PrimitiveArray<Float64Type>),
    /// Multiples of a unit of this many nanoseconds.
    Instant(i128, PrimitiveArray<Int64Type>),
    Text(u8, ArrayRef),
}

const TAG_NULL: u8 = 0;
const TAG_INTEGER: u8 = 1;
const TAG_LARGE: u8 = 2;
const TAG_FLOAT: u8 = 3;
const TAG_TEXT: u8 = 4;
const TAG_BINARY: u8 = 5;
const TAG_DATE: u8 = 6;
const TAG_INSTANT: u8 = 7;
const TAG_OTHER: u8 = 8;

impl CanonicalColumn {
    pub(super) fn new(column: &ArrayRef) -> Result<CanonicalColumn, DatasetError> {
        let as_type = |t: DataType| cast(column, &t).map_err(DatasetError::internal);
        let signed = |array: ArrayRef| array.as_primitive::<Int64Type>().clone();
        Ok(match column.data_type() {
            DataType::UInt64 => CanonicalColumn::Unsigned(column.as_primitive::<UInt64Type>().clone()),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                CanonicalColumn::Float(as_type(DataType::Float64)?.as_primitive::<Float64Type>().clone())
            }
            DataType::Date32 | DataType::Date64 => {
                let millis = cast(&as_type(DataType::Date64)?, &DataType::Int64).map_err(DatasetError::internal)?;
                CanonicalColumn::Signed(TAG_DATE, signed(millis))
            }
            DataType::Timestamp(unit, _) => CanonicalColumn::Instant(nanos(*unit), signed(as_type(DataType::Int64)?)),
            DataType::Utf8 | DataType::LargeUtf8 => CanonicalColumn::Text(
                TAG_TEXT,
                cast(&as_type(DataType::LargeUtf8)?, &DataType::LargeBinary).map_err(DatasetError::internal)?,
            ),
            DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
                CanonicalColumn::Text(TAG_BINARY, as_type(DataType::LargeBinary)?)
            }
            other if other.is_integer() || *other == DataType::Boolean => {
                CanonicalColumn::Signed(TAG_INTEGER, signed(as_type(DataType::Int64)?))
            }
            // Casts to text fail for times beyond one day.
            DataType::Time32(unit) | DataType::Time64(unit) => {
                CanonicalColumn::Instant(nanos(*unit), signed(as_type(DataType::Int64)?))
            }
            _ => {
                let text = as_type(DataType::LargeUtf8)?;
                CanonicalColumn::Text(TAG_OTHER, cast(&text, &DataType::LargeBinary).map_err(DatasetError::internal)?)
            }
        })
    }

    /// Appends the bytes of a row.
    pub(super) fn write(&self, row: usize, out: &mut Vec<u8>) {
        let is_null = match self {
            CanonicalColumn::Signed(_, a) | CanonicalColumn::Instant(_, a) => a.is_null(row),
            CanonicalColumn::Unsigned(a) => a.is_null(row),
            CanonicalColumn::Float(a) => a.is_null(row),
            CanonicalColumn::Text(_, a) => a.is_null(row),
        };
        if is_null {
            return out.push(TAG_NULL);
        }
        match self {
            CanonicalColumn::Signed(tag, array) => {
                out.push(*tag);
                out.extend(array.value(row).to_le_bytes());
            }
            CanonicalColumn::Unsigned(array) => {
                let value = array.value(row);
                out.push(if i64::try_from(value).is_ok() { TAG_INTEGER } else { TAG_LARGE });
                out.extend(value.to_le_bytes());
            }
            CanonicalColumn::Float(array) => {
                out.push(TAG_FLOAT);
                out.extend(normal(array.value(row)).to_bits().to_le_bytes());
            }
            CanonicalColumn::Instant(nanos, array) => {
                out.push(TAG_INSTANT);
                out.extend((i128::from(array.value(row)) * nanos).to_le_bytes());
            }
            CanonicalColumn::Text(tag, array) => write_text(*tag, array.as_binary::<i64>().value(row), out),
        }
    }
}

fn nanos(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Appends length-prefixed bytes, so that the encoding of adjacent values is unambiguous.
pub(super) fn write_text(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Appends a file's name.
pub(super) fn write_file(name: &str, out: &mut Vec<u8>) {
    write_text(b'F', name.as_bytes(), out);
}

/// Name of the column with the file of a group.
pub(super) const FILE_COLUMN: &str = "file";

/// Formats a group's key for messages, from its row of [`crate::WorkUnit::keys`]: `zone=7, file=2019-01.parquet`.
pub fn describe_key(keys: &RecordBatch, row: usize) -> String {
    let options = FormatOptions::default().with_null("null");
    let mut words = Vec::with_capacity(keys.num_columns());
    let mut file = None;
    for (field, column) in keys.schema_ref().fields().iter().zip(keys.columns()) {
        let value = match ArrayFormatter::try_new(column.as_ref(), &options) {
            Ok(formatter) if row < column.len() => formatter.value(row).to_string(),
            _ => "?".to_owned(),
        };
        let text = format!("{}={value}", field.name());
        if field.name() == FILE_COLUMN { file = Some(text) } else { words.push(text) }
    }
    words.extend(file);
    if words.is_empty() { "all rows".to_owned() } else { words.join(", ") }
}
