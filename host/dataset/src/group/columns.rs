//! Roles of a batch's columns (keys, features, target), and the conversion of columns to numbers.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_cast::cast;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};

use super::grouping::Grouping;
use super::keys::{FILE_COLUMN, KeyKind, is_key};
use crate::DatasetError;
use crate::scan::plain_type;

/// Null among numbers: a NaN that no computation produces, so that messages can tell nulls from failed computations.
const NULL_BITS: u64 = 0x7ff8_5361_6e64_6e75;

/// Maximum features of a grouping.
const FEATURES_MAX: usize = 4096;

/// Columns that grouping uses. A row in a block has the cells of its key, then the features, then the target.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) kind: KeyKind,
    keys: Vec<usize>,
    values: Vec<usize>,
    /// Schema of the batches.
    input: SchemaRef,
    /// Names of the features and the target.
    pub(super) names: Vec<String>,
    /// Schema of a unit's features and target.
    pub(super) output: SchemaRef,
    /// Schema of a unit's keys.
    pub(super) key_schema: SchemaRef,
}

impl Columns {
    /// Checks a grouping against the schema of its input.
    pub(super) fn new(grouping: &Grouping, schema: &SchemaRef) -> Result<Self, DatasetError> {
        check_grouping(grouping)?;
        let find = |name: &str, role: &str| {
            schema.index_of(name).map_err(|_| {
                DatasetError::no_column(role, name, "the input", schema.fields().iter().map(|f| f.name().as_str()))
            })
        };
        let mut keys = Vec::new();
        let mut key_fields: Vec<FieldRef> = Vec::new();
        if grouping.per_file {
            key_fields.push(Arc::new(Field::new(FILE_COLUMN, DataType::Utf8, false)));
        }
        for name in &grouping.keys {
            let index = find(name, "key")?;
            key_fields.push(key_field(schema.field(index))?);
            keys.push(index);
        }
        let mut values = Vec::new();
        for (name, role) in grouping.features.iter().map(|f| (f, "feature")).chain([(&grouping.target, "target")]) {
            let index = find(name, role)?;
            check_value(schema.field(index), role)?;
            values.push(index);
        }
        check_duplicates(grouping)?;
        let names: Vec<String> = grouping.features.iter().chain([&grouping.target]).cloned().collect();
        let fields: Vec<_> = names.iter().map(|name| Field::new(name, DataType::Float64, false)).collect();
        let types: Vec<DataType> = keys.iter().map(|i| plain_type(schema.field(*i).data_type())).collect();
        Ok(Columns {
            kind: KeyKind::for_types(&types),
            keys,
            values,
            input: Arc::clone(schema),
            names,
            output: Arc::new(Schema::new(fields)),
            key_schema: Arc::new(Schema::new(key_fields)),
        })
    }

    /// Returns the number of key cells in a row.
    pub(super) fn key_cells(&self) -> usize {
        match self.kind {
            KeyKind::None => 0,
            KeyKind::Word(_) => 1,
            KeyKind::Bytes(_) => 2,
        }
    }

    /// Returns the number of cells in a row.
    pub(super) fn row_cells(&self) -> usize {
        self.key_cells() + self.values.len()
    }

