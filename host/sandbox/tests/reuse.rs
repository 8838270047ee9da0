//! Reused sandboxes are as new: the next task finds no trace of earlier tasks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sandbar_core::{JobId, Limits, ObjectId, TaskId};
use sandbar_sandbox::{Engine, GetOutcome, IdleSandboxes, Input, Program, Refusal, Services, TaskCall, compile};
use sandbar_seeds::one_seed;

/// A component of the form that `cargo build` generates. Each task first checks that the sum of all words of its memory
/// and the values of its globals are the initial ones. Then it writes `seed` bytes from address `call`, and does what
/// its function number says.
const GUEST: &str = concat!(
    r#"(component
    (import "sandbar:udf/tasks@0.1.0" (instance $tasks
        (export "returned" (func (param "parts" (list (list u8))) (param "contained" (list u64))))
        (export "map-pages" (func (param "object" u64) (param "offset" u64) (param "region" (list u8))))))
    (core module $code
        (import "tasks" "returned" (func $returned (param i32 i32 i32 i32)))
        (import "tasks" "map-pages" (func $map-pages (param i64 i64 i32 i32)))
        (memory (export "memory") 32 64)
        (global $small (mut i32) (i32.const 7))
        (global $large (mut i64) (i64.const -7))
        (global $single (mut f32) (f32.const 1.5))
        (global $double (mut f64) (f64.const -2.5))
        (table 2 funcref)
        (data (i32.const 2000) "\2a")
        (data (i32.const 1200000) "\3a")
        (func $sum (result i64) (local $at i32) (local $sum i64)
            (loop $next
                (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (i32.shl (memory.size) (i32.const 16)))))
            (local.get $sum))
        (func $is-new (result i32)
            (i32.and
                (i32.and (i64.eq (call $sum) (i64.const 100)) (i32.eq (memory.size) (i32.const 32)))
                (i32.and
                    (i32.and (i32.eq (global.get $small) (i32.const 7)) (i64.eq (global.get $large) (i64.const -7)))
                    (i32.and (f32.eq (global.get $single) (f32.const 1.5))
                        (f64.eq (global.get $double) (f64.const -2.5))))))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
        (func (export "describe") (result i32) i32.const 8)
        (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
        (func (export "process") (param i32 i32) (result i32) i32.const 1024)
        (func (export "resume") (param i64) (result i32) i32.const 1024)
        (func (export "abandon") (param i64))
        (func (export "run") (param $task i32) (param $at i64) (param $bytes i64) (param i32 i32) (result i32)
            (if (i32.eqz (call $is-new)) (then
                ;; An error, of three letters.
                (i32.store8 (i32.const 1024) (i32.const 1))
                (i32.store (i32.const 1028) (i32.const 1040))
                (i32.store (i32.const 1032) (i32.const 3))
                (i32.store (i32.const 1040) (i32.const 0x646c6f))
                (return (i32.const 1024))))
            (if (i32.eq (local.get $task) (i32.const 1)) (then (drop (memory.grow (i32.const 1)))))
            (if (i32.eq (local.get $task) (i32.const 2)) (then
                (call $map-pages (i64.const 5) (i64.const 0) (i32.const 1376256) (i32.const 8192))))
            (memory.fill (i32.wrap_i64 (local.get $at)) (i32.const 0xa5) (i32.wrap_i64 (local.get $bytes)))
            (global.set $small (i32.wrap_i64 (local.get $at)))
            (global.set $large (local.get $bytes))
            (global.set $single (f32.const 99))
            (global.set $double (f64.const 99))
            (if (i32.eq (local.get $task) (i32.const 3)) (then unreachable))
            (if (i32.ne (local.get $task) (i32.const 4)) (then
                (call $returned (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))))
            ;; $MORE
            (i64.store (i32.const 1024) (i64.const 0))
            (i32.store8 (i32.const 1028) (i32.const 1))
            i32.const 1024))
    (core module $trampolines
        (type $returned (func (param i32 i32 i32 i32)))
        (type $map-pages (func (param i64 i64 i32 i32)))
        (table (export "$imports") 2 2 funcref)
        (func (export "0") (type $returned) (call_indirect (type $returned)
            (local.get 0) (local.get 1) (local.get 2) (local.get 3) (i32.const 0)))
        (func (export "1") (type $map-pages) (call_indirect (type $map-pages)
            (local.get 0) (local.get 1) (local.get 2) (local.get 3) (i32.const 1))))
    (core module $filler
        (import "" "0" (func $0 (param i32 i32 i32 i32)))
        (import "" "1" (func $1 (param i64 i64 i32 i32)))
        (import "" "$imports" (table 2 2 funcref))
        (elem (i32.const 0) func $0 $1))
    (core instance $trampolines (instantiate $trampolines))
    (core instance $code (instantiate $code (with "tasks" (instance
        (export "returned" (func $trampolines "0"))
        (export "map-pages" (func $trampolines "1"))))))
    (alias core export $code "memory" (core memory $memory))
    (alias core export $trampolines "$imports" (core table $table))
    (alias export $tasks "returned" (func $returned))
    (alias core export $code "realloc" (core func $realloc))
    (core func $returned (canon lower (func $returned) (memory $memory)))
    (core func $map-pages (canon lower (func $tasks "map-pages") (memory $memory)))
    (core instance $filled (instantiate $filler (with "" (instance
        (export "$imports" (table $table))
        (export "0" (func $returned))
        (export "1" (func $map-pages))))))
"#,
    include_str!("exports/guest.wat"),
    include_str!("exports/program.wat"),
    ")"
);

