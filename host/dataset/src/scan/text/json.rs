//! JSON parser for consecutive objects, usually one per line.
//!
//! Values of unused keys are skipped with few checks.

use std::collections::HashMap;

use memchr::memchr3;

use super::record::{RawValue, RecordError, RecordStep};

/// Maximum depth of nested lists and objects in a used value.
pub(super) const DEPTH_MAX: usize = 32;

/// Keys of interest: given ones, or all that occur.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonKeys {
    names: Vec<String>,
    by_name: HashMap<Vec<u8>, usize>,
    /// Whether unknown keys are added.
    open: bool,
}

impl JsonKeys {
    /// Collects all keys that occur.
    pub(super) fn all() -> JsonKeys {
        JsonKeys { open: true, ..JsonKeys::default() }
    }

    /// Selects the keys `names`.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> JsonKeys {
        let mut keys = JsonKeys::default();
        names.into_iter().for_each(|name| _ = keys.add(name));
        keys
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    fn add(&mut self, name: String) -> usize {
        self.by_name.insert(name.clone().into_bytes(), self.names.len());
        self.names.push(name);
        self.names.len() - 1
    }

    /// Returns the index of a key. `next` is a guess: most objects have the same keys in the same order.
    fn number(&mut self, key: &RawValue<'_>, next: usize) -> Option<usize> {
        let mut unescaped = Vec::new();
        let name = match key {
            RawValue::Escaped(text) => {
                unescape(text, &mut unescaped).ok()?;
                &unescaped[..]
            }
            RawValue::Text(text) => text,
            _ => return None,
        };
        if self.names.get(next).is_some_and(|guess| guess.as_bytes() == name) {
            return Some(next);
        }
        match self.by_name.get(name) {
            Some(number) => Some(*number),
            None if self.open => Some(self.add(std::str::from_utf8(name).ok()?.to_owned())),
            None => None,
        }
    }
}

/// Reason why a part of an object can't be parsed.
enum ParseError {
    /// The input ends within the part.
    More,
    Wrong(String),
}

/// Splits the first object at or after `from` into the values of `keys`.
pub(super) fn record<'b>(
    keys: &mut JsonKeys,
    bytes: &'b [u8],
    from: usize,
    is_end: bool,
    values: &mut Vec<RawValue<'b>>,
) -> Result<RecordStep, RecordError> {
    values.clear();
    values.resize(keys.names.len(), RawValue::Absent);
    let start = space(bytes, from);
    if start == bytes.len() {
        return Ok(if is_end { RecordStep::End } else { RecordStep::More(start) });
    }
    match object(keys, bytes, start, values) {
        Ok(end) => Ok(RecordStep::Record { start, end }),
        Err(ParseError::More) if !is_end => Ok(RecordStep::More(start)),
        Err(ParseError::More) => {
            Err(RecordError { at: start, reason: "the object that starts in the line does not end".to_owned() })
        }
        Err(ParseError::Wrong(reason)) => Err(RecordError { at: start, reason }),
    }
}

fn object<'b>(
    keys: &mut JsonKeys,
    bytes: &'b [u8],
    start: usize,
    values: &mut Vec<RawValue<'b>>,
) -> Result<usize, ParseError> {
    match bytes[start] {
        b'{' => {}
        b'[' => {
            return Err(ParseError::Wrong(
                "it holds an array; write one object per line, without brackets and commas".to_owned(),
            ));
        }
        _ => return Err(ParseError::Wrong(format!("expected an object, found {}", excerpt(bytes, start)))),
    }
    let mut next = 0;
    members(bytes, start, |key, value| {
        if let Some(number) = keys.number(&key, next) {
            if number >= values.len() {
                values.resize(number + 1, RawValue::Absent);
            }
            values[number] = match values[number] {
                RawValue::Absent => value,
                _ => RawValue::Bad("occurs twice in the object"),
            };
            next = number + 1;
        }
    })
}

/// Passes the members of the object at `start` to `each`. Returns the object's end.
fn members<'b>(
    bytes: &'b [u8],
    start: usize,
    mut each: impl FnMut(RawValue<'b>, RawValue<'b>),
) -> Result<usize, ParseError> {
    let mut at = space(bytes, start + 1);
    if next(bytes, at)? == b'}' {
        return Ok(at + 1);
    }
    loop {
        if next(bytes, at)? != b'"' {
            return Err(expected("a key in quotes", bytes, at));
        }
        let (key, end) = string(bytes, at)?;
        at = space(bytes, end);
        if next(bytes, at)? != b':' {
            return Err(expected("`:`", bytes, at));
        }
        let (member, end) = value(bytes, space(bytes, at + 1))?;
        each(key, member);
        at = space(bytes, end);
        match next(bytes, at)? {
            b',' => at = space(bytes, at + 1),
            b'}' => return Ok(at + 1),
            _ => return Err(expected("`,` or `}`", bytes, at)),
        }
    }
}

