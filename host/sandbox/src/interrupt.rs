//! Interrupts a guest's code from outside, at any instruction, without affecting the rest of the process.
//!
//! Counting steps or checking a clock would cost up to half as much again in every loop (see the design's figures);
//! this mechanism costs nothing while no task is interrupted. To interrupt a task, another process writes its number
//! into a word of shared memory and sends this process a signal. If the thread is in compiled code of that task, the
//! signal handler moves its program counter to an instruction that traps. From there on it is an ordinary trap:
//! wasmtime unwinds to the call of the guest, which requires only that no host code is running. In host code the signal
//! has no effect, so the sender repeats it until the task has ended.
//!
//! wasmtime is pinned to an exact version; a test interrupts loops thousands of times, at arbitrary instructions.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use sandbar_core::{Code, Fault, TaskId};
use wasmtime::{Engine, Module};

/// Maximum number of code regions in this process. Code beyond it can be interrupted only by killing the process.
const CODES_MAX: usize = 1024;

/// Start and end of each region of compiled code; zero if unused.
static CODES: [(AtomicUsize, AtomicUsize); CODES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; CODES_MAX];
/// Address of an instruction that traps.
static TRAP: AtomicUsize = AtomicUsize::new(0);
/// The word with the number of the task to interrupt.
static TASK_TO_INTERRUPT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The task for which this thread runs, in its code or in the host.
static CURRENT_TASK: AtomicU64 = AtomicU64::new(NONE);
/// Whether the current task was interrupted.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
const NONE: u64 = u64::MAX;

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

/// Runs `call` on behalf of a task. Also returns whether the task was interrupted.
pub(crate) fn run_on_behalf_of<T>(task: u64, call: impl FnOnce() -> T) -> (T, bool) {
    let before = CURRENT_TASK.swap(task, Relaxed);
    let result = call();
    CURRENT_TASK.store(before, Relaxed);
    (result, INTERRUPTED.swap(false, Relaxed))
}

/// Sets the task on whose behalf this thread runs, until that task waits or finishes.
pub fn set_current_task(task: TaskId) {
    CURRENT_TASK.store(task.0, Relaxed);
}

/// Registers a region of compiled code.
pub(crate) fn add_code(at: usize, bytes: usize) {
    for (start, end) in &CODES {
        if start.compare_exchange(0, at, SeqCst, SeqCst).is_ok() {
            end.store(at + bytes, SeqCst);
            return;
        }
    }
}

/// Removes a region of compiled code.
pub(crate) fn remove_code(at: usize) {
    for (start, end) in &CODES {
        if start.load(Relaxed) == at {
            end.store(0, SeqCst);
            start.store(0, SeqCst);
        }
    }
}

extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let unwanted = TASK_TO_INTERRUPT.load(Relaxed);
    let (trap, at_hand) = (TRAP.load(Relaxed), CURRENT_TASK.load(Relaxed));
    // SAFETY: the word lives as long as the process.
    if unwanted.is_null() || trap == 0 || at_hand == NONE || unsafe { &*unwanted }.load(SeqCst) != at_hand {
        return;
    }
    // SAFETY: the kernel passed this context to the handler.
    let at = unsafe { program_counter(context) };
    let is_code = |(start, end): &(AtomicUsize, AtomicUsize)| {
        let start = start.load(Relaxed);
        start != 0 && start <= *at && *at < end.load(Relaxed)
    };
    if CODES.iter().take_while(|(start, _)| start.load(Relaxed) != 0).any(is_code) {
        INTERRUPTED.store(true, Relaxed);
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
