//! Reading batches that a guest or a worker hands back, trusting nothing.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use sandbar_batch::Header;
use sandbar_core::{Code, Fault};

/// Reads batches one after another: their schemas are mostly one.
#[derive(Default)]
pub(crate) struct BatchReader {
    /// The last schema, as it came and decoded.
    schema: Option<(Vec<u8>, SchemaRef)>,
}

impl BatchReader {
    pub(crate) fn read(&mut self, header: &[u8], body: &Buffer) -> Result<RecordBatch, Fault> {
        let (header, schema) = self.parse(header)?;
        sandbar_batch::read(&header, schema, body).map_err(malformed)
    }

    /// The same, of a body in parts.
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

pub(crate) fn malformed(what: impl std::fmt::Display) -> Fault {
    Fault::new(Code::BadOutput, format!("what it hands back is malformed: {what}"))
}
