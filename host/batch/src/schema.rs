//! Binary encoding of schemas. A field is its name, its nullability and its type; a type is a tag, its parameters and
//! its children.
//!
//! Equal schemas have equal bytes, so that a reader may cache decoded schemas by their bytes. Field metadata is not
//! encoded.

use std::sync::Arc;

use arrow_schema::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, Fields, IntervalUnit, Schema, TimeUnit,
};

use crate::LayoutError;
use crate::header::{HeaderError, NODES_MAX, SCHEMA_BYTES_MAX, invalid};

/// Maximum nesting of types: bounds the recursion of readers.
const DEPTH_MAX: usize = 16;

/// Types without parameters, by tag.
const PLAIN: [(u8, DataType); 25] = [
    (0, DataType::Null),
    (1, DataType::Boolean),
    (2, DataType::Int8),
    (3, DataType::Int16),
    (4, DataType::Int32),
    (5, DataType::Int64),
    (6, DataType::UInt8),
    (7, DataType::UInt16),
    (8, DataType::UInt32),
    (9, DataType::UInt64),
    (10, DataType::Float16),
    (11, DataType::Float32),
    (12, DataType::Float64),
    (13, DataType::Date32),
    (14, DataType::Date64),
    (15, DataType::Utf8),
    (16, DataType::LargeUtf8),
    (17, DataType::Binary),
    (18, DataType::LargeBinary),
    (19, DataType::Interval(IntervalUnit::YearMonth)),
    (20, DataType::Interval(IntervalUnit::DayTime)),
    (21, DataType::Interval(IntervalUnit::MonthDayNano)),
    (22, DataType::Time32(TimeUnit::Second)),
    (23, DataType::Time32(TimeUnit::Millisecond)),
    (24, DataType::Time64(TimeUnit::Microsecond)),
];
const TIME64_NANOS: u8 = 25;
const TIMESTAMP: u8 = 32;
const DURATION: u8 = 33;
const DECIMAL128: u8 = 34;
const DECIMAL256: u8 = 35;
const FIXED_BINARY: u8 = 36;
const LIST: u8 = 37;
const LARGE_LIST: u8 = 38;
const FIXED_LIST: u8 = 39;
const STRUCT: u8 = 40;
const MAP: u8 = 41;
const DICTIONARY: u8 = 42;
const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

/// Encodes the fields of `schema`.
pub fn encode_schema(schema: &Schema) -> Result<Vec<u8>, LayoutError> {
    let mut out = Vec::with_capacity(16 * schema.fields().len());
    put_fields(&mut out, schema.fields(), 0)?;
    if out.len() > SCHEMA_BYTES_MAX {
        return Err(
            HeaderError(format!("a schema of {} bytes is over the bound of {SCHEMA_BYTES_MAX}", out.len())).into()
        );
    }
    Ok(out)
}

/// Decodes the output of [`encode_schema`], from untrusted bytes.
pub fn decode_schema(bytes: &[u8]) -> Result<Schema, HeaderError> {
    let mut cursor = Cursor { bytes, fields: 0 };
    let fields = cursor.fields(0)?;
    if !cursor.bytes.is_empty() {
        return invalid(format!("{} bytes follow the schema", cursor.bytes.len()));
    }
    Ok(Schema::new(fields))
}

fn put_fields(out: &mut Vec<u8>, fields: &Fields, depth: usize) -> Result<(), LayoutError> {
    let count = u16::try_from(fields.len())
        .map_err(|_| HeaderError(format!("{} columns are over the bound of {}", fields.len(), u16::MAX)))?;
    out.extend_from_slice(&count.to_le_bytes());
    fields.iter().try_for_each(|f| put_field(out, f, depth))
}

