//! Makes the memory of a component before its code.
//!
//! What `cargo build` ends with for wasm32-wasip2 (wit-component) starts with the code. The host's functions need the
//! memory that comes with it, so the code is given trampolines through a table (a module of its own), and a third
//! module fills the table when the memory is there. Both are instantiated for every sandbox, which is an eighth of what
//! a call costs. With the memory and its data in a module that is made first, the code is given the functions
//! themselves, and neither is needed.
//!
//! Only what has exactly that form is changed. The indices of what stays are kept: a trampoline is replaced by the
//! function behind it where it stands, and what those functions need is moved before them. The result is as untrusted
//! as what it is made of, and validated and compiled like it.

mod items;
mod module;
mod restore;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use wasm_encoder::{Alias, ComponentAliasSection, ComponentSectionId, ExportKind, ModuleArg, RawSection};
use wasmparser::{CanonicalFunction, CanonicalOption, ExternalKind, Instance, Validator};

use items::{Item, Items, Space, What};
use module::{MEMORY, MEMORY_MODULE, slots_called, slots_filled, split};
pub use restore::Initial;
use restore::{initial, parts_only_name, with_globals_put_back};

/// Changes with what is made of a component here.
pub(crate) const VERSION: u32 = 2;

/// A component that was made of another.
#[derive(Debug)]
pub struct Relinked {
    /// Its bytes.
    pub component: Vec<u8>,
    /// How its memory is at first, if a sandbox of it can be put back to that.
    pub initial: Option<Initial>,
}

/// The component with its memory made first; none if it does not have the form described above.
pub fn memory_first(component: &[u8]) -> Option<Relinked> {
    Validator::new().validate_all(component).ok()?;
    let items = Items::read(component).ok()?;
    let mut relinked = Trampolined::find(&items)?.relinked(&items)?;
    relinked.initial.take_if(|_| !parts_only_name(component));
    Validator::new().validate_all(&relinked.component).ok()?;
    Some(relinked)
}

/// Where the parts of a component stand that is linked by trampolines.
struct Trampolined<'i, 'a> {
    /// The first instance: of the trampolines.
    first: usize,
    /// The instance of the code, its index, and its arguments.
    code: usize,
    code_index: usize,
    code_args: Vec<(&'a str, u32)>,
    /// The two last instances: what the table is filled with, and what fills it.
    fillings: usize,
    filler: usize,
    /// By name.
    filled_with: HashMap<&'i str, u32>,
    /// The code's memory, and the table of trampolines.
    memory: usize,
    table: usize,
    trampolines_module: usize,
    code_module: usize,
    filler_module: usize,
}

impl<'i, 'a> Trampolined<'i, 'a> {
    fn find(items: &'i Items<'a>) -> Option<Self> {
        let instances = items.of(Space::Instance);
        let (&first, [.., fillings, filler]) = (instances.first()?, instances) else { return None };
        let (&[memory], &[table]) = (items.of(Space::Memory), items.of(Space::Table)) else { return None };
        items.get(table)?.exports_of(0)?;
        let exports_memory = |index: &usize| items.get(memory).is_some_and(|m| m.exports_of(*index).is_some());
        let code_index = (0..instances.len()).find(exports_memory)?;
        let code = *instances.get(code_index)?;

        let (trampolines_module, nothing) = items.get(first)?.instantiates()?;
        let (code_module, code_args) = items.get(code)?.instantiates()?;
        let (filler_module, filler_args) = items.get(*filler)?.instantiates()?;
        let What::Instance(Instance::FromExports(filled)) = &items.get(*fillings)?.what else { return None };
        let filled_by_fillings = matches!(&*filler_args, [(_, index)] if *index as usize + 2 == instances.len());
        let modules = || instances.iter().filter_map(|at| items.get(*at)?.instantiates()).map(|(module, _)| module);
        let each_once = modules().collect::<HashSet<_>>().len() == modules().count();
        if !nothing.is_empty() || !filled_by_fillings || !each_once {
            return None;
        }
        let filled = filled.iter().filter(|export| export.kind == ExternalKind::Func);
        Some(Trampolined {
            first,
            code,
            code_index,
            code_args,
            fillings: *fillings,
            filler: *filler,
            filled_with: filled.map(|export| (export.name, export.index)).collect(),
            memory,
            table,
            trampolines_module: items.at(Space::Module, trampolines_module)?,
            code_module: items.at(Space::Module, code_module)?,
            filler_module: items.at(Space::Module, filler_module)?,
        })
    }