/// Returns the value at `at` and its end.
fn value(bytes: &[u8], at: usize) -> Result<(RawValue<'_>, usize), ParseError> {
    match next(bytes, at)? {
        b'"' => string(bytes, at),
        b'{' | b'[' => nested(bytes, at),
        b',' | b':' | b'}' | b']' => Err(expected("a value", bytes, at)),
        _ => {
            let is_end =
                |byte: &u8| matches!(byte, b',' | b'}' | b']' | b'{' | b'[' | b'"' | b' ' | b'\t' | b'\n' | b'\r');
            let end = at + bytes[at..].iter().position(is_end).ok_or(ParseError::More)?;
            Ok((token(&bytes[at..end]), end))
        }
    }
}

fn token(text: &[u8]) -> RawValue<'_> {
    match text {
        b"null" => RawValue::Null,
        b"true" | b"false" => RawValue::Bool(text),
        _ if is_number(text) => RawValue::Number(text),
        b"NaN" | b"Infinity" | b"-Infinity" | b"nan" | b"inf" | b"-inf" => {
            RawValue::Bad("is NaN or infinite, for which JSON has no number: write null, or a string")
        }
        _ => RawValue::Bad("is not a JSON value"),
    }
}

/// Returns whether text is a number by JSON's grammar.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text[0] == b'0') {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let len = digits(fraction);
        if len == 0 {
            return false;
        }
        rest = &fraction[len..];
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+")).unwrap_or(exponent);
        let len = digits(exponent);
        if len == 0 {
            return false;
        }
        rest = &exponent[len..];
    }
    rest.is_empty()
}

/// Returns the string whose opening quote is at `at`, and its end.
fn string(bytes: &[u8], at: usize) -> Result<(RawValue<'_>, usize), ParseError> {
    let (mut from, mut escaped) = (at + 1, false);
    loop {
        let found =
            from + memchr3(b'"', b'\\', b'\n', bytes.get(from..).ok_or(ParseError::More)?).ok_or(ParseError::More)?;
        match bytes[found] {
            b'"' => {
                let text = &bytes[at + 1..found];
                return Ok((if escaped { RawValue::Escaped(text) } else { RawValue::Text(text) }, found + 1));
            }
            b'\\' => (from, escaped) = (found + 2, true),
            _ => return Err(ParseError::Wrong("a string in the line does not end".to_owned())),
        }
    }
}

/// Returns the list or object at `at`, and its end. Counts brackets without matching their kinds; the content is not
/// checked.
fn nested(bytes: &[u8], at: usize) -> Result<(RawValue<'_>, usize), ParseError> {
    let (mut depth, mut from) = (0_usize, at);
    while let Some(byte) = bytes.get(from) {
        match byte {
            b'"' => from = string(bytes, from)?.1 - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Ok((RawValue::Nested(&bytes[at..=from]), from + 1)),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        from += 1;
    }
    Err(ParseError::More)
}

fn space(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

fn next(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes.get(at).copied().ok_or(ParseError::More)
}

fn expected(token: &str, bytes: &[u8], at: usize) -> ParseError {
    ParseError::Wrong(format!("expected {token}, found {}", excerpt(bytes, at)))
}

/// Formats the input at `at` for a message.
fn excerpt(bytes: &[u8], at: usize) -> String {
    let rest = &bytes[at..];
    let line = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
    super::super::inference::excerpt(&rest[..line.min(20)])
}

/// Decodes a string with escapes.
pub(super) fn unescape(text: &[u8], to: &mut Vec<u8>) -> Result<(), &'static str> {
    let quoted = [b"\"", text, b"\""].concat();
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => {
            to.extend_from_slice(text.as_bytes());
            Ok(())
        }
        Err(_) => Err("is not a valid JSON string: it has an invalid escape or half of a surrogate pair"),
    }
}

