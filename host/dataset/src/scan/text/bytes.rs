//! UTF-8 bytes of text files, without a byte-order mark, from any supported encoding and compression.

use std::io::{self, BufRead, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::super::dataset_file::DatasetFile;
use super::super::reason::reason_of;
use super::compression::Compression;
use super::options::Encoding;

/// Bytes of a chunk, read and decoded.
const CHUNK_BYTES: u64 = 1 << 20;

/// Number of chunks that are read concurrently, including the next one.
const CHUNKS_AHEAD: usize = 3;

/// First bytes of files that are not text, whatever their extension.
const NO_TEXT: &[(&[u8], &str)] = &[
    (b"\x1f\x8b", "a gzip file (.gz)"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file (.zst)"),
    (b"\xfd7zX", "an xz file (.xz)"),
    (b"PK\x03\x04", "an archive (.zip)"),
    (b"\xff\xfe\0\0", "UTF-32 text, which is not supported"),
    (b"\0\0\xfe\xff", "UTF-32 text, which is not supported"),
];

/// Text file, as bytes.
#[derive(Debug, Clone)]
pub(in super::super) struct TextBytes {
    store: Arc<dyn ObjectStore>,
    location: object_store::path::Path,
    /// Bytes of the file.
    size: u64,
    compression: Option<Compression>,
    encoding: Option<Encoding>,
    /// Bytes of the byte-order mark.
    skip: u64,
}

impl TextBytes {
    /// Opens a file in `encoding`, unless its byte-order mark names another one.
    pub(super) async fn open(
        store: &Arc<dyn ObjectStore>,
        file: &DatasetFile,
        encoding: Option<Encoding>,
    ) -> Result<TextBytes, String> {
        let (store, location, size) = (Arc::clone(store), file.meta.location.clone(), file.meta.size);
        let mut text = TextBytes { store, location, size, compression: file.compression, encoding, skip: 0 };
        if file.compression.is_none() && size > 0 {
            let head = text.store.get_range(&text.location, 0..size.min(4)).await.map_err(|e| reason_of(&e))?;
            if let Some((_, name)) = NO_TEXT.iter().find(|(begins, _)| head.starts_with(begins)) {
                return Err(format!("it starts like {name}, not like text; use the matching extension"));
            }
            let (encoding, skip) = Encoding::detect(&head, encoding);
            (text.encoding, text.skip) = (Some(encoding), skip as u64);
        }
        Ok(text)
    }

    /// Returns the bytes of text, if any range of them can be read independently.
    pub(super) fn len(&self) -> Option<u64> {
        let plain = self.size == 0 || (self.compression.is_none() && self.encoding == Some(Encoding::Utf8));
        plain.then(|| self.size - self.skip)
    }

    /// Returns the text from byte `from` to byte `to`. If ranges can't be read independently, these must be 0 and the
    /// end.
    pub(super) fn chunks(&self, from: u64, to: u64) -> BoxStream<'static, Result<Bytes, String>> {
        let plain = self.len().is_some();
        let end = if plain { self.size.min(to.saturating_add(self.skip)) } else { self.size };
        let (store, location) = (Arc::clone(&self.store), self.location.clone());
        let first = if plain { from.saturating_add(self.skip) } else { 0 };
        let ranges = (first..end).step_by(CHUNK_BYTES as usize).map(move |at| (at, end.min(at + CHUNK_BYTES)));
        let read = futures::stream::iter(ranges).map(move |(at, next)| {
            let (store, location) = (Arc::clone(&store), location.clone());
            async move {
                let bytes = store.get_range(&location, at..next).await.map_err(|e| reason_of(&e))?;
                match bytes.len() as u64 {
                    len if len < next - at => Err(format!("it ends at byte {}, but had {end} bytes", at + len)),
                    _ => Ok(bytes),
                }
            }
        });
        let raw = read.buffered(CHUNKS_AHEAD);
        if plain {
            return raw.boxed();
        }
        let unpacked = match self.compression {
            Some(compression) => unpacked(raw.boxed(), compression),
            None => raw.boxed(),
        };
        let decoder = Decoder { encoding: self.encoding, head: Some(Vec::new()), rest: Vec::new() };
        let ended = futures::stream::once(async { Ok(None) });
        let decoded = unpacked.map_ok(Some).chain(ended).scan(decoder, |decoder, bytes| {
            let decoded = match bytes {
                Ok(Some(bytes)) => decoder.decode(&bytes),
                Ok(None) => decoder.finish(),
                Err(error) => Err(error),
            };
            std::future::ready(Some(decoded.map(Bytes::from)))
        });
        decoded.try_filter(|bytes| std::future::ready(!bytes.is_empty())).boxed()
    }

    /// Returns the number, from 1, of the line at byte `at`, or of the next line that `skipped` does not exclude by its
    /// first byte.
    pub(super) async fn line_of(&self, at: u64, skipped: impl Fn(u8) -> bool) -> Option<u64> {
        let (mut line, mut here, mut last, mut in_skipped) = (1, 0, b'\n', false);
        let mut chunks = self.chunks(0, u64::MAX);
        while let Some(chunk) = chunks.next().await {
            for byte in chunk.ok()? {
                // A `\r` counts as a line break once it is known that no `\n` follows.
                line += u64::from(last == b'\r' && byte != b'\n');
                let begins = matches!(last, b'\n' | b'\r');
                in_skipped = (in_skipped && !begins) || (begins && skipped(byte));
                if here >= at && !matches!(byte, b'\n' | b'\r') && !in_skipped {
                    return Some(line);
                }
                line += u64::from(byte == b'\n');
                (here, last) = (here + 1, byte);
            }
        }
        Some(line)
    }
}

/// Decompresses a file in chunks of limited size. Lengths that the file states are not trusted.
fn unpacked(
    raw: BoxStream<'static, Result<Bytes, String>>,
    compression: Compression,
) -> BoxStream<'static, Result<Bytes, String>> {
    let mailbox = Arc::new(Mutex::new(MailboxContent::Empty));
    let feed = Feed { mailbox: Arc::clone(&mailbox), current: Bytes::new(), ended: false };
    let state = (raw, mailbox, compression, Some(feed), None::<Box<dyn Read + Send>>);
    let unpacked = futures::stream::try_unfold(state, |(mut raw, mailbox, compression, mut feed, reader)| async move {
        let damaged = |e: io::Error| format!("it can't be unpacked: {e}");
        let mut reader = match (reader, feed.take()) {
            (Some(reader), _) => reader,
            (None, Some(feed)) => compression.reader(feed).map_err(damaged)?,
            (None, None) => return Ok(None),
        };
        let mut out = vec![0; CHUNK_BYTES as usize];
        loop {
            match reader.read(&mut out) {
                Ok(0) => return Ok::<_, String>(None),
                Ok(len) => {
                    out.truncate(len);
                    return Ok(Some((Bytes::from(out), (raw, mailbox, compression, None, Some(reader)))));
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let mail = raw.try_next().await?.map_or(MailboxContent::End, MailboxContent::Bytes);
                    *mailbox.lock().unwrap_or_else(PoisonError::into_inner) = mail;
                }
                Err(e) => return Err(damaged(e)),
            }
        }
    });
    unpacked.boxed()
}

