//! Rewrites a module so that its sandboxes can be reset and reused.
//!
//! After a successful call, a sandbox differs from a new one in its memory, in its mutable globals, and in the host's
//! state. The host resets its own state and the memory (see `reuse.rs`), but only code can set a global. Each function
//! that the host may call is therefore wrapped in a function that calls it and then sets all globals to their initial
//! values. Code that changes anything else (tables, segments, its own resources), or whose functions the host also
//! calls while others run, is left unchanged, and gets a new sandbox for each call.

use std::collections::HashSet;

use wasm_encoder::{Encode, ExportKind, ExportSection, Instruction, RawSection};
use wasmparser::{
    BinaryReader, DataKind, ElementKind, Encoding, ExternalKind, Operator, Parser, Payload, TypeRef, Validator,
    WasmFeatures,
};

use crate::constant::Constant;

/// Maximum bytes of an image that is stored with the code.
const IMAGE_BYTES_MAX: u64 = 64 << 20;
const WASM_PAGE_BYTES: u64 = 64 << 10;

/// Parts of WebAssembly whose effects [`changes_more`] knows. Code that needs another part gets a new sandbox for each
/// call, even if the engine supports that part.
const KNOWN_FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST);

/// Initial memory of a sandbox: zero except for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryImage<I = Vec<u8>> {
    /// Length of the memory in bytes.
    pub memory_bytes: u64,
    /// Offset of the image in bytes.
    pub image_start: u64,
    /// The image.
    pub image: I,
}

/// Returns the initial memory of a module that contains only a memory with data.
pub(super) fn initial(memory: &[u8]) -> Option<MemoryImage> {
    let (mut memory_bytes, mut segments) = (None, Vec::new());
    for payload in Parser::new(0).parse_all(memory) {
        match payload.ok()? {
            Payload::MemorySection(section) => {
                let item_type = section.into_iter().next()?.ok()?;
                if item_type.shared || item_type.memory64 || item_type.page_size_log2.is_some() {
                    return None;
                }
                memory_bytes = Some(item_type.initial.checked_mul(WASM_PAGE_BYTES)?);
            }
            Payload::DataSection(section) => {
                for data in section {
                    let data = data.ok()?;
                    let DataKind::Active { memory_index: 0, offset_expr } = &data.kind else { return None };
                    let start = Constant::offset(offset_expr, &[])? as usize;
                    segments.push((start, start.checked_add(data.data.len())?, data.data));
                }
            }
            _ => {}
        }
    }
    let memory_bytes = memory_bytes?;
    let first = segments.iter().map(|(start, ..)| *start).min().unwrap_or(0);
    let end = segments.iter().map(|(_, end, _)| *end).max().unwrap_or(first);
    if end as u64 > memory_bytes || (end - first) as u64 > IMAGE_BYTES_MAX {
        return None;
    }
    let mut image = vec![0; end - first];
    // In order: later segments overwrite earlier ones.
    segments.iter().for_each(|(start, end, data)| image[start - first..end - first].copy_from_slice(data));
    Some(MemoryImage { memory_bytes, image_start: first as u64, image })
}

/// Returns whether nested components only name their arguments: they contain no code and no state.
pub(super) fn parts_only_name(component: &[u8]) -> bool {
    let mut within = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        let Ok(payload) = payload else { return false };
        let only_names = matches!(
            payload,
            Payload::Version { .. }
                | Payload::ComponentTypeSection(_)
                | Payload::ComponentImportSection(_)
                | Payload::ComponentExportSection(_)
                | Payload::ComponentAliasSection(_)
                | Payload::ComponentSection { .. }
                | Payload::CustomSection(_)
                | Payload::End(_)
        );
        match &payload {
            Payload::Version { encoding, .. } => within.push(*encoding),
            Payload::End(_) => drop(within.pop()),
            Payload::ComponentStartSection { .. } => return false,
            _ if within.len() > 1
                && within.iter().all(|item_type| *item_type == Encoding::Component)
                && !only_names =>
            {
                return false;
            }
            _ => {}
        }
    }
    true
}

/// Properties of a module that are needed to reset its globals.
#[derive(Default)]
struct Globals<'a> {
    /// Number of parameters of each function type.
    types: Vec<usize>,
    /// Types of its functions, imported ones first.
    functions: Vec<u32>,
    /// Mutable globals, with the instruction for their initial value.
    set: Vec<(u32, Instruction<'static>)>,
    exports: Vec<wasmparser::Export<'a>>,
}

