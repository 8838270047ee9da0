//! CSV output: a header line and a line per row, with quotes where readers need them.

use std::fmt::Write as _;
use std::io::{self, Write};

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, Schema};

/// Writes batches of one schema, which must have no [unsupported column](unsupported_column).
pub(super) struct CsvWriter<W> {
    to: W,
    delimiter: u8,
    line: String,
    cell: String,
}

/// Returns the first column that CSV can't represent.
pub(super) fn unsupported_column(schema: &Schema) -> Option<&str> {
    let nested = schema.fields().iter().find(|field| field.data_type().is_nested());
    nested.map(|field| field.name().as_str())
}

impl<W: Write> CsvWriter<W> {
    /// Creates a writer and writes the header line.
    pub(super) fn new(to: W, delimiter: u8, schema: &Schema) -> io::Result<CsvWriter<W>> {
        let mut writer = CsvWriter { to, delimiter, line: String::new(), cell: String::new() };
        for (at, field) in schema.fields().iter().enumerate() {
            writer.cell.clone_from(field.name());
            writer.end_cell(at == 0, true);
        }
        writer.end_line()?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let options = FormatOptions::default().with_display_error(false);
        let schema = batch.schema_ref();
        let columns = batch.columns().iter().zip(schema.fields());
        let named = |name: &str, e: ArrowError| io::Error::other(format!("column `{name}`: {e}"));
        let columns = columns.map(|(column, field)| {
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options).map_err(|e| named(field.name(), e))?;
            Ok((column, formatter, is_text(field.data_type()), field.name()))
        });
        let columns = columns.collect::<io::Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            for (at, (column, formatter, is_text, name)) in columns.iter().enumerate() {
                self.cell.clear();
                let is_valid = column.is_valid(row);
                if is_valid {
                    formatter.value(row).write(&mut self.cell).map_err(|e| named(name, e))?;
                }
                self.end_cell(at == 0, *is_text && is_valid);
            }
            self.end_line()?;
        }
        Ok(())
    }

    /// Appends the current cell to the line. Empty text is quoted, which distinguishes it from null.
    fn end_cell(&mut self, is_first: bool, is_text: bool) {
        if !is_first {
            self.line.push(char::from(self.delimiter));
        }
        let delimiter = char::from(self.delimiter);
        let needs_quotes = |c: char| c == delimiter || matches!(c, '"' | '\n' | '\r');
        let is_padded = self.cell.starts_with([' ', '\t']) || self.cell.ends_with([' ', '\t']);
        if self.cell.contains(needs_quotes) || is_text && (self.cell.is_empty() || is_padded) {
            // Writing to a string does not fail.
            let _ = write!(self.line, "\"{}\"", self.cell.replace('"', "\"\""));
        } else {
            self.line.push_str(&self.cell);
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        // Readers skip empty lines, so a null in a single column is written as quotes.
        self.line.push_str(if self.line.is_empty() { "\"\"\n" } else { "\n" });
        let written = self.to.write_all(self.line.as_bytes());
        self.line.clear();
        written
    }

    pub(super) fn into_inner(self) -> W {
        self.to
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Date32Array, Float64Array, Int64Array, StringArray};

    use super::*;

    fn written(columns: Vec<(&str, ArrayRef)>, delimiter: u8) -> String {
        let columns = columns.into_iter().map(|(name, column)| (name, column, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let mut writer = CsvWriter::new(Vec::new(), delimiter, batch.schema_ref()).unwrap();
        writer.write(&batch).unwrap();
        String::from_utf8(writer.into_inner()).unwrap()
    }

    #[test]
    fn text_is_quoted_where_readers_need_it() {
        for (text, expected) in [
            (Some("plain"), "plain"),
            (Some("a,b"), "\"a,b\""),
            (Some("a\tb"), "a\tb"),
            (Some("say \"a\""), "\"say \"\"a\"\"\""),
            (Some("two\nlines"), "\"two\nlines\""),
            (Some("back\r"), "\"back\r\""),
            (Some(" padded"), "\" padded\""),
            (Some(""), "\"\""),
            (None, ""),
        ] {
            let rows = StringArray::from(vec![text]);
            let line = written(vec![("t", Arc::new(rows)), ("n", Arc::new(Int64Array::from(vec![1])))], b',');
            assert_eq!(line, format!("t,n\n{expected},1\n"), "{text:?}");
        }
        let tabs = written(vec![("a\tb", Arc::new(StringArray::from(vec!["c\td", "e,f"])))], b'\t');
        assert_eq!(tabs, "\"a\tb\"\n\"c\td\"\ne,f\n");
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        let floats = Float64Array::from(vec![Some(0.1), Some(1.0), Some(f64::NAN), Some(f64::NEG_INFINITY), None]);
        assert_eq!(written(vec![("x", Arc::new(floats))], b','), "x\n0.1\n1.0\nNaN\n-inf\n\"\"\n");
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("i", Arc::new(Int64Array::from(vec![i64::MIN]))),
            ("b", Arc::new(BooleanArray::from(vec![true]))),
            ("d", Arc::new(Date32Array::from(vec![18_000]))),
            ("bytes", Arc::new(BinaryArray::from(vec![&[1, 255][..]]))),
        ];
        assert_eq!(written(columns, b','), "i,b,d,bytes\n-9223372036854775808,true,2019-04-14,01ff\n");
    }
}
