//! Inspection of text files: columns, types and morsel boundaries.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::ObjectStore;

use super::super::dataset_file::DatasetFile;
use super::super::format::Format;
use super::super::inference::{self, Class, Evidence, TypeProblem};
use super::super::inspected_file::InspectedFile;
use super::super::source::ScanSource;
use super::bytes::TextBytes;
use super::column::{key, not_utf8_reason};
use super::csv::{CsvSyntax, RecordBoundaries};
use super::file::TextFile;
use super::json::{self, JsonKeys, NestedValue};
use super::options::TextOptions;
use super::record::{RECORD_BYTES_MAX, RawValue, RecordError, RecordStep};
use super::syntax::Syntax;
use crate::DatasetError;

/// Bytes of a CSV file from which types are inferred, if each used column has a value in them. A later value of another
/// type is an error when it is read.
const HEAD_BYTES: u64 = 64 << 20;

/// Inspects a file before its rows are read.
pub(in super::super) async fn inspect(
    store: &Arc<dyn ObjectStore>,
    file: &DatasetFile,
    source: &ScanSource,
    morsel_bytes: u64,
) -> Result<InspectedFile, DatasetError> {
    let fault = |reason: String| DatasetError::Read { file: file.name.clone(), line: None, reason };
    let options = &source.text;
    let bytes = TextBytes::open(store, file, options.encoding).await.map_err(fault)?;
    let syntax = match file.format {
        Format::Csv(delimiter) => Syntax::Csv(CsvSyntax {
            delimiter: options.delimiter.unwrap_or(delimiter),
            quote: options.quote.unwrap_or(Some(b'"')),
            comment: options.comment,
        }),
        _ => Syntax::Json,
    };
    let whole = vec![(0, bytes.len().unwrap_or(u64::MAX))];
    let text = TextFile { name: file.name.clone(), bytes, syntax, columns: Vec::new(), first: 0, parts: whole };
    let mut found = TextInspector::new(source, file.format, text, morsel_bytes);
    found.read().await?;
    found.finish().await
}

impl TextFile {
    /// Splits the file into ranges of about `morsel_bytes`, each extended to the next record.
    async fn cut(&self, csv: CsvSyntax, morsel_bytes: u64) -> Result<Vec<(u64, u64)>, DatasetError> {
        let Some(len) = self.bytes.len() else { return Ok(vec![(self.first, u64::MAX)]) };
        let nominal = nominal_cuts(len, morsel_bytes);
        let mut nominal = nominal.into_iter().peekable();
        let (mut cuts, mut found) = (RecordBoundaries::new(csv), vec![self.first]);
        let mut chunks = self.bytes.chunks(0, if nominal.peek().is_some() { len } else { 0 });
        while let Some(chunk) = chunks.try_next().await.map_err(|reason| self.unread(reason))? {
            let mut rest = &chunk[..];
            while let Some(next) = nominal.peek().copied().filter(|next| *next <= cuts.seen() + rest.len() as u64) {
                let before = next.saturating_sub(cuts.seen()) as usize;
                cuts.skip(&rest[..before]);
                rest = &rest[before..];
                let (taken, at_record) = cuts.until_record(rest);
                rest = &rest[taken..];
                if !at_record {
                    break;
                }
                found.push(cuts.seen());
                while nominal.next_if(|next| *next <= cuts.seen()).is_some() {}
            }
            cuts.skip(rest);
        }
        Ok(parts(found, len))
    }
}

/// Returns where a file of `len` bytes would be split regardless of records.
fn nominal_cuts(len: u64, morsel_bytes: u64) -> Vec<u64> {
    let parts = len.div_ceil(morsel_bytes.max(1)).max(1);
    (1..parts).map(|part| (u128::from(len) * u128::from(part) / u128::from(parts)) as u64).collect()
}

/// Returns the ranges between cuts.
fn parts(mut cuts: Vec<u64>, len: u64) -> Vec<(u64, u64)> {
    cuts.push(len);
    let parts: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1])).filter(|(from, to)| from < to).collect();
    if parts.is_empty() { vec![(len, len)] } else { parts }
}

