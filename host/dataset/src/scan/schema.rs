//! Merge of the schemas of many files.
//!
//! Files from different years, or with inferred types, differ in the widths of types, and are merged by widening. Other
//! conflicts matter only for columns that are used: they are recorded, and reported when such a column is requested.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, TimeUnit};

use super::dataset_file::DatasetFile;
use super::hive::HivePartitions;
use super::inference::Evidence;
use super::inspected_file::{InspectedFile, named_twice};
use super::text::TextOptions;
use crate::DatasetError;

struct MergedColumn {
    field: FieldRef,
    /// First file with the column.
    first: usize,
    /// Number of files with the column.
    files: usize,
    /// Observed values, if all these files are text; they are combined as if from one file.
    evidence: Option<Evidence>,
    /// Reason why the column is unusable.
    problem: Option<ColumnProblem>,
}

/// Reason why a column is unusable.
enum ColumnProblem {
    /// File with an incompatible type, and that type.
    Conflict(usize, DataType),
    /// File, line and reason.
    File(usize, Option<u64>, String),
}

/// Columns of all files.
pub(super) struct MergedSchema {
    columns: Vec<MergedColumn>,
    by_name: HashMap<String, usize>,
    /// Files whose schemas count: those with rows, or all if none has rows.
    files: Vec<usize>,
}

impl MergedSchema {
    /// Merges the schemas of the files, in order. Files that were not opened are `None`.
    ///
    /// # Errors
    /// If the job states the type of a column that does not exist.
    pub(super) fn new(
        files: &[DatasetFile],
        inspected: &[Option<InspectedFile>],
        folders: &HivePartitions,
        options: &TextOptions,
    ) -> Result<Self, DatasetError> {
        let all = || inspected.iter().enumerate().filter_map(|(file, of_file)| Some((file, of_file.as_ref()?)));
        let with_rows: Vec<_> = all().filter(|(_, of_file)| of_file.has_rows).collect();
        let voting = if with_rows.is_empty() { all().collect() } else { with_rows };
        let numbers = voting.iter().map(|(file, _)| *file).collect();
        let mut merged = MergedSchema { columns: Vec::new(), by_name: HashMap::new(), files: numbers };
        let mut last: Option<&InspectedFile> = None;
        for (file, of_file) in &voting {
            let alike = |last: &&InspectedFile| !of_file.format.is_text() && last.schema == of_file.schema;
            if last.filter(alike).is_some() {
                // The common case of equal schemas needs no merge.
                let has_column = |column: &&mut MergedColumn| of_file.schema.index_of(column.field.name()).is_ok();
                merged.columns.iter_mut().filter(has_column).for_each(|column| column.files += 1);
                continue;
            }
            merged.add_file(*file, of_file, folders, options);
            last = Some(of_file);
        }
        for field in folders.fields() {
            merged.add_folder(field);
        }
        match options.types.keys().find(|name| !merged.by_name.contains_key(*name)) {
            Some(name) => {
                let place = merged.place(files);
                Err(DatasetError::no_column("column of `input.types`", name, &place, merged.names()))
            }
            None => Ok(merged),
        }
    }

    fn add_file(&mut self, file: usize, of_file: &InspectedFile, folders: &HivePartitions, options: &TextOptions) {
        let mut names = std::collections::HashSet::new();
        for field in of_file.schema.fields() {
            let is_new = names.insert(field.name());
            if is_new {
                self.add(file, field, of_file.evidence.get(field.name()));
            }
            let column = &mut self.columns[self.by_name[field.name()]];
            let problem = if !is_new {
                Some((None, named_twice(field.name())))
            } else if folders.has(field.name()) {
                let name = field.name();
                Some((None, format!("`{name}` is a column of it and a key of its folders; rename one of them")))
            } else {
                let other = options.types.get(field.name()).filter(|declared| **declared != plain(field.data_type()));
                let own = other.filter(|_| !of_file.format.is_text()).map(|declared| {
                    let (name, own) = (field.name(), plain(field.data_type()));
                    let reason = "which is for text files only";
                    (None, format!("column `{name}` is {own} here, but {declared} in `input.types`, {reason}"))
                });
                own.or_else(|| of_file.problems.get(field.name()).cloned())
            };
            if let Some((line, reason)) = problem {
                column.problem.get_or_insert(ColumnProblem::File(file, line, reason));
            }
        }
    }

