//! No byte of an object, or of an earlier sandbox, is seen by a later one: over a hundred thousand uses of the slots.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sandbar_core::Limits;
use sandbar_sandbox::{Engine, Input, Instance, Program, Services, compile};

const REUSES: usize = 100_000;
/// Sandboxes alive at once, so that slots are left and taken in changing order.
const ALIVE: usize = 3;
const OBJECT_BYTES: usize = 64 << 10;
const CANARY: u64 = 0x0123_4567_89ab_cdef;

/// Looks for anything that it has not put there itself (its memory behind the static data, memory it grows by, its
/// static data, its globals and its table), and traps if there is something. Then it leaves as much as it can: an object
/// laid over its memory and partly overwritten, and every other byte set.
const GUEST: &str = r#"(component
    (import "sandbar:udf/data@0.1.0" (instance $data
        (export "map-pages" (func (param "offset" u64) (param "region" (list u8))))))
    (core module $libc (memory (export "memory") 4 8))
    (core instance $libc (instantiate $libc))
    (alias core export $libc "memory" (core memory $memory))
    (core func $map (canon lower (func $data "map-pages") (memory $memory)))
    (core module $main
        (import "libc" "memory" (memory 4 8))
        (import "data" "map-pages" (func $map (param i64 i32 i32)))
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
            (if (i32.ne (memory.grow (i32.const 4)) (i32.const 4)) (then unreachable))
            (local.set $at (i32.const 8192))
            (loop $next
                (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (i32.const 524288))))
            (call $map (i64.const 0) (i32.const 131072) (i32.const 65536))
            (if (i64.ne (i64.load (i32.const 131072)) (i64.const 0x0123456789abcdef)) (then unreachable))
            (if (i64.ne (i64.load (i32.const 196600)) (i64.const 0x0123456789abcdef)) (then unreachable))
            (global.set $seen (i64.const -1))
            (table.set $table (i32.const 5) (ref.func $something))
            (i64.store (i32.const 2048) (i64.const -1))
            (i64.store (i32.const 135168) (i64.const -1))
            (memory.fill (i32.const 8192) (i32.const 0xee) (i32.const 122880))
            (memory.fill (i32.const 196608) (i32.const 0xdd) (i32.const 327680))
            i32.const 1024))
    (core instance $main (instantiate $main
        (with "libc" (instance $libc))
        (with "data" (instance (export "map-pages" (func $map))))))
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

struct Object {
    bytes: Vec<u8>,
    file: OwnedFd,
}

/// Gives the same object to every sandbox.
struct Shared(Arc<Object>);

impl Services for Shared {
    fn input(&self) -> Input<'_> {
        let file: BorrowedFd<'_> = self.0.file.as_fd();
        Input { bytes: &self.0.bytes, file: Some(file) }
    }
}

fn object() -> Arc<Object> {
    let bytes = CANARY.to_le_bytes().repeat(OBJECT_BYTES / 8);
    let file = memfd_create("canary", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut writer = std::fs::File::from(file);
    writer.write_all(&bytes).unwrap();
    let file = OwnedFd::from(writer);
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL).unwrap();
    Arc::new(Object { bytes, file })
}

fn sandbox<'p>(program: &'p Program, object: &Arc<Object>, limits: &Limits) -> Instance<'p> {
    program.instantiate(Box::new(Shared(object.clone())), limits, 0).unwrap()
}

#[test]
fn nothing_is_seen_by_a_later_sandbox() {
    let limits = Limits::default();
    let (code, shape) = compile(&wat::parse_str(GUEST).unwrap()).unwrap();
    let engine = Engine::new(&limits).unwrap();
    // SAFETY: compiled just now, by this build.
    let program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    let object = object();
    let mut alive: Vec<Instance<'_>> = Vec::new();
    for reuse in 0..REUSES {
        if alive.len() == ALIVE {
            drop(alive.swap_remove(reuse % ALIVE));
        }
        let mut sandbox = sandbox(&program, &object, &limits);
        if let Err(fault) = sandbox.process(&[]) {
            panic!("sandbox {reuse} saw something: {fault}");
        }
        alive.push(sandbox);
    }
    assert!(object.bytes.chunks(8).all(|word| word == CANARY.to_le_bytes()));
}

/// That the guest's eyes are open: a second call of the same sandbox sees what the first left.
#[test]
fn the_same_sandbox_sees_what_it_left() {
    let limits = Limits::default();
    let (code, shape) = compile(&wat::parse_str(GUEST).unwrap()).unwrap();
    let engine = Engine::new(&limits).unwrap();
    // SAFETY: compiled just now, by this build.
    let program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    let mut sandbox = sandbox(&program, &object(), &limits);
    sandbox.process(&[]).unwrap();
    assert!(sandbox.process(&[]).is_err());
}