    /// Returns the key columns of a batch, in plain types.
    pub(super) fn keys_of(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>, DatasetError> {
        let plain = |index: &usize| {
            let column = batch.column(*index);
            let data_type = plain_type(column.data_type());
            if *column.data_type() == data_type {
                return Ok(Arc::clone(column));
            }
            cast(column, &data_type).map_err(DatasetError::internal)
        };
        self.keys.iter().map(plain).collect()
    }

    /// Returns features and target of a batch, and whether each value is a finite number.
    pub(super) fn values_of(&self, batch: &RecordBatch) -> Result<(Vec<ScalarBuffer<f64>>, bool), DatasetError> {
        let mut finite = true;
        let mut values = Vec::with_capacity(self.values.len());
        for index in &self.values {
            let column = to_float64(batch.column(*index))?;
            finite &= all_finite(&column);
            values.push(column);
        }
        Ok((values, finite))
    }

    /// Checks that `batch` has the used columns of the schema.
    pub(super) fn check(&self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let schema = batch.schema_ref();
        if Arc::ptr_eq(schema, &self.input) {
            return Ok(());
        }
        let same = |index: &usize| {
            let promised = self.input.field(*index);
            schema
                .fields()
                .get(*index)
                .is_some_and(|f| f.name() == promised.name() && f.data_type() == promised.data_type())
        };
        match self.keys.iter().chain(&self.values).find(|index| !same(index)) {
            None => Ok(()),
            Some(index) => Err(DatasetError::Columns(format!(
                "a batch lacks the column `{}` of type {} of its schema",
                self.input.field(*index).name(),
                self.input.field(*index).data_type()
            ))),
        }
    }
}

fn check_grouping(grouping: &Grouping) -> Result<(), DatasetError> {
    if !(0.0..1.0).contains(&grouping.test) {
        let reason =
            format!("test = {} is not a fraction of rows: it must be at least 0 and less than 1", grouping.test);
        return Err(DatasetError::Columns(reason));
    }
    if grouping.features.is_empty() {
        return Err(DatasetError::Columns("no feature is given: a model needs at least one".to_owned()));
    }
    if grouping.features.len() > FEATURES_MAX {
        let (quantity, value) = ("number of features".to_owned(), grouping.features.len() as u64);
        return Err(DatasetError::LimitExceeded { quantity, value, bound: FEATURES_MAX as u64 });
    }
    Ok(())
}

fn check_duplicates(grouping: &Grouping) -> Result<(), DatasetError> {
    let mut seen = HashSet::new();
    for name in &grouping.features {
        if *name == grouping.target {
            return Err(DatasetError::Columns(format!("`{name}` is the target and can't be a feature too")));
        }
        if !seen.insert(name) {
            return Err(DatasetError::Columns(format!("feature `{name}` is named twice")));
        }
    }
    seen.clear();
    match grouping.keys.iter().find(|name| !seen.insert(name)) {
        Some(name) => Err(DatasetError::Columns(format!("key `{name}` is named twice"))),
        None => Ok(()),
    }
}

fn key_field(field: &Field) -> Result<FieldRef, DatasetError> {
    let data_type = plain_type(field.data_type());
    if field.name() == FILE_COLUMN {
        let reason =
            format!("a key can't be named `{FILE_COLUMN}`, which holds the file of a group; rename the column");
        return Err(DatasetError::Columns(reason));
    }
    if !is_key(&data_type) {
        return Err(DatasetError::ColumnType {
            role: "key".to_owned(),
            column: field.name().clone(),
            data_type: data_type.to_string(),
            reason: "which can't be a key; use a number, a string, a date or a time".to_owned(),
        });
    }
    Ok(Arc::new(Field::new(field.name(), data_type, true)))
}

fn check_value(field: &Field, role: &str) -> Result<(), DatasetError> {
    let data_type = plain_type(field.data_type());
    let reason = match &data_type {
        DataType::Boolean | DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _) => return Ok(()),
        t if t.is_integer() || t.is_floating() || t.is_decimal() => return Ok(()),
        DataType::Utf8 | DataType::LargeUtf8 => "but must be a number; encode it in a transform, or make it a key",
        DataType::Null => "because it has no values to infer a type from; leave it out",
        _ => "but must be a number; compute one from it in a transform",
    };
    Err(DatasetError::ColumnType {
        role: role.to_owned(),
        column: field.name().clone(),
        data_type: data_type.to_string(),
        reason: reason.to_owned(),
    })
}

