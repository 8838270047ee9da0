//! CSV parser.
//!
//! A value that starts with a quote ends with one; within it, two quotes stand for one. A quote within another value is
//! an ordinary character. `\n`, `\r` and `\r\n` end a record. Empty lines and comments are skipped.

use memchr::{memchr, memchr_iter, memchr2};

use super::record::{RawValue, RecordError, RecordStep};

/// CSV dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct CsvSyntax {
    pub(super) delimiter: u8,
    pub(super) quote: Option<u8>,
    pub(super) comment: Option<u8>,
}

/// Parser state after a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CsvState {
    /// At the start of a value.
    Start,
    Plain,
    Quoted,
    /// After a quote in a quoted value: its end, or the first of two quotes that stand for one.
    Quote,
}

impl CsvSyntax {
    fn after(&self, at: CsvState, byte: u8) -> CsvState {
        let is_quote = Some(byte) == self.quote;
        match at {
            CsvState::Quoted if is_quote => CsvState::Quote,
            CsvState::Quoted => CsvState::Quoted,
            CsvState::Start | CsvState::Quote if is_quote => CsvState::Quoted,
            _ if byte == self.delimiter || matches!(byte, b'\n' | b'\r') => CsvState::Start,
            _ => CsvState::Plain,
        }
    }

    /// Splits the first record at or after `from` into `values`.
    pub(super) fn record<'b>(
        &self,
        bytes: &'b [u8],
        from: usize,
        is_end: bool,
        values: &mut Vec<RawValue<'b>>,
    ) -> Result<RecordStep, RecordError> {
        values.clear();
        let Some(start) = self.begin(bytes, from) else {
            return Ok(if is_end { RecordStep::End } else { RecordStep::More(from) });
        };
        let line = memchr2(b'\n', b'\r', &bytes[start..]).map(|len| start + len);
        let until = line.unwrap_or(bytes.len());
        let record = &bytes[start..until];
        if self.quote.is_some_and(|quote| memchr(quote, record).is_some()) {
            return self.quoted(bytes, start, is_end, values);
        }
        if line.is_none() && !is_end {
            return Ok(RecordStep::More(start));
        }
        let mut first = 0;
        for end in memchr_iter(self.delimiter, record) {
            values.push(RawValue::Text(&record[first..end]));
            first = end + 1;
        }
        values.push(RawValue::Text(&record[first..]));
        Ok(RecordStep::Record { start, end: until })
    }

    /// Returns the start of the next record, after empty lines and comments.
    fn begin(&self, bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            at += bytes[at..].iter().position(|byte| !matches!(byte, b'\n' | b'\r'))?;
            if self.comment != Some(bytes[at]) {
                return Some(at);
            }
            at += memchr2(b'\n', b'\r', &bytes[at..])?;
        }
    }

    /// Splits a record like [`CsvSyntax::record`], if its line has a quote.
    fn quoted<'b>(
        &self,
        bytes: &'b [u8],
        start: usize,
        is_end: bool,
        values: &mut Vec<RawValue<'b>>,
    ) -> Result<RecordStep, RecordError> {
        let (mut at, mut first) = (CsvState::Start, start);
        for (position, byte) in bytes.iter().enumerate().skip(start) {
            let ends_value = at != CsvState::Quoted && (*byte == self.delimiter || matches!(byte, b'\n' | b'\r'));
            if !ends_value {
                at = self.after(at, *byte);
                continue;
            }
            values.push(self.value(&bytes[first..position]));
            (at, first) = (CsvState::Start, position + 1);
            if *byte != self.delimiter {
                return Ok(RecordStep::Record { start, end: position });
            }
        }
        match (is_end, at) {
            (false, _) => Ok(RecordStep::More(start)),
            (true, CsvState::Quoted) => {
                Err(RecordError { at: start, reason: "a quote in the line is not closed".to_owned() })
            }
            (true, _) => {
                values.push(self.value(&bytes[first..]));
                Ok(RecordStep::Record { start, end: bytes.len() })
            }
        }
    }

    /// Classifies the text between two delimiters.
    fn value<'b>(&self, text: &'b [u8]) -> RawValue<'b> {
        let Some(quote) = self.quote.filter(|quote| text.first() == Some(quote)) else { return RawValue::Text(text) };
        let inner = &text[1..];
        match memchr(quote, inner) {
            Some(end) if end + 1 == inner.len() => RawValue::Text(&inner[..end]),
            _ => RawValue::Escaped(text),
        }
    }

    /// Removes the quotes of an escaped value.
    pub(super) fn unescape(&self, text: &[u8], to: &mut Vec<u8>) {
        let mut at = CsvState::Start;
        for byte in text {
            let next = self.after(at, *byte);
            let is_quote =
                matches!((at, next), (CsvState::Start, CsvState::Quoted) | (CsvState::Quoted, CsvState::Quote));
            // Text after the closing quote is part of the value. A delimiter can only occur in quotes here.
            at = if at == CsvState::Quoted || next != CsvState::Start { next } else { CsvState::Plain };
            if !is_quote {
                to.push(*byte);
            }
        }
    }
}

/// Finds the starts of records in a sequence of chunks.
pub(super) struct RecordBoundaries {
    syntax: CsvSyntax,
    at: CsvState,
    in_comment: bool,
    begins_line: bool,
    /// Bytes consumed so far.
    seen: u64,
}

