//! Options of text files.

use std::collections::BTreeMap;
use std::fmt;

use arrow_schema::DataType;

use super::super::types;

/// Character encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Encoding {
    Utf8,
    /// ISO 8859-1: each byte is the code point of a character.
    Latin1,
    /// UTF-16 whose byte order is determined by the first character.
    Utf16,
    Utf16Le,
    Utf16Be,
}

impl Encoding {
    const NAMES: &str = "utf-8, latin-1, utf-16";

    fn named(name: &str) -> Option<Encoding> {
        let plain: String = name.to_lowercase().chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect();
        match plain.as_str() {
            "utf8" => Some(Encoding::Utf8),
            "latin1" | "iso88591" => Some(Encoding::Latin1),
            "utf16" => Some(Encoding::Utf16),
            "utf16le" => Some(Encoding::Utf16Le),
            "utf16be" => Some(Encoding::Utf16Be),
            _ => None,
        }
    }

    /// Returns the encoding of a file that starts with `head`, and the bytes of its byte-order mark. A byte-order mark
    /// overrides the declared encoding.
    pub(super) fn detect(head: &[u8], declared: Option<Encoding>) -> (Encoding, usize) {
        if head.starts_with(b"\xef\xbb\xbf") {
            return (Encoding::Utf8, 3);
        }
        if head.starts_with(b"\xff\xfe") {
            return (Encoding::Utf16Le, 2);
        }
        if head.starts_with(b"\xfe\xff") {
            return (Encoding::Utf16Be, 2);
        }
        match declared {
            Some(Encoding::Utf16) if head.first() == Some(&0) => (Encoding::Utf16Be, 0),
            Some(Encoding::Utf16) => (Encoding::Utf16Le, 0),
            Some(declared) => (declared, 0),
            None => (Encoding::Utf8, 0),
        }
    }
}

/// Options of text files, as the job states them.
#[derive(Debug, Clone, Default)]
pub struct TextSpec {
    /// Types of columns, by Arrow's names: `utf8`, `int64`, `timestamp[us]`, `decimal128(18, 2)`.
    pub types: BTreeMap<String, String>,
    /// Values that stand for null. By default the empty value of CSV, and no JSON string.
    pub null_values: Option<Vec<String>>,
    /// Delimiter of CSV files. By default a comma, or a tab in `.tsv` files.
    pub delimiter: Option<String>,
    /// Whether CSV files have a header line. Defaults to true; without one the columns are `column_1`, `column_2`, …
    pub header: Option<bool>,
    /// Quote of CSV values with delimiters or line breaks. Defaults to `"`; empty disables quoting.
    pub quote: Option<String>,
    /// First character of comment lines in CSV files, which are skipped.
    pub comment: Option<String>,
    /// `utf-8`, `latin-1` or `utf-16`.
    pub encoding: Option<String>,
}

/// An invalid option of text files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptionError {
    /// Key of the option in a job: `input.delimiter`.
    pub key: &'static str,
    /// Message that names the key, its value and the valid ones.
    pub message: String,
}

impl fmt::Display for TextOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TextOptionError {}

/// Parsed options of text files.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Declared types of columns, which must exist.
    pub(in super::super) types: BTreeMap<String, DataType>,
    /// Declared types of columns that need not exist.
    pub(in super::super) hints: BTreeMap<String, DataType>,
    pub(super) null_values: Option<Vec<Vec<u8>>>,
    pub(super) delimiter: Option<u8>,
    pub(super) header: Option<bool>,
    /// `Some(None)` disables quoting.
    pub(super) quote: Option<Option<u8>>,
    pub(super) comment: Option<u8>,
    pub(super) encoding: Option<Encoding>,
}

