//! Output of a small table to a Parquet file.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::parquet::ParquetOutput;
use crate::DatasetError;

/// Values of a column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableColumn {
    /// Text.
    Text(Vec<Option<String>>),
    /// 32-bit integers.
    Int32(Vec<Option<i32>>),
    /// 64-bit integers.
    Int64(Vec<i64>),
}

/// Writes a table to the Parquet file `path`, which is there as a whole or not at all. All columns have the same length.
///
/// # Errors
/// Fails if the file can't be written, or the columns have different lengths.
pub fn write_table(path: &Path, columns: Vec<(&str, TableColumn)>) -> Result<(), DatasetError> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (name, column) in columns {
        let (data_type, is_nullable, array): (DataType, bool, ArrayRef) = match column {
            TableColumn::Text(values) => (DataType::Utf8, true, Arc::new(StringArray::from(values))),
            TableColumn::Int32(values) => (DataType::Int32, true, Arc::new(Int32Array::from(values))),
            TableColumn::Int64(values) => (DataType::Int64, false, Arc::new(Int64Array::from(values))),
        };
        fields.push(Field::new(name, data_type, is_nullable));
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    let unequal = |error: ArrowError| DatasetError::write(path, std::io::Error::other(error));
    let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(unequal)?;
    let mut output = ParquetOutput::create(path, schema, Vec::new())?;
    output.write(&batch)?;
    output.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    use super::*;

    #[test]
    fn tables_are_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        let text = TableColumn::Text(vec![Some("ada".to_owned()), None]);
        let columns = vec![
            ("name", text.clone()),
            ("run", TableColumn::Int32(vec![None, Some(2)])),
            ("bytes", TableColumn::Int64(vec![i64::MAX, 0])),
        ];
        write_table(&path, columns).unwrap();
        let batch = ParquetRecordBatchReader::try_new(File::open(&path).unwrap(), 10).unwrap().next().unwrap().unwrap();
        assert_eq!(batch.num_rows(), 2);
        let bytes = batch.column_by_name("bytes").unwrap().as_any().downcast_ref::<Int64Array>().unwrap().clone();
        assert_eq!(bytes.values(), &[i64::MAX, 0]);
        let columns = vec![("name", text), ("bytes", TableColumn::Int64(vec![1]))];
        assert!(write_table(&path, columns).is_err());
    }
}