    fn add(&mut self, file: usize, field: &FieldRef, evidence: Option<&Evidence>) {
        let plain = plain(field.data_type());
        let Some(at) = self.by_name.get(field.name()) else {
            self.by_name.insert(field.name().clone(), self.columns.len());
            let field = Arc::new(Field::new(field.name(), plain, field.is_nullable()));
            self.columns.push(MergedColumn {
                field,
                first: file,
                files: 1,
                evidence: evidence.cloned(),
                problem: None,
            });
            return;
        };
        let column = &mut self.columns[*at];
        column.files += 1;
        let nullable = column.field.is_nullable() || field.is_nullable();
        column.evidence = column.evidence.take().zip(evidence).map(|(all, other)| all.with(other));
        let together = match &column.evidence {
            // Integers that floats can't represent exactly are reported when they are read.
            Some(evidence) => Some(evidence.data_type().unwrap_or(DataType::Float64)),
            None => widen(column.field.data_type(), &plain),
        };
        match together {
            Some(data_type) => column.field = Arc::new(Field::new(field.name(), data_type, nullable)),
            None => _ = column.problem.get_or_insert(ColumnProblem::Conflict(file, plain)),
        }
    }

    /// Adds a column of folder names, which all files have.
    fn add_folder(&mut self, field: &FieldRef) {
        if self.by_name.contains_key(field.name()) {
            return;
        }
        self.by_name.insert(field.name().clone(), self.columns.len());
        let (first, files) = (0, self.files.len());
        self.columns.push(MergedColumn { field: Arc::clone(field), first, files, evidence: None, problem: None });
    }

    /// Returns the names of all columns, in order of first appearance.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|c| c.field.name().as_str())
    }

    /// Returns all columns, including unusable ones.
    pub(super) fn fields(&self) -> impl Iterator<Item = &FieldRef> {
        self.columns.iter().map(|c| &c.field)
    }

    /// Describes the files in a message.
    fn place(&self, files: &[DatasetFile]) -> String {
        if files.len() == 1 { files[0].name.clone() } else { format!("the {} input files", files.len()) }
    }

    /// Returns the column `name`, if every file has it with a compatible type. `inspected` are the arguments of
    /// [`MergedSchema::new`].
    pub(super) fn column(
        &self,
        name: &str,
        role: &str,
        files: &[DatasetFile],
        inspected: &[Option<InspectedFile>],
    ) -> Result<&FieldRef, DatasetError> {
        let Some(at) = self.by_name.get(name) else {
            return Err(DatasetError::no_column(role, name, &self.place(files), self.names()));
        };
        let column = &self.columns[*at];
        if let Some(ColumnProblem::File(file, line, reason)) = &column.problem {
            let (file, reason) = (files[*file].name.clone(), reason.clone());
            return Err(DatasetError::Read { file, line: *line, reason });
        }
        if column.files < self.files.len() {
            let schema_of = |file: &usize| Some((*file, inspected[*file].as_ref()?));
            let mut lacking = self.files.iter().filter_map(schema_of);
            if let Some((file, of_file)) = lacking.find(|(_, of_file)| of_file.schema.index_of(name).is_err()) {
                let available = of_file.schema.fields().iter().map(|f| f.name().as_str());
                return Err(DatasetError::no_column(role, name, &files[file].name, available));
            }
        }
        match &column.problem {
            Some(ColumnProblem::Conflict(other, data_type)) => Err(DatasetError::TypeConflict {
                column: name.to_owned(),
                first: files[column.first].name.clone(),
                first_type: column.field.data_type().to_string(),
                second: files[*other].name.clone(),
                second_type: data_type.to_string(),
            }),
            _ => Ok(&column.field),
        }
    }
}

/// Returns, for each file, the columns of `output` that are floats but 64-bit integers in that file, each with the
/// first file in which they are floats. Text files are excluded: their reader checks this itself.
pub(super) fn widened(output: &[FieldRef], inspected: &[Option<InspectedFile>]) -> Vec<Vec<(usize, usize)>> {
    let in_file = |of_file: &Option<InspectedFile>, name: &str| {
        let schema = &of_file.as_ref().filter(|of_file| of_file.has_rows)?.schema;
        schema.field_with_name(name).map(|f| plain(f.data_type())).ok()
    };
    let mut widened = vec![Vec::new(); inspected.len()];
    for (column, field) in output.iter().enumerate().filter(|(_, field)| field.data_type().is_floating()) {
        let is_float = |of_file| in_file(of_file, field.name()).is_some_and(|t| t.is_floating());
        let Some(float) = inspected.iter().position(is_float) else { continue };
        for (widened, of_file) in widened.iter_mut().zip(inspected) {
            let whole = matches!(in_file(of_file, field.name()), Some(DataType::Int64 | DataType::UInt64));
            if whole && of_file.as_ref().is_some_and(|of_file| !of_file.format.is_text()) {
                widened.push((column, float));
            }
        }
    }
    widened
}

/// Returns the logical type, without dictionaries, run ends and views, which only affect the memory layout.
pub(crate) fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// Returns the common type of two types that differ in width alone. Integers in one file and floats in another become
/// floats, because many writers convert an integer column to floats once a value is missing.
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
    fn widths_are_reconciled_and_kinds_are_not() {
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
