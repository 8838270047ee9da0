//! Runs a thread instruction by instruction, and sends it a signal after one of them in compiled code of guests.

use std::arch::asm;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::UNWANTED;

/// Flag of the processor's state: it traps after the next instruction.
const TRAP_FLAG: i64 = 1 << 8;
/// Maximum number of regions of compiled code.
const REGIONS_MAX: usize = 64;

/// Instructions of guests that are left until the signal.
static LEFT: AtomicU64 = AtomicU64::new(0);
static TASK: AtomicU64 = AtomicU64::new(0);
static HAS_STOPPED: AtomicBool = AtomicBool::new(true);
/// Start and end of each region of compiled code.
static REGIONS: [(AtomicU64, AtomicU64); REGIONS_MAX] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; REGIONS_MAX];

/// Installs the handler of steps. Compiled code is executable memory of no file.
pub fn install_handler() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_code = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|access| access.contains('x')) && fields.nth(3).is_none()
    };
    let mut regions = REGIONS.iter();
    for line in maps.lines().filter(is_code) {
        let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let (to_start, to_end) = regions.next().expect("room for all regions");
        to_start.store(u64::from_str_radix(start, 16).unwrap(), SeqCst);
        to_end.store(u64::from_str_radix(end, 16).unwrap(), SeqCst);
    }
    // SAFETY: the handler uses atomics, its context, and system calls that are allowed in handlers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // Delivered when the handler returns, at the instruction that it interrupted.
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Requests a signal for `task` after this number of instructions of guests.
pub fn stop_after(instructions: u64, task: u64) {
    LEFT.store(instructions, SeqCst);
    TASK.store(task, SeqCst);
    HAS_STOPPED.store(false, SeqCst);
}

/// Returns whether the signal was sent.
pub fn has_stopped() -> bool {
    HAS_STOPPED.load(SeqCst)
}

/// Starts to step through this thread, unless the signal was sent.
pub fn start() {
    if !has_stopped() {
        // SAFETY: the flag only causes signals, which the handler handles.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    }
}

extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passed this context to the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as u64;
    if !REGIONS.iter().any(|(start, end)| (start.load(SeqCst)..end.load(SeqCst)).contains(&at)) {
        return;
    }
    if LEFT.fetch_sub(1, SeqCst) == 1 {
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
        UNWANTED.store(TASK.load(SeqCst), SeqCst);
        HAS_STOPPED.store(true, SeqCst);
        // SAFETY: the thread itself.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
    }
}