fn put_field(out: &mut Vec<u8>, field: &Field, depth: usize) -> Result<(), LayoutError> {
    put_bytes(out, field.name().as_bytes())?;
    out.push(u8::from(field.is_nullable()));
    put_type(out, field.data_type(), depth).map_err(|e| e.within(field.name()))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), HeaderError> {
    let Ok(len) = u16::try_from(bytes.len()) else {
        return invalid(format!("a name of {} bytes is over the bound of {}", bytes.len(), u16::MAX));
    };
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

fn put_type(out: &mut Vec<u8>, data_type: &DataType, depth: usize) -> Result<(), LayoutError> {
    if let Some((tag, _)) = PLAIN.iter().find(|(_, t)| t == data_type) {
        out.push(*tag);
        return Ok(());
    }
    if depth >= DEPTH_MAX {
        return Err(unsupported(data_type));
    }
    match data_type {
        DataType::Time64(TimeUnit::Nanosecond) => out.push(TIME64_NANOS),
        DataType::Timestamp(unit, zone) => {
            out.extend([TIMESTAMP, unit_tag(*unit), u8::from(zone.is_some())]);
            put_bytes(out, zone.as_deref().unwrap_or("").as_bytes())?;
        }
        DataType::Duration(unit) => out.extend([DURATION, unit_tag(*unit)]),
        DataType::Decimal128(precision, scale) => out.extend([DECIMAL128, *precision, *scale as u8]),
        DataType::Decimal256(precision, scale) => out.extend([DECIMAL256, *precision, *scale as u8]),
        DataType::FixedSizeBinary(size) => {
            out.push(FIXED_BINARY);
            out.extend_from_slice(&size.to_le_bytes());
        }
        DataType::List(item) => {
            out.push(LIST);
            put_field(out, item, depth + 1)?;
        }
        DataType::LargeList(item) => {
            out.push(LARGE_LIST);
            put_field(out, item, depth + 1)?;
        }
        DataType::FixedSizeList(item, size) => {
            out.push(FIXED_LIST);
            out.extend_from_slice(&size.to_le_bytes());
            put_field(out, item, depth + 1)?;
        }
        DataType::Struct(fields) => {
            out.push(STRUCT);
            put_fields(out, fields, depth + 1)?;
        }
        DataType::Map(entries, sorted) => {
            out.extend([MAP, u8::from(*sorted)]);
            put_field(out, entries, depth + 1)?;
        }
        DataType::Dictionary(keys, values) => {
            out.push(DICTIONARY);
            put_type(out, keys, depth + 1)?;
            put_type(out, values, depth + 1)?;
        }
        other => return Err(unsupported(other)),
    }
    Ok(())
}

fn unit_tag(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    }
}

fn unsupported(data_type: &DataType) -> LayoutError {
    LayoutError::Unsupported { column: String::new(), data_type: data_type.to_string() }
}