/// Content of a list or an object.
pub(super) enum NestedValue<'b> {
    List(Vec<RawValue<'b>>),
    Object(Vec<(String, RawValue<'b>)>),
}

/// Parses the content of a [`RawValue::Nested`].
pub(super) fn parse_nested(text: &[u8]) -> Option<NestedValue<'_>> {
    if text.first() == Some(&b'{') {
        let mut found = Vec::new();
        let end = members(text, 0, |key, value| found.push((key, value))).ok()?;
        let named = found.into_iter().map(|(key, value)| {
            let mut name = Vec::new();
            match key {
                RawValue::Escaped(text) => unescape(text, &mut name).ok()?,
                RawValue::Text(text) => name.extend_from_slice(text),
                _ => return None,
            }
            Some((String::from_utf8(name).ok()?, value))
        });
        return Some(NestedValue::Object(named.collect::<Option<Vec<_>>>().filter(|_| end == text.len())?));
    }
    let (mut values, mut at) = (Vec::new(), space(text, 1));
    if text.get(at) == Some(&b']') {
        return (at + 1 == text.len()).then_some(NestedValue::List(values));
    }
    loop {
        let (item, end) = value(text, at).ok()?;
        values.push(item);
        at = space(text, end);
        match text.get(at)? {
            b',' => at = space(text, at + 1),
            b']' => return (at + 1 == text.len()).then_some(NestedValue::List(values)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, is_end: bool) -> Result<(Vec<String>, Vec<Vec<String>>), RecordError> {
        let (mut keys, mut records, mut at, mut values) = (JsonKeys::all(), Vec::new(), 0, Vec::new());
        while let RecordStep::Record { end, .. } = record(&mut keys, text.as_bytes(), at, is_end, &mut values)? {
            records.push(values.iter().map(|value| format!("{value:?}")).collect());
            at = end;
        }
        Ok((keys.names, records))
    }

    #[test]
    fn objects_are_split() {
        let text = |text: &str| format!("{:?}", RawValue::Text(text.as_bytes()));
        let number = |text: &str| format!("{:?}", RawValue::Number(text.as_bytes()));
        let absent = || "Absent".to_owned();
        for (json, keys, expected) in [
            ("", &[][..], vec![]),
            ("{}\n \n{}", &[], vec![vec![], vec![]]),
            ("{\"a\":1}\n{\"b\" : \"x\" , \"a\":-2.5e3}\r\n", &["a", "b"], {
                vec![vec![number("1")], vec![number("-2.5e3"), text("x")]]
            }),
            ("{\n  \"a\": 1\n}{\"c\": \"\"}", &["a", "c"], vec![vec![number("1")], vec![absent(), text("")]]),
            ("{\"a\": 1, \"a\": 2}", &["a"], vec![vec!["Bad(\"occurs twice in the object\")".to_owned()]]),
            ("{\"\\u0061\": 1}", &["a"], vec![vec![number("1")]]),
            ("{\"a\": null, \"b\": true}", &["a", "b"], {
                vec![vec!["Null".to_owned(), format!("{:?}", RawValue::Bool(b"true"))]]
            }),
        ] {
            let (names, records) = split(json, true).unwrap_or_else(|stop| panic!("{json}: {stop:?}"));
            assert_eq!(names, keys, "{json}");
            assert_eq!(records, expected, "{json}");
        }
    }

    #[test]
    fn errors_name_the_start_of_a_non_object() {
        for (json, at, expected) in [
            ("{\"a\": 1}\n[{\"a\": 1}]", 9, "it holds an array"),
            ("{\"a\": 1}\n7", 9, "expected an object, found `7`"),
            ("{\"a\": 1}\n{\"a\": \n{\"a\": 1}\n", 9, "the object that starts in the line does not end"),
            ("{\"a\": 1}\n{\"a\": \n{\"a\": 1}\n{\"a\": 1}", 9, "expected `,` or `}`, found `{\"a\": 1}`"),
            ("{\"a\" 1}", 0, "expected `:`, found `1}`"),
            ("{a: 1}", 0, "expected a key in quotes, found `a: 1}`"),
            ("{\"a\": 1,}", 0, "expected a key in quotes, found `}`"),
            ("{\"a\": }", 0, "expected a value, found `}`"),
            ("{\"a\": \"x\ny\"}", 0, "a string in the line does not end"),
            ("{\"a\": \"x", 0, "the object that starts in the line does not end"),
        ] {
            let stop = split(json, true).expect_err(json);
            assert!(stop.at == at && stop.reason.starts_with(expected), "{json}: {stop:?}");
        }
        for (value, is_number) in [
            ("0", true),
            ("-0", true),
            ("01", false),
            ("+1", false),
            ("1.", false),
            (".5", false),
            ("1e5", true),
            ("1E+05", true),
            ("1e", false),
            ("0x10", false),
            ("1_000", false),
            ("-", false),
            ("NaN", false),
        ] {
            let json = format!("{{\"a\": {value}}}");
            let found = split(&json, true).expect("an object").1[0][0].starts_with("Number");
            assert_eq!(found, is_number, "{value}");
        }
    }

    #[test]
    fn complete_objects_do_not_depend_on_later_bytes() {
        let json = "{\"a\": \"x\\\"}\\n\", \"b\": [1, {\"c\": \"]\"}]}\n{\"a\": 12}\n{}";
        let whole = split(json, true).expect("objects").1;
        for cut in 0..json.len() {
            let part = split(&json[..cut], false).expect("objects").1;
            assert_eq!(part, whole[..part.len()], "{cut}");
        }
    }
}
