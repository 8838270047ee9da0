//! Inspects a component's bytes before anything of it is compiled or run.

use sandbar_core::{Code, Fault};
use wasmparser::{DataKind, Encoding, Parser, Payload, TypeRef};

use crate::constant::Constant;
use crate::rewrite::MemoryImage;

/// The contract version that this host serves.
pub const CONTRACT: &str = "sandbar:udf@0.1.0";
pub(crate) const GUEST: &str = "sandbar:udf/guest@0.1.0";
/// Optional export: descriptions of the functions' parameters.
pub(crate) const PARAMETERS: &str = "sandbar:udf/parameters@0.1.0";
/// Optional export: tasks.
pub(crate) const PROGRAM: &str = "sandbar:udf/program@0.1.0";
/// Optional import: dense algebra.
pub const DENSE: &str = "sandbar:udf/dense@0.1.0";
const GUEST_ANY_VERSION: &str = "sandbar:udf/guest@";

/// Granted imports: those of the contract, and the parts of WASI that std needs, with no resources behind them. No
/// sockets, no HTTP.
const GRANTED: [&str; 10] = [
    "sandbar:udf/data@0.1.0",
    DENSE,
    "sandbar:udf/groups@0.1.0",
    "sandbar:udf/log@0.1.0",
    "sandbar:udf/tasks@0.1.0",
    "wasi:cli/",
    "wasi:clocks/",
    "wasi:filesystem/",
    "wasi:io/",
    "wasi:random/",
];

/// Maximum bytes of a memory with 32-bit addresses.
const MEMORY_BYTES_MAX: u64 = 1 << 32;

/// Imports, exports and initial memory of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentShape {
    /// Names of its imports.
    pub imports: Vec<String>,
    /// Names of its exports.
    pub exports: Vec<String>,
    /// Length of the component in bytes.
    pub bytes: u64,
    /// First address behind all initialised data of its memories. Nothing may be mapped below it.
    pub image_end: u64,
    /// Initial memory of the compiled component, if its sandboxes can be reset.
    pub initial: Option<MemoryImage>,
}

/// Reads the shape of a component. The error describes what the bytes are instead.
pub fn inspect(bytes: &[u8]) -> Result<ComponentShape, Fault> {
    let malformed =
        |e: wasmparser::BinaryReaderError| Fault::new(Code::NotAComponent, format!("it is not valid WebAssembly: {e}"));
    if !bytes.starts_with(b"\0asm") {
        return Err(Fault::new(
            Code::NotAComponent,
            "it is not WebAssembly: it does not start with \\0asm; build it with `host build`",
        ));
    }
    let mut shape = ComponentShape {
        imports: Vec::new(),
        exports: Vec::new(),
        bytes: bytes.len() as u64,
        image_end: 0,
        initial: None,
    };
    let mut depth = 0usize;
    // Globals of the current module. Modules contain no modules.
    let mut globals = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(malformed)? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err(Fault::new(
                    Code::NotAComponent,
                    "it is a core WebAssembly module, not a component; build it for wasm32-wasip2, for instance with `host build`",
                ));
            }
            Payload::Version { encoding: Encoding::Module, .. } => globals.clear(),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    shape.imports.push(import.map_err(malformed)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    shape.exports.push(export.map_err(malformed)?.name.name.to_owned());
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Global(_) = import.map_err(malformed)?.ty {
                        globals.push(None);
                    }
                }
            }
            Payload::GlobalSection(section) => {
                for global in section {
                    Constant::next_global(&global.map_err(malformed)?, &mut globals);
                }
            }
            Payload::DataSection(section) => {
                for data in section {
                    shape.image_end = shape.image_end.max(data_end(&data.map_err(malformed)?, &globals));
                }
            }
            _ => {}
        }
    }
    Ok(shape)
}

/// Reads the shape of a component, and checks that it satisfies the contract.
pub fn check_binary(bytes: &[u8]) -> Result<ComponentShape, Fault> {
    let shape = inspect(bytes)?;
    if let Some(import) = shape.imports.iter().find(|i| !GRANTED.iter().any(|g| i.starts_with(g))) {
        if import.starts_with("sandbar:udf/") {
            return Err(other_version(import));
        }
        return Err(Fault::new(
            Code::Import,
            format!(
                "it imports `{import}`, which is not granted; a function has no files, network, clock or environment"
            ),
        ));
    }
    if shape.exports.iter().any(|e| e == GUEST) {
        return Ok(shape);
    }
    match shape.exports.iter().find(|e| e.starts_with(GUEST_ANY_VERSION)) {
        Some(export) => Err(other_version(export)),
        None => Err(Fault::new(
            Code::Contract,
            format!("it does not export `{GUEST}`; write it with the crate sandbar-guest"),
        )),
    }
}