impl LayoutError {
    /// Prefixes the column's path with `outer`.
    fn within(self, outer: &str) -> Self {
        match self {
            LayoutError::Unsupported { column, data_type } => {
                let column = if column.is_empty() { outer.to_owned() } else { format!("{outer}.{column}") };
                LayoutError::Unsupported { column, data_type }
            }
            other => other,
        }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    fields: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], HeaderError> {
        let Some((head, rest)) = self.bytes.split_at_checked(len) else {
            return invalid("the schema ends in the middle of a field");
        };
        self.bytes = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, HeaderError> {
        Ok(self.take(1)?[0])
    }

    fn flag(&mut self) -> Result<bool, HeaderError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => invalid(format!("{other} is neither true nor false")),
        }
    }

    fn u16(&mut self) -> Result<u16, HeaderError> {
        let b = self.take(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    /// Reads precision and scale.
    fn decimal(&mut self, max: u8) -> Result<(u8, i8), HeaderError> {
        let (precision, scale) = (self.byte()?, self.byte()? as i8);
        if !(1..=max).contains(&precision) || scale.unsigned_abs() > precision {
            return Err(HeaderError(format!(
                "a decimal of {precision} digits, {scale} of them behind the point, of {max}"
            )));
        }
        Ok((precision, scale))
    }

    fn size(&mut self) -> Result<i32, HeaderError> {
        let b = self.take(4)?;
        match i32::from_le_bytes([b[0], b[1], b[2], b[3]]) {
            size if size >= 0 => Ok(size),
            size => invalid(format!("a size of {size}")),
        }
    }

    fn text(&mut self) -> Result<&'a str, HeaderError> {
        let len = self.u16()? as usize;
        std::str::from_utf8(self.take(len)?).map_err(|_| HeaderError("a name is not UTF-8".into()))
    }

    fn unit(&mut self) -> Result<TimeUnit, HeaderError> {
        let tag = self.byte()? as usize;
        UNITS.get(tag).copied().ok_or_else(|| HeaderError(format!("no time unit has tag {tag}")))
    }

    fn fields(&mut self, depth: usize) -> Result<Fields, HeaderError> {
        let count = self.u16()? as usize;
        let mut fields = Vec::new();
        for _ in 0..count {
            fields.push(self.field(depth)?);
        }
        Ok(fields.into())
    }

    fn field(&mut self, depth: usize) -> Result<Arc<Field>, HeaderError> {
        self.fields += 1;
        if self.fields > NODES_MAX {
            return invalid(format!("more than {NODES_MAX} fields"));
        }
        let name = self.text()?;
        let nullable = self.flag()?;
        Ok(Arc::new(Field::new(name, self.data_type(depth)?, nullable)))
    }

    fn data_type(&mut self, depth: usize) -> Result<DataType, HeaderError> {
        let tag = self.byte()?;
        if let Some((_, plain)) = PLAIN.iter().find(|(t, _)| *t == tag) {
            return Ok(plain.clone());
        }
        if depth >= DEPTH_MAX {
            return invalid(format!("types nest deeper than {DEPTH_MAX}"));
        }
        Ok(match tag {
            TIME64_NANOS => DataType::Time64(TimeUnit::Nanosecond),
            TIMESTAMP => {
                let (unit, zoned, zone) = (self.unit()?, self.flag()?, self.text()?);
                DataType::Timestamp(unit, zoned.then(|| zone.into()))
            }
            DURATION => DataType::Duration(self.unit()?),
            DECIMAL128 => {
                let (precision, scale) = self.decimal(DECIMAL128_MAX_PRECISION)?;
                DataType::Decimal128(precision, scale)
            }
            DECIMAL256 => {
                let (precision, scale) = self.decimal(DECIMAL256_MAX_PRECISION)?;
                DataType::Decimal256(precision, scale)
            }
            FIXED_BINARY => DataType::FixedSizeBinary(self.size()?),
            LIST => DataType::List(self.field(depth + 1)?),
            LARGE_LIST => DataType::LargeList(self.field(depth + 1)?),
            FIXED_LIST => {
                let size = self.size()?;
                DataType::FixedSizeList(self.field(depth + 1)?, size)
            }
            STRUCT => DataType::Struct(self.fields(depth + 1)?),
            MAP => {
                let sorted = self.flag()?;
                self.map(depth, sorted)?
            }
            DICTIONARY => self.dictionary(depth)?,
            other => return invalid(format!("no type has tag {other}")),
        })
    }

    fn map(&mut self, depth: usize, sorted: bool) -> Result<DataType, HeaderError> {
        let entries = self.field(depth + 1)?;
        match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => Ok(DataType::Map(entries, sorted)),
            other => invalid(format!("the entries of a map are {other}, not a struct of two fields")),
        }
    }

    fn dictionary(&mut self, depth: usize) -> Result<DataType, HeaderError> {
        let keys = self.data_type(depth + 1)?;
        if !keys.is_dictionary_key_type() {
            return invalid(format!("{keys} is no dictionary key"));
        }
        Ok(DataType::Dictionary(Box::new(keys), Box::new(self.data_type(depth + 1)?)))
    }
}
