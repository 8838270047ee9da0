//! Components that attack before one of their functions is called, and invalid components.

use super::Outcome::{self, Groups, Job};
use super::{AttackLab, Role, beside_a_victim};

/// A component in WAT, with the parts that an attack may change.
pub struct Wat {
    /// Declarations in the component, before all others.
    pub outer: &'static str,
    /// Declarations of the core module.
    pub core: &'static str,
    pub memory: &'static str,
    pub start: &'static str,
    pub realloc: &'static str,
    pub describe: &'static str,
    /// Name of the exported instance, and its exports.
    pub export: &'static str,
    pub functions: &'static str,
    pub describe_result: &'static str,
}

pub const HONEST: Wat = Wat {
    outer: "",
    core: "",
    memory: r#"(memory (export "memory") 16)"#,
    start: "",
    realloc: "i32.const 4096",
    describe: "i32.const 8",
    export: "sandbar:udf/guest@0.1.0",
    functions: r#"(export "describe" (func $describe)) (export "open" (func $open)) (export "process" (func $process))
        (export "fit" (func $process)) (export "predict" (func $process))"#,
    describe_result: "(list $function)",
};

impl Wat {
    /// Encodes the component. Memory at 8 holds the result of `describe`, a list of the one function at 64; memory at
    /// 1024 holds the result of the other exports: success.
    pub fn binary(&self) -> Vec<u8> {
        let Wat { outer, core, memory, start, realloc, describe, export, functions, describe_result } = self;
        let text = format!(
            r#"(component {outer}
                (core module $m
                    {memory} {core}
                    (func $start {start}) (start $start)
                    (func $realloc (export "realloc") (param i32 i32 i32 i32) (result i32) {realloc})
                    (func (export "describe") (result i32) {describe})
                    (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
                    (func (export "process") (param i32 i32) (result i32) i32.const 1024)
                    (data (i32.const 8) "\40\00\00\00\01\00\00\00")
                    (data (i32.const 64) "\80\00\00\00\06\00\00\00\02")
                    (data (i32.const 128) "attack"))
                (core instance $i (instantiate $m))
                (type $kind (enum "scalar" "batch" "trainer"))
                (type $function (record (field "name" string) (field "kind" $kind) (field "arguments" (list u8))
                    (field "returns" (list u8)) (field "about" string)))
                (alias core export $i "memory" (core memory $memory))
                (func $describe (result {describe_result}) (canon lift (core func $i "describe") (memory $memory)))
                (func $open (param "function" u32) (param "params" string) (param "seed" u64) (result (result (error string)))
                    (canon lift (core func $i "open") (memory $memory) (realloc (core func $i "realloc"))))
                (func $process (param "header" (list u8)) (result (result (error string)))
                    (canon lift (core func $i "process") (memory $memory) (realloc (core func $i "realloc"))))
                (instance $guest (export "kind" (type $kind)) (export "function" (type $function)) {functions})
                (export "{export}" (instance $guest)))"#
        );
        wat::parse_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }
}

/// Repeats text `count` times.
macro_rules! times {
    (9, $text:literal) => {
        concat!($text, $text, $text, $text, $text, $text, $text, $text, $text)
    };
}

