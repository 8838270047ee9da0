//! One schema of many files.
//!
//! Files written in different years, or whose types were guessed from text,
//! disagree about widths. That is made good by widening. What they disagree
//! about otherwise matters only for the columns that are used, so it is noted
//! here and told when such a column is asked for.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};

use super::files::File;
use crate::DatasetError;

struct Column {
    field: FieldRef,
    /// The first file that has it.
    first: usize,
    /// Files that have it.
    files: usize,
    /// A file whose type for it does not go with the others', and that type.
    conflict: Option<(usize, DataType)>,
}

/// The columns of all files together.
pub(super) struct Merged {
    columns: Vec<Column>,
    by_name: HashMap<String, usize>,
    files: usize,
}

impl Merged {
    /// Merges the schema of each file, in order.
    pub(super) fn new(files: &[File], schemas: &[SchemaRef]) -> Result<Self, DatasetError> {
        let mut merged = Merged { columns: Vec::new(), by_name: HashMap::new(), files: schemas.len() };
        let mut last: Option<&SchemaRef> = None;
        for (index, schema) in schemas.iter().enumerate() {
            if last.is_some_and(|last| last == schema) {
                // Most files are alike: nothing to learn from this one.
                merged
                    .columns
                    .iter_mut()
                    .filter(|c| schema.index_of(c.field.name()).is_ok())
                    .for_each(|c| c.files += 1);
                continue;
            }
            let mut names = std::collections::HashSet::new();
            for field in schema.fields() {
                if !names.insert(field.name()) {
                    let reason = format!("two of its columns are named `{}`", field.name());
                    return Err(DatasetError::Read { file: files[index].name.clone(), line: None, reason });
                }
                merged.add(index, field);
            }
            last = Some(schema);
        }
        Ok(merged)
    }

    fn add(&mut self, file: usize, field: &FieldRef) {
        let plain = plain(field.data_type());
        let Some(at) = self.by_name.get(field.name()) else {
            self.by_name.insert(field.name().clone(), self.columns.len());
            let field = Arc::new(Field::new(field.name(), plain, field.is_nullable()));
            self.columns.push(Column { field, first: file, files: 1, conflict: None });
            return;
        };
        let column = &mut self.columns[*at];
        column.files += 1;
        let nullable = column.field.is_nullable() || field.is_nullable();
        match widen(column.field.data_type(), &plain) {
            Some(data_type) => column.field = Arc::new(Field::new(field.name(), data_type, nullable)),
            None => _ = column.conflict.get_or_insert((file, plain)),
        }
    }

    /// The names of all columns, in order of first appearance.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|c| c.field.name().as_str())
    }

    /// All columns, usable or not.
    pub(super) fn fields(&self) -> impl Iterator<Item = &FieldRef> {
        self.columns.iter().map(|c| &c.field)
    }

    /// The column `name`, if every file has it and they agree about it.
    /// `schemas` are those this was made of.
    pub(super) fn column(
        &self,
        name: &str,
        wanted: &str,
        files: &[File],
        schemas: &[SchemaRef],
    ) -> Result<&FieldRef, DatasetError> {
        let Some(at) = self.by_name.get(name) else {
            let place =
                if files.len() == 1 { files[0].name.clone() } else { format!("the {} input files", files.len()) };
            return Err(DatasetError::no_column(wanted, name, &place, self.names()));
        };
        let column = &self.columns[*at];
        if column.files < self.files {
            let lacking = schemas.iter().position(|s| s.index_of(name).is_err()).unwrap_or_default();
            let there = schemas[lacking].fields().iter().map(|f| f.name().as_str());
            return Err(DatasetError::no_column(wanted, name, &files[lacking].name, there));
        }
        if let Some((other, data_type)) = &column.conflict {
            return Err(DatasetError::Disagree {
                column: name.to_owned(),
                first: files[column.first].name.clone(),
                first_type: column.field.data_type().to_string(),
                second: files[*other].name.clone(),
                second_type: data_type.to_string(),
            });
        }
        Ok(&column.field)
    }
}

