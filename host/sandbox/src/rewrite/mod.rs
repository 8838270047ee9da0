//! Rewrites a component so that its memory is instantiated before its code.
//!
//! In the output of `cargo build` for wasm32-wasip2 (wit-component), the code is instantiated first. The host's
//! functions need the code's memory, so the code gets trampolines through a table (a module), and a third module fills
//! the table once the memory exists. Both extra modules are instantiated for every sandbox, which takes an eighth of
//! the cost of a call. If memory and data are in a module that is instantiated first, the code gets the functions
//! directly, and neither module is needed.
//!
//! Only components of exactly that form are rewritten. The indices of the remaining definitions do not change: each
//! trampoline is replaced by its target in place, and the definitions that the targets need are moved before them. The
//! result is as untrusted as the original component, and is validated and compiled in the same way.

mod items;
mod module;
mod reset;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use wasm_encoder::{Alias, ComponentAliasSection, ComponentSectionId, ExportKind, ModuleArg, RawSection};
use wasmparser::{CanonicalFunction, CanonicalOption, ExternalKind, Instance, Validator};

use items::{IndexSpace, Item, ItemKind, ItemTable};
use module::{MEMORY, MEMORY_MODULE, slots_called, slots_filled, split};
pub use reset::MemoryImage;
use reset::{initial, parts_only_name, with_globals_reset};

/// Version of the rewriting, part of the cache key of native code.
pub(crate) const VERSION: u32 = 3;

/// A rewritten component.
#[derive(Debug)]
pub struct RewrittenComponent {
    /// Its bytes.
    pub component: Vec<u8>,
    /// Its initial memory, if a sandbox of it can be reset.
    pub initial: Option<MemoryImage>,
}

/// Returns the component with its memory instantiated first; `None` if it does not have the form described above.
pub fn move_memory_first(component: &[u8]) -> Option<RewrittenComponent> {
    Validator::new().validate_all(component).ok()?;
    let items = ItemTable::read(component).ok()?;
    let mut rewritten = TrampolineLinkage::find(&items)?.rewritten(&items)?;
    rewritten.initial.take_if(|_| !parts_only_name(component));
    Validator::new().validate_all(&rewritten.component).ok()?;
    Some(rewritten)
}

/// Positions of the parts of a component that is linked by trampolines.
struct TrampolineLinkage<'i, 'a> {
    /// The first instance: the trampolines.
    first: usize,
    /// The instance of the code, its index, and its arguments.
    code: usize,
    code_index: usize,
    code_args: Vec<(&'a str, u32)>,
    /// The last two instances: the functions for the table, and the module that fills it.
    fillings: usize,
    filler: usize,
    /// Functions for the table, by name.
    filled_with: HashMap<&'i str, u32>,
    /// The code's memory, and the table of trampolines.
    memory: usize,
    table: usize,
    trampolines_module: usize,
    code_module: usize,
    filler_module: usize,
}

impl<'i, 'a> TrampolineLinkage<'i, 'a> {
    fn find(items: &'i ItemTable<'a>) -> Option<Self> {
        let instances = items.indices(IndexSpace::Instance);
        let (&first, [.., fillings, filler]) = (instances.first()?, instances) else { return None };
        let (&[memory], &[table]) = (items.indices(IndexSpace::Memory), items.indices(IndexSpace::Table)) else {
            return None;
        };
        items.get(table)?.exports_of(0)?;
        let exports_memory = |index: &usize| items.get(memory).is_some_and(|m| m.exports_of(*index).is_some());
        let code_index = (0..instances.len()).find(exports_memory)?;
        let code = *instances.get(code_index)?;

        let (trampolines_module, nothing) = items.get(first)?.instantiates()?;
        let (code_module, code_args) = items.get(code)?.instantiates()?;
        let (filler_module, filler_args) = items.get(*filler)?.instantiates()?;
        let ItemKind::Instance(Instance::FromExports(filled)) = &items.get(*fillings)?.kind else { return None };
        let filled_by_fillings = matches!(&*filler_args, [(_, index)] if *index as usize + 2 == instances.len());
        let modules = || instances.iter().filter_map(|at| items.get(*at)?.instantiates()).map(|(module, _)| module);
        let each_once = modules().collect::<HashSet<_>>().len() == modules().count();
        if !nothing.is_empty() || !filled_by_fillings || !each_once {
            return None;
        }
        let filled = filled.iter().filter(|export| export.kind == ExternalKind::Func);
        Some(TrampolineLinkage {
            first,
            code,
            code_index,
            code_args,
            fillings: *fillings,
            filler: *filler,
            filled_with: filled.map(|export| (export.name, export.index)).collect(),
            memory,
            table,
            trampolines_module: items.at(IndexSpace::Module, trampolines_module)?,
            code_module: items.at(IndexSpace::Module, code_module)?,
            filler_module: items.at(IndexSpace::Module, filler_module)?,
        })
    }