enum MailboxContent {
    Empty,
    Bytes(Bytes),
    End,
}

/// Input of a decompressor. Returns `WouldBlock` until the mailbox has the next bytes.
struct Feed {
    mailbox: Arc<Mutex<MailboxContent>>,
    current: Bytes,
    ended: bool,
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() && !self.ended {
            let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *mailbox, MailboxContent::Empty) {
                MailboxContent::Empty => return Err(ErrorKind::WouldBlock.into()),
                MailboxContent::Bytes(bytes) => self.current = bytes,
                MailboxContent::End => self.ended = true,
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        drop(self.current.split_to(amount.min(self.current.len())));
    }
}

impl Read for Feed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let bytes = from.len().min(to.len());
        to[..bytes].copy_from_slice(&from[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }
}

/// Converts bytes of any encoding to UTF-8.
struct Decoder {
    encoding: Option<Encoding>,
    /// First bytes, until they suffice for a byte-order mark.
    head: Option<Vec<u8>>,
    /// Bytes of an incomplete character.
    rest: Vec<u8>,
}

impl Decoder {
    fn decode(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let Some(mut head) = self.head.take() else { return self.transcode(bytes) };
        head.extend_from_slice(bytes);
        if head.len() < 4 {
            self.head = Some(head);
            return Ok(Vec::new());
        }
        self.begin(&head)
    }

