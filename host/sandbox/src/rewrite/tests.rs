use proptest::prelude::*;
use sandbar_core::Limits;
use wat::parse_str;

use super::*;
use crate::{Engine, Input, Refusal, Services, compile, inspect};

/// A shortened component of the form that `cargo build` generates. `process` reads 8 bytes of the input, and emits them
/// with a byte of its data.
const BUILT: &str = concat!(
    r#"(component
    (import "sandbar:udf/data@0.1.0" (instance $data
        (export "read" (func (param "offset" u64) (param "region" (list u8))))
        (export "map-pages" (func (param "offset" u64) (param "region" (list u8))))
        (export "emit" (func (param "header" (list u8)) (param "buffers" (list (list u8)))))))
    (core module $code
        (import "data" "read" (func $read (param i64 i32 i32)))
        (import "data" "map-pages" (func (param i64 i32 i32)))
        (import "data" "emit" (func $emit (param i32 i32 i32 i32)))
        (memory (export "memory") 2 16)
        (global $offset i32 (i32.const 16))
        (data (i32.const 16) "*")
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
        (func (export "describe") (result i32) i32.const 2048)
        (func (export "open") (param i32 i32 i32 i64) (result i32) i32.const 1024)
        (func (export "process") (param i32 i32) (result i32)
            (call $read (i64.const 0) (i32.const 8) (i32.const 8))
            (call $emit (i32.const 8) (i32.const 9) (i32.const 0) (i32.const 0))
            i32.const 1024))
    (core module $trampolines
        (type $read (func (param i64 i32 i32)))
        (type $emit (func (param i32 i32 i32 i32)))
        (table (export "$imports") 3 3 funcref)
        (func (export "0") (type $read)
            (call_indirect (type $read) (local.get 0) (local.get 1) (local.get 2) (i32.const 0)))
        (func (export "1") (type $emit)
            (call_indirect (type $emit) (local.get 0) (local.get 1) (local.get 2) (local.get 3) (i32.const 1)))
        (func (export "2") (type $read)
            (call_indirect (type $read) (local.get 0) (local.get 1) (local.get 2) (i32.const 2))))
    (core module $filler
        (import "" "0" (func $0 (param i64 i32 i32)))
        (import "" "1" (func $1 (param i32 i32 i32 i32)))
        (import "" "2" (func $2 (param i64 i32 i32)))
        (import "" "$imports" (table 3 3 funcref))
        (elem (i32.const 0) func $0 $1 $2))
    (core instance $trampolines (instantiate $trampolines))
    (core instance $code (instantiate $code (with "data" (instance
        (export "read" (func $trampolines "0"))
        (export "emit" (func $trampolines "1"))
        (export "map-pages" (func $trampolines "2"))))))
    (alias core export $code "memory" (core memory $memory))
    (alias core export $trampolines "$imports" (core table $table))
    (alias export $data "read" (func $read))
    (alias core export $code "realloc" (core func $realloc))
    (core func $read (canon lower (func $read) (memory $memory)))
    (core func $emit (canon lower (func $data "emit") (memory $memory)))
    (core func $map-pages (canon lower (func $data "map-pages") (memory $memory) string-encoding=utf8))
    (core instance $filled (instantiate $filler (with "" (instance
        (export "$imports" (table $table))
        (export "0" (func $read))
        (export "1" (func $emit))
        (export "2" (func $map-pages))))))
"#,
    include_str!("../../tests/exports/guest.wat"),
    ")"
);

/// Checks whether the component is rewritten after replacing `old` by `new`.
fn check(old: &str, new: &str, is_moved: bool) {
    let text = BUILT.replacen(old, new, 1);
    assert!(old == new || text != BUILT, "{old}");
    let component = parse_str(&text).unwrap();
    Validator::new().validate_all(&component).unwrap_or_else(|e| panic!("{new}: {e}"));
    let rewritten = move_memory_first(&component);
    assert_eq!(rewritten.is_some(), is_moved, "{new}");
    let Some(RewrittenComponent { component: rewritten, .. }) = rewritten else { return };
    let shape = inspect(&component).unwrap();
    assert_eq!(crate::ComponentShape { bytes: shape.bytes, ..inspect(&rewritten).unwrap() }, shape, "{new}");
    assert!(move_memory_first(&rewritten).is_none(), "{new}: it has no trampolines left");
}

