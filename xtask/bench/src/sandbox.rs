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

use crate::failure::Failure;

/// Maximum number of sandboxes alive at once.
pub const SANDBOXES_MAX: u32 = 50;

/// Bytes of shared memory for the output of calls.
const SLOT_BYTES: usize = 64 << 20;

/// A component, ready to be instantiated in this process.
pub struct LoadedGuest {
    pub program: Program,
    pub functions: Vec<String>,
    pub limits: Limits,
    _engine: Engine,
}

impl LoadedGuest {
    /// Compiles and loads a component.
    pub fn new(component: &Path) -> Result<LoadedGuest, Failure> {
        let limits = Limits::default();
        let engine = Engine::with_room(&limits, SANDBOXES_MAX)?;
        let (code, shape) = compile(&std::fs::read(component)?)?;
        // SAFETY: this build has just compiled the code.
        let program = unsafe { engine.load(&code, shape.image_end) }?;
        let mut instance = program.instantiate(Box::new(sandbar_sandbox::NoServices), &limits, 0)?;
        let functions = instance.describe()?.into_iter().map(|f| f.name).collect();
        drop(instance);
        Ok(LoadedGuest { program, functions, limits, _engine: engine })
    }

    /// Returns the index of a function.
    pub fn function(&self, name: &str) -> Result<u32, Failure> {
        let at = self.functions.iter().position(|f| f == name);
        Ok(at.ok_or_else(|| format!("the component has no function `{name}`"))? as u32)
    }

    /// Creates a sandbox with `data` as its input; its output is copied to shared memory.
    pub fn instantiate(&self, data: &Arc<Data>) -> Result<Instance<'_>, Failure> {
        let services = CopyingServices { data: data.clone(), written: 0 };
        Ok(self.program.instantiate(Box::new(services), &self.limits, 0)?)
    }

    /// Like [`LoadedGuest::instantiate`], but its output is read in guest memory.
    pub fn instantiate_in_place(&self, data: &Arc<Data>) -> Result<Instance<'_>, Failure> {
        let collector = BatchCollector::new(Box::new(SumCollect), &self.limits, data.slot.clone());
        let services = CollectingServices { data: data.clone(), collector };
        Ok(self.program.instantiate(Box::new(services), &self.limits, 0)?)
    }
}

/// Input of calls, and shared memory for their output.
pub struct Data {
    mapping: Mapping,
    segment: LentSegment,
    /// Shared memory for the output of calls.
    slot: Arc<SharedMemory>,
    /// Whether a new call has started, whose output overwrites that of the previous call.
    is_new_call: AtomicBool,
}

impl Data {
    /// Copies `bytes` into a segment.
    pub fn new(bytes: &[u8]) -> Result<Arc<Data>, Failure> {
        let segment = SegmentPool::default().lend(bytes.len(), &[SegmentPart::Bytes(0, bytes)])?;
        // SAFETY: `Data` keeps the segment as long as the mapping.
        let mapping = unsafe { Mapping::lent(segment.as_fd(), bytes.len() as u64) }?;
        let slot = Arc::new(SharedMemory::new(SLOT_BYTES)?);
        Ok(Arc::new(Data { mapping, segment, slot, is_new_call: AtomicBool::new(true) }))
    }

    pub fn input(&self) -> Input<'_> {
        Input { bytes: self.mapping[..].into(), file: Some((self.segment.as_fd(), 0)) }
    }

    /// Marks the start of a call.
    pub fn start_call(&self) {
        self.is_new_call.store(true, Relaxed);
    }
}

/// Returns words as bytes.
pub fn as_bytes<T: arrow_buffer::ArrowNativeType>(words: &[T]) -> &[u8] {
    // SAFETY: native types have no padding.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Services that copy emitted batches into shared memory, as a worker does with output for its node.
struct CopyingServices {
    data: Arc<Data>,
    /// Bytes written to the slot.
    written: usize,
}

impl Services for CopyingServices {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        if self.data.is_new_call.swap(false, Relaxed) {
            self.written = 0;
        }
        for part in [header].iter().chain(buffers) {
            self.data.slot.write(self.written, part);
            self.written += part.len().next_multiple_of(64);
        }
        Ok(())
    }
}

/// Adds up results, as a reader of the output would.
pub fn total(results: &[i64]) -> i64 {
    results.iter().fold(0, |total, result| total.wrapping_add(*result))
}

/// Services that read emitted batches in guest memory, as a worker does with output that it collects.
struct CollectingServices {
    data: Arc<Data>,
    collector: BatchCollector,
}

impl Services for CollectingServices {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        self.collector.push(header, buffers)
    }
}

/// Adds up the first column of collected batches.
struct SumCollect;

impl Collect for SumCollect {
    fn push(&mut self, batch: &RecordBatch, _: Option<&RecordBatch>, _: &mut CollectBuffer) -> Result<(), Fault> {
        black_box(total(batch.column(0).as_primitive::<Int64Type>().values()));
        Ok(())
    }

    fn finish(&mut self, _to: &mut CollectBuffer) -> Result<(), Fault> {
        Ok(())
    }
}
