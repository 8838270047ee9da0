//! Hive partitioning: columns whose values are in folder names, as in `year=2019/month=5/part.parquet`.
//!
//! A key in the paths of all files becomes a column, unless the first file has a column of that name. Its type is
//! inferred from all values by the rules for text, so that `month=05` stays text. Files that the filter rules out by
//! their folders are not opened.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow_schema::{Field, FieldRef, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::Expr;

use super::dataset_file::DatasetFile;
use super::filter;
use super::inference::Evidence;
use super::text::{TextOptions, folder_column};
use crate::DatasetError;

/// Folder name of null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Columns of folder names.
#[derive(Debug, Default)]
pub(super) struct HivePartitions {
    fields: Vec<FieldRef>,
    /// Values of each column, one per file.
    columns: Vec<ArrayRef>,
}

impl HivePartitions {
    /// Finds the keys in the paths of all files. `is_column` returns whether the first file has a column of that name.
    pub(super) fn parse(
        files: &[DatasetFile],
        options: &TextOptions,
        is_column: impl Fn(&str) -> bool,
    ) -> Result<HivePartitions, DatasetError> {
        let pairs: Vec<Vec<(String, Option<String>)>> = files.iter().map(|file| pairs(&file.name)).collect();
        let Some(first) = pairs.first() else { return Ok(HivePartitions::default()) };
        let mut folders = HivePartitions::default();
        for (key, _) in first.iter().filter(|(key, _)| !is_column(key)) {
            let value = |pairs: &Vec<(String, Option<String>)>| -> Option<Option<String>> {
                pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
            };
            let Some(values) = pairs.iter().map(value).collect::<Option<Vec<_>>>() else { continue };
            let mut evidence = Evidence::default();
            values.iter().flatten().for_each(|value| evidence.add(value.as_bytes(), 0));
            let column = folder_column(key, &evidence, options, StringArray::from(values));
            let column = column.map_err(|(file, reason)| {
                let reason = format!("its folder: {reason}");
                DatasetError::Read { file: files[file].name.clone(), line: None, reason }
            })?;
            folders.fields.push(Arc::new(Field::new(key, column.data_type().clone(), true)));
            folders.columns.push(column);
        }
        Ok(folders)
    }

    /// Returns the columns.
    pub(super) fn fields(&self) -> &[FieldRef] {
        &self.fields
    }

    /// Returns whether a column of this name exists.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name() == name)
    }

    /// Returns the value of a column for a file.
    pub(super) fn value(&self, name: &str, file: usize) -> Option<ScalarValue> {
        let column = self.fields.iter().position(|field| field.name() == name)?;
        ScalarValue::try_from_array(&self.columns[column], file).ok()
    }

    /// Returns, for each of `files` files, whether its folder names allow rows for which `filter` is true.
    pub(super) fn may_match(&self, state: &SessionState, filter: Option<&str>, files: usize) -> Vec<bool> {
        let mut kept = vec![true; files];
        let Some(filter) = filter.filter(|_| !self.fields.is_empty()) else { return kept };
        let Some((schema, rows)) = self.rows() else { return kept };
        for condition in filter::conditions_on(state, filter, schema.clone()) {
            if let Some(is_true) = evaluate(state, &condition, &schema, &rows) {
                kept.iter_mut().enumerate().for_each(|(file, kept)| *kept &= is_true.value(file));
            }
        }
        kept
    }

    /// Returns whether folder names alone make a condition true for all rows of the files with `is_kept`.
    pub(super) fn decides(&self, state: &SessionState, condition: &Expr, is_kept: impl Fn(usize) -> bool) -> bool {
        if !condition.column_refs().iter().all(|column| self.has(&column.name)) {
            return false;
        }
        let evaluated = self.rows().and_then(|(schema, rows)| evaluate(state, condition, &schema, &rows));
        evaluated.is_some_and(|is_true| (0..is_true.len()).all(|file| is_true.value(file) || !is_kept(file)))
    }

    /// Returns the columns as a batch with a row per file.
    fn rows(&self) -> Option<(DFSchema, RecordBatch)> {
        let schema = Schema::new(self.fields.clone());
        let rows = RecordBatch::try_new(Arc::new(schema.clone()), self.columns.clone()).ok()?;
        Some((DFSchema::try_from(schema).ok()?, rows))
    }
}

/// Evaluates a condition for each row. Returns `None` if it uses no column or can't be evaluated.
fn evaluate(state: &SessionState, part: &Expr, schema: &DFSchema, rows: &RecordBatch) -> Option<BooleanArray> {
    if part.column_refs().is_empty() {
        return None;
    }
    let physical = state.create_physical_expr(part.clone(), schema).ok()?;
    let values = physical.evaluate(rows).and_then(|values| values.into_array(rows.num_rows())).ok()?;
    let values = values.as_boolean_opt()?;
    Some(BooleanArray::from_iter((0..values.len()).map(|row| Some(values.is_valid(row) && values.value(row)))))
}

/// Returns the keys and values of a path's folders. Keys that occur twice are ignored.
fn pairs(path: &str) -> Vec<(String, Option<String>)> {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    let pairs = folders.split('/').filter_map(|folder| folder.split_once('=')).filter(|(key, _)| !key.is_empty());
    let pairs: Vec<(String, Option<String>)> = pairs
        .map(|(key, value)| {
            (percent_decode(key), Some(percent_decode(value)).filter(|value| value != NULL && !value.is_empty()))
        })
        .collect();
    let times = |key: &str| pairs.iter().filter(|(name, _)| name == key).count();
    pairs.iter().filter(|(key, _)| times(key) == 1).cloned().collect()
}

/// Decodes percent escapes such as `%41`. Returns the text unchanged if the result is not UTF-8.
fn percent_decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|hex| *first == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_paths() {
        let some = |value: &str| Some(value.to_owned());
        for (path, expected) in [
            ("a.parquet", vec![]),
            ("x=1.parquet", vec![]),
            ("data/year=2019/month=05/a.parquet", vec![("year", some("2019")), ("month", some("05"))]),
            ("s3://b/k=a%20b%2Fc/v=1=2/a.csv", vec![("k", some("a b/c")), ("v", some("1=2"))]),
            ("k=__HIVE_DEFAULT_PARTITION__/a.csv", vec![("k", None)]),
            ("k=/a.csv", vec![("k", None)]),
            ("=1/k=1/k=2/a.csv", vec![]),
            ("k=%zz%4/a.csv", vec![("k", some("%zz%4"))]),
            ("k=%FF/a.csv", vec![("k", some("%FF"))]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            assert_eq!(pairs(path), expected, "{path}");
        }
    }
}
