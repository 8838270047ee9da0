//! Endless loops are interrupted from outside, at any instruction, and a task that waits beside them continues.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_core::{Code, JobId, Limits, ObjectId, TaskId};
use sandbar_sandbox::{
    Engine, GetOutcome, IdleSandboxes, Input, Program, Refusal, Services, TaskCall, TaskExecution, compile,
    install_interrupt_handler,
};

/// A component with these tasks: 0, an empty loop; 1, a loop that calls and stores; 2, a loop that grows its memory and
/// calls the host; 3, waits for an object.
const GUEST: &str = concat!(
    r#"(component
    (type $outcome' (enum "value" "failed" "time-out"))
    (import "sandbar:udf/tasks@0.1.0" (instance $tasks
        (alias outer 1 $outcome' (type $o))
        (export "outcome" (type $outcome (eq $o)))
        (type $got' (record (field "outcome" $outcome) (field "bytes" u64)))
        (export "got" (type $got (eq $got')))
        (export "release" (func (param "objects" (list u64))))
        (export "get" (func (param "object" u64) (param "timeout" (option u64)) (result $got)))))
    (core module $libc (memory (export "memory") 2 128))
    (core instance $libc (instantiate $libc))
    (alias core export $libc "memory" (core memory $memory))
    (core func $release (canon lower (func $tasks "release") (memory $memory)))
    (core func $get (canon lower (func $tasks "get") (memory $memory)))
    (core module $code
        (import "libc" "memory" (memory 2 128))
        (import "tasks" "release" (func $release (param i32 i32)))
        (import "tasks" "get" (func $get (param i64 i32 i64 i32)))
        (func $step (param i32) (result i32)
            (i32.store (i32.const 8192) (local.get 0))
            (i32.add (i32.load (i32.const 8192)) (i32.const 1)))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
        (func (export "describe") (result i32) i32.const 8)
        (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
        (func (export "process") (param i32 i32) (result i32) i32.const 1024)
        (func (export "resume") (param i64) (result i32) i32.const 1024)
        (func (export "abandon") (param i64))
        (func (export "run") (param $task i32) (param i64 i64 i32 i32) (result i32)
            (local $number i32)
            (if (i32.eq (local.get $task) (i32.const 0)) (then (loop $next (br $next))))
            (if (i32.eq (local.get $task) (i32.const 1)) (then
                (loop $next (local.set $number (call $step (local.get $number))) (br $next))))
            (if (i32.eq (local.get $task) (i32.const 2)) (then
                (loop $next
                    (drop (memory.grow (i32.const 1)))
                    (call $release (i32.const 4096) (i32.const 3))
                    (br $next))))
            (call $get (i64.const 7) (i32.const 0) (i64.const 0) (i32.const 2048))
            (i32.store8 (i32.const 1028) (i32.const 1))
            i32.const 1024))
    (core instance $code (instantiate $code
        (with "libc" (instance $libc))
        (with "tasks" (instance (export "release" (func $release)) (export "get" (func $get))))))
"#,
    include_str!("exports/guest.wat"),
    include_str!("exports/program.wat"),
    ")"
);

/// An object that becomes available when the flag is set.
struct Waiting(Arc<AtomicBool>);

impl Services for Waiting {
    fn begin_wait(&mut self, _: &[u64], _: u32, _: Option<u64>) -> Result<(), Refusal> {
        Ok(())
    }

    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        if self.0.load(SeqCst) { Poll::Ready(Ok(vec![true])) } else { Poll::Pending }
    }

    fn object(&mut self, _: ObjectId) -> Result<(GetOutcome, Input<'_>), Refusal> {
        Ok((GetOutcome::Value(0), Input { bytes: (&[][..]).into(), file: None }))
    }

    fn release(&mut self, _: &[u64]) -> Result<(), Refusal> {
        Ok(())
    }
}

fn begin(program: &Arc<Program>, function: u32, is_there: &Arc<AtomicBool>) -> TaskExecution {
    let call = TaskCall { function, call: 1, seed: 0, arguments: [].into() };
    program.run(&IdleSandboxes::default(), JobId(1), Box::new(Waiting(is_there.clone())), &Limits::default(), call)
}

#[test]
fn an_interrupt_ends_the_loop_of_its_task_only() {
    static UNWANTED: AtomicU64 = AtomicU64::new(u64::MAX);
    let limits = Limits { memory_bytes_max: 1 << 20, ..Limits::default() };
    let engine = Engine::for_programs(&limits, 8).unwrap();
    let (code, shape) = compile(&wat::parse_str(GUEST).unwrap()).unwrap();
    // SAFETY: compiled just now, by this build.
    let program = Arc::new(unsafe { engine.load(&code, shape.image_end) }.unwrap());
    install_interrupt_handler(&UNWANTED).unwrap();
    // SAFETY: this thread outlives the threads that use its handle.
    let this = unsafe { libc::pthread_self() };

    let is_there = Arc::new(AtomicBool::new(false));
    let mut beside = begin(&program, 3, &is_there);
    assert!(beside.poll(TaskId(1)).is_pending());
    const TIMES: u64 = 600;
    for time in 0..TIMES {
        let (task, done) = (TaskId(100 + time), Arc::new(AtomicBool::new(false)));
        let is_done = done.clone();
        let ending = std::thread::spawn(move || {
            let signal = |unwanted: u64| {
                UNWANTED.store(unwanted, SeqCst);
                // SAFETY: the handle of the thread that runs the test.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            };
            // A signal for another task has no effect.
            signal(1);
            std::thread::sleep(Duration::from_nanos(20_000 + 211 * time));
            let since = Instant::now();
            while !is_done.load(SeqCst) {
                signal(task.0);
                std::thread::sleep(Duration::from_micros(20));
            }
            since.elapsed()
        });
        let mut running = begin(&program, (time % 3) as u32, &is_there);
        let Poll::Ready(ended) = running.poll(task) else { panic!("it waits") };
        done.store(true, SeqCst);
        assert_eq!(ended.result.unwrap_err().code, Code::Cancelled);
        assert!(ending.join().unwrap() < Duration::from_secs(5));
        drop(running);
        // The next sandbox in the slot starts in its initial state.
        if time % 50 == 0 {
            let mut other = begin(&program, 3, &Arc::new(AtomicBool::new(true)));
            let Poll::Ready(ended) = other.poll(task) else { panic!("it waits") };
            ended.result.unwrap();
        }
    }
    is_there.store(true, SeqCst);
    let Poll::Ready(ended) = beside.poll(TaskId(1)) else { panic!("it still waits") };
    ended.result.unwrap();
}