/// Converts a column to the numbers that models see: false and true become 0 and 1, dates become days and timestamps
/// seconds since 1970 whatever their unit, and nulls become NaN.
pub fn to_float64(column: &ArrayRef) -> Result<ScalarBuffer<f64>, DatasetError> {
    let to = |array: &dyn Array, t: &DataType| cast(array, t).map_err(DatasetError::internal);
    let plain = plain_type(column.data_type());
    let column = &if plain == *column.data_type() { Arc::clone(column) } else { to(column, &plain)? };
    let float =
        |array: &dyn Array| Ok::<_, DatasetError>(to(array, &DataType::Float64)?.as_primitive::<Float64Type>().clone());
    let scaled = |array: &dyn Array, per_unit: f64| {
        let whole = float(&to(array, &DataType::Int64)?)?;
        Ok::<Float64Array, DatasetError>(whole.unary(|v| v / per_unit))
    };
    let array = match column.data_type() {
        DataType::Float64 => column.as_primitive::<Float64Type>().clone(),
        DataType::Date32 => float(&to(column, &DataType::Int32)?)?,
        DataType::Date64 => scaled(column, 86_400_000.0)?,
        DataType::Timestamp(unit, _) => scaled(
            column,
            match unit {
                TimeUnit::Second => 1.0,
                TimeUnit::Millisecond => 1e3,
                TimeUnit::Microsecond => 1e6,
                TimeUnit::Nanosecond => 1e9,
            },
        )?,
        _ => float(column)?,
    };
    Ok(match array.nulls().filter(|n| n.null_count() > 0) {
        None => array.values().clone(),
        Some(nulls) => {
            let null = f64::from_bits(NULL_BITS);
            array.values().iter().enumerate().map(|(i, v)| if nulls.is_valid(i) { *v } else { null }).collect()
        }
    })
}

/// Exponent bits of infinities and NaNs.
const EXPONENT: u64 = 0x7ff << 52;

fn all_finite(values: &[f64]) -> bool {
    // Without an early exit the loop is vectorised.
    let bad = values.iter().fold(0u64, |bad, v| bad | u64::from(v.to_bits() & EXPONENT == EXPONENT));
    bad == 0
}

/// Unusable values of a column, counted by kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct UnusableCounts {
    null: u64,
    nan: u64,
    infinite: u64,
}

impl UnusableCounts {
    /// Counts a value, given as its bits, if it is not finite.
    pub(super) fn count(&mut self, bits: u64) {
        if bits & EXPONENT != EXPONENT {
            return;
        }
        if bits == NULL_BITS {
            self.null += 1;
        } else if f64::from_bits(bits).is_nan() {
            self.nan += 1;
        } else {
            self.infinite += 1;
        }
    }

    pub(super) fn any(&self) -> bool {
        self.null + self.nan + self.infinite > 0
    }

    /// Formats the counts: `3 values of column `fare` are null`.
    pub(super) fn describe(&self, column: &str) -> String {
        let kinds = [(self.null, "null"), (self.nan, "NaN"), (self.infinite, "infinite")];
        let part = |(count, kind): &(u64, &str)| match count {
            1 => format!("1 value of column `{column}` is {kind}"),
            _ => format!("{count} values of column `{column}` are {kind}"),
        };
        kinds.iter().filter(|(count, _)| *count > 0).map(part).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Date32Array, DictionaryArray, Int32Array, TimestampMillisecondArray};

    use super::*;

    #[test]
    fn numbers_of_a_dictionary_are_those_of_its_values() {
        let columns: [(ArrayRef, [f64; 2]); 3] = [
            (Arc::new(Int32Array::from(vec![7, -1])), [7.0, -1.0]),
            (Arc::new(Date32Array::from(vec![18_000, 0])), [18_000.0, 0.0]),
            (Arc::new(TimestampMillisecondArray::from(vec![1_500, -500])), [1.5, -0.5]),
        ];
        for (values, [a, b]) in columns {
            assert_eq!(*to_float64(&values).expect("numbers"), [a, b]);
            let dictionary: ArrayRef = Arc::new(DictionaryArray::new(Int32Array::from(vec![1, 0, 1]), values));
            assert_eq!(*to_float64(&dictionary).expect("numbers"), [b, a, b]);
        }
    }
}