    fn begin(&mut self, head: &[u8]) -> Result<Vec<u8>, String> {
        let (encoding, skip) = Encoding::detect(head, self.encoding);
        self.encoding = Some(encoding);
        self.transcode(&head[skip..])
    }

    fn finish(&mut self) -> Result<Vec<u8>, String> {
        let last = match self.head.take() {
            Some(head) => self.begin(&head)?,
            None => Vec::new(),
        };
        match self.rest.is_empty() {
            true => Ok(last),
            false => Err("it ends within a UTF-16 character".to_owned()),
        }
    }

    fn transcode(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        match self.encoding {
            Some(Encoding::Latin1) => {
                let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
                Ok(text.into_bytes())
            }
            Some(encoding @ (Encoding::Utf16Le | Encoding::Utf16Be)) => self.utf16(encoding, bytes),
            _ => Ok(bytes.to_vec()),
        }
    }

    fn utf16(&mut self, encoding: Encoding, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let unit = |pair: &[u8]| match encoding {
            Encoding::Utf16Be => u16::from_be_bytes([pair[0], pair[1]]),
            _ => u16::from_le_bytes([pair[0], pair[1]]),
        };
        let mut whole = all.len() / 2 * 2;
        if whole > 0 && (0xd800..0xdc00).contains(&unit(&all[whole - 2..whole])) {
            whole -= 2;
        }
        self.rest = all.split_off(whole);
        let units = all.chunks_exact(2).map(unit);
        let text: Result<String, _> = char::decode_utf16(units).collect();
        text.map(String::into_bytes).map_err(|e| format!("it is not UTF-16: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_becomes_utf8() {
        let text = "k,näme\n1,日本𝄞\n";
        let utf16 = |mark: bool, order: fn(u16) -> [u8; 2]| -> Vec<u8> {
            let mark = if mark { "\u{feff}" } else { "" };
            mark.encode_utf16().chain(text.encode_utf16()).flat_map(order).collect()
        };
        let latin = "k,näme".chars().map(|c| c as u8).collect::<Vec<u8>>();
        for (bytes, encoding, expected) in [
            (text.as_bytes().to_vec(), None, text),
            (format!("\u{feff}{text}").into_bytes(), None, text),
            (format!("\u{feff}{text}").into_bytes(), Some(Encoding::Latin1), text),
            (utf16(true, u16::to_le_bytes), None, text),
            (utf16(true, u16::to_be_bytes), Some(Encoding::Utf16), text),
            (utf16(false, u16::to_le_bytes), Some(Encoding::Utf16), text),
            (utf16(false, u16::to_be_bytes), Some(Encoding::Utf16), text),
            (latin, Some(Encoding::Latin1), "k,näme"),
            (b"k".to_vec(), Some(Encoding::Latin1), "k"),
            (Vec::new(), None, ""),
        ] {
            // Any split of the input gives the same output.
            for step in [1, 2, 3, 5, 1000] {
                let mut decoder = Decoder { encoding, head: Some(Vec::new()), rest: Vec::new() };
                let mut found = Vec::new();
                bytes.chunks(step).for_each(|bytes| found.extend(decoder.decode(bytes).expect("text")));
                found.extend(decoder.finish().expect("text"));
                assert_eq!(String::from_utf8_lossy(&found), expected, "{encoding:?} {step}");
            }
        }
        let mut decoder = Decoder { encoding: Some(Encoding::Utf16Le), head: None, rest: Vec::new() };
        assert!(decoder.decode(&[0x00, 0xdc, 0x41, 0x00]).is_err(), "half of a pair");
        assert!(decoder.decode(&[0x41]).is_ok() && decoder.finish().is_err(), "half of a unit");
    }
}