const MEMORY_BYTES: u64 = 2 << 20;

/// Functions of the component by number.
const GROWS: u32 = 1;
const MAPS: u32 = 2;
const TRAPS: u32 = 3;
const RETURNS_NOTHING: u32 = 4;

/// Accepts results, and has one object of two pages.
struct Host(Arc<OwnedFd>);

const OBJECT: [u8; 8192] = [0x11; 8192];

impl Services for Host {
    fn returned(&mut self, _: &[&[u8]], _: &[u64]) -> Result<(), Refusal> {
        Ok(())
    }

    fn object(&mut self, _: ObjectId) -> Result<(GetOutcome, Input<'_>), Refusal> {
        Ok((GetOutcome::Value(8192), Input { bytes: OBJECT[..].into(), file: Some((self.0.as_fd(), 0)) }))
    }
}

struct Node {
    program: Arc<Program>,
    idle: IdleSandboxes,
    object: Arc<OwnedFd>,
}

impl Node {
    /// Creates a node with a component. The first byte of the component's image is changed by `change`.
    fn new(guest: &str, change: u8) -> Node {
        let limits = Limits::default();
        let engine = Engine::for_programs(&limits, 8).unwrap();
        let (code, shape) = compile(&wat::parse_str(guest).unwrap()).unwrap();
        // SAFETY: compiled just now, by this build.
        let mut program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
        if let Some(mut initial) = shape.initial {
            initial.image[0] += change;
            engine.reuse(&mut program, initial);
        }
        let file = memfd_create("object", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::write(&file, &OBJECT).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL).unwrap();
        Node { program: Arc::new(program), idle: IdleSandboxes::default(), object: Arc::new(file) }
    }

    /// Runs a task that writes `bytes` bytes from `at`. Returns whether it succeeded.
    fn run(&self, job: u32, task: u32, at: u64, bytes: u64) -> Result<(), String> {
        let call = TaskCall { function: task, call: at, seed: bytes, arguments: [].into() };
        let services = Box::new(Host(self.object.clone()));
        let mut running = self.program.run(&self.idle, JobId(job), services, &Limits::default(), call);
        let Poll::Ready(ended) = running.poll(TaskId(1)) else { panic!("it waits") };
        ended.result.map_err(|fault| fault.message)
    }
}

/// Returns whether this kernel reports written pages.
fn can_be() -> bool {
    let node = Node::new(GUEST, 0);
    node.run(1, 0, 0, 8).unwrap();
    !node.idle.is_empty()
}

