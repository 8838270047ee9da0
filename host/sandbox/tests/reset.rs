//! A call in a reset sandbox finds the state that a call in a new sandbox finds, for generated components.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use sandbar_core::{JobId, Limits, TaskId};
use sandbar_sandbox::{Engine, IdleSandboxes, Program, Refusal, Services, TaskCall, compile, reports_written_pages};
use sandbar_seeds::{chosen_seed, for_each_seed, seeds};

/// A component of the form that `cargo build` generates. `run` returns a digest of the state that it finds, then changes
/// that state.
const GUEST: &str = concat!(
    r#"(component
    (import "sandbar:udf/tasks@0.1.0" (instance $tasks
        (export "returned" (func (param "parts" (list (list u8))) (param "contained" (list u64))))))
    (core module $code
        (import "tasks" "returned" (func $returned (param i32 i32 i32 i32)))
        (memory (export "memory") 2 4)
        (global $allocated (mut i32) (i32.const 0))
        (global $running (mut i32) (i32.const 42))
        $DEFINITIONS
        (func $mix (param i64 i64) (result i64)
            (i64.mul (i64.xor (i64.rotl (local.get 0) (i64.const 7)) (local.get 1)) (i64.const 0x100000001b3)))
        (func $digest (result i64) (local $at i32) (local $sum i64)
            (loop $next
                (local.set $sum (call $mix (local.get $sum) (i64.load (local.get $at))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (i32.const 131072))))
            (local.set $sum (call $mix (local.get $sum) (i64.extend_i32_u (memory.size))))
            (local.set $sum (call $mix (local.get $sum) (i64.extend_i32_u (global.get $running))))
            $OBSERVED
            (local.get $sum))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            (global.set $allocated (i32.add (global.get $allocated) (i32.const 1)))
            (if (i32.ne (global.get $allocated) (i32.const 1)) (then unreachable))
            i32.const 4096)
        (func (export "describe") (result i32) i32.const 8)
        (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
        (func (export "process") (param i32 i32) (result i32) i32.const 1024)
        (func (export "resume") (param i64) (result i32) i32.const 1024)
        (func (export "abandon") (param i64))
        (func (export "run") (param i32 i64 i64 i32 i32) (result i32) (local $found i64)
            (local.set $found (call $digest))
            (global.set $running (i32.const 1))
            (i64.store (i32.const 64) (local.get $found))
            (i32.store (i32.const 48) (i32.const 64))
            (i32.store (i32.const 52) (i32.const 8))
            (call $returned (i32.const 48) (i32.const 1) (i32.const 0) (i32.const 0))
            $CHANGES
            (i64.store (i32.const 1024) (i64.const 0))
            (i32.store8 (i32.const 1028) (i32.const 1))
            i32.const 1024)
        (func (export "ended") (param i32)
            (if (i32.ne (global.get $running) (i32.const 1)) (then unreachable))
            (global.set $running (i32.const 2))
            (i32.store (i32.const 2040) (i32.const 2))))
    (core module $trampolines
        (type $returned (func (param i32 i32 i32 i32)))
        (table (export "$imports") 1 1 funcref)
        (func (export "0") (type $returned) (call_indirect (type $returned)
            (local.get 0) (local.get 1) (local.get 2) (local.get 3) (i32.const 0))))
    (core module $filler
        (import "" "0" (func $0 (param i32 i32 i32 i32)))
        (import "" "$imports" (table 1 1 funcref))
        (elem (offset $SLOT) func $0))
    (core instance $trampolines (instantiate $trampolines))
    (core instance $code (instantiate $code (with "tasks" (instance (export "returned" (func $trampolines "0"))))))
    (alias core export $code "memory" (core memory $memory))
    (alias core export $trampolines "$imports" (core table $table))
    (alias export $tasks "returned" (func $returned))
    (core func $returned (canon lower (func $returned) (memory $memory)))
    (core instance $filled (instantiate $filler (with "" (instance
        (export "$imports" (table $table))
        (export "0" (func $returned))))))
"#,
    include_str!("exports/guest.wat"),
    include_str!("exports/program.wat"),
    ")"
);

const MEMORY_BYTES: u32 = 2 << 16;
/// Addresses that a call's result, its argument and its constant data use.
const RESERVED_BYTES: u32 = 8192;
const CALLS: usize = 4;
const COMPONENTS: u64 = 150;

/// Generates a component whose initial state and changes are random.
struct Generator {
    random: Xoshiro256PlusPlus,
    definitions: String,
    observed: String,
    changes: String,
}

