//! Interrupts a task from outside, without affecting the rest of the process.
//!
//! Counting steps or checking a clock would cost up to half as much again in every loop (see the design's figures);
//! this mechanism costs loops nothing. To interrupt a task, another process writes its number into a word of shared
//! memory and sends this process a signal. The task ends in one of two places:
//!
//! - **In a function of the guest.** The signal handler moves the program counter to an instruction that traps, and
//!   wasmtime handles an ordinary trap: it returns to the innermost entry into the guest. While the body of a WebAssembly
//!   function runs, the record of that entry is complete. In wasmtime's trampolines it may not be, so the handler has no
//!   effect there; it knows the bodies of the functions of the program that runs.
//! - **At the boundary.** Each call from the guest to the host, and each return, [checks](check) the word and fails. So
//!   does long work of the host ([`is_interrupted`]).
//!
//! A signal during other host code has no effect. The sender repeats it until the task has ended.
//!
//! wasmtime is pinned to an exact version; a test interrupts guests at each instruction.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use sandbar_core::{Code, Fault, TaskId};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

/// Address of an instruction that traps.
static TRAP: AtomicUsize = AtomicUsize::new(0);
/// The word with the number of the task to interrupt.
static TASK_TO_INTERRUPT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
const NONE: u64 = u64::MAX;

thread_local! {
    // Atomic because the signal handler of the same thread reads and writes them.
    /// The task for which this thread runs, in its code or in the host.
    static CURRENT_TASK: AtomicU64 = const { AtomicU64::new(NONE) };
    /// The functions of its program.
    static FUNCTIONS: AtomicPtr<FunctionBodies> = const { AtomicPtr::new(std::ptr::null_mut()) };
    /// Whether the current task was interrupted.
    static INTERRUPTED: AtomicBool = const { AtomicBool::new(false) };
}

/// Addresses of the bodies of a program's WebAssembly functions, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct FunctionBodies(Box<[Range<usize>]>);

impl FunctionBodies {
    pub(crate) fn of(component: &Component) -> FunctionBodies {
        let text = component.text().as_ptr() as usize;
        let body = |function: wasmtime::ModuleFunction| text + function.offset..text + function.offset + function.len;
        let mut bodies: Vec<Range<usize>> = component.functions().map(body).collect();
        bodies.sort_unstable_by_key(|body| body.start);
        FunctionBodies(bodies.into())
    }

    fn contains(&self, address: usize) -> bool {
        let behind = self.0.partition_point(|body| body.start <= address);
        behind.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|body| body.contains(&address))
    }
}

/// `(module (func unreachable))`.
const TRAPPING: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x0a\x05\x01\x03\0\0\x0b";

/// Finds an instruction that wasmtime knows as a trap. Its module is leaked.
pub(crate) fn prepare(engine: &Engine) -> Result<(), Fault> {
    let host = |e: wasmtime::Error| Fault::new(Code::Host, format!("{e:#}"));
    let module = Module::new(engine, TRAPPING).map_err(host)?;
    let function = module.functions().next().map(|f| f.offset..f.offset + f.len);
    let text = module.text();
    let trap = function.and_then(|range| {
        let code = text.get(range.clone())?;
        Some(range.start + code.windows(INSTRUCTION.len()).position(|bytes| bytes == INSTRUCTION)?)
    });
    let trap = trap.ok_or_else(|| Fault::new(Code::Host, "there is no instruction that traps in `unreachable`"))?;
    TRAP.store(text[trap..].as_ptr() as usize, SeqCst);
    std::mem::forget(module);
    Ok(())
}

#[cfg(target_arch = "x86_64")]
const INSTRUCTION: &[u8] = &[0x0f, 0x0b];
#[cfg(target_arch = "aarch64")]
const INSTRUCTION: &[u8] = &[0x1f, 0xc1, 0, 0];

/// Installs a handler for SIGUSR1 that interrupts the task whose number is in `unwanted`.
///
/// # Errors
/// When the system does not allow the handler.
pub fn install_interrupt_handler(unwanted: &'static AtomicU64) -> std::io::Result<()> {
    TASK_TO_INTERRUPT.store(std::ptr::from_ref(unwanted).cast_mut(), SeqCst);
    // SAFETY: the handler only reads and writes atomics and its context; the zeroed fields mean no flags and no
    // signals.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Runs `call`, which runs code with these functions, on behalf of a task. Also returns whether the task was
/// interrupted.
pub(crate) fn run_on_behalf_of<T>(task: u64, functions: &FunctionBodies, call: impl FnOnce() -> T) -> (T, bool) {
    let _ended = CurrentTask::set(task, functions);
    let result = call();
    (result, INTERRUPTED.with(|interrupted| interrupted.swap(false, SeqCst)))
}

/// Sets the current task of this thread until it is dropped.
struct CurrentTask {
    task: u64,
    functions: *mut FunctionBodies,
}

impl CurrentTask {
    fn set(task: u64, functions: &FunctionBodies) -> CurrentTask {
        let functions = std::ptr::from_ref(functions).cast_mut();
        let functions = FUNCTIONS.with(|current| current.swap(functions, SeqCst));
        CurrentTask { task: CURRENT_TASK.with(|current| current.swap(task, SeqCst)), functions }
    }
}

impl Drop for CurrentTask {
    fn drop(&mut self) {
        CURRENT_TASK.with(|current| current.store(self.task, SeqCst));
        FUNCTIONS.with(|current| current.store(self.functions, SeqCst));
    }
}

/// Sets the task on whose behalf this thread runs, until that task waits or finishes.
pub fn set_current_task(task: TaskId) {
    CURRENT_TASK.with(|current| current.store(task.0, SeqCst));
}

/// Returns whether the task for which this thread runs must end. Takes a nanosecond.
pub fn is_interrupted() -> bool {
    let unwanted = TASK_TO_INTERRUPT.load(Relaxed);
    let task = CURRENT_TASK.with(|current| current.load(Relaxed));
    // SAFETY: the word lives as long as the process.
    !unwanted.is_null() && task != NONE && unsafe { &*unwanted }.load(SeqCst) == task
}

/// Fails if the current task must end.
pub(crate) fn check() -> wasmtime::Result<()> {
    if is_interrupted() {
        INTERRUPTED.with(|interrupted| interrupted.store(true, SeqCst));
        return Err(wasmtime::format_err!("it was interrupted"));
    }
    Ok(())
}

extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (trap, functions) = (TRAP.load(Relaxed), FUNCTIONS.with(|current| current.load(Relaxed)));
    if trap == 0 || functions.is_null() || !is_interrupted() {
        return;
    }
    // SAFETY: the kernel passed this context to the handler.
    let at = unsafe { program_counter(context) };
    // SAFETY: the functions of the current program live until the call on behalf of its task has returned.
    if unsafe { &*functions }.contains(*at) {
        INTERRUPTED.with(|interrupted| interrupted.store(true, Relaxed));
        *at = trap;
    }
}

/// # Safety
/// `context` must be the one that the kernel passed to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn program_counter<'a>(context: *mut libc::c_void) -> &'a mut usize {
    // SAFETY: guaranteed by the caller; the register has the width of `usize`.
    unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize]).cast() }
}

/// # Safety
/// `context` must be the one that the kernel passed to a signal handler.
#[cfg(target_arch = "aarch64")]
unsafe fn program_counter<'a>(context: *mut libc::c_void) -> &'a mut usize {
    // SAFETY: guaranteed by the caller; the register has the width of `usize`.
    unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc).cast() }
}