#[rustfmt::skip]
const ATTACKS: &[(&str, Wat, Outcome)] = &[
    ("start-loops",          Wat { start: "(loop br 0)", ..HONEST }, Job("time-out", "ran longer than")),
    ("start-traps",          Wat { start: "unreachable", ..HONEST }, Job("trap", "unreachable")),
    ("start-recurses",       Wat { start: "call $start", ..HONEST }, Job("stack-overflow", "recurses")),
    ("start-takes-memory",   Wat { start: "(drop (memory.grow (i32.const 60000))) unreachable", ..HONEST }, Job("memory-limit", "memory_bytes_max")),
    ("start-takes-table",    Wat { core: "(table 1 funcref)", start: "(drop (table.grow (ref.null func) (i32.const 1000000))) unreachable", ..HONEST }, Job("table-limit", "table_elements_max")),
    ("realloc-loops",        Wat { realloc: "(loop br 0) unreachable", ..HONEST }, Groups("time-out", "ran longer than")),
    ("realloc-beyond",       Wat { realloc: "i32.const 0x7fffff00", ..HONEST }, Groups("bad-output", "")),
    ("describe-traps",       Wat { describe: "unreachable", ..HONEST }, Job("trap", "unreachable")),
    ("describe-loops",       Wat { describe: "(loop br 0) unreachable", ..HONEST }, Job("time-out", "ran longer than")),
    ("describe-beyond",      Wat { describe: "i32.const -16", ..HONEST }, Job("bad-output", "")),
    ("describe-unaligned",   Wat { describe: "i32.const 9", ..HONEST }, Job("bad-output", "")),
    ("describe-two-billion", Wat { describe: "(i32.store (i32.const 12) (i32.const 0x7fffffff)) i32.const 8", ..HONEST }, Job("bad-output", "")),
    ("describe-many",        Wat { describe: "(i32.store (i32.const 8) (i32.const 2048)) (i32.store (i32.const 12) (i32.const 2000)) i32.const 8", ..HONEST }, Job("bad-output", "2000 functions, the limit is 1024")),
    ("describe-twice",       Wat { describe: "(i32.store (i32.const 8) (i32.const 2048)) (i32.store (i32.const 12) (i32.const 2)) i32.const 8", ..HONEST }, Job("export", "it has two functions called")),
    ("describe-memoryful",   Wat { memory: r#"(memory (export "memory") 1000)"#, describe: "(i32.store (i32.const 8) (i32.const 2048)) (i32.store (i32.const 12) (i32.const 1800000)) i32.const 8", ..HONEST }, Job("bad-output", "")),
    ("describe-long-name",   Wat { memory: r#"(memory (export "memory") 1000)"#, describe: "(i32.store (i32.const 68) (i32.const 60000000)) i32.const 8", ..HONEST }, Job("output-limit", "")),
    ("describe-bad-kind",    Wat { describe: "(i32.store8 (i32.const 72) (i32.const 9)) i32.const 8", ..HONEST }, Job("bad-output", "")),
    ("describe-bad-name",    Wat { describe: "(i32.store8 (i32.const 128) (i32.const 255)) i32.const 8", ..HONEST }, Job("bad-output", "")),
    ("memory-of-4-gib",      Wat { memory: r#"(memory (export "memory") 65536)"#, ..HONEST }, Job("memory-limit", "memory_bytes_max")),
    ("memories",             Wat { core: times!(9, "(memory 1)"), ..HONEST }, Job("compile", "more than a sandbox provides")),
    ("memory-64",            Wat { core: "(memory i64 1)", ..HONEST }, Job("compile", "")),
    ("memory-shared",        Wat { core: "(memory 1 1 shared)", ..HONEST }, Job("compile", "")),
    ("table-of-10-million",  Wat { core: "(table 10000000 funcref)", ..HONEST }, Job("compile", "more than a sandbox provides")),
    ("tables",               Wat { core: times!(9, "(table 1 funcref)"), ..HONEST }, Job("compile", "more than a sandbox provides")),
    ("instances",            Wat { outer: concat!("(core module $e)", times!(9, "(core instance (instantiate $e))"), times!(9, "(core instance (instantiate $e))")), ..HONEST }, Job("compile", "more than a sandbox provides")),
    ("imports-sockets",      Wat { outer: r#"(import "wasi:sockets/tcp@0.2.6" (instance))"#, ..HONEST }, Job("import", "wasi:sockets/tcp@0.2.6")),
    ("imports-http",         Wat { outer: r#"(import "wasi:http/outgoing-handler@0.2.6" (instance))"#, ..HONEST }, Job("import", "wasi:http/outgoing-handler@0.2.6")),
    ("imports-unknown",      Wat { outer: r#"(import "evil:corp/backdoor" (instance (export "run" (func))))"#, ..HONEST }, Job("import", "evil:corp/backdoor")),
    ("imports-nearly-wasi",  Wat { outer: r#"(import "wasi:io/everything@0.2.6" (instance (export "run" (func))))"#, ..HONEST }, Job("import", "wasi:io/everything@0.2.6")),
    ("imports-other-types",  Wat { outer: r#"(import "sandbar:udf/log@0.1.0" (instance (export "write" (func (param "n" u64)))))"#, ..HONEST }, Job("import", "sandbar:udf/log@0.1.0")),
    ("imports-other-version", Wat { outer: r#"(import "sandbar:udf/data@0.2.0" (instance))"#, ..HONEST }, Job("contract", "sandbar:udf/data@0.2.0")),
    ("exports-other-version", Wat { export: "sandbar:udf/guest@0.2.0", ..HONEST }, Job("contract", "build it again")),
    ("exports-nothing-known", Wat { export: "sandbar:udf/host@0.1.0", ..HONEST }, Job("contract", "does not export `sandbar:udf/guest@0.1.0`")),
    ("exports-no-functions",  Wat { functions: "", ..HONEST }, Job("contract", "`describe`")),
    ("exports-no-predict",    Wat { functions: r#"(export "describe" (func $describe)) (export "open" (func $open)) (export "process" (func $process)) (export "fit" (func $process))"#, ..HONEST }, Job("contract", "`predict`")),
    ("exports-other-types",   Wat { describe_result: "string", ..HONEST }, Job("contract", "has another type")),
];

#[test]
fn components_that_attack_at_once() {
    beside_a_victim(|| {
        let attack_lab = AttackLab::new(4, 10);
        let honest = attack_lab.lab().write("honest.wasm", HONEST.binary());
        attack_lab.attack(
            &honest,
            "attack",
            Role::Model,
            Groups("bad-output", "returned before all groups were settled"),
        );
        for (name, wat, outcome) in ATTACKS {
            let path = attack_lab.lab().write(&format!("{name}.wasm"), wat.binary());
            attack_lab.attack(&path, "attack", Role::Model, *outcome);
        }
    });
}

/// Files that are not components.
#[test]
fn files_that_are_no_components() {
    let attack_lab = AttackLab::new(4, 10);
    let honest = HONEST.binary();
    let module = wat::parse_str("(module (func (export \"attack\")))").unwrap();
    let nested = nested(&honest, 5_000);
    #[rustfmt::skip]
    let files: &[(&str, &[u8], Outcome)] = &[
        ("empty.wasm",     b"",                            Job("not-a-component", "it is not WebAssembly")),
        ("text.wat",       b"(component)",                 Job("not-a-component", "build it with `host build`")),
        ("library.so",     b"\x7fELF\x02\x01\x01",         Job("not-a-component", "it is not WebAssembly")),
        ("magic.wasm",     b"\0asm",                       Job("not-a-component", "not valid WebAssembly")),
        ("module.wasm",    &module,                        Job("not-a-component", "core WebAssembly module, not a component")),
        ("cut.wasm",       &honest[..honest.len() / 2],    Job("not-a-component", "not valid WebAssembly")),
        // Deeply nested, but valid.
        ("nested.wasm",    &nested,                        Groups("bad-output", "returned before all groups were settled")),
    ];
    for (name, bytes, outcome) in files {
        let path = attack_lab.lab().write(name, bytes);
        attack_lab.attack(&path, "attack", Role::Model, *outcome);
    }
}

/// Nests `component` in `depth` components.
pub fn nested(component: &[u8], depth: usize) -> Vec<u8> {
    const PREAMBLE: &[u8] = b"\0asm\x0d\0\x01\0";
    const COMPONENT_SECTION: u8 = 4;
    let mut inner = PREAMBLE.to_vec();
    for level in 0..depth {
        let mut outer = if level + 1 == depth { component.to_vec() } else { PREAMBLE.to_vec() };
        outer.push(COMPONENT_SECTION);
        let mut rest = inner.len();
        while rest >= 0x80 {
            outer.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        outer.push(rest as u8);
        outer.extend(inner);
        inner = outer;
    }
    inner
}
