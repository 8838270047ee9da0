//! A sandbox in this process, without a worker around it.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use sandbar_batch::{Header, decode_schema};
use sandbar_core::Limits;
use sandbar_sandbox::{Engine, Input, Instance, Program, Refusal, Services, compile};
use sandbar_store::{Lent, Mapping, Part, Scratch, Segments};

use crate::Failure;

/// Sandboxes alive at once.
pub const SANDBOXES_MAX: u32 = 50;

/// Length of the memory for what calls hand back.
const SLOT_BYTES: usize = 64 << 20;

/// A component, ready to be instantiated in this process.
pub struct Loaded {
    pub program: Program,
    pub functions: Vec<String>,
    pub limits: Limits,
    _engine: Engine,
}

impl Loaded {
    /// Compiles and loads a component.
    pub fn new(component: &Path) -> Result<Loaded, Failure> {
        let limits = Limits::default();
        let engine = Engine::with_room(&limits, SANDBOXES_MAX)?;
        let (code, shape) = compile(&std::fs::read(component)?)?;
        // SAFETY: compiled just now, by this build.
        let program = unsafe { engine.load(&code, shape.image_end) }?;
        let mut instance = program.instantiate(Box::new(sandbar_sandbox::NoServices), &limits, 0)?;
        let functions = instance.describe()?.into_iter().map(|f| f.name).collect();
        drop(instance);
        Ok(Loaded { program, functions, limits, _engine: engine })
    }

    /// The place of a function.
    pub fn function(&self, name: &str) -> Result<u32, Failure> {
        let at = self.functions.iter().position(|f| f == name);
        Ok(at.ok_or_else(|| format!("the component has no function `{name}`"))? as u32)
    }

    /// A sandbox with `data` as its input, whose batches are copied.
    pub fn instantiate(&self, data: &Arc<Data>) -> Result<Instance<'_>, Failure> {
        let services = Taking { data: data.clone(), laid: 0 };
        Ok(self.program.instantiate(Box::new(services), &self.limits, 0)?)
    }

    /// The same, whose batches are read where they are.
    pub fn instantiate_in_place(&self, data: &Arc<Data>) -> Result<Instance<'_>, Failure> {
        let services = Reading { data: data.clone(), schema: None };
        Ok(self.program.instantiate(Box::new(services), &self.limits, 0)?)
    }
}

/// The input of calls.
pub struct Data {
    mapping: Mapping,
    lent: Lent,
    /// Memory for what its calls hand back.
    slot: Scratch,
    /// Whether a new call has begun, whose output takes the place of the last one's.
    begun: AtomicBool,
}

impl Data {
    /// Takes `bytes` in.
    pub fn new(bytes: &[u8]) -> Result<Arc<Data>, Failure> {
        let lent = Segments::default().lend(bytes.len(), &[Part::Bytes(0, bytes)])?;
        // SAFETY: `lent` stays beside the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), bytes.len() as u64) }?;
        let slot = Scratch::new(SLOT_BYTES)?;
        Ok(Arc::new(Data { mapping, lent, slot, begun: AtomicBool::new(true) }))
    }

    fn input(&self) -> Input<'_> {
        Input { bytes: &self.mapping, file: Some((self.lent.as_fd(), 0)) }
    }

    /// Says that a call begins.
    pub fn begin(&self) {
        self.begun.store(true, Relaxed);
    }
}

/// The bytes of words.
pub fn as_bytes<T: arrow_buffer::ArrowNativeType>(words: &[T]) -> &[u8] {
    // SAFETY: native types have no padding.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Gives its input, and copies what is emitted into memory that another process has as well, as a worker does with
/// what is for its node.
struct Taking {
    data: Arc<Data>,
    /// Bytes in the slot.
    laid: usize,
}

impl Services for Taking {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        if self.data.begun.swap(false, Relaxed) {
            self.laid = 0;
        }
        for part in [header].iter().chain(buffers) {
            self.data.slot.write(self.laid, part);
            self.laid += part.len().next_multiple_of(64);
        }
        Ok(())
    }
}

/// What whoever reads results makes of them.
pub fn total(results: &[i64]) -> i64 {
    results.iter().fold(0, |total, result| total.wrapping_add(*result))
}

/// Gives its input, and checks what is emitted and reads it in the guest's memory, as a worker does with what it
/// collects: adds up its first column.
struct Reading {
    data: Arc<Data>,
    /// The last batch's schema, as it came and decoded.
    schema: Option<(Vec<u8>, SchemaRef)>,
}

impl Services for Reading {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        let wrong = |e: &dyn std::fmt::Display| Refusal::bad_output(e.to_string());
        let header = Header::parse(header).map_err(|e| wrong(&e))?;
        let known = self.schema.take().filter(|(bytes, _)| bytes == header.schema_bytes());
        let (bytes, schema) = match known {
            Some(known) => known,
            None => {
                let schema = decode_schema(header.schema_bytes()).map_err(|e| wrong(&e))?;
                (header.schema_bytes().to_vec(), Arc::new(schema))
            }
        };
        self.schema = Some((bytes, schema.clone()));
        let lent = Arc::new(());
        let part = |bytes: &&[u8]| {
            // SAFETY: the guest waits until this returns, when no buffer is left.
            unsafe { Buffer::from_custom_allocation(NonNull::from(*bytes).cast(), bytes.len(), lent.clone()) }
        };
        let parts: Vec<Buffer> = buffers.iter().map(part).collect();
        let batch = sandbar_batch::read_parts(&header, schema, &parts).map_err(|e| wrong(&e))?;
        let column = batch.columns().first().and_then(|c| c.as_primitive_opt::<Int64Type>());
        let column = column.ok_or_else(|| Refusal::bad_output("its first column is not of int64"))?;
        black_box(total(column.values()));
        Ok(())
    }
}