/// For each file which columns of `output` are floats but 64-bit integers in that file, and the first file where they
/// are floats.
pub(super) fn widened<'a>(
    output: &[FieldRef],
    schemas: impl Iterator<Item = &'a Schema> + Clone,
) -> Vec<Vec<(usize, usize)>> {
    let in_file = |schema: &Schema, name: &str| schema.field_with_name(name).map(|f| plain(f.data_type())).ok();
    let mut widened = vec![Vec::new(); schemas.clone().count()];
    for (column, field) in output.iter().enumerate().filter(|(_, field)| field.data_type().is_floating()) {
        let is_float = |schema: &Schema| in_file(schema, field.name()).is_some_and(|t| t.is_floating());
        let Some(float) = schemas.clone().position(is_float) else { continue };
        for (of_file, schema) in widened.iter_mut().zip(schemas.clone()) {
            if matches!(in_file(schema, field.name()), Some(DataType::Int64 | DataType::UInt64)) {
                of_file.push((column, float));
            }
        }
    }
    widened
}

/// The type as others see it: without dictionaries and views, whose only
/// meaning is how bytes lie.
pub(crate) fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// The type that holds the values of both, if they differ by width alone. A
/// column of integers in one file and of floats in another is one of floats:
/// that is what many writers make of integers as soon as one is missing.
fn widen(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    if a == b {
        return Some(a.clone());
    }
    let larger = |x: &DataType, y: &DataType| {
        let width = |t: &DataType| t.primitive_width().unwrap_or_default();
        if width(x) >= width(y) { x.clone() } else { y.clone() }
    };
    match (a, b) {
        (Null, other) | (other, Null) => Some(other.clone()),
        (Utf8, LargeUtf8) | (LargeUtf8, Utf8) => Some(LargeUtf8),
        (Binary, LargeBinary) | (LargeBinary, Binary) => Some(LargeBinary),
        (Date32, Date64) | (Date64, Date32) => Some(Date64),
        (Timestamp(x, zone), Timestamp(y, other)) if zone == other => Some(Timestamp(finer(*x, *y), zone.clone())),
        (Decimal128(p, s), Decimal128(q, t)) if s == t => Some(Decimal128(*p.max(q), *s)),
        (x, y) if x.is_floating() && y.is_floating() => Some(larger(x, y)),
        (x, y) if x.is_signed_integer() && y.is_signed_integer() => Some(larger(x, y)),
        (x, y) if x.is_unsigned_integer() && y.is_unsigned_integer() => Some(larger(x, y)),
        (UInt64, y) | (y, UInt64) if y.is_integer() => None,
        (x, y) if x.is_integer() && y.is_integer() => Some(Int64),
        (x, y) if (x.is_integer() && y.is_floating()) || (x.is_floating() && y.is_integer()) => Some(Float64),
        _ => None,
    }
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    let rank = |unit: TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    if rank(a) >= rank(b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_made_good_and_kinds_are_not() {
        use DataType::*;
        for (a, b, expected) in [
            (Int32, Int64, Some(Int64)),
            (UInt8, UInt32, Some(UInt32)),
            (Int8, UInt8, Some(Int64)),
            (UInt64, Int64, None),
            (Float32, Float64, Some(Float64)),
            (Int64, Float64, Some(Float64)),
            (Int64, Utf8, None),
            (Null, Utf8, Some(Utf8)),
            (Boolean, Int8, None),
            (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Nanosecond, None), {
                Some(Timestamp(TimeUnit::Nanosecond, None))
            }),
            (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Second, Some("UTC".into())), None),
            (Decimal128(10, 2), Decimal128(18, 2), Some(Decimal128(18, 2))),
            (Decimal128(10, 2), Decimal128(10, 3), None),
        ] {
            assert_eq!(widen(&a, &b), expected, "{a} {b}");
            assert_eq!(widen(&b, &a), expected, "{b} {a}");
        }
    }
}
