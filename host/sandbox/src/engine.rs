//! The engine, and compiled code.

use std::fs::File;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use rustix::mm::{MprotectFlags, mprotect};
use sandbar_core::{Code, Fault, Limits};
use wasmtime::component::{Component, Linker};
use wasmtime::{
    Config, CustomCodeMemory, Enabled, InstanceAllocationStrategy, Module, OptLevel, PoolingAllocationConfig, Store,
};

use crate::contract::{ComponentShape, check_binary};
use crate::interrupt::{self, FunctionBodies};
use crate::linker::linker;
use crate::memory::{PAGE_BYTES, Slots};
use crate::memory_reset::{KEEP_RESIDENT_BYTES, MemoryReset, pages};
use crate::program::{CodeOwner, Exports, Program};
use crate::reuse::IDLE_MAX;
use crate::rewrite::{self, MemoryImage};
use crate::state::SandboxState;

const KEEP_TABLE_BYTES: usize = 64 << 10;
/// Maximum number of live sandboxes in a worker.
const SANDBOXES_MAX: u32 = 8;

/// Compiles a component to native code for this machine, after checking that it satisfies the contract. Slow, and as
/// hostile as its input: call it in a process that may be killed.
pub fn compile(bytes: &[u8]) -> Result<(Vec<u8>, ComponentShape), Fault> {
    let mut shape = check_binary(bytes)?;
    let engine = wasmtime::Engine::new(&config()).map_err(host)?;
    let mut rewritten = rewrite::move_memory_first(bytes);
    shape.initial = rewritten.as_mut().and_then(|rewritten| rewritten.initial.take());
    let code = engine
        .precompile_component(rewritten.as_ref().map_or(bytes, |rewritten| &rewritten.component))
        .map_err(|e| Fault::new(Code::Compile, format!("it can't be compiled: {e:#}")))?;
    Ok((code, shape))
}

/// Returns an id that changes whenever code compiled before cannot be used any longer: with wasmtime, its settings, or
/// the machine's instruction set.
pub fn build_id() -> &'static str {
    use std::hash::{DefaultHasher, Hash, Hasher};
    static ID: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        rewrite::VERSION.hash(&mut hasher);
        if let Ok(engine) = wasmtime::Engine::new(&config()) {
            engine.precompile_compatibility_hash().hash(&mut hasher);
        }
        format!("{:016x}", hasher.finish())
    });
    &ID
}

fn host(error: wasmtime::Error) -> Fault {
    Fault::new(Code::Host, format!("{error:#}"))
}

/// Settings on which compiled code depends; compiler and workers use the same.
fn config() -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .concurrency_support(false)
        .wasm_memory64(false)
        // A trap walks no stack: an interrupt may find one whose last frame is not complete.
        .wasm_backtrace_max_frames(None)
        .memory_init_cow(true);
    config
}

fn pooling(limits: &Limits, sandboxes: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(sandboxes)
        .total_core_instances(sandboxes * limits.instances_max)
        .max_core_instances_per_component(limits.instances_max)
        .total_memories(sandboxes)
        .max_memories_per_component(sandboxes)
        .total_tables(sandboxes * limits.tables_max)
        .max_tables_per_component(limits.tables_max)
        .table_elements(limits.table_elements_max as usize)
        .total_stacks(sandboxes)
        .max_unused_warm_slots(sandboxes)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_TABLE_BYTES)
        .pagemap_scan(Enabled::Auto);
    if may_swap() {
        // The scan ignores pages that were written and then swapped out, so the next sandbox would read them.
        pool.pagemap_scan(Enabled::No).linear_memory_keep_resident(0).table_keep_resident(0);
    }
    pool
}

/// Returns whether this machine may swap pages out. If so, all memory of a sandbox returns to the kernel when it ends, which
/// takes longer.
pub fn may_swap() -> bool {
    // The file has a title line, and a line per device or file.
    std::fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().count() > 1)
}

/// Runs compiled components. A process has one engine, with its pool of slots.
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<SandboxState>,
    slots: Arc<Slots>,
    /// Reports written pages, for an engine for programs.
    pages: Option<Arc<File>>,
}

impl Engine {
    /// Creates an engine whose pool allows sandboxes of these limits.
    pub fn new(limits: &Limits) -> Result<Engine, Fault> {
        Engine::with_room(limits, SANDBOXES_MAX)
    }

    /// Like [`Engine::new`], with room for `sandboxes` sandboxes at once.
    pub fn with_room(limits: &Limits, sandboxes: u32) -> Result<Engine, Fault> {
        Engine::create(limits, sandboxes, false)
    }

    /// Creates an engine for [`Program::run`], with room for `sandboxes` sandboxes at once, each of which may wait with
    /// its call.
    pub fn for_programs(limits: &Limits, sandboxes: u32) -> Result<Engine, Fault> {
        let mut engine = Engine::create(limits, sandboxes + IDLE_MAX as u32, true)?;
        interrupt::prepare(&engine.engine)?;
        engine.pages = pages();
        Ok(engine)
    }

