//! Core modules: analyses trampolines, and splits memory from code.

use std::collections::HashMap;

use wasm_encoder::{Encode, ExportKind, RawSection};
use wasmparser::{BinaryReader, Element, ElementItems, ElementKind, ExternalKind, Operator, Parser, Payload, TypeRef};

use crate::constant::Constant;

/// Name of the module from which the code imports its memory, and of the module's only export.
pub(super) const MEMORY_MODULE: &str = "sandbar:memory";
pub(super) const MEMORY: &str = "memory";

/// Returns the table slot that each function of a trampoline module calls, by name.
pub(super) fn slots_called(module: &[u8]) -> Option<HashMap<&str, usize>> {
    let (mut names, mut slots) = (Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(module) {
        match payload.ok()? {
            Payload::ExportSection(section) => names = section.into_iter().collect::<Result<_, _>>().ok()?,
            Payload::CodeSectionEntry(body) => {
                let operators = body.get_operators_reader().ok()?.into_iter().collect::<Result<Vec<_>, _>>().ok()?;
                let [
                    passed @ ..,
                    Operator::I32Const { value },
                    Operator::CallIndirect { table_index: 0, .. },
                    Operator::End,
                ] = &*operators
                else {
                    return None;
                };
                let mut passed = passed.iter().zip(0..);
                if !passed.all(|(o, at)| matches!(o, Operator::LocalGet { local_index } if *local_index == at)) {
                    return None;
                }
                slots.push(usize::try_from(*value).ok()?);
            }
            Payload::TableSection(section) if section.count() != 1 => return None,
            other => only_declares(&other)?,
        }
    }
    let names = names.iter().filter(|export| export.kind == ExternalKind::Func);
    names.map(|export| Some((export.name, *slots.get(export.index as usize)?))).collect()
}

/// Returns the name of the function that a module puts into each slot of the imported table.
pub(super) fn slots_filled(module: &[u8]) -> Option<Vec<&str>> {
    let (mut names, mut slots) = (Vec::new(), None);
    for payload in Parser::new(0).parse_all(module) {
        match payload.ok()? {
            Payload::ImportSection(section) => {
                let imports = section.into_imports().collect::<Result<Vec<_>, _>>().ok()?;
                names = imports.iter().filter(|i| matches!(i.ty, TypeRef::Func(_))).map(|i| i.name).collect();
            }
            Payload::ElementSection(section) if section.count() == 1 => {
                let Element { kind: ElementKind::Active { table_index: None | Some(0), offset_expr }, items, .. } =
                    section.into_iter().next()?.ok()?
                else {
                    return None;
                };
                let (Some(0), ElementItems::Functions(functions)) = (Constant::offset(&offset_expr, &[]), items) else {
                    return None;
                };
                slots = Some(functions.into_iter().collect::<Result<Vec<_>, _>>().ok()?);
            }
            Payload::TableSection(_) => return None,
            other => only_declares(&other)?,
        }
    }
    slots?.iter().map(|function| names.get(*function as usize).copied()).collect()
}

/// Checks that a part of a module has no effect of its own, so that it can be removed with its functions.
fn only_declares(payload: &Payload<'_>) -> Option<()> {
    let declares = matches!(
        payload,
        Payload::Version { .. }
            | Payload::TypeSection(_)
            | Payload::FunctionSection(_)
            | Payload::TableSection(_)
            | Payload::CodeSectionStart { .. }
            | Payload::CustomSection(_)
            | Payload::End(_)
    );
    declares.then_some(())
}

/// Splits a module into its memory with data, and the rest, which imports the memory.
pub(super) fn split(module: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut memory, mut rest) = (wasm_encoder::Module::new(), wasm_encoder::Module::new());
    let memory_type = Parser::new(0).parse_all(module).find_map(|payload| match payload {
        Ok(Payload::MemorySection(section)) => module.get(section.range())?.strip_prefix(&[1]),
        _ => None,
    })?;
    let mut imports_memory = false;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.ok()?;
        let Some((id, range)) = payload.as_section() else { continue };
        let data = module.get(range)?;
        match payload {
            Payload::ImportSection(section) => {
                let with_types = section.clone().into_imports();
                if with_types.into_iter().any(|i| i.map_or(true, |i| matches!(i.ty, TypeRef::Memory(_)))) {
                    return None;
                }
                rest.section(&RawSection { id, data: &with_memory(data, memory_type)? });
                imports_memory = true;
            }
            Payload::MemorySection(_) => {
                memory.section(&RawSection { id, data });
                memory.section(wasm_encoder::ExportSection::new().export(MEMORY, ExportKind::Memory, 0));
            }
            Payload::DataSection(_) => {
                memory.section(&RawSection { id, data });
            }
            // Code that refers to data segments by number fails validation without this section.
            Payload::DataCountSection { .. } => {}
            _ => {
                rest.section(&RawSection { id, data });
            }
        }
    }
    imports_memory.then(|| (memory.finish(), rest.finish()))
}

/// Returns the imports of a module with the memory added.
fn with_memory(imports: &[u8], memory_type: &[u8]) -> Option<Vec<u8>> {
    let mut reader = BinaryReader::new(imports, 0);
    let count = reader.read_var_u32().ok()?;
    let mut with = Vec::new();
    count.checked_add(1)?.encode(&mut with);
    with.extend_from_slice(reader.read_bytes(reader.bytes_remaining()).ok()?);
    MEMORY_MODULE.encode(&mut with);
    MEMORY.encode(&mut with);
    with.push(0x02);
    with.extend_from_slice(memory_type);
    Some(with)
}