#[test]
fn only_one_form_is_changed() {
    let with = |old: &str, more: &str| format!("{old} {more}");
    check("", "", true);
    check("(data (i32.const 16) \"*\")", "", true);
    check("(export \"memory\") 2 16)", "(export \"memory\") 2)", true);
    let (memory, lowered) = ("(alias core export $code \"memory\" (core memory $memory))", "emit\") (memory $memory)");
    check(memory, &with(memory, "(alias core export $code \"memory\" (core memory $again))"), false);
    check(memory, &with(memory, "(alias core export $trampolines \"$imports\" (core table $again))"), false);
    check(lowered, &with(lowered, "(realloc $realloc)"), false);
    check(lowered, &with(lowered, "string-encoding=utf16"), false);
    check("func $0 $1 $2", "func $2 $1 $0", true);
    check("(elem (i32.const 0)", "(elem (i32.const 1)", false);
    check("(elem (i32.const 0)", "(elem (offset (i32.add (i32.const 0) (i32.const 1)))", false);
    check("(elem (i32.const 0)", "(elem (offset (i32.sub (i32.const 1) (i32.const 1)))", true);
    check("(elem (i32.const 0)", "(table $own 3 3 funcref) (elem (table $own) (i32.const 0)", false);
    let imports = "(table (export \"$imports\") 3 3 funcref)";
    check(imports, &with(imports, "(table 3 3 funcref)"), false);
    check(imports, &format!("(table 3 3 funcref) {imports}"), false);
    check("(elem (i32.const 0)", "(memory 1) (elem (i32.const 0)", false);
    check("(type $read (func", "(func $start) (start $start) (type $read (func", false);
    check("(local.get 2) (i32.const 2)", "(local.get 1) (i32.const 2)", false);
    let data = "(data (i32.const 16) \"*\")";
    check(data, &with(data, "(data $more \"+\") (func (data.drop $more))"), false);
    check(data, &with(data, "(memory 1)"), false);
    check(data, "(data (global.get $offset) \"*\")", false);
    let code = "(with \"data\" (instance";
    check(code, &format!("(with \"sandbar:memory\" (instance $trampolines)) {code}"), false);
    let last = "(type $kind (enum";
    check(last, &format!("(core instance (instantiate $trampolines)) {last}"), false);
    check(last, &format!("(core instance (export \"none\" (func $realloc))) {last}"), false);
    let lift = "(alias export $data \"read\" (func $read))";
    let four = r#"(param "a" u32) (param "b" u32) (param "c" u32) (param "d" u32)"#;
    let between = format!("(func {four} (result u32) (canon lift (core func $code \"realloc\")))");
    check(lift, &format!("{between} {lift}"), false);
}

/// Serves 8 bytes of input, and checks the emitted header.
struct ExpectedHeader(Vec<u8>);

impl Services for ExpectedHeader {
    fn input(&self) -> Input<'_> {
        Input { bytes: b"8 bytes."[..].into(), file: None }
    }

    fn emit(&mut self, header: &[u8], _buffers: &[&[u8]]) -> Result<(), Refusal> {
        if header != self.0 {
            return Err(Refusal::bad_output(format!("{header:?}")));
        }
        Ok(())
    }
}

#[test]
fn rewritten_code_has_its_data_and_imports() {
    let limits = Limits::default();
    let (code, shape) = compile(&parse_str(BUILT).unwrap()).unwrap();
    let engine = Engine::new(&limits).unwrap();
    // SAFETY: compiled just now, by this build.
    let program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    for _ in 0..3 {
        let services = ExpectedHeader(b"8 bytes.*".to_vec());
        program.instantiate(Box::new(services), &limits, 0).unwrap().process(&[]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_component_stays_one(
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..3),
    ) {
        let mut component = parse_str(BUILT).unwrap();
        for (at, value) in damage {
            let at = usize::from(at) % component.len();
            component[at] = value;
        }
        if let Some(rewritten) = move_memory_first(&component) {
            let (before, after) = (inspect(&component).unwrap(), inspect(&rewritten.component).unwrap());
            prop_assert_eq!((before.imports, before.exports), (after.imports, after.exports));
        }
    }
}