    /// For each trampoline the function behind it, and the functions of the component that those lower, with all that
    /// stand between.
    fn lowered(&self, items: &Items<'_>) -> Option<(HashMap<usize, usize>, Vec<usize>)> {
        let called = slots_called(&items.get(self.trampolines_module)?.bytes)?;
        let fillers = slots_filled(&items.get(self.filler_module)?.bytes)?;
        let mut lowered = HashMap::new();
        let mut reach = self.first;
        for &trampoline in items.of(Space::CoreFunction) {
            let Some(name) = items.get(trampoline)?.exports_of(0) else { continue };
            let filling = self.filled_with.get(fillers.get(*called.get(name)?)?)?;
            let function = items.at(Space::CoreFunction, *filling)?;
            let What::Canonical(CanonicalFunction::Lower { func_index, options }) = &items.get(function)?.what else {
                return None;
            };
            if !options.iter().all(|option| matches!(option, CanonicalOption::UTF8 | CanonicalOption::Memory(0))) {
                return None;
            }
            reach = reach.max(items.at(Space::Function, *func_index)?);
            lowered.insert(trampoline, function);
        }
        let functions = items.of(Space::Function).iter().copied();
        let early: Vec<usize> = functions.filter(|at| (self.first..=reach).contains(at)).collect();
        let may_be_moved = early.iter().all(|at| items.get(*at).is_some_and(|i| matches!(i.what, What::Alias(_))));
        may_be_moved.then_some((lowered, early))
    }

    /// The names of the code's functions that the host may call, and by whose return the code has ended; none if the host
    /// may also call one of them while others run, or does more with the component than calling and being called.
    fn called_by_host(&self, items: &Items<'a>) -> Option<HashSet<&'a str>> {
        let (mut called, mut meanwhile) = (HashSet::new(), HashSet::new());
        let name = |function| items.get(items.at(Space::CoreFunction, function)?)?.exports_of(self.code_index);
        for item in items.all() {
            let What::Canonical(canonical) = &item.what else { continue };
            let options = match canonical {
                CanonicalFunction::Lift { core_func_index, options, .. } => {
                    called.insert(name(*core_func_index)?);
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
        let instantiated = items.of(Space::Instance).iter().filter_map(|at| items.get(*at)?.instantiates());
        (instantiated.count() == 3 && called.is_disjoint(&meanwhile)).then_some(called)
    }

    fn relinked(mut self, items: &Items<'a>) -> Option<Relinked> {
        let (lowered, early) = self.lowered(items)?;
        let gone: HashSet<usize> =
            early.iter().copied().chain([self.memory, self.table, self.fillings, self.filler]).collect();
        let (memory_module, mut code_module) = split(&items.get(self.code_module)?.bytes)?;
        let called = self.called_by_host(items);
        let putting_back = called.and_then(|called| with_globals_put_back(&code_module, &called));
        let initial = putting_back.and_then(|putting_back| {
            code_module = putting_back;
            initial(&memory_module)
        });
        self.code_args.push((MEMORY_MODULE, 0));
        let mut out = Out(wasm_encoder::Component::new());
        for (at, item) in items.all().iter().enumerate().filter(|(at, _)| !gone.contains(at)) {
            match at {
                _ if at == self.trampolines_module => out.module(&memory_module),
                _ if at == self.code_module => out.module(&code_module),
                // It keeps its place among the modules.
                _ if at == self.filler_module => out.module(&wasm_encoder::Module::new().finish()),
                _ if at == self.code => out.instance(item.instantiates()?.0, &self.code_args),
                _ => out.item(lowered.get(&at).and_then(|function| items.get(*function)).unwrap_or(item)),
            }
            if at == self.first {
                out.memory_of_first();
                early.iter().filter_map(|at| items.get(*at)).for_each(|item| out.item(item));
            }
        }
        Some(Relinked { component: out.0.finish(), initial })
    }
}

/// The component that is written.
struct Out(wasm_encoder::Component);

impl Out {
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