/// State of the inspection of a file, record by record.
struct TextInspector<'a> {
    source: &'a ScanSource,
    format: Format,
    file: TextFile,
    keys: JsonKeys,
    /// Observed values of each column.
    columns: Vec<ColumnShape>,
    /// Whether the type of each column is inferred.
    inferred: Vec<bool>,
    has_header: bool,
    has_rows: bool,
    morsel_bytes: u64,
    /// Cuts of a JSON file so far.
    cuts: Vec<u64>,
    nominal: std::vec::IntoIter<u64>,
    next_cut: Option<u64>,
}

impl<'a> TextInspector<'a> {
    fn new(source: &'a ScanSource, format: Format, file: TextFile, morsel_bytes: u64) -> TextInspector<'a> {
        let mut nominal = nominal_cuts(file.bytes.len().unwrap_or_default(), morsel_bytes).into_iter();
        let has_header = source.text.header.unwrap_or(true);
        let (keys, next_cut) = (JsonKeys::all(), nominal.next());
        let (columns, inferred, cuts) = (Vec::new(), Vec::new(), vec![0]);
        let has_rows = false;
        TextInspector {
            source,
            format,
            file,
            keys,
            columns,
            inferred,
            has_header,
            has_rows,
            morsel_bytes,
            cuts,
            nominal,
            next_cut,
        }
    }

    /// Reads the file until its properties are known.
    async fn read(&mut self) -> Result<(), DatasetError> {
        let mut chunks = self.file.bytes.chunks(0, u64::MAX);
        let (mut buffer, mut base) = (Vec::new(), 0_u64);
        loop {
            let chunk = chunks.next().await.transpose().map_err(|reason| self.file.unread(reason))?;
            let is_end = chunk.is_none();
            buffer.extend_from_slice(&chunk.unwrap_or_default());
            match self.take(&buffer, base, is_end) {
                Ok(Some(taken)) => {
                    buffer.drain(..taken);
                    base += taken as u64;
                }
                Ok(None) => return Ok(()),
                Err(stop) => return Err(self.file.fault(base + stop.at as u64, stop.reason).await),
            }
            if buffer.len() > RECORD_BYTES_MAX {
                let reason =
                    format!("the record that starts in the line does not end within {} MiB", RECORD_BYTES_MAX >> 20);
                return Err(self.file.fault(base, reason).await);
            }
        }
    }

    /// Processes the records in `bytes`. Returns the number of bytes consumed if more input is needed.
    fn take(&mut self, bytes: &[u8], base: u64, is_end: bool) -> Result<Option<usize>, RecordError> {
        let (mut at, mut values) = (0, Vec::new());
        loop {
            let step = match self.file.syntax {
                Syntax::Csv(csv) => csv.record(bytes, at, is_end, &mut values),
                Syntax::Json => json::record(&mut self.keys, bytes, at, is_end, &mut values),
            };
            match step? {
                RecordStep::End => return Ok(None),
                RecordStep::More(from) => return Ok((!self.is_known(base + from as u64)).then_some(from)),
                RecordStep::Record { start, end } => {
                    at = end;
                    let here = base + start as u64;
                    match self.file.syntax {
                        Syntax::Csv(csv) => self
                            .csv_record(csv, &values, here, base + end as u64)
                            .map_err(|reason| RecordError { at: start, reason })?,
                        Syntax::Json => self.json_record(&values, here),
                    }
                }
            }
        }
    }

    fn csv_record(&mut self, csv: CsvSyntax, values: &[RawValue<'_>], here: u64, end: u64) -> Result<(), String> {
        if self.file.columns.is_empty() {
            let named: Vec<String> = match self.has_header {
                true => values.iter().map(|value| name(csv, value)).collect::<Result<_, _>>()?,
                false => (1..=values.len()).map(|number| format!("column_{number}")).collect(),
            };
            let inferred = |name: &String| self.source.may_use(name) && self.source.text.declared(name).is_none();
            self.inferred = named.iter().map(inferred).collect();
            self.columns = vec![ColumnShape::default(); named.len()];
            self.file.columns = named;
            if self.has_header {
                self.file.first = end;
                return Ok(());
            }
        }
        value_count_error(values.len(), self.file.columns.len()).map_or(Ok(()), Err)?;
        self.has_rows = true;
        let mut scratch = Vec::new();
        let columns = values.iter().zip(&mut self.columns).zip(&self.inferred);
        for ((value, shape), _) in columns.filter(|(_, inferred)| **inferred) {
            let text = match value {
                RawValue::Escaped(text) => {
                    scratch.clear();
                    csv.unescape(text, &mut scratch);
                    &scratch
                }
                RawValue::Text(text) => *text,
                _ => continue,
            };
            if !self.source.text.is_null(text) {
                shape.scalar.add(text, here);
            }
        }
        Ok(())
    }

    fn json_record(&mut self, values: &[RawValue<'_>], here: u64) {
        if self.next_cut.is_some_and(|cut| here >= cut) {
            self.cuts.push(here);
            while self.next_cut.is_some_and(|cut| here >= cut) {
                self.next_cut = self.nominal.next();
            }
        }
        self.has_rows = true;
        for number in self.columns.len()..values.len() {
            let name = &self.keys.names()[number];
            self.inferred.push(self.source.may_use(name) && self.source.text.declared(name).is_none());
            self.columns.push(ColumnShape::default());
        }
        let columns = values.iter().zip(&mut self.columns).zip(&self.inferred);
        for ((value, shape), _) in columns.filter(|(_, inferred)| **inferred) {
            shape.add(value, here, &self.source.text, 0);
        }
    }

    /// Returns whether the properties are known, so that no more needs to be read.
    fn is_known(&self, here: u64) -> bool {
        if self.file.syntax == Syntax::Json || !self.has_rows {
            return false;
        }
        let of_inferred =
            || self.columns.iter().zip(&self.inferred).filter(|(_, inferred)| **inferred).map(|(shape, _)| shape);
        if here < HEAD_BYTES {
            return of_inferred().all(|shape| shape.scalar.is_text());
        }
        of_inferred().all(|shape| shape.scalar.data_type() != Ok(DataType::Null))
    }

    async fn finish(mut self) -> Result<InspectedFile, DatasetError> {
        self.file.parts = match (self.file.syntax, self.file.bytes.len()) {
            (Syntax::Csv(csv), _) => self.file.cut(csv, self.morsel_bytes).await?,
            (Syntax::Json, Some(len)) => parts(std::mem::take(&mut self.cuts), len),
            (Syntax::Json, None) => vec![(0, u64::MAX)],
        };
        let names = match self.file.syntax {
            Syntax::Csv(_) => &self.file.columns[..],
            Syntax::Json => self.keys.names(),
        };
        let (mut fields, mut problems, mut evidence) = (Vec::new(), HashMap::new(), HashMap::new());
        for (name, shape) in names.iter().zip(&self.columns) {
            let data_type = match self.source.text.declared(name) {
                Some(declared) => Ok(declared.clone()),
                None => {
                    // Types of JSON strings, lists and objects do not depend on their text.
                    if shape.problem.is_none() && matches!(shape.kind, None | Some(JsonKind::Number)) {
                        evidence.insert(name.clone(), shape.scalar.clone());
                    }
                    shape.data_type()
                }
            };
            let data_type = match data_type {
                Ok(data_type) => data_type,
                Err(problem) => {
                    let line = self.file.bytes.line_of(problem.at, |byte| self.file.syntax.skips(byte)).await;
                    let remedy = match problem.is_of_type {
                        true => format!("; declare its type, as in [input] types = {{ {} = \"utf8\" }}", key(name)),
                        false => String::new(),
                    };
                    problems.insert(name.clone(), (line, format!("column `{name}` {}{remedy}", problem.reason)));
                    DataType::Utf8
                }
            };
            fields.push(Field::new(name, data_type, true));
        }
        let (schema, format) = (Arc::new(Schema::new(fields)), self.format);
        let (has_rows, text) = (self.has_rows, Some(Arc::new(self.file)));
        Ok(InspectedFile { format, schema, problems, evidence, has_rows, rows: None, text })
    }
}

/// Decodes a column name of a CSV header.
fn name(csv: CsvSyntax, value: &RawValue<'_>) -> Result<String, String> {
    let mut name = Vec::new();
    match value {
        RawValue::Escaped(text) => csv.unescape(text, &mut name),
        RawValue::Text(text) => name.extend_from_slice(text),
        _ => {}
    }
    if name.contains(&0) {
        return Err(format!(
            "the name of the column {} contains a NUL character; if the file is UTF-16, declare it: [input] encoding = \
             \"utf-16\"",
            inference::excerpt(&name)
        ));
    }
    String::from_utf8(name).map_err(|e| not_utf8_reason(e.as_bytes()))
}

/// Returns the error for a record with the wrong number of values, if it has.
pub(super) fn value_count_error(values: usize, expected: usize) -> Option<String> {
    (values != expected).then(|| format!("the line has {values} values, but the first has {expected}"))
}

/// Observed values of a column or of its nested values.
#[derive(Debug, Clone, Default)]
struct ColumnShape {
    /// Values of CSV, or numbers of JSON.
    scalar: Evidence,
    kind: Option<JsonKind>,
    items: Option<Box<ColumnShape>>,
    members: Vec<(String, ColumnShape)>,
    problem: Option<TypeProblem>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonKind {
    Bool,
    Number,
    Text,
    List,
    Object,
}

impl JsonKind {
    fn name(self) -> &'static str {
        match self {
            JsonKind::Bool => "`true` or `false`",
            JsonKind::Number => "a number",
            JsonKind::Text => "text",
            JsonKind::List => "a list",
            JsonKind::Object => "an object",
        }
    }
}

impl ColumnShape {
    /// Adds a JSON value.
    fn add(&mut self, value: &RawValue<'_>, at: u64, options: &TextOptions, depth: usize) {
        if self.problem.is_some() {
            return;
        }
        let kind = match value {
            RawValue::Absent | RawValue::Null => return,
            RawValue::Text(text) if options.is_null_string(text) => return,
            RawValue::Text(_) | RawValue::Escaped(_) => JsonKind::Text,
            RawValue::Bool(_) => JsonKind::Bool,
            RawValue::Number(_) => JsonKind::Number,
            RawValue::Nested(text) if text.starts_with(b"[") => JsonKind::List,
            RawValue::Nested(_) => JsonKind::Object,
            RawValue::Bad(reason) => {
                self.problem = Some(TypeProblem { at, reason: (*reason).to_owned(), is_of_type: false });
                return;
            }
        };
        match self.kind {
            Some(before) if before != kind => {
                return self.fail(at, format!("is {} here, but {} before", kind.name(), before.name()));
            }
            _ => self.kind = Some(kind),
        }
        match value {
            RawValue::Number(text) => {
                self.scalar.add_class(inference::number(text).unwrap_or(Class::Text), text, at);
            }
            RawValue::Nested(text) => self.add_inner(text, at, options, depth),
            _ => {}
        }
    }

    fn add_inner(&mut self, text: &[u8], at: u64, options: &TextOptions, depth: usize) {
        if depth == json::DEPTH_MAX {
            return self.fail(at, format!("nests lists and objects deeper than {depth} levels"));
        }
        match json::parse_nested(text) {
            Some(NestedValue::List(items)) => {
                let shape = self.items.get_or_insert_default();
                items.iter().for_each(|item| shape.add(item, at, options, depth + 1));
            }
            Some(NestedValue::Object(members)) => {
                for (name, member) in members {
                    let known = self.members.iter().position(|(known, _)| *known == name);
                    let number = known.unwrap_or_else(|| {
                        self.members.push((name, ColumnShape::default()));
                        self.members.len() - 1
                    });
                    self.members[number].1.add(&member, at, options, depth + 1);
                }
            }
            None => self.fail(at, "has a list or object that is not valid JSON".to_owned()),
        }
    }

    fn fail(&mut self, at: u64, reason: String) {
        self.problem = Some(TypeProblem { at, reason, is_of_type: true });
    }

    fn data_type(&self) -> Result<DataType, TypeProblem> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        Ok(match self.kind {
            None | Some(JsonKind::Number) => self.scalar.data_type()?,
            Some(JsonKind::Bool) => DataType::Boolean,
            Some(JsonKind::Text) => DataType::Utf8,
            Some(JsonKind::List) => {
                let item = self.items.as_ref().map_or(Ok(DataType::Null), |items| items.data_type())?;
                DataType::List(Arc::new(Field::new_list_field(item, true)))
            }
            Some(JsonKind::Object) => {
                let members = self.members.iter().map(|(name, shape)| Ok(Field::new(name, shape.data_type()?, true)));
                DataType::Struct(members.collect::<Result<Fields, TypeProblem>>()?)
            }
        })
    }
}
