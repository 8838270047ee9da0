//! The engine, compiled code, and programs ready to be instantiated.

use std::fs::File;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use rustix::mm::{MprotectFlags, mprotect};
use sandbar_core::{Code, Fault, Limits};
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, Linker};
use wasmtime::{
    Config, CustomCodeMemory, Enabled, InstanceAllocationStrategy, Module, OptLevel, PoolingAllocationConfig, Store,
};

use crate::contract::{GUEST, PARAMETERS, PROGRAM, Shape, check_binary};
use crate::imports;
use crate::instance::Instance;
use crate::interrupt;
use crate::memory::{PAGE_BYTES, Slots};
use crate::relink::{self, Initial};
use crate::reuse::{self, Reuse};
use crate::services::Services;
use crate::state::State;

/// Memory of a slot that is zeroed in place rather than given back: what most
/// guests touch. Given-back pages fault in again, one by one, which takes five
/// times as long.
pub(crate) const KEEP_RESIDENT_BYTES: usize = 16 << 20;
const KEEP_TABLE_BYTES: usize = 64 << 10;
/// Sandboxes alive at once in a worker.
const SANDBOXES_MAX: u32 = 8;

/// Compiles a component to native code for this machine, after checking that it
/// keeps the contract. Slow, and as hostile as its input: call it in a process
/// that may be killed.
pub fn compile(bytes: &[u8]) -> Result<(Vec<u8>, Shape), Fault> {
    let mut shape = check_binary(bytes)?;
    let engine = wasmtime::Engine::new(&config()).map_err(host)?;
    let mut relinked = relink::memory_first(bytes);
    shape.initial = relinked.as_mut().and_then(|relinked| relinked.initial.take());
    let code = engine
        .precompile_component(relinked.as_ref().map_or(bytes, |relinked| &relinked.component))
        .map_err(|e| Fault::new(Code::Compile, format!("it can't be compiled: {e:#}")))?;
    Ok((code, shape))
}

/// Changes when code compiled before can't be used any more: with wasmtime, its
/// settings, or the machine's instruction set.
pub fn build_id() -> &'static str {
    use std::hash::{DefaultHasher, Hash, Hasher};
    static ID: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        relink::VERSION.hash(&mut hasher);
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

/// What compiled code depends on; the same for whoever compiles and whoever runs.
fn config() -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .concurrency_support(false)
        .wasm_memory64(false)
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(16))
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
        // The scan leaves pages alone that were written and are swapped out: the next sandbox would read them.
        pool.pagemap_scan(Enabled::No).linear_memory_keep_resident(0).table_keep_resident(0);
    }
    pool
}

/// Whether this machine swaps pages out, as far as it says: all memory of a sandbox is then given back when it ends, which
/// takes longer.
pub fn may_swap() -> bool {
    // A line of titles, and one for each device or file.
    std::fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().count() > 1)
}

/// Runs compiled components. One of these per process, with its pool of slots.
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<State>,
    slots: Arc<Slots>,
    /// Who knows which pages were written, of an engine for programs.
    pages: Option<Arc<File>>,
}

impl Engine {
    /// An engine whose pool allows what `limits` allow.
    pub fn new(limits: &Limits) -> Result<Engine, Fault> {
        Engine::with_room(limits, SANDBOXES_MAX)
    }

    /// As [`Engine::new`], with room for so many sandboxes at once.
    pub fn with_room(limits: &Limits, sandboxes: u32) -> Result<Engine, Fault> {
        Engine::make(limits, sandboxes, false)
    }

    /// An engine for [`Program::run`], with room for so many sandboxes at once: each may wait, with its call.
    pub fn for_programs(limits: &Limits, sandboxes: u32) -> Result<Engine, Fault> {
        let mut engine = Engine::make(limits, sandboxes + reuse::KEPT_MAX as u32, true)?;
        interrupt::prepare(&engine.engine)?;
        // What is swapped out seems not to be written.
        engine.pages = if may_swap() { None } else { reuse::pages() };
        Ok(engine)
    }

    fn make(limits: &Limits, sandboxes: u32, waits: bool) -> Result<Engine, Fault> {
        let mut config = config();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(limits, sandboxes)));
        config.parallel_compilation(false);
        config.with_custom_code_memory(Some(Arc::new(WhereItLies)));
        let engine = wasmtime::Engine::new(&config).map_err(host)?;
        let linker = imports::linker(&engine, waits).map_err(host)?;
        let slots = probe_slots(&engine, sandboxes).map_err(host)?;
        Ok(Engine { engine, linker, slots: Arc::new(slots), pages: None })
    }

    /// A program from a copy of code that [`compile`] made here, with its [`Shape::image_end`].
    ///
    /// # Safety
    /// `code` must be what [`compile`] returned, from this build of the host: it
    /// is run as it is.
    pub unsafe fn load(&self, code: &[u8], image_end: u64) -> Result<Program, Fault> {
        // SAFETY: passed on to the caller.
        let component = unsafe { Component::deserialize(&self.engine, code) };
        self.program(component, image_end, None)
    }

    /// As [`Engine::load`], but the code is run where it lies: memory of a mapped file, which processes share.
    ///
    /// # Safety
    /// As for [`Engine::load`]; `code` always derefs to the same bytes, which start at a page, do not change, and share
    /// no page with anything that is written.
    pub unsafe fn load_in_place<C>(&self, code: C, image_end: u64) -> Result<Program, Fault>
    where
        C: Deref<Target = [u8]> + Send + Sync + 'static,
    {
        // SAFETY: passed on to the caller; the program keeps the code as long as itself.
        let component = unsafe { Component::deserialize_raw(&self.engine, NonNull::from(&*code)) };
        self.program(component, image_end, Some(Box::new(code)))
    }

    fn program(&self, component: wasmtime::Result<Component>, image_end: u64, code: Kept) -> Result<Program, Fault> {
        // The code is of this build; what is left to refuse it for is what it asks of the pool.
        let component =
            component.map_err(|e| Fault::new(Code::Compile, format!("it asks for more than a sandbox has: {e:#}")))?;
        let other = |e| Fault::new(Code::Import, format!("{e:#}; build it again with the sandbar-guest of this host"));
        let pre = self.linker.instantiate_pre(&component).map_err(other)?;
        let exports = Exports::find(&component)?;
        Ok(Program { pre, exports, image_end, slots: self.slots.clone(), reuse: None, _code: code })
    }

    /// Has sandboxes of a program used again by its [`Program::run`], whose memory is like this at first
    /// ([`Shape::initial`]).
    pub fn reuse<I>(&self, program: &mut Program, initial: Initial<I>)
    where
        I: Deref<Target = [u8]> + Send + Sync + 'static,
    {
        let Initial { memory_bytes, image_start, image } = initial;
        let initial = Initial { memory_bytes, image_start, image: Box::new(image) as Box<_> };
        program.reuse = Reuse::new(initial, self.pages.clone());
    }
}

