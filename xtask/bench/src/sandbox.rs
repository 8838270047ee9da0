//! A sandbox in this process, without a worker around it.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use sandbar_core::{Fault, Limits};
use sandbar_sandbox::{Engine, Input, Instance, Program, Refusal, Services, compile};
use sandbar_store::{LentSegment, Mapping, SegmentPart, SegmentPool, SharedMemory};
use sandbar_worker::{BatchCollector, Collect, CollectBuffer};

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
        let collecting = BatchCollector::new(Box::new(Adding), &self.limits, data.slot.clone());
        let services = Reading { data: data.clone(), collecting };
        Ok(self.program.instantiate(Box::new(services), &self.limits, 0)?)
    }
}

/// The input of calls.
pub struct Data {
    mapping: Mapping,
    lent: LentSegment,
    /// Memory for what its calls hand back.
    slot: Arc<SharedMemory>,
    /// Whether a new call has begun, whose output takes the place of the last one's.
    begun: AtomicBool,
}

impl Data {
    /// Takes `bytes` in.
    pub fn new(bytes: &[u8]) -> Result<Arc<Data>, Failure> {
        let lent = SegmentPool::default().lend(bytes.len(), &[SegmentPart::Bytes(0, bytes)])?;
        // SAFETY: `lent` stays beside the mapping.
        let mapping = unsafe { Mapping::lent(lent.as_fd(), bytes.len() as u64) }?;
        let slot = Arc::new(SharedMemory::new(SLOT_BYTES)?);
        Ok(Arc::new(Data { mapping, lent, slot, begun: AtomicBool::new(true) }))
    }

    pub fn input(&self) -> Input<'_> {
        Input { bytes: self.mapping[..].into(), file: Some((self.lent.as_fd(), 0)) }
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
    /// InputBytes in the slot.
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

/// Gives its input, and has what is emitted read where it is, as a worker does with what it collects.
struct Reading {
    data: Arc<Data>,
    collecting: BatchCollector,
}

impl Services for Reading {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        self.collecting.push(header, buffers)
    }
}

/// Adds up the first column.
struct Adding;

impl Collect for Adding {
    fn push(&mut self, batch: &RecordBatch, _: Option<&RecordBatch>, _: &mut CollectBuffer) -> Result<(), Fault> {
        black_box(total(batch.column(0).as_primitive::<Int64Type>().values()));
        Ok(())
    }

    fn finish(&mut self, _to: &mut CollectBuffer) -> Result<(), Fault> {
        Ok(())
    }
}
