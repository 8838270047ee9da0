//! Where lines and records of a CSV file lie: for messages, and for cuts that no reader notices.

use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// A CSV file as bytes.
pub(super) struct CsvBytes<'a> {
    pub(super) store: &'a dyn ObjectStore,
    pub(super) location: &'a ObjectPath,
    pub(super) size: u64,
    pub(super) delimiter: u8,
}

/// Where in a record a byte lies, as the reader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first byte of a value.
    Start,
    Plain,
    Quoted,
    /// Behind a quote that ends the value, or is the first of two that stand for one.
    Quote,
}

impl At {
    fn after(self, byte: u8, delimiter: u8) -> At {
        match (self, byte) {
            (At::Quoted, b'"') => At::Quote,
            (At::Quoted, _) | (At::Start | At::Quote, b'"') => At::Quoted,
            (_, b'\n' | b'\r') => At::Start,
            (_, byte) if byte == delimiter => At::Start,
            _ => At::Plain,
        }
    }

    /// After each of `bytes`: as many steps as there are quotes.
    fn after_all(self, bytes: &[u8], delimiter: u8) -> At {
        let past = |at: At, bytes: &[u8]| match bytes.last() {
            Some(last) if at != At::Quoted => At::Plain.after(*last, delimiter),
            _ => at,
        };
        let (mut at, mut next) = (self, 0);
        for (quote, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'"') {
            at = past(at, &bytes[next..quote]).after(b'"', delimiter);
            next = quote + 1;
        }
        past(at, &bytes[next..])
    }
}