/// What is only dropped.
type Kept = Option<Box<dyn Send + Sync>>;

/// Makes code executable in whatever memory it lies.
struct WhereItLies;

impl CustomCodeMemory for WhereItLies {
    fn required_alignment(&self) -> usize {
        PAGE_BYTES
    }

    fn publish_executable(&self, at: *const u8, bytes: usize) -> wasmtime::Result<()> {
        interrupt::add_code(at as usize, bytes);
        // SAFETY: wasmtime owns these pages, or was lent them to run what is in them; nobody writes them any more.
        Ok(unsafe { mprotect(at.cast_mut().cast(), bytes, MprotectFlags::READ | MprotectFlags::EXEC) }?)
    }

    fn unpublish_executable(&self, at: *const u8, bytes: usize) -> wasmtime::Result<()> {
        interrupt::remove_code(at as usize);
        // SAFETY: as above, and none of it runs.
        Ok(unsafe { mprotect(at.cast_mut().cast(), bytes, MprotectFlags::READ) }?)
    }
}

/// `(module (memory (export "m") 1))`: nothing in it has to be compiled.
const PROBE: &[u8] = b"\0asm\x01\0\0\0\x05\x03\x01\0\x01\x07\x05\x01\x01m\x02\0";

/// Fills every slot of the pool with a probe, and notes where its memory is.
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

/// A component ready to be instantiated.
pub struct Program {
    pub(crate) pre: InstancePre<State>,
    pub(crate) exports: Exports,
    image_end: u64,
    slots: Arc<Slots>,
    /// If its sandboxes are used again.
    pub(crate) reuse: Option<Reuse>,
    /// The memory that the code lies in, if it is not wasmtime's: the last to go.
    _code: Kept,
}

impl Program {
    /// A fresh sandbox under `limits`. Its randomness is a function of `seed`.
    pub fn instantiate(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Result<Instance<'_>, Fault> {
        Instance::new(self, self.store(services, limits, seed))
    }

    pub(crate) fn store(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Store<State> {
        let state = State::new(services, limits, self.image_end, self.slots.clone(), seed);
        let mut store = Store::new(self.pre.engine(), state);
        store.limiter(|state| &mut state.limiter);
        store
    }
}

/// Where the contract's functions are among a component's exports.
pub(crate) struct Exports {
    pub(crate) describe: ComponentExportIndex,
    pub(crate) open: ComponentExportIndex,
    pub(crate) process: ComponentExportIndex,
    pub(crate) fit: ComponentExportIndex,
    pub(crate) predict: ComponentExportIndex,
    /// `describe` of a component that describes parameters.
    pub(crate) parameters: Option<ComponentExportIndex>,
    /// Of a component that has tasks.
    pub(crate) tasks: Option<TaskExports>,
}

/// Where the functions are of what has tasks.
pub(crate) struct TaskExports {
    pub(crate) describe: ComponentExportIndex,
    pub(crate) run: ComponentExportIndex,
    pub(crate) resume: ComponentExportIndex,
    pub(crate) abandon: ComponentExportIndex,
}

impl Exports {
    fn find(component: &Component) -> Result<Exports, Fault> {
        let missing = |name: &str| Fault::new(Code::Contract, format!("its `{GUEST}` has no `{name}`"));
        let guest = component
            .get_export_index(None, GUEST)
            .ok_or_else(|| Fault::new(Code::Contract, format!("it does not export `{GUEST}`")))?;
        let find = |name: &str| component.get_export_index(Some(&guest), name).ok_or_else(|| missing(name));
        Ok(Exports {
            describe: find("describe")?,
            open: find("open")?,
            process: find("process")?,
            fit: find("fit")?,
            predict: find("predict")?,
            parameters: component
                .get_export_index(None, PARAMETERS)
                .and_then(|parameters| component.get_export_index(Some(&parameters), "describe")),
            tasks: component.get_export_index(None, PROGRAM).and_then(|program| {
                let find = |name: &str| component.get_export_index(Some(&program), name);
                Some(TaskExports {
                    describe: find("describe")?,
                    run: find("run")?,
                    resume: find("resume")?,
                    abandon: find("abandon")?,
                })
            }),
        })
    }
}
