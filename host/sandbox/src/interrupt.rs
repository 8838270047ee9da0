//! Ends a guest's code from outside, wherever it is, and nothing else of this process.
//!
//! Code that counts its steps or looks at a clock pays for it in each loop: up to half as much again (see the design's
//! figures). Here it pays nothing. Whoever wants a task ended writes its number into a word of shared memory and signals
//! this process; if the thread is in compiled code of that very task, the signal's handler has it go on at an instruction
//! that traps, as if that stood where it was. From there on it is a trap like any other: wasmtime unwinds to where the
//! guest was called, which needs nothing of the interrupted code but that the host's own code does not run. Who signals
//! does so again while the task is there: in the host's code the signal does nothing.
//!
//! wasmtime is pinned exactly; a test interrupts loops thousands of times, at whatever instruction they are.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use sandbar_core::{Code, Fault, TaskId};
use wasmtime::{Engine, Module};

/// Pieces of compiled code in this process; what is loaded beyond can only be ended with the process.
const CODES_MAX: usize = 1024;

/// Start and end of each piece of compiled code; zero where there is none.
static CODES: [(AtomicUsize, AtomicUsize); CODES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; CODES_MAX];
/// Where an instruction is that traps.
static TRAP: AtomicUsize = AtomicUsize::new(0);
/// The task that is to end.
static UNWANTED: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The task whose code this thread is in, or the host's on behalf of it.
static AT_HAND: AtomicU64 = AtomicU64::new(NONE);
/// Whether it was ended.
static ENDED: AtomicBool = AtomicBool::new(false);
const NONE: u64 = u64::MAX;

/// `(module (func unreachable))`.
const TRAPPING: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x0a\x05\x01\x03\0\0\x0b";

/// Finds an instruction that traps, which wasmtime knows as such. It stays for as long as this process.
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

/// From here on a task whose number is in `unwanted` ends when this process gets SIGUSR1.
///
/// # Errors
/// When the system lets nobody handle it.
pub fn interruptible(unwanted: &'static AtomicU64) -> std::io::Result<()> {
    UNWANTED.store(std::ptr::from_ref(unwanted).cast_mut(), SeqCst);
    // SAFETY: a handler that only reads and writes atomics and its context; the zeroed rest are no flags and no signals.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Runs `call` on behalf of a task. Says whether it was ended from outside.
pub(crate) fn on_behalf_of<T>(task: u64, call: impl FnOnce() -> T) -> (T, bool) {
    let before = AT_HAND.swap(task, Relaxed);
    let result = call();
    AT_HAND.store(before, Relaxed);
    (result, ENDED.swap(false, Relaxed))
}

/// From here on what runs does so on behalf of another task, until it waits or has ended.
pub fn runs_on_behalf_of(task: TaskId) {
    AT_HAND.store(task.0, Relaxed);
}

/// Compiled code lies there.
pub(crate) fn add_code(at: usize, bytes: usize) {
    for (start, end) in &CODES {
        if start.compare_exchange(0, at, SeqCst, SeqCst).is_ok() {
            end.store(at + bytes, SeqCst);
            return;
        }
    }
}

/// No more.
pub(crate) fn remove_code(at: usize) {
    for (start, end) in &CODES {
        if start.load(Relaxed) == at {
            end.store(0, SeqCst);
            start.store(0, SeqCst);
        }
    }
}

extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let unwanted = UNWANTED.load(Relaxed);
    let (trap, at_hand) = (TRAP.load(Relaxed), AT_HAND.load(Relaxed));
    // SAFETY: the word is there for as long as the process.
    if unwanted.is_null() || trap == 0 || at_hand == NONE || unsafe { &*unwanted }.load(SeqCst) != at_hand {
        return;
    }
    // SAFETY: the kernel's, for a handler that is told of it.
    let at = unsafe { program_counter(context) };
    let is_code = |(start, end): &(AtomicUsize, AtomicUsize)| {
        let start = start.load(Relaxed);
        start != 0 && start <= *at && *at < end.load(Relaxed)
    };
    if CODES.iter().take_while(|(start, _)| start.load(Relaxed) != 0).any(is_code) {
        ENDED.store(true, Relaxed);
        *at = trap;
    }
}

/// # Safety
/// `context` is what the kernel gave a signal's handler.
#[cfg(target_arch = "x86_64")]
unsafe fn program_counter<'a>(context: *mut libc::c_void) -> &'a mut usize {
    // SAFETY: as the caller says; the register is as wide.
    unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize]).cast() }
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn program_counter<'a>(context: *mut libc::c_void) -> &'a mut usize {
    // SAFETY: as above.
    unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc).cast() }
}