#[test]
fn a_task_finds_nothing_of_the_one_before() {
    let seed = one_seed(0x5eed);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (node, again) = (Node::new(GUEST, 0), can_be());
    let mut below = |end: u64| random.next_u64() % end;
    for number in 0..1500 {
        let task = if below(4) == 0 { [0, GROWS, MAPS, TRAPS, RETURNS_NOTHING][below(5) as usize] } else { 0 };
        let (at, max) = (below(MEMORY_BYTES), if below(20) == 0 { MEMORY_BYTES } else { 20_000 });
        let bytes = below(max).min(MEMORY_BYTES - at);
        let ended = node.run(1, task, at, bytes);
        assert_eq!(ended.is_ok(), task != TRAPS, "task {number}, which does {task}: {ended:?}");
        assert_ne!(ended, Err("old".to_owned()), "task {number}");
        match task {
            GROWS | TRAPS => assert!(node.idle.is_empty(), "task {number}"),
            // Reused only if an earlier task has shown the address of the memory.
            RETURNS_NOTHING => {}
            _ => assert_eq!(node.idle.len(), usize::from(again), "task {number}"),
        }
    }
}

#[test]
fn fully_overwritten_memory_is_not_reset() {
    let large = GUEST.replace("(memory (export \"memory\") 32 64)", "(memory (export \"memory\") 320 640)");
    let node = Node::new(&large.replace("(memory.size) (i32.const 32)", "(memory.size) (i32.const 320)"), 0);
    for (bytes, kept) in [(1 << 20, true), (17 << 20, false), (0, true)] {
        node.run(1, 0, 1 << 20, bytes).unwrap();
        assert_eq!(!node.idle.is_empty(), kept && can_be(), "{bytes}");
    }
}

#[test]
fn a_task_sees_state_that_is_not_reset() {
    let node = Node::new(GUEST, 1);
    node.run(1, 0, 2000, 8).unwrap();
    let ended = node.run(1, 0, 0, 0);
    assert_eq!(ended.is_err(), can_be(), "{ended:?}");
}

#[test]
fn jobs_do_not_share_sandboxes() {
    let node = Node::new(GUEST, 0);
    let kept = |job| {
        node.run(job, 0, 0, 8).unwrap();
        node.idle.len()
    };
    let counts = [1, 1, 2, 1, 2, 3, 4, 5, 6, 1].map(kept);
    let expected = if can_be() { [1, 1, 2, 2, 2, 3, 4, 4, 4, 4] } else { [0; 10] };
    assert_eq!(counts, expected);
}

/// Checks which additional instructions of `run` prevent the reuse of sandboxes.
#[test]
fn only_memory_and_globals_are_reset() {
    let cases = [
        ("", true),
        ("(drop (memory.grow (i32.const 0)))", true),
        ("(table.set (i32.const 0) (ref.null func))", false),
        ("(drop (table.grow (ref.null func) (i32.const 1)))", false),
        ("(table.fill (i32.const 0) (ref.null func) (i32.const 1))", false),
        ("(table.copy (i32.const 0) (i32.const 1) (i32.const 1))", false),
    ];
    for (more, again) in cases {
        let component = wat::parse_str(GUEST.replace(";; $MORE", more)).unwrap();
        let (_, shape) = compile(&component).unwrap();
        assert_eq!(shape.initial.is_some(), again, "{more}");
    }
    let other = |old: &str, new: &str| {
        let text = GUEST.replacen(old, new, 1);
        assert_ne!(text, GUEST, "{old}");
        let (_, shape) = compile(&wat::parse_str(text).unwrap()).unwrap();
        assert!(shape.initial.is_none(), "{new}");
    };
    let four = r#"(param "a" u32) (param "b" u32) (param "c" u32) (param "d" u32)"#;
    let last = "(type $kind (enum";
    // Functions that may be called while others run, and components with state of their own.
    other(last, &format!("(func {four} (result u32) (canon lift (core func $realloc))) {last}"));
    other(last, &format!("(component (core module)) {last}"));
    other(last, &format!("(type $own (resource (rep i32))) (core func (canon resource.new $own)) {last}"));
    other("(global $small", "(global $named (mut funcref) (ref.null func)) (global $small");
    other("(table 2 funcref)", "(table 2 funcref) (elem func $sum)");
}