impl RecordBoundaries {
    pub(super) fn new(syntax: CsvSyntax) -> RecordBoundaries {
        RecordBoundaries { syntax, at: CsvState::Start, in_comment: false, begins_line: true, seen: 0 }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Consumes bytes up to the end of the current line. Returns their number, and whether a record can start after
    /// them.
    pub(super) fn until_record(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (position, byte) in bytes.iter().enumerate() {
            let in_quotes = self.at == CsvState::Quoted;
            self.step(*byte);
            if matches!(byte, b'\n' | b'\r') && !in_quotes {
                self.seen += position as u64 + 1;
                return (position + 1, true);
            }
        }
        self.seen += bytes.len() as u64;
        (bytes.len(), false)
    }

    /// Consumes bytes. Takes one step per quote rather than per byte, unless the dialect has comments.
    pub(super) fn skip(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let Some(quote) = self.syntax.quote else {
            return;
        };
        if self.syntax.comment.is_some() {
            bytes.iter().for_each(|byte| self.step(*byte));
            return;
        }
        let mut next = 0;
        for at in memchr_iter(quote, bytes) {
            self.past(&bytes[next..at]);
            self.at = self.syntax.after(self.at, quote);
            next = at + 1;
        }
        self.past(&bytes[next..]);
    }

    /// Consumes bytes without quotes.
    fn past(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last().filter(|_| self.at != CsvState::Quoted) {
            self.at = self.syntax.after(CsvState::Plain, *last);
        }
    }

    fn step(&mut self, byte: u8) {
        let ends_line = matches!(byte, b'\n' | b'\r') && self.at != CsvState::Quoted;
        self.in_comment =
            if self.in_comment { !ends_line } else { self.begins_line && self.syntax.comment == Some(byte) };
        self.begins_line = ends_line;
        if !self.in_comment {
            self.at = self.syntax.after(self.at, byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAS: CsvSyntax = CsvSyntax { delimiter: b',', quote: Some(b'"'), comment: None };

    fn split(syntax: CsvSyntax, text: &str, is_end: bool) -> Result<Vec<Vec<String>>, RecordError> {
        let (mut records, mut at, mut values) = (Vec::new(), 0, Vec::new());
        while let RecordStep::Record { end, .. } = syntax.record(text.as_bytes(), at, is_end, &mut values)? {
            let text = |value: &RawValue<'_>| match value {
                RawValue::Text(text) => String::from_utf8_lossy(text).into_owned(),
                RawValue::Escaped(text) => {
                    let mut unescaped = Vec::new();
                    syntax.unescape(text, &mut unescaped);
                    String::from_utf8(unescaped).expect("text")
                }
                other => panic!("{other:?}"),
            };
            records.push(values.iter().map(text).collect());
            at = end;
        }
        Ok(records)
    }

    #[test]
    fn records_are_split_as_everyone_does() {
        let mut random = sandbar_core::Seed::new(7);
        for round in 0..20_000 {
            let text: String = (0..random.below(16))
                .map(|_| ["\"", "\"", ",", "\n", "\r", "a", "é"][random.below(7) as usize])
                .collect();
            let mut reader = ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let expected: Vec<Vec<String>> =
                reader.records().map(|r| r.expect("a record").iter().map(str::to_owned).collect()).collect();
            match split(COMMAS, &text, true) {
                Ok(found) => assert_eq!(found, expected, "{round}: {text:?}"),
                // The reference reader accepts the end of the file as a closing quote.
                Err(stop) => assert!(text.len() > stop.at && text.contains('"'), "{text:?}"),
            }
            // Complete records of a partial file are the same.
            let whole = split(COMMAS, &text, false).expect("records");
            assert!(whole.len() <= expected.len() && whole == expected[..whole.len()], "{text:?}");
        }
    }

    #[test]
    fn comments_and_other_quotes_are_known() {
        let other = CsvSyntax { delimiter: b';', quote: Some(b'\''), comment: Some(b'#') };
        let none = CsvSyntax { quote: None, ..COMMAS };
        for (syntax, text, expected) in [
            (other, "# it's one\na;'b;c'\n#'\nd;e", &[&["a", "b;c"][..], &["d", "e"]][..]),
            (other, "#", &[]),
            (other, "a#b;c", &[&["a#b", "c"]]),
            (none, "\"a,b\"\n", &[&["\"a", "b\""]]),
        ] {
            assert_eq!(split(syntax, text, true).expect("records"), expected, "{text:?}");
        }
        let stop = split(COMMAS, "a,b\n1,\"2\n3,4\n", true).expect_err("a quote");
        assert_eq!((stop.at, stop.reason.as_str()), (4, "a quote in the line is not closed"));
    }

    #[test]
    fn cuts_are_where_records_begin() {
        let mut random = sandbar_core::Seed::new(9);
        for syntax in [COMMAS, CsvSyntax { comment: Some(b'#'), ..COMMAS }, CsvSyntax { quote: None, ..COMMAS }] {
            for _ in 0..5_000 {
                let text: String = (0..random.below(20))
                    .map(|_| ["\"", "\"", ",", "\n", "#", "a"][random.below(6) as usize])
                    .collect();
                let Ok(expected) = split(syntax, &text, true) else { continue };
                let nominal = random.below(text.len() as u32 + 1) as usize;
                let mut cuts = RecordBoundaries::new(syntax);
                cuts.skip(&text.as_bytes()[..nominal]);
                cuts.until_record(&text.as_bytes()[nominal..]);
                let (first, second) = text.split_at(cuts.seen() as usize);
                let parts = [split(syntax, first, true), split(syntax, second, true)];
                let found = parts.map(|part| part.unwrap_or_else(|stop| panic!("{text:?} at {nominal}: {stop:?}")));
                assert_eq!(found.concat(), expected, "{text:?} at {nominal}");
            }
        }
    }
}
