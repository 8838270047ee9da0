//! No byte of an object, or of an earlier sandbox, is visible to a later one: tested over a hundred thousand uses of
//! the slots.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use sandbar_core::Limits;
use sandbar_sandbox::{Engine, Input, Instance, Program, Services, compile, move_memory_first};

/// Number of live sandboxes, so that slots are freed and taken in changing order.
const ALIVE: usize = 3;
const CANARY: u64 = 0x0123_4567_89ab_cdef;
const WASM_PAGE: usize = 64 << 10;
const HUGE_PAGE: usize = 2 << 20;

/// Number of reuses of slots, and the memory layout.
struct Case {
    reuses: usize,
    /// Address of the object in the guest's memory.
    at: usize,
    object: usize,
    /// Bytes of the guest's memory.
    memory: usize,
}

const SMALL: Case = Case { reuses: 100_000, at: 128 << 10, object: 64 << 10, memory: 512 << 10 };
/// From the start of a huge page: a huge page and a little more.
const HUGE: Case = Case { reuses: 1_000, at: HUGE_PAGE, object: HUGE_PAGE + (64 << 10), memory: 3 * HUGE_PAGE };

/// The component. [`LINKED`] has the variants of linking its memory, its code and the host's function.
const GUEST: &str = r#"(component
    (import "sandbar:udf/data@0.1.0" (instance $data
        (export "map-pages" (func (param "offset" u64) (param "region" (list u8))))))
    $LINKED
    (type $kind (enum "scalar" "batch" "trainer"))
    (type $function (record (field "name" string) (field "kind" $kind) (field "arguments" (list u8))
        (field "returns" (list u8)) (field "about" string)))
    (func $describe (result (list $function)) (canon lift (core func $main "describe") (memory $memory)))
    (func $open (param "function" u32) (param "params" string) (param "seed" u64) (result (result (error string)))
        (canon lift (core func $main "open") (memory $memory) (realloc (core func $main "realloc"))))
    (func $process (param "header" (list u8)) (result (result (error string)))
        (canon lift (core func $main "process") (memory $memory) (realloc (core func $main "realloc"))))
    (instance $guest (export "kind" (type $kind)) (export "function" (type $function))
        (export "describe" (func $describe)) (export "open" (func $open)) (export "process" (func $process))
        (export "fit" (func $process)) (export "predict" (func $process)))
    (export "sandbar:udf/guest@0.1.0" (instance $guest)))"#;

/// Checks for anything that the guest has not stored itself (in its memory behind the static data, in memory by which
/// it grows, in its static data, globals and table), and traps if it finds something. Then leaves as much as possible:
/// an object mapped over its memory and partly overwritten, and every other byte set.
const CODE: &str = r#"
    (global $seen (mut i64) (i64.const 0))
    (table $table 8 funcref)
    (func $something)
    (elem declare func $something)
    (data (i32.const 2048) "\2a\00\00\00\00\00\00\00")
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
    (func (export "describe") (result i32) i32.const 8)
    (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
    (func (export "process") (param i32 i32) (result i32)
        (local $at i32)
        (if (i64.ne (global.get $seen) (i64.const 0)) (then unreachable))
        (if (i32.eqz (ref.is_null (table.get $table (i32.const 5)))) (then unreachable))
        (if (i64.ne (i64.load (i32.const 2048)) (i64.const 42)) (then unreachable))
        (if (i32.ne (memory.grow (i32.const $GROWN)) (i32.const 2)) (then unreachable))
        (local.set $at (i32.const 8192))
        (loop $next
            (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const $MEMORY))))
        (call $map (i64.const 0) (i32.const $START) (i32.const $OBJECT))
        (if (i64.ne (i64.load (i32.const $START)) (i64.const 0x0123456789abcdef)) (then unreachable))
        (if (i64.ne (i64.load (i32.const $LAST)) (i64.const 0x0123456789abcdef)) (then unreachable))
        (global.set $seen (i64.const -1))
        (table.set $table (i32.const 5) (ref.func $something))
        (i64.store (i32.const 2048) (i64.const -1))
        (i64.store (i32.const $INSIDE) (i64.const -1))
        (memory.fill (i32.const 8192) (i32.const 0xee) (i32.const $BEFORE))
        (memory.fill (i32.const $END) (i32.const 0xdd) (i32.const $BEHIND))
        i32.const 1024)"#;