fn other_version(name: &str) -> Fault {
    Fault::new(
        Code::Contract,
        format!(
            "it was built for `{name}`, this host serves {CONTRACT}; build it again with the sandbar-guest of this host"
        ),
    )
}

/// Returns the end of an active segment. If its offset is not known, it may be anywhere in its memory.
fn data_end(data: &wasmparser::Data<'_>, globals: &[Option<Constant>]) -> u64 {
    let DataKind::Active { offset_expr, .. } = &data.kind else { return 0 };
    match Constant::offset(offset_expr, globals) {
        Some(start) => u64::from(start) + data.data.len() as u64,
        None => MEMORY_BYTES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expect: Result<u64, (Code, &str)>) {
        let bytes = wat::parse_str(text).unwrap();
        match (check_binary(&bytes), expect) {
            (Ok(shape), Ok(image_end)) => assert_eq!(shape.image_end, image_end, "{text}"),
            (Err(fault), Err((code, expected_text))) => {
                assert!(fault.code == code && fault.message.contains(expected_text), "{text}: {fault}")
            }
            (actual, expect) => panic!("{text}: {actual:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn components_are_distinguished_from_other_files() {
        let guest = |version: &str| {
            format!(r#"(component (instance $i) (export "sandbar:udf/guest@{version}" (instance $i)))"#)
        };
        check("(module)", Err((Code::NotAComponent, "core WebAssembly module")));
        check("(component)", Err((Code::Contract, "does not export")));
        check(&guest("0.1.0"), Ok(0));
        check(&guest("0.9.0"), Err((Code::Contract, "guest@0.9.0")));
        check(
            r#"(component (import "wasi:sockets/tcp@0.2.0" (instance)))"#,
            Err((Code::Import, "wasi:sockets/tcp@0.2.0")),
        );
        check(r#"(component (import "sandbar:udf/data@7.0.0" (instance)))"#, Err((Code::Contract, "data@7.0.0")));
    }

    #[test]
    fn bytes_that_are_anything_are_refused() {
        for bytes in [&b""[..], b"\0as", b"\0asm", b"\0asm\x0d\0\x01\0\xff\xff", b"Parquet"] {
            assert_eq!(
                check_binary(bytes).unwrap_err().code,
                if bytes == b"\0asm\x0d\0\x01\0" { Code::Contract } else { Code::NotAComponent },
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn the_image_ends_behind_the_last_segment_of_any_module() {
        let text = r#"(component
            (core module (memory 1) (data (i32.const 1024) "abcd") (data (i32.const 16) "x"))
            (core module (memory 1) (data (i32.const 5000) "yz"))
            (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#;
        check(text, Ok(5002));
    }

    #[test]
    fn offsets_of_segments_are_constant_expressions() {
        let cases = [
            ("(i32.const 8)", 12),
            ("(i32.add (i32.const 8) (i32.const 4096))", 4108),
            ("(i32.mul (i32.sub (i32.const 8) (i32.const 6)) (i32.const 100))", 204),
            ("(global.get $defined)", 8196),
            ("(i32.add (global.get $defined) (i32.const 16))", 8212),
            ("(i32.const -4)", MEMORY_BYTES_MAX),
            ("(global.get $imported)", MEMORY_BYTES_MAX),
            ("(i32.add (i32.const 8) (global.get $imported))", MEMORY_BYTES_MAX),
        ];
        for (offset, end) in cases {
            let text = format!(
                r#"(component
                (core module (global i32 (i32.const 1)))
                (core module (import "a" "b" (global $imported i32)) (memory 1)
                    (global $defined i32 (i32.mul (i32.const 4096) (i32.const 2)))
                    (data (offset {offset}) "abcd"))
                (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#
            );
            check(&text, Ok(end));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_damaged_component_is_refused_or_another(
            damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..5),
            cut in proptest::option::of(any::<u16>()),
        ) {
            let text = r#"(component
                (import "wasi:io/streams@0.2.0" (instance))
                (core module (memory 1) (data (i32.const 1024) "abcd"))
                (component (core module (memory 1) (data (i32.const 9) "x")))
                (instance $i) (export "sandbar:udf/guest@0.1.0" (instance $i)))"#;
            let mut bytes = wat::parse_str(text).unwrap();
            for (at, value) in damage {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            bytes.truncate(cut.map_or(bytes.len(), usize::from));
            if let Ok(shape) = check_binary(&bytes) {
                prop_assert!(shape.exports.iter().any(|export| export == GUEST));
                prop_assert_eq!(shape.bytes, bytes.len() as u64);
            }
        }
    }
}
