//! Validation of lengths in Arrow files. The Arrow reader allocates stated lengths before it reads, and an allocation
//! beyond the available memory aborts the process.

use std::fmt::Display;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::arrow::ipc::convert::fb_to_schema;
use datafusion::arrow::ipc::reader::read_footer_length;
use datafusion::arrow::ipc::{Block, RecordBatch, root_as_footer, root_as_message};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::reason::reason_of;

/// Bytes at the end of a file with the length of its footer and the magic number.
const TAIL_BYTES: u64 = 10;

/// First bytes of a message, except in files from before 2020.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes before a compressed buffer with its uncompressed length.
const PREFIX_BYTES: u64 = 8;

/// Maximum bytes per compressed byte: in zstd four bytes can encode 128 KiB of one value; LZ4 compresses less.
const RATIO_MAX: u64 = 32 << 10;

/// Maximum bytes of an uncompressed buffer.
const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// Arrow file as bytes.
pub(super) struct IpcBytes<'a> {
    pub(super) store: &'a dyn ObjectStore,
    pub(super) location: &'a ObjectPath,
    pub(super) size: u64,
}

impl IpcBytes<'_> {
    /// Checks the blocks that a file's footer names. Returns the schema and whether the file has rows, or which length
    /// is wrong.
    pub(super) async fn schema_of_file(&self) -> Result<(SchemaRef, bool), String> {
        let tail = self.size.checked_sub(TAIL_BYTES).ok_or("it is too short")?;
        let len = self.get(tail, TAIL_BYTES).await?.try_into().map_err(|_| "it is too short")?;
        let len = read_footer_length(len).map_err(|e| reason_of(&e))? as u64;
        let footer = self.get(tail.checked_sub(len).ok_or("its footer is longer than the file")?, len).await?;
        let footer = root_as_footer(&footer).map_err(damaged)?;
        let mut has_rows = false;
        for block in footer.dictionaries().iter().flatten().chain(footer.recordBatches().iter().flatten()) {
            has_rows |= self.check_block(block).await?;
        }
        Ok((Arc::new(fb_to_schema(footer.schema().ok_or("it has no schema")?)), has_rows))
    }

    async fn check_block(&self, block: &Block) -> Result<bool, String> {
        let (at, len) = (length(block.offset())?, length(block.metaDataLength().into())?);
        let bytes = self.get(at, len).await?;
        let head = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
        let (message, body) = (bytes.get(head..).unwrap_or_default(), length(block.bodyLength())?);
        self.check_message(message, at + len, Some(body)).await.map(|(_, has_rows)| has_rows)
    }

    /// Checks the messages of a stream. Returns whether they have rows.
    pub(super) async fn check_stream(&self) -> Result<bool, String> {
        let (mut at, mut has_rows) = (0, false);
        while at + 4 <= self.size {
            let head = self.get(at, 8.min(self.size - at)).await?;
            let (word, skip) = if head.starts_with(&CONTINUATION) { (head.get(4..8), 8) } else { (head.get(..4), 4) };
            let word = word.and_then(|word| word.try_into().ok()).ok_or("it ends within a message")?;
            let len = length(i32::from_le_bytes(word).into())?;
            if len == 0 {
                break;
            }
            at += skip + len;
            let (body, rows) = self.check_message(&self.get(at - len, len).await?, at, None).await?;
            (at, has_rows) = (at + body, has_rows | rows);
        }
        Ok(has_rows)
    }

    /// Checks a message whose body starts at `at`. Returns the length of the body, which a file's footer states too,
    /// and whether the message has rows.
    async fn check_message(&self, message: &[u8], at: u64, body: Option<u64>) -> Result<(u64, bool), String> {
        let message = root_as_message(message).map_err(damaged)?;
        let body = body.map_or_else(|| length(message.bodyLength()), Ok)?;
        self.within(at, body)?;
        let dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
        let has_rows = message.header_as_record_batch().is_some_and(|batch| batch.length() > 0);
        match message.header_as_record_batch().or(dictionary) {
            Some(batch) => self.check_buffers(&batch, at, body).await.map(|()| (body, has_rows)),
            None => Ok((body, has_rows)),
        }
    }

    async fn check_buffers(&self, batch: &RecordBatch<'_>, at: u64, body: u64) -> Result<(), String> {
        let mut packed = Vec::new();
        for buffer in batch.buffers().iter().flatten() {
            let (offset, len) = (length(buffer.offset())?, length(buffer.length())?);
            if offset.saturating_add(len) > body {
                return Err(format!("a buffer of {len} bytes at {offset} exceeds its batch of {body} bytes"));
            }
            if len >= PREFIX_BYTES && batch.compression().is_some() {
                packed.push((at + offset, len - PREFIX_BYTES));
            }
        }
        let prefixes: Vec<_> = packed.iter().map(|(at, _)| *at..*at + PREFIX_BYTES).collect();
        let prefixes = self.store.get_ranges(self.location, &prefixes).await.map_err(|e| reason_of(&e))?;
        for (prefix, (_, len)) in prefixes.iter().zip(packed) {
            let whole = prefix.as_ref().try_into().map_or(0, i64::from_le_bytes);
            // -1 marks an uncompressed buffer.
            let max = len.saturating_mul(RATIO_MAX).min(BUFFER_BYTES_MAX);
            if whole != -1 && length(whole)? > max {
                return Err(format!("{len} bytes claim to be {whole} bytes uncompressed, over the limit of {max}"));
            }
        }
        Ok(())
    }

    fn within(&self, at: u64, len: u64) -> Result<(), String> {
        match at.checked_add(len).is_some_and(|end| end <= self.size) {
            true => Ok(()),
            false => Err(format!("it refers to {len} bytes at {at}, but has {}", self.size)),
        }
    }

    async fn get(&self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        self.within(at, len)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.store.get_range(self.location, at..at + len).await.map_err(|e| reason_of(&e))?;
        Ok(bytes.to_vec())
    }
}

fn length(value: i64) -> Result<u64, String> {
    u64::try_from(value).map_err(|_| format!("it states a length of {value}"))
}

fn damaged(error: impl Display) -> String {
    format!("a part of it is invalid: {error}")
}