impl Generator {
    fn new(seed: u64) -> Generator {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Generator { random, definitions: String::new(), observed: String::new(), changes: String::new() }
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.random.next_u64() % u64::from(end)) as u32
    }

    fn is_one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    /// Returns an expression with a value of type `i32` or `i64`.
    fn constant(&mut self, kind: &str, value: i64, depth: u32) -> String {
        if depth == 0 || self.is_one_in(3) {
            return format!("({kind}.const {value})");
        }
        let part = i64::from(self.below(1000)) - 500;
        let (operation, first, second) = match self.below(3) {
            0 => ("add", value.wrapping_sub(part), part),
            1 => ("sub", value.wrapping_add(part), part),
            _ => ("mul", value, 1),
        };
        let (first, second) = match kind {
            "i32" => (i64::from(first as i32), i64::from(second as i32)),
            _ => (first, second),
        };
        let (first, second) = (self.constant(kind, first, depth - 1), self.constant(kind, second, depth - 1));
        format!("({kind}.{operation} {first} {second})")
    }

    fn globals(&mut self) {
        for number in 0..self.below(5) {
            let (value, changed) = (self.random.next_u64() as i64, self.random.next_u64() as i64);
            let kind = ["i32", "i64", "f32", "f64"][self.below(4) as usize];
            let (initial, changed, bits) = match kind {
                "i32" => {
                    let changed = format!("(i32.const {})", changed as i32);
                    (self.constant(kind, i64::from(value as i32), 2), changed, "(i64.extend_i32_u ")
                }
                "i64" => (self.constant(kind, value, 2), format!("(i64.const {changed})"), "(i64.add (i64.const 0) "),
                "f32" => {
                    let nan = format!("(f32.const nan:0x{:x})", 1 + (value as u32) % 0x3f_ffff);
                    (nan, "(f32.const 1.5)".to_owned(), "(i64.extend_i32_u (i32.reinterpret_f32 ")
                }
                _ => {
                    let initial = format!("(f64.const {}.25)", value as i32);
                    (initial, "(f64.const -0.0)".to_owned(), "(i64.reinterpret_f64 ")
                }
            };
            let is_mutable = !self.is_one_in(4);
            let global_type = if is_mutable { format!("(mut {kind})") } else { kind.to_owned() };
            let ends = ")".repeat(bits.matches('(').count() - bits.matches(')').count());
            let _ = writeln!(self.definitions, "(global $g{number} {global_type} {initial})");
            let _ = writeln!(
                self.observed,
                "(local.set $sum (call $mix (local.get $sum) {bits}(global.get $g{number}){ends}))"
            );
            if is_mutable {
                let _ = writeln!(self.changes, "(global.set $g{number} {changed})");
            }
        }
    }

    fn segments(&mut self) {
        for _ in 0..self.below(5) {
            let data: String = (0..=self.below(40)).map(|_| format!("\\{:02x}", self.below(256))).collect();
            let start = RESERVED_BYTES + self.below(MEMORY_BYTES - RESERVED_BYTES - 64);
            // Segments that overlap with others are written in their order.
            let start = if self.is_one_in(2) { RESERVED_BYTES + start % 64 } else { start };
            let offset = self.constant("i32", i64::from(start), 2);
            let _ = writeln!(self.definitions, "(data (offset {offset}) \"{data}\")");
        }
    }

    /// Adds a table and changes of it, segments that code uses, or code that runs at the start.
    fn other_state(&mut self) {
        let at = RESERVED_BYTES + 8 * self.below(64);
        let (definitions, changes) = match self.below(10) {
            0 => ("", "(table.set $t (i32.const 0) (ref.null func))"),
            1 => ("", "(drop (table.grow $t (ref.null func) (i32.const 1)))"),
            2 => ("(elem $e func $something)", "(table.init $t $e (i32.const 3) (i32.const 0) (i32.const 1))"),
            3 => ("(elem $e func $something)", "(elem.drop $e)"),
            4 => ("(data $d \"passive\")", "(memory.init $d (i32.const $AT) (i32.const 0) (i32.const 7))"),
            5 => ("(data $d \"passive\")", "(data.drop $d)"),
            6 => ("(func $start (i32.store (i32.const $AT) (i32.const 77))) (start $start)", ""),
            7 => ("(func $start (global.set $running (i32.const 43))) (start $start)", ""),
            8 => ("", "(table.copy $t $t (i32.const 4) (i32.const 0) (i32.const 2))"),
            _ => ("", "(drop (memory.grow (i32.const 1)))"),
        };
        self.definitions.push_str(&definitions.replace("$AT", &at.to_string()));
        self.changes.push_str(&changes.replace("$AT", &at.to_string()));
    }

    fn tables(&mut self) {
        let slot = i64::from(self.below(6));
        let slot = self.constant("i32", slot, 2);
        self.definitions.push_str("(func $something) (table $t 8 16 funcref) (elem declare func $something)");
        let _ = writeln!(self.definitions, "(elem (table $t) (offset {slot}) func $something $something)");
        let size = "(local.set $sum (call $mix (local.get $sum) (i64.extend_i32_u (table.size $t))))";
        self.observed.push_str(size);
        for slot in 0..8 {
            let _ = writeln!(
                self.observed,
                "(local.set $sum (call $mix (local.get $sum)
                    (i64.extend_i32_u (ref.is_null (table.get $t (i32.const {slot}))))))"
            );
        }
    }

    fn writes(&mut self) {
        for _ in 0..self.below(6) {
            let at = RESERVED_BYTES + self.below(MEMORY_BYTES - RESERVED_BYTES - 4096);
            let (value, bytes) = (self.random.next_u64() as i64, self.below(4096));
            let change = match self.below(4) {
                0 => format!("(i64.store (i32.const {at}) (i64.const {value}))"),
                1 => format!("(memory.fill (i32.const {at}) (i32.const {}) (i32.const {bytes}))", value as i32),
                2 => format!("(memory.copy (i32.const {at}) (i32.const {RESERVED_BYTES}) (i32.const {bytes}))"),
                _ => "(drop (memory.grow (i32.const 0)))".to_owned(),
            };
            self.changes.push_str(&change);
        }
    }

    fn component(mut self) -> String {
        self.tables();
        self.globals();
        self.segments();
        self.writes();
        if self.is_one_in(4) {
            self.other_state();
        }
        let slot = self.constant("i32", 0, 2);
        let text = GUEST
            .replace("$DEFINITIONS", &self.definitions)
            .replace("$OBSERVED", &self.observed)
            .replace("$CHANGES", &self.changes)
            .replace("$SLOT", &slot);
        if self.is_one_in(2) {
            return text;
        }
        let lift = r#""run") (memory $memory) (realloc (core func $code "realloc"))"#;
        text.replace(lift, &format!(r#"{lift} (post-return (core func $code "ended"))"#))
    }
}

/// Collects the digests that calls return.
struct Digests(Arc<Mutex<Vec<Vec<u8>>>>);

impl Services for Digests {
    fn returned(&mut self, parts: &[&[u8]], _: &[u64]) -> Result<(), Refusal> {
        self.0.lock().unwrap().push(parts.concat());
        Ok(())
    }
}

/// Runs a component's task several times. Returns the digests, and whether sandboxes were reset.
fn digests(engine: &Engine, text: &str) -> (Vec<Vec<u8>>, bool) {
    let component = wat::parse_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let (code, shape) = compile(&component).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    // SAFETY: compiled just now, by this build.
    let mut program: Program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    if let Some(initial) = shape.initial {
        engine.reuse(&mut program, initial);
    }
    let (program, idle, found) = (Arc::new(program), IdleSandboxes::default(), Arc::default());
    let mut is_reset = false;
    for number in 0..CALLS {
        let call = TaskCall { function: 0, call: 1, seed: 0, arguments: [0].into() };
        let services = Box::new(Digests(Arc::clone(&found)));
        let mut running = program.run(&idle, JobId(1), services, &Limits::default(), call);
        let Poll::Ready(ended) = running.poll(TaskId(1)) else { panic!("it waits") };
        ended.result.unwrap_or_else(|fault| panic!("call {number}: {fault}\n{text}"));
        is_reset |= !idle.is_empty();
    }
    let found = found.lock().unwrap().clone();
    (found, is_reset)
}

#[test]
fn a_call_in_a_reset_sandbox_finds_what_a_call_in_a_new_one_finds() {
    let engine = Engine::for_programs(&Limits::default(), 8).unwrap();
    let (mut resets, mut components) = (0, 0);
    for_each_seed(seeds(COMPONENTS), |seed| {
        let text = Generator::new(seed).component();
        let (found, is_reset) = digests(&engine, &text);
        assert_eq!(found.len(), CALLS);
        assert!(found.iter().all(|digest| *digest == found[0]), "{found:x?}\n{text}");
        resets += u64::from(is_reset);
        components += 1;
    });
    let may_be_few = chosen_seed().is_some() || !reports_written_pages();
    assert!(may_be_few || 2 * resets >= components, "{resets} of {components}");
}
