//! Tasks are interrupted from outside, at any instruction and in any call of the host, and a task that waits beside them
//! continues.

#[cfg(target_arch = "x86_64")]
mod stepping;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Code, JobId, Limits, ObjectId, TaskId};
use sandbar_sandbox::{
    Engine, GetOutcome, GroupRange, IdleSandboxes, Input, Program, Refusal, Services, TaskCall, TaskExecution, compile,
    install_interrupt_handler,
};

/// Imports of the component and of the component within it.
macro_rules! imports {
    () => {
        r#"
    (type $outcome' (enum "value" "failed" "time-out"))
    (import "sandbar:udf/tasks@0.1.0" (instance $tasks
        (alias outer 1 $outcome' (type $o))
        (export "outcome" (type $outcome (eq $o)))
        (type $got' (record (field "outcome" $outcome) (field "bytes" u64)))
        (export "got" (type $got (eq $got')))
        (export "release" (func (param "objects" (list u64))))
        (export "get" (func (param "object" u64) (param "timeout" (option u64)) (result $got)))))
    (type $group' (record (field "first-row" u32) (field "train-rows" u32) (field "test-rows" u32) (field "seed" u64)))
    (import "sandbar:udf/groups@0.1.0" (instance $groups
        (alias outer 1 $group' (type $g))
        (export "group" (type $group (eq $g)))
        (export "ahead" (func (result (list $group))))))"#
    };
}

/// A component with the tasks of [`ENDLESS`], each of which first calls the host, and two more: one waits for an object,
/// one returns. Its code is in a component within it, beside another, to which calls copy lists.
const GUEST: &str = concat!(
    "(component",
    imports!(),
    r#"
    (component $other
        (core module $code (memory (export "memory") 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 64)
            (func (export "length") (param i32 i32) (result i32) local.get 1))
        (core instance $code (instantiate $code))
        (alias core export $code "memory" (core memory $memory))
        (func (export "length") (param "bytes" (list u8)) (result u32)
            (canon lift (core func $code "length") (memory $memory) (realloc (core func $code "realloc")))))
    (component $main"#,
    imports!(),
    r#"
    (import "length" (func $length (param "bytes" (list u8)) (result u32)))
    (core module $libc (memory (export "memory") 2 128)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096))
    (core instance $libc (instantiate $libc))
    (alias core export $libc "memory" (core memory $memory))
    (alias core export $libc "realloc" (core func $realloc))
    (core func $release (canon lower (func $tasks "release") (memory $memory)))
    (core func $get (canon lower (func $tasks "get") (memory $memory)))
    (core func $ahead (canon lower (func $groups "ahead") (memory $memory) (realloc $realloc)))
    (core func $length (canon lower (func $length) (memory $memory)))
    (core module $code
        (import "libc" "memory" (memory 2 128))
        (import "host" "release" (func $release (param i32 i32)))
        (import "host" "get" (func $get (param i64 i32 i64 i32)))
        (import "host" "ahead" (func $ahead (param i32)))
        (import "other" "length" (func $length (param i32 i32) (result i32)))
        (func $step (param i32) (result i32)
            (i32.store (i32.const 8192) (local.get 0))
            (i32.add (i32.load (i32.const 8192)) (i32.const 1)))
        (func $deep (param i32) (result i32)
            (if (result i32) (local.get 0)
                (then (i32.add (call $deep (i32.sub (local.get 0) (i32.const 1))) (i32.const 1)))
                (else (i32.const 0))))
        (func $tail (param i32 i64 i64 i64 i64 i64 i64 i64) (result i32)
            (return_call $longer-tail (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)
                (local.get 5) (local.get 6) (local.get 7) (local.get 1) (local.get 2) (local.get 3)))
        (func $longer-tail (param i32 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64) (result i32)
            (return_call $tail (local.get 0) (local.get 2) (local.get 3) (local.get 4) (local.get 5)
                (local.get 6) (local.get 7) (local.get 1)))
        (func (export "describe") (result i32) i32.const 8)
        (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
        (func (export "process") (param i32 i32) (result i32) i32.const 1024)
        (func (export "resume") (param i64) (result i32) i32.const 1024)
        (func (export "abandon") (param i64))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
        (func (export "run") (param $task i32) (param i64 i64 i32 i32) (result i32)
            (local $number i32)
            (if (i32.lt_u (local.get $task) (i32.const 8)) (then
                (call $release (i32.const 4096) (i32.const 3))))
            (if (i32.eq (local.get $task) (i32.const 0)) (then (loop $next (br $next))))
            (if (i32.eq (local.get $task) (i32.const 1)) (then
                (loop $next (local.set $number (call $step (local.get $number))) (br $next))))
            (if (i32.eq (local.get $task) (i32.const 2)) (then
                (loop $next
                    (drop (memory.grow (i32.const 1)))
                    (call $release (i32.const 4096) (i32.const 3))
                    (br $next))))
            (if (i32.eq (local.get $task) (i32.const 3)) (then
                (loop $next (call $ahead (i32.const 2048)) (br $next))))
            (if (i32.eq (local.get $task) (i32.const 4)) (then
                (loop $next (drop (call $deep (i32.const 1000))) (br $next))))
            (if (i32.eq (local.get $task) (i32.const 5)) (then
                (loop $next
                    (memory.fill (i32.const 8192) (i32.const 7) (i32.const 300))
                    (memory.copy (i32.const 8192) (i32.const 16384) (i32.const 200))
                    (br $next))))
            (if (i32.eq (local.get $task) (i32.const 6)) (then
                (loop $next (drop (call $length (i32.const 4096) (i32.const 100))) (br $next))))
            (if (i32.eq (local.get $task) (i32.const 7)) (then
                (drop (call $tail (i32.const 0) (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)
                    (i64.const 5) (i64.const 6) (i64.const 7)))))
            (if (i32.eq (local.get $task) (i32.const 8)) (then
                (call $get (i64.const 7) (i32.const 0) (i64.const 0) (i32.const 2048))))
            (i32.store8 (i32.const 1028) (i32.const 1))
            i32.const 1024))
    (core instance $code (instantiate $code
        (with "libc" (instance $libc))
        (with "other" (instance (export "length" (func $length))))
        (with "host" (instance
            (export "release" (func $release))
            (export "get" (func $get))
            (export "ahead" (func $ahead))))))
"#,
    include_str!("../exports/guest.wat"),
    include_str!("../exports/program.wat"),
    r#")
    (instance $other (instantiate $other))
    (instance $main (instantiate $main
        (with "sandbar:udf/tasks@0.1.0" (instance $tasks))
        (with "sandbar:udf/groups@0.1.0" (instance $groups))
        (with "length" (func $other "length"))))
    (export "sandbar:udf/guest@0.1.0" (instance $main "sandbar:udf/guest@0.1.0"))
    (export "sandbar:udf/program@0.1.0" (instance $main "sandbar:udf/program@0.1.0")))"#
);

/// Endless tasks: the function's number, and what the task repeats.
const ENDLESS: [(u32, &str); 8] = [
    (0, "nothing"),
    (1, "calls of a function"),
    (2, "growth of its memory, and calls of the host"),
    (3, "calls of the host that allocate in the guest"),
    (4, "deep recursion"),
    (5, "copies within its memory"),
    (6, "calls of another instance"),
    (7, "tail calls"),
];
const WAITS: u32 = 8;
const RETURNS: u32 = 9;

/// The word that names the task to interrupt.
static UNWANTED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Called on each call of the host.
type OnCall = Box<dyn FnMut() + Send>;

/// An object that becomes available when the flag is set.
struct Host {
    is_there: Arc<AtomicBool>,
    on_call: OnCall,
}

impl Services for Host {
    fn begin_wait(&mut self, _: &[u64], _: u32, _: Option<u64>) -> Result<(), Refusal> {
        Ok(())
    }

    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        if self.is_there.load(SeqCst) { Poll::Ready(Ok(vec![true])) } else { Poll::Pending }
    }

    fn object(&mut self, _: ObjectId) -> Result<(GetOutcome, Input<'_>), Refusal> {
        Ok((GetOutcome::Value(0), Input { bytes: (&[][..]).into(), file: None }))
    }

    fn release(&mut self, _: &[u64]) -> Result<(), Refusal> {
        (self.on_call)();
        Ok(())
    }

    fn groups_ahead(&self) -> Result<Vec<GroupRange>, Refusal> {
        Ok(vec![GroupRange { first_row: 1, train_rows: 2, test_rows: 3, seed: 4 }; 3])
    }
}

/// An engine with the component, for one test at a time: the handler and the word exist once in a process.
struct Lab {
    program: Arc<Program>,
    _engine: Engine,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    fn new() -> Lab {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        UNWANTED.store(u64::MAX, SeqCst);
        let limits = Limits { memory_bytes_max: 2 << 20, ..Limits::default() };
        let engine = Engine::for_programs(&limits, 8).unwrap();
        let (code, shape) = compile(&wat::parse_str(GUEST).unwrap()).unwrap();
        // SAFETY: compiled just now, by this build.
        let program = Arc::new(unsafe { engine.load(&code, shape.image_end) }.unwrap());
        install_interrupt_handler(&UNWANTED).unwrap();
        Lab { program, _engine: engine, _alone: alone }
    }

    fn start(&self, function: u32, is_there: &Arc<AtomicBool>, on_call: OnCall) -> TaskExecution {
        let call = TaskCall { function, call: 1, seed: 0, arguments: [].into() };
        let services = Box::new(Host { is_there: is_there.clone(), on_call });
        self.program.run(&IdleSandboxes::default(), JobId(1), services, &Limits::default(), call)
    }

    /// Runs a task until it ends. Returns its error.
    fn run(&self, function: u32, task: u64, on_call: impl FnMut() + Send + 'static) -> Option<Code> {
        let mut running = self.start(function, &Arc::new(AtomicBool::new(true)), Box::new(on_call));
        let Poll::Ready(ended) = running.poll(TaskId(task)) else { panic!("it waits") };
        ended.result.err().map(|fault| fault.code)
    }
}

/// A thread that requests the interruption of a task of this thread until it is dropped.
struct Interrupter {
    is_done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Interrupter {
    /// Requests it again and again once `is_due`.
    fn start(task: u64, is_due: impl Fn() -> bool + Send + 'static) -> Interrupter {
        // SAFETY: this thread outlives the other one.
        let this = unsafe { libc::pthread_self() };
        let is_done = Arc::new(AtomicBool::new(false));
        let until = is_done.clone();
        let thread = std::thread::spawn(move || {
            while !until.load(SeqCst) {
                if is_due() {
                    UNWANTED.store(task, SeqCst);
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                }
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        Interrupter { is_done, thread: Some(thread) }
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        self.is_done.store(true, SeqCst);
        self.thread.take().map(std::thread::JoinHandle::join);
        UNWANTED.store(u64::MAX, SeqCst);
    }
}

#[test]
fn an_interrupt_ends_its_task_only() {
    let lab = Lab::new();
    let is_there = Arc::new(AtomicBool::new(false));
    let mut beside = lab.start(WAITS, &is_there, Box::new(|| ()));
    assert!(beside.poll(TaskId(1)).is_pending());
    const TIMES: u64 = 100;
    for time in 0..TIMES {
        for (function, repeated) in ENDLESS {
            let (task, since) = (100 + time, Instant::now());
            let moment = Duration::from_nanos(20_000 + 1_211 * time);
            // A request for another task has no effect.
            UNWANTED.store(1, SeqCst);
            let interrupter = Interrupter::start(task, move || since.elapsed() > moment);
            assert_eq!(lab.run(function, task, || ()), Some(Code::Cancelled), "{repeated} {time}");
            drop(interrupter);
        }
        // The next sandbox in the slot starts in its initial state.
        assert_eq!(lab.run(RETURNS, 99, || ()), None);
    }
    is_there.store(true, SeqCst);
    let Poll::Ready(ended) = beside.poll(TaskId(1)) else { panic!("it still waits") };
    ended.result.unwrap();
}

/// The request comes without a signal: a task that mostly runs host code would rarely receive one in its own code.
#[test]
fn a_task_ends_with_the_call_of_the_host_during_which_its_end_is_requested() {
    let lab = Lab::new();
    for last in 1..20 {
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let ended = lab.run(2, 100 + last, move || {
            let count = 1 + counted.fetch_add(1, SeqCst);
            assert!(count <= last, "it called the host again");
            if count == last {
                UNWANTED.store(100 + last, SeqCst);
            }
        });
        assert_eq!((ended, calls.load(SeqCst)), (Some(Code::Cancelled), last));
    }
    UNWANTED.store(u64::MAX, SeqCst);
}

#[test]
fn a_task_whose_end_was_requested_does_not_start() {
    let lab = Lab::new();
    UNWANTED.store(100, SeqCst);
    assert_eq!(lab.run(0, 100, || panic!("it called the host")), Some(Code::Cancelled));
    UNWANTED.store(u64::MAX, SeqCst);
    assert_eq!(lab.run(RETURNS, 100, || ()), None);
}

/// The signal arrives at each of the first instructions after a call of the host: in its trampoline, in the guest, in
/// the trampolines of the next calls, and in what the host calls.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_task_is_interrupted_at_each_instruction() {
    const INSTRUCTIONS: u64 = 150;
    let lab = Lab::new();
    stepping::install_handler();
    for (function, repeated) in ENDLESS {
        for instruction in 1..=INSTRUCTIONS {
            let task = 1000 + instruction;
            stepping::stop_after(instruction, task);
            let interrupter = Interrupter::start(task, stepping::has_stopped);
            let ended = lab.run(function, task, stepping::start);
            assert_eq!(ended, Some(Code::Cancelled), "{repeated}: instruction {instruction}");
            drop(interrupter);
        }
        assert_eq!(lab.run(RETURNS, 1, || ()), None, "{repeated}");
    }
}