impl TextOptions {
    /// Parses the options of a job.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn new(spec: &TextSpec) -> Result<TextOptions, TextOptionError> {
        let mut options = TextOptions { header: spec.header, ..TextOptions::default() };
        for (column, name) in &spec.types {
            let data_type = types::parse(name).map_err(|reason| TextOptionError {
                key: "input.types",
                message: format!("`input.types` of column `{column}`: {reason}"),
            })?;
            options.types.insert(column.clone(), data_type);
        }
        let nulls = |values: &Vec<String>| values.iter().map(|value| value.clone().into_bytes()).collect();
        options.null_values = spec.null_values.as_ref().map(nulls);
        options.delimiter = spec.delimiter.as_deref().map(|text| byte("input.delimiter", text)).transpose()?;
        options.comment = spec.comment.as_deref().map(|text| byte("input.comment", text)).transpose()?;
        options.quote = match spec.quote.as_deref() {
            None => None,
            Some("") => Some(None),
            Some(text) => Some(Some(byte("input.quote", text)?)),
        };
        if let Some(name) = &spec.encoding {
            let unknown = || TextOptionError {
                key: "input.encoding",
                message: format!("`input.encoding` is `{name}`, but must be one of {}", Encoding::NAMES),
            };
            options.encoding = Some(Encoding::named(name).ok_or_else(unknown)?);
        }
        let quote = options.quote.unwrap_or(Some(b'"'));
        let delimiter = options.delimiter.unwrap_or(b',');
        let twice = |key: &'static str, other: &str| {
            Err(TextOptionError { key, message: format!("`{key}` and `{other}` are the same character") })
        };
        match (quote == Some(delimiter), options.comment) {
            (true, _) => twice("input.delimiter", "input.quote"),
            (_, Some(comment)) if comment == delimiter => twice("input.delimiter", "input.comment"),
            (_, Some(comment)) if Some(comment) == quote => twice("input.quote", "input.comment"),
            _ => Ok(options),
        }
    }

    /// Allows columns with declared types to be missing, and declares the types `more` in the same way.
    #[must_use]
    pub fn as_hints(mut self, more: impl IntoIterator<Item = (String, DataType)>) -> TextOptions {
        self.hints.extend(more);
        self.hints.append(&mut self.types);
        self
    }

    /// Returns the declared type of a column.
    pub(in super::super) fn declared(&self, column: &str) -> Option<&DataType> {
        self.types.get(column).or_else(|| self.hints.get(column))
    }

    /// Returns whether a CSV value stands for null.
    pub(super) fn is_null(&self, value: &[u8]) -> bool {
        self.null_values.as_ref().map_or(value.is_empty(), |nulls| nulls.iter().any(|null| null == value))
    }

    /// Returns whether a JSON string stands for null.
    pub(super) fn is_null_string(&self, value: &[u8]) -> bool {
        self.null_values.as_ref().is_some_and(|nulls| nulls.iter().any(|null| null == value))
    }
}

fn byte(key: &'static str, text: &str) -> Result<u8, TextOptionError> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | 0) => Ok(*byte),
        _ => Err(TextOptionError {
            key,
            message: format!("`{key}` is {text:?}, but must be one ASCII character other than a line break"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_text_options_are_checked() {
        let spec = |change: &dyn Fn(&mut TextSpec)| {
            let mut spec = TextSpec::default();
            change(&mut spec);
            TextOptions::new(&spec).map(|_| ())
        };
        type Change<'a> = &'a dyn Fn(&mut TextSpec);
        let cases: [(Change<'_>, Result<(), &str>); 13] = [
            (&|_| (), Ok(())),
            (&|s| s.delimiter = Some(";".into()), Ok(())),
            (&|s| s.delimiter = Some("\t".into()), Ok(())),
            (&|s| s.delimiter = Some("".into()), Err("`input.delimiter` is \"\", but must be one ASCII character")),
            (&|s| s.delimiter = Some("§".into()), Err("`input.delimiter` is \"§\"")),
            (&|s| s.quote = Some("'".into()), Ok(())),
            (&|s| s.quote = Some("".into()), Ok(())),
            (&|s| s.quote = Some(",".into()), Err("`input.delimiter` and `input.quote` are the same")),
            (&|s| s.comment = Some("\n".into()), Err("`input.comment` is \"\\n\"")),
            (&|s| s.comment = Some("\"".into()), Err("`input.quote` and `input.comment`")),
            (&|s| s.encoding = Some("Latin-1".into()), Ok(())),
            (&|s| s.encoding = Some("koi8".into()), Err("`input.encoding` is `koi8`, but must be one of utf-8")),
            (
                &|s| _ = s.types.insert("zip".into(), "utf9".into()),
                Err("`input.types` of column `zip`: `utf9` is not the name of a type (did you mean `utf8`?)"),
            ),
        ];
        for (change, expected) in cases {
            match (spec(change), expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(expected)) => assert!(error.message.starts_with(expected), "{error}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