    fn create(limits: &Limits, sandboxes: u32, waits: bool) -> Result<Engine, Fault> {
        let mut config = config();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(limits, sandboxes)));
        config.parallel_compilation(false);
        config.with_custom_code_memory(Some(Arc::new(InPlaceCode)));
        let engine = wasmtime::Engine::new(&config).map_err(host)?;
        let linker = linker(&engine, waits).map_err(host)?;
        let slots = probe_slots(&engine, sandboxes).map_err(host)?;
        Ok(Engine { engine, linker, slots: Arc::new(slots), pages: None })
    }

    /// Loads a program from a copy of code that [`compile`] returned, with its [`ComponentShape::image_end`].
    ///
    /// # Safety
    /// `code` must be what [`compile`] of this build of the host returned: it is run unchecked.
    pub unsafe fn load(&self, code: &[u8], image_end: u64) -> Result<Program, Fault> {
        // SAFETY: guaranteed by the caller.
        let component = unsafe { Component::deserialize(&self.engine, code) };
        self.program(component, image_end, None)
    }

    /// Like [`Engine::load`], but runs the code in place: in memory of a mapped file, which processes share.
    ///
    /// # Safety
    /// As for [`Engine::load`]. In addition, `code` always derefs to the same bytes, which start at a page, do not
    /// change, and share no page with written memory.
    pub unsafe fn load_in_place<C>(&self, code: C, image_end: u64) -> Result<Program, Fault>
    where
        C: Deref<Target = [u8]> + Send + Sync + 'static,
    {
        // SAFETY: guaranteed by the caller; the program keeps the code alive.
        let component = unsafe { Component::deserialize_raw(&self.engine, NonNull::from(&*code)) };
        self.program(component, image_end, Some(Box::new(code)))
    }

    fn program(
        &self,
        component: wasmtime::Result<Component>,
        image_end: u64,
        code: CodeOwner,
    ) -> Result<Program, Fault> {
        // The code comes from this build, so only its demands on the pool can be the reason for a rejection.
        let component = component
            .map_err(|e| Fault::new(Code::Compile, format!("it requires more than a sandbox provides: {e:#}")))?;
        let other = |e| Fault::new(Code::Import, format!("{e:#}; build it again with the sandbar-guest of this host"));
        let pre = self.linker.instantiate_pre(&component).map_err(other)?;
        let exports = Exports::find(&component)?;
        let functions = FunctionBodies::of(&component);
        Ok(Program { pre, exports, image_end, slots: self.slots.clone(), reuse: None, functions, _code: code })
    }

    /// Enables [`Program::run`] to reuse sandboxes of a program, with the given initial memory
    /// ([`ComponentShape::initial`]).
    pub fn reuse<I>(&self, program: &mut Program, initial: MemoryImage<I>)
    where
        I: Deref<Target = [u8]> + Send + Sync + 'static,
    {
        let MemoryImage { memory_bytes, image_start, image } = initial;
        let initial = MemoryImage { memory_bytes, image_start, image: Box::new(image) as Box<_> };
        program.reuse = MemoryReset::new(initial, self.pages.clone());
    }
}

/// Makes code executable in the memory where it lies.
struct InPlaceCode;

impl CustomCodeMemory for InPlaceCode {
    fn required_alignment(&self) -> usize {
        PAGE_BYTES
    }

    fn publish_executable(&self, at: *const u8, bytes: usize) -> wasmtime::Result<()> {
        // SAFETY: wasmtime owns these pages, or was lent them to run their content; nothing writes them any longer.
        Ok(unsafe { mprotect(at.cast_mut().cast(), bytes, MprotectFlags::READ | MprotectFlags::EXEC) }?)
    }

    fn unpublish_executable(&self, at: *const u8, bytes: usize) -> wasmtime::Result<()> {
        // SAFETY: the same pages, and none of their code runs.
        Ok(unsafe { mprotect(at.cast_mut().cast(), bytes, MprotectFlags::READ) }?)
    }
}

/// `(module (memory (export "m") 1))`, which has no code to compile.
const PROBE: &[u8] = b"\0asm\x01\0\0\0\x05\x03\x01\0\x01\x07\x05\x01\x01m\x02\0";

/// Fills every slot of the pool with a probe, and records the addresses of its memories.
fn probe_slots(engine: &wasmtime::Engine, sandboxes: u32) -> wasmtime::Result<Slots> {
    let module = Module::new(engine, PROBE)?;
    let mut store = Store::new(engine, ());
    let bases = (0..sandboxes).map(|_| {
        let probe = wasmtime::Instance::new(&mut store, &module, &[])?;
        let memory = probe.get_memory(&mut store, "m");
        let memory = memory.ok_or_else(|| wasmtime::format_err!("the probe exports no memory"))?;
        Ok(memory.data_ptr(&store) as usize)
    });
    Ok(Slots::new(bases.collect::<wasmtime::Result<_>>()?))
}