impl CsvBytes<'_> {
    /// The line, from 1, in which the `record`th record from 1 begins, of those that begin at `from` or in a later line.
    /// Empty lines are no records. None if there is no such record, or the file can't be read.
    pub(super) async fn line_of(&self, record: u64, from: u64) -> Option<u64> {
        let (mut line, mut records, mut blank, mut at) = (1, 0, true, At::Start);
        let mut begun = from == 0;
        self.look(0, |first, bytes| {
            for (position, byte) in (first..).zip(bytes) {
                if begun && blank && !matches!(byte, b'\n' | b'\r') {
                    (blank, records) = (false, records + 1);
                    if records == record {
                        return Some(line);
                    }
                }
                if begun {
                    at = at.after(*byte, self.delimiter);
                }
                if *byte == b'\n' {
                    line += 1;
                    blank |= at == At::Start;
                    begun |= position + 1 >= from;
                }
            }
            None
        })
        .await
    }

    /// The line of the first record that has not as many values as the first has or that does not end, and what is wrong.
    pub(super) async fn ragged(&self) -> Option<(u64, String)> {
        let (mut line, mut begins, mut values, mut blank, mut at) = (1, 1, 1, true, At::Start);
        let mut expected = None;
        let found = self.look(0, |_, bytes| {
            for byte in bytes {
                if blank && !matches!(byte, b'\n' | b'\r') {
                    (blank, begins, values) = (false, line, 1);
                }
                let quoted = at == At::Quoted;
                at = at.after(*byte, self.delimiter);
                values += u64::from(*byte == self.delimiter && !quoted);
                line += u64::from(*byte == b'\n');
                if *byte == b'\n' && at == At::Start && !blank {
                    blank = true;
                    let expected = *expected.get_or_insert(values);
                    if values != expected {
                        return Some((begins, format!("the line has {values} values, but the first has {expected}")));
                    }
                }
            }
            None
        });
        let found = found.await;
        found.or_else(|| (at == At::Quoted).then(|| (begins, "a quote in the line has no second one".to_owned())))
    }

    /// Whether the last line that begins before `end`, of those from `from` on, ends inside of a quoted value: then what
    /// follows would be read as a record of its own. The line that `from` lies in must not.
    pub(super) async fn is_cut_in_quotes(&self, from: u64, end: u64) -> bool {
        let (mut begun, mut at) = (from == 0, At::Start);
        let cut = self.look(from.saturating_sub(1), |first, bytes| {
            let mut rest = 0;
            if !begun {
                let newline = bytes.iter().position(|byte| *byte == b'\n')?;
                (begun, rest) = (true, newline + 1);
                if first + rest as u64 >= end {
                    return Some(false);
                }
            }
            let whole = ((end - 1).saturating_sub(first) as usize).clamp(rest, bytes.len());
            at = at.after_all(&bytes[rest..whole], self.delimiter);
            for (position, byte) in (first..).zip(bytes).skip(whole) {
                at = at.after(*byte, self.delimiter);
                if *byte == b'\n' && position + 1 >= end {
                    return Some(at == At::Quoted);
                }
            }
            None
        });
        cut.await.unwrap_or(false)
    }

    /// Shows the bytes from `from` on, in pieces, with where each lies, until something is found.
    async fn look<T>(&self, from: u64, mut find: impl FnMut(u64, &[u8]) -> Option<T>) -> Option<T> {
        let mut at = from;
        while at < self.size {
            let end = self.size.min(at + CHUNK_BYTES);
            let bytes = self.store.get_range(self.location, at..end).await.ok()?;
            if let Some(found) = find(at, &bytes) {
                return Some(found);
            }
            at = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use object_store::memory::InMemory;

    use super::*;

    fn look<T>(text: &str, find: impl AsyncFnOnce(CsvBytes<'_>) -> T) -> T {
        let (store, location) = (InMemory::new(), ObjectPath::from("a.csv"));
        block_on(async {
            store.put(&location, text.to_owned().into()).await.expect("a file");
            find(CsvBytes { store: &store, location: &location, size: text.len() as u64, delimiter: b',' }).await
        })
    }

    #[test]
    fn records_are_found_in_their_lines() {
        for (text, record, from, expected) in [
            ("a,b\n1,2\n3,4\n", 3, 0, Some(3)),
            ("a,b\n\n1,2\r\n\r\n\n3,4", 3, 0, Some(6)),
            ("a,b\n\"x\n\ny\",2\n3,4\n", 2, 0, Some(2)),
            ("a,b\n\"x\n\ny\",2\n3,4\n", 3, 0, Some(5)),
            ("a,b\n1,2\n3,4\n", 1, 4, Some(2)),
            ("a,b\n1,2\n3,4\n", 1, 5, Some(3)),
            ("a,b\n1,2\n\n3,4\n", 1, 5, Some(4)),
            ("a,b\n1,2\n", 3, 0, None),
        ] {
            let found = look(text, async |csv| csv.line_of(record, from).await);
            assert_eq!(found, expected, "{text:?}: {record} from {from}");
        }
    }

    #[test]
    fn the_first_record_of_another_length_is_found() {
        let wrong = |values: u64| format!("the line has {values} values, but the first has 2");
        for (text, expected) in [
            ("a,b\n1,2\n", None),
            ("a,b\n\n1,2,3\n", Some((3, wrong(3)))),
            ("a,b\n\"1,\n1\",2\n3\n1,2,3\n", Some((4, wrong(1)))),
            ("a,b\n1,5\" pipe\n1,\"5\"\"\"\n1\n", Some((4, wrong(1)))),
            ("a,b\n1,\"2\n3,4\n", Some((2, "a quote in the line has no second one".to_owned()))),
        ] {
            assert_eq!(look(text, async |csv| csv.ragged().await), expected, "{text:?}");
        }
    }

    #[test]
    fn many_bytes_are_as_one_after_another() {
        let mut random = sandbar_core::Seed::new(7);
        for _ in 0..2_000 {
            let text: Vec<u8> = (0..random.below(12)).map(|_| b"\"\"\",\n\ra"[random.below(7) as usize]).collect();
            for from in [At::Start, At::Plain, At::Quoted, At::Quote] {
                let expected = text.iter().fold(from, |at, byte| at.after(*byte, b','));
                assert_eq!(from.after_all(&text, b','), expected, "{from:?}: {text:?}");
            }
        }
    }

    #[test]
    fn cuts_into_quoted_values_are_found() {
        let quotes = "a,b\n1,\"x\ny\"\n2,5\" pipe\n3,\"\"\"\"\n4,\"\"\n";
        // The lines begin at 0, 4, 9, 12, 22, 29.
        for (from, end, expected) in [
            (0, 4, false),
            (0, 5, true),
            (4, 9, true),
            (4, 10, false),
            (0, 12, false),
            (5, 9, false),
            (12, 13, false),
            (10, 20, false),
            (12, 29, false),
            (22, 29, false),
        ] {
            let found = look(quotes, async |csv| csv.is_cut_in_quotes(from, end).await);
            assert_eq!(found, expected, "{from}..{end}");
        }
    }
}
