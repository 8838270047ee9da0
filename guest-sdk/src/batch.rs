//! Batch functions: a record batch in, a record batch out.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, SchemaRef};
use sandbar_batch::{Header, decode_schema, read_trusted};

use crate::bindings::guest::Kind;
use crate::input;
use crate::params::{Parameter, parse};
use crate::registry::{BoundFunction, Function};
use crate::scalar::emit_batch;

/// A batch function, as [`macro@crate::batch`] implements it.
pub trait Batch: 'static {
    /// Its parameters.
    type Params: serde::de::DeserializeOwned;

    /// Calls the function.
    ///
    /// # Errors
    /// The function's own error as text.
    fn call(batch: RecordBatch, params: &Self::Params) -> Result<RecordBatch, String>;
}

impl Function {
    /// Registers a batch function.
    pub const fn batch<F: Batch>(
        name: &'static str,
        about: &'static str,
        arguments: fn() -> Vec<Field>,
        parameters: fn() -> Vec<Parameter>,
    ) -> Function {
        Function { name, kind: Kind::Batch, about, arguments, returns: Vec::new, parameters, open: open::<F> }
    }
}

/// A column of any type.
pub fn any(name: &str) -> Field {
    Field::new(name, DataType::Null, true)
}

fn open<F: Batch>(params: &str) -> Result<Box<dyn BoundFunction>, String> {
    Ok(Box::new(BoundBatch::<F> { params: parse(params)?, schema: None, function: PhantomData }))
}

struct BoundBatch<F: Batch> {
    params: F::Params,
    /// The last input's schema and its encoded form: the next input mostly has the same schema.
    schema: Option<(Vec<u8>, SchemaRef)>,
    function: PhantomData<F>,
}

impl<F: Batch> BoundBatch<F> {
    fn schema(&mut self, bytes: &[u8]) -> Result<SchemaRef, String> {
        match &self.schema {
            Some((known, schema)) if known == bytes => Ok(schema.clone()),
            _ => {
                let schema = Arc::new(decode_schema(bytes).map_err(|e| e.to_string())?);
                self.schema = Some((bytes.to_vec(), schema.clone()));
                Ok(schema)
            }
        }
    }
}

impl<F: Batch> BoundFunction for BoundBatch<F> {
    fn process(&mut self, header: &[u8]) -> Result<(), String> {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        let schema = self.schema(header.schema_bytes())?;
        let body = input::body(header.body_bytes());
        // SAFETY: the host wrote header and body with `encode`, and a guest trusts its host.
        let batch = unsafe { read_trusted(&header, schema, &body) }.map_err(|e| e.to_string())?;
        emit_batch(&F::call(batch, &self.params)?)
    }
}