/// Two variants: by hand, with the memory first; and as `cargo build` does, with the memory in the code, which gets a
/// trampoline. The host rewrites the second so that memory and data come first, and keeps a copy with which slots
/// start.
const LINKED: [&str; 2] = [
    r#"
    (core module $libc (memory (export "memory") 2 128))
    (core instance $libc (instantiate $libc))
    (alias core export $libc "memory" (core memory $memory))
    (core func $map (canon lower (func $data "map-pages") (memory $memory)))
    (core module $main
        (import "libc" "memory" (memory 2 128))
        (import "data" "map-pages" (func $map (param i64 i32 i32)))
        $CODE)
    (core instance $main (instantiate $main
        (with "libc" (instance $libc))
        (with "data" (instance (export "map-pages" (func $map))))))"#,
    r#"
    (core module $main
        (import "data" "map-pages" (func $map (param i64 i32 i32)))
        (memory (export "memory") 2 128)
        $CODE)
    (core module $trampolines
        (type $map (func (param i64 i32 i32)))
        (table (export "$imports") 1 1 funcref)
        (func (export "0") (type $map)
            (call_indirect (type $map) (local.get 0) (local.get 1) (local.get 2) (i32.const 0))))
    (core module $filler
        (import "" "0" (func $map (param i64 i32 i32)))
        (import "" "$imports" (table 1 1 funcref))
        (elem (i32.const 0) func $map))
    (core instance $trampolines (instantiate $trampolines))
    (core instance $main (instantiate $main
        (with "data" (instance (export "map-pages" (func $trampolines "0"))))))
    (alias core export $main "memory" (core memory $memory))
    (core func $map (canon lower (func $data "map-pages") (memory $memory)))
    (core instance (instantiate $filler
        (with "" (instance (export "$imports" (table $trampolines "$imports")) (export "0" (func $map))))))"#,
];

struct Object {
    bytes: Vec<u8>,
    file: OwnedFd,
}

/// Serves the same object to every sandbox.
struct Shared(Arc<Object>);

impl Services for Shared {
    fn input(&self) -> Input<'_> {
        let file: BorrowedFd<'_> = self.0.file.as_fd();
        Input { bytes: self.0.bytes[..].into(), file: Some((file, 0)) }
    }
}

/// Creates an object of `bytes` bytes, in huge pages if the kernel has them.
fn object(bytes: usize) -> Arc<Object> {
    let file = memfd_create("canary", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    let (nothing, both) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping; the file is mapped over a part of it that nothing else references, written within its
    // length, and all of it is unmapped.
    unsafe {
        let room = mmap_anonymous(std::ptr::null_mut(), bytes + HUGE_PAGE, nothing, MapFlags::PRIVATE).unwrap();
        let at = room.wrapping_byte_add(room.cast::<u8>().align_offset(HUGE_PAGE));
        mmap(at, bytes, both, MapFlags::SHARED | MapFlags::FIXED, &file, 0).unwrap();
        std::slice::from_raw_parts_mut(at.cast::<u64>(), bytes / 8).fill(CANARY);
        libc::madvise(at, bytes / HUGE_PAGE * HUGE_PAGE, libc::MADV_COLLAPSE);
        munmap(room, bytes + HUGE_PAGE).unwrap();
    }
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL).unwrap();
    Arc::new(Object { bytes: CANARY.to_le_bytes().repeat(bytes / 8), file })
}

impl Case {
    fn guest(&self, linked: &str) -> Vec<u8> {
        let Case { at, object, memory, .. } = *self;
        let values = [
            ("$GROWN", memory / WASM_PAGE - 2),
            ("$MEMORY", memory),
            ("$START", at),
            ("$OBJECT", object),
            ("$LAST", at + object - 8),
            ("$INSIDE", at + 4096),
            ("$BEFORE", at - 8192),
            ("$END", at + object),
            ("$BEHIND", memory - at - object),
        ];
        let text = GUEST.replace("$LINKED", linked).replace("$CODE", CODE);
        let text = values.iter().fold(text, |text, (name, value)| text.replace(name, &value.to_string()));
        wat::parse_str(text).unwrap()
    }
}

fn sandbox<'p>(program: &'p Program, object: &Arc<Object>, limits: &Limits) -> Instance<'p> {
    program.instantiate(Box::new(Shared(object.clone())), limits, 0).unwrap()
}

fn check(case: &Case, linked: &str) {
    let limits = Limits::default();
    let (code, shape) = compile(&case.guest(linked)).unwrap();
    let engine = Engine::new(&limits).unwrap();
    // SAFETY: compiled just now, by this build.
    let program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    let object = object(case.object);
    let mut alive: Vec<Instance<'_>> = Vec::new();
    for reuse in 0..case.reuses {
        if alive.len() == ALIVE {
            drop(alive.swap_remove(reuse % ALIVE));
        }
        let mut sandbox = sandbox(&program, &object, &limits);
        if let Err(fault) = sandbox.process(&[]) {
            panic!("sandbox {reuse} saw something: {fault}");
        }
        alive.push(sandbox);
    }
    // Checks that the guest detects leftovers: a second call of the same sandbox sees those of the first.
    let mut again = sandbox(&program, &object, &limits);
    again.process(&[]).unwrap();
    assert!(again.process(&[]).is_err());
}

#[test]
fn nothing_is_seen_by_a_later_sandbox() {
    LINKED.iter().for_each(|linked| check(&SMALL, linked));
}

#[test]
fn nothing_is_seen_where_huge_pages_were() {
    LINKED.iter().for_each(|linked| check(&HUGE, linked));
}

#[test]
fn the_memory_of_cargo_builds_is_moved_first() {
    let is_moved = LINKED.map(|linked| move_memory_first(&SMALL.guest(linked)).is_some());
    assert_eq!(is_moved, [false, true]);
}
