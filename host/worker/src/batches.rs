//! Decodes batches from guests and workers as untrusted input.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use sandbar_batch::Header;
use sandbar_core::{Code, Fault};

/// Decodes batches one after another. It caches the last schema, because consecutive batches mostly share one.
#[derive(Default)]
pub(crate) struct BatchReader {
    /// The last schema, encoded and decoded.
    schema: Option<(Vec<u8>, SchemaRef)>,
}

impl BatchReader {
    pub(crate) fn read(&mut self, header: &[u8], body: &Buffer) -> Result<RecordBatch, Fault> {
        let (header, schema) = self.parse(header)?;
        sandbar_batch::read(&header, schema, body).map_err(malformed)
    }

    /// Like `read`, with the body in parts.
    pub(crate) fn read_parts(&mut self, header: &[u8], parts: &[Buffer]) -> Result<RecordBatch, Fault> {
        let (header, schema) = self.parse(header)?;
        sandbar_batch::read_parts(&header, schema, parts).map_err(malformed)
    }

    fn parse<'h>(&mut self, header: &'h [u8]) -> Result<(Header<'h>, SchemaRef), Fault> {
        let header = Header::parse(header).map_err(malformed)?;
        let known = self.schema.take().filter(|(bytes, _)| bytes == header.schema_bytes());
        let (bytes, schema) = match known {
            Some(known) => known,
            None => {
                let schema = sandbar_batch::decode_schema(header.schema_bytes()).map_err(malformed)?;
                (header.schema_bytes().to_vec(), Arc::new(schema))
            }
        };
        self.schema = Some((bytes, schema.clone()));
        Ok((header, schema))
    }
}

pub(crate) fn malformed(reason: impl std::fmt::Display) -> Fault {
    Fault::new(Code::BadOutput, format!("its output is malformed: {reason}"))
}