/// Returns the module with its mutable globals reset whenever a function of one of these names has returned; `None` if
/// it may change anything else but its memory.
pub(super) fn with_globals_reset(module: &[u8], names: &HashSet<&str>) -> Option<Vec<u8>> {
    Validator::new_with_features(KNOWN_FEATURES).validate_all(module).ok()?;
    let globals = Globals::read(module)?;
    let mut wrapped = globals.exports.iter().filter(|export| names.contains(export.name));
    if globals.set.is_empty() {
        return Some(module.to_vec());
    }
    let (mut types, mut bodies, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
    let first = globals.functions.len() as u32;
    for (export, own) in wrapped.by_ref().zip(first..) {
        let item_type = *globals.functions.get(export.index as usize)?;
        let mut function = wasm_encoder::Function::new([]);
        for parameter in 0..*globals.types.get(item_type as usize)? {
            function.instruction(&Instruction::LocalGet(parameter as u32));
        }
        function.instruction(&Instruction::Call(export.index));
        for (global, value) in &globals.set {
            function.instruction(value).instruction(&Instruction::GlobalSet(*global));
        }
        function.instruction(&Instruction::End);
        types.push(encoded(&item_type));
        bodies.push(encoded(&function));
        replaced.push((export.name, own));
    }
    let mut out = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.ok()?;
        let Some((id, range)) = payload.as_section() else { continue };
        let data = module.get(range)?;
        match payload {
            Payload::FunctionSection(_) => out.section(&RawSection { id, data: &with_more(data, &types)? }),
            Payload::CodeSectionStart { .. } => out.section(&RawSection { id, data: &with_more(data, &bodies)? }),
            Payload::ExportSection(_) => out.section(&globals.exports(&replaced)?),
            _ => out.section(&RawSection { id, data }),
        };
    }
    Some(out.finish())
}

impl<'a> Globals<'a> {
    fn read(module: &'a [u8]) -> Option<Globals<'a>> {
        let (mut read, mut values) = (Globals::default(), Vec::new());
        for payload in Parser::new(0).parse_all(module) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    for function in section.into_iter_err_on_gc_types() {
                        read.types.push(function.ok()?.params().len());
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        match import.ok()?.ty {
                            TypeRef::Func(item_type) => read.functions.push(item_type),
                            TypeRef::Memory(_) => {}
                            _ => return None,
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    for item_type in section {
                        read.functions.push(item_type.ok()?);
                    }
                }
                Payload::GlobalSection(section) => {
                    for (global, at) in section.into_iter().zip(0..) {
                        let global = global.ok()?;
                        let value = Constant::next_global(&global, &mut values);
                        if global.ty.mutable {
                            read.set.push((at, value?.instruction()));
                        }
                    }
                }
                Payload::ExportSection(section) => {
                    read.exports = section.into_iter().collect::<Result<_, _>>().ok()?;
                }
                Payload::ElementSection(section) => {
                    for element in section {
                        if matches!(element.ok()?.kind, ElementKind::Passive) {
                            return None;
                        }
                    }
                }
                Payload::CodeSectionEntry(body) => {
                    let mut operators = body.get_operators_reader().ok()?.into_iter();
                    if operators.any(|operator| operator.map_or(true, |operator| changes_more(&operator))) {
                        return None;
                    }
                }
                Payload::Version { .. }
                | Payload::TableSection(_)
                | Payload::CodeSectionStart { .. }
                | Payload::CustomSection(_)
                | Payload::End(_) => {}
                _ => return None,
            }
        }
        Some(read)
    }

    /// Returns the exports, with some functions replaced.
    fn exports(&self, replaced: &[(&str, u32)]) -> Option<ExportSection> {
        let mut section = ExportSection::new();
        for export in &self.exports {
            let own = replaced.iter().find(|(name, _)| *name == export.name);
            let (kind, index) = match (export.kind, own) {
                (ExternalKind::Func, Some((_, own))) => (ExportKind::Func, *own),
                (ExternalKind::Func, None) => (ExportKind::Func, export.index),
                (_, Some(_)) => return None,
                (ExternalKind::Memory, None) => (ExportKind::Memory, export.index),
                (ExternalKind::Global, None) => (ExportKind::Global, export.index),
                (ExternalKind::Table, None) => (ExportKind::Table, export.index),
                _ => return None,
            };
            section.export(export.name, kind, index);
        }
        Some(section)
    }
}

/// Returns whether an instruction changes anything other than memory or a global.
fn changes_more(operator: &Operator<'_>) -> bool {
    use Operator::{DataDrop, ElemDrop, MemoryInit, TableCopy, TableFill, TableGrow, TableInit, TableSet};
    matches!(
        operator,
        TableSet { .. }
            | TableGrow { .. }
            | TableFill { .. }
            | TableCopy { .. }
            | TableInit { .. }
            | ElemDrop { .. }
            | MemoryInit { .. }
            | DataDrop { .. }
    )
}

fn encoded(item: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    item.encode(&mut bytes);
    bytes
}

/// Returns a section with definitions added.
fn with_more(section: &[u8], more: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut reader = BinaryReader::new(section, 0);
    let count = reader.read_var_u32().ok()?;
    let mut with = encoded(&count.checked_add(more.len() as u32)?);
    with.extend_from_slice(reader.read_bytes(reader.bytes_remaining()).ok()?);
    more.iter().for_each(|one| with.extend_from_slice(one));
    Some(with)
}