    /// Returns the target of each trampoline, and the component functions that the targets lower, with all functions
    /// between them.
    fn lowered(&self, items: &ItemTable<'_>) -> Option<(HashMap<usize, usize>, Vec<usize>)> {
        let called = slots_called(&items.get(self.trampolines_module)?.bytes)?;
        let fillers = slots_filled(&items.get(self.filler_module)?.bytes)?;
        let mut lowered = HashMap::new();
        let mut reach = self.first;
        for &trampoline in items.indices(IndexSpace::CoreFunction) {
            let Some(name) = items.get(trampoline)?.exports_of(0) else { continue };
            let filling = self.filled_with.get(fillers.get(*called.get(name)?)?)?;
            let function = items.at(IndexSpace::CoreFunction, *filling)?;
            let ItemKind::Canonical(CanonicalFunction::Lower { func_index, options }) = &items.get(function)?.kind
            else {
                return None;
            };
            if !options.iter().all(|option| matches!(option, CanonicalOption::UTF8 | CanonicalOption::Memory(0))) {
                return None;
            }
            reach = reach.max(items.at(IndexSpace::Function, *func_index)?);
            lowered.insert(trampoline, function);
        }
        let functions = items.indices(IndexSpace::Function).iter().copied();
        let early: Vec<usize> = functions.filter(|at| (self.first..=reach).contains(at)).collect();
        let may_be_moved = early.iter().all(|at| items.get(*at).is_some_and(|i| matches!(i.kind, ItemKind::Alias(_))));
        may_be_moved.then_some((lowered, early))
    }

    /// Returns the names of the code's functions that the host may call, after whose return the code is idle. Returns
    /// `None` if the host may also call one of them while others run, or if the component does more than call and be
    /// called.
    fn called_by_host(&self, items: &ItemTable<'a>) -> Option<HashSet<&'a str>> {
        let (mut called, mut meanwhile) = (HashSet::new(), HashSet::new());
        let name = |function| items.get(items.at(IndexSpace::CoreFunction, function)?)?.exports_of(self.code_index);
        for item in items.all() {
            let ItemKind::Canonical(canonical) = &item.kind else { continue };
            let options = match canonical {
                CanonicalFunction::Lift { core_func_index, options, .. } => {
                    // With a `post-return` function, the code is idle only after that one.
                    let is_last = !options.iter().any(|option| matches!(option, CanonicalOption::PostReturn(_)));
                    let functions = if is_last { &mut called } else { &mut meanwhile };
                    functions.insert(name(*core_func_index)?);
                    options
                }
                CanonicalFunction::Lower { options, .. } => options,
                CanonicalFunction::ResourceDrop { .. } => continue,
                _ => return None,
            };
            for option in options {
                match option {
                    CanonicalOption::PostReturn(function) => called.insert(name(*function)?),
                    CanonicalOption::Realloc(function) => meanwhile.insert(name(*function)?),
                    CanonicalOption::UTF8 | CanonicalOption::Memory(_) => continue,
                    _ => return None,
                };
            }
        }
        let instantiated = items.indices(IndexSpace::Instance).iter().filter_map(|at| items.get(*at)?.instantiates());
        (instantiated.count() == 3 && called.is_disjoint(&meanwhile)).then_some(called)
    }

    fn rewritten(mut self, items: &ItemTable<'a>) -> Option<RewrittenComponent> {
        let (lowered, early) = self.lowered(items)?;
        let removed: HashSet<usize> =
            early.iter().copied().chain([self.memory, self.table, self.fillings, self.filler]).collect();
        let (memory_module, mut code_module) = split(&items.get(self.code_module)?.bytes)?;
        let called = self.called_by_host(items);
        let resetting = called.and_then(|called| with_globals_reset(&code_module, &called));
        let initial = resetting.and_then(|resetting| {
            code_module = resetting;
            initial(&memory_module)
        });
        self.code_args.push((MEMORY_MODULE, 0));
        let mut out = ComponentWriter(wasm_encoder::Component::new());
        for (at, item) in items.all().iter().enumerate().filter(|(at, _)| !removed.contains(at)) {
            match at {
                _ if at == self.trampolines_module => out.module(&memory_module),
                _ if at == self.code_module => out.module(&code_module),
                // An empty module keeps the indices of the modules.
                _ if at == self.filler_module => out.module(&wasm_encoder::Module::new().finish()),
                _ if at == self.code => out.instance(item.instantiates()?.0, &self.code_args),
                _ => out.item(lowered.get(&at).and_then(|function| items.get(*function)).unwrap_or(item)),
            }
            if at == self.first {
                out.memory_of_first();
                early.iter().filter_map(|at| items.get(*at)).for_each(|item| out.item(item));
            }
        }
        Some(RewrittenComponent { component: out.0.finish(), initial })
    }
}

/// Writes the rewritten component.
struct ComponentWriter(wasm_encoder::Component);

impl ComponentWriter {
    fn item(&mut self, item: &Item<'_>) {
        self.0.section(&RawSection { id: item.section, data: &item.bytes });
    }

    fn module(&mut self, bytes: &[u8]) {
        self.0.section(&RawSection { id: ComponentSectionId::CoreModule.into(), data: bytes });
    }

    fn instance(&mut self, module: u32, args: &[(&str, u32)]) {
        let mut section = wasm_encoder::InstanceSection::new();
        section.instantiate(module, args.iter().map(|(name, index)| (*name, ModuleArg::Instance(*index))));
        self.0.section(&section);
    }

    fn memory_of_first(&mut self) {
        let mut section = ComponentAliasSection::new();
        section.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Memory, name: MEMORY });
        self.0.section(&section);
    }
}
