//! A component, taken apart into its definitions.

use std::borrow::Cow;

use wasmparser::{
    BinaryReaderError, CanonicalFunction, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind,
    ComponentTypeRef, ExternalKind, FromReader, Instance, Parser, Payload, SectionLimited,
};

/// One definition of a component, as a section of its own.
pub(super) struct Item<'a> {
    pub(super) section: u8,
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) what: What<'a>,
}

pub(super) enum What<'a> {
    Module,
    Instance(Instance<'a>),
    Alias(ComponentAlias<'a>),
    Canonical(CanonicalFunction),
    /// A function that is imported or exported.
    Function,
    Other,
}

/// What definitions are counted by, each on its own.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Module,
    Instance,
    CoreFunction,
    Memory,
    Table,
    Function,
}

impl<'a> Item<'a> {
    fn space(&self) -> Option<Space> {
        use ComponentAlias::{CoreInstanceExport, InstanceExport, Outer};
        match &self.what {
            What::Module => Some(Space::Module),
            What::Instance(_) => Some(Space::Instance),
            What::Canonical(CanonicalFunction::Lift { .. }) => Some(Space::Function),
            What::Canonical(_) => Some(Space::CoreFunction),
            What::Function => Some(Space::Function),
            What::Alias(InstanceExport { kind: ComponentExternalKind::Func, .. }) => Some(Space::Function),
            What::Alias(InstanceExport { kind: ComponentExternalKind::Module, .. }) => Some(Space::Module),
            What::Alias(Outer { kind: ComponentOuterAliasKind::CoreModule, .. }) => Some(Space::Module),
            What::Alias(CoreInstanceExport { kind: ExternalKind::Func, .. }) => Some(Space::CoreFunction),
            What::Alias(CoreInstanceExport { kind: ExternalKind::Memory, .. }) => Some(Space::Memory),
            What::Alias(CoreInstanceExport { kind: ExternalKind::Table, .. }) => Some(Space::Table),
            What::Alias(_) | What::Other => None,
        }
    }

    /// The module that this instantiates, and its arguments: names and instances.
    pub(super) fn instantiates(&self) -> Option<(u32, Vec<(&'a str, u32)>)> {
        let What::Instance(Instance::Instantiate { module_index, args }) = &self.what else { return None };
        Some((*module_index, args.iter().map(|arg| (arg.name, arg.index)).collect()))
    }

    /// The name of what is taken from the exports of this instance.
    pub(super) fn exports_of(&self, instance: usize) -> Option<&'a str> {
        match self.what {
            What::Alias(ComponentAlias::CoreInstanceExport { instance_index, name, .. }) => {
                (instance_index as usize == instance).then_some(name)
            }
            _ => None,
        }
    }
}

/// All definitions of a component in their order, and where those of each space stand.
pub(super) struct Items<'a> {
    all: Vec<Item<'a>>,
    places: [Vec<usize>; 6],
}

impl<'a> Items<'a> {
    pub(super) fn read(component: &'a [u8]) -> Result<Items<'a>, BinaryReaderError> {
        let all = definitions(component)?;
        let mut places = [const { Vec::new() }; 6];
        for (at, item) in all.iter().enumerate() {
            if let Some(space) = item.space() {
                places[space as usize].push(at);
            }
        }
        Ok(Items { all, places })
    }

    pub(super) fn all(&self) -> &[Item<'a>] {
        &self.all
    }

    pub(super) fn get(&self, at: usize) -> Option<&Item<'a>> {
        self.all.get(at)
    }

    /// Where the definitions of a space stand.
    pub(super) fn of(&self, space: Space) -> &[usize] {
        &self.places[space as usize]
    }

    /// Where the definition of an index stands.
    pub(super) fn at(&self, space: Space, index: u32) -> Option<usize> {
        self.of(space).get(index as usize).copied()
    }
}

fn definitions(component: &[u8]) -> Result<Vec<Item<'_>>, BinaryReaderError> {
    let (mut items, mut depth) = (Vec::new(), 0usize);
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload?;
        let inner = depth > 0;
        match &payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        let Some((section, range)) = payload.as_section().filter(|_| !inner) else { continue };
        let whole = component.get(range).unwrap_or_default();
        let mut each = Each { component, section, items: &mut items };
        match payload {
            Payload::InstanceSection(of) => each.add(of, What::Instance)?,
            Payload::ComponentAliasSection(of) => each.add(of, What::Alias)?,
            Payload::ComponentCanonicalSection(of) => each.add(of, What::Canonical)?,
            Payload::ComponentImportSection(of) => each.add(of, |import| match import.ty {
                ComponentTypeRef::Func(_) => What::Function,
                ComponentTypeRef::Module(_) => What::Module,
                _ => What::Other,
            })?,
            Payload::ComponentExportSection(of) => each.add(of, |export| match export.kind {
                ComponentExternalKind::Func => What::Function,
                ComponentExternalKind::Module => What::Module,
                _ => What::Other,
            })?,
            Payload::ModuleSection { .. } => items.push(Item { section, bytes: whole.into(), what: What::Module }),
            // Whole sections: they define none of what is counted here. Names are of indices that may change.
            Payload::CustomSection(_) => {}
            _ => items.push(Item { section, bytes: whole.into(), what: What::Other }),
        }
    }
    Ok(items)
}

/// Takes the definitions of one section apart.
struct Each<'i, 'a> {
    component: &'a [u8],
    section: u8,
    items: &'i mut Vec<Item<'a>>,
}

impl<'a> Each<'_, 'a> {
    fn add<T: FromReader<'a>>(
        &mut self,
        section: SectionLimited<'a, T>,
        what: impl Fn(T) -> What<'a>,
    ) -> Result<(), BinaryReaderError> {
        let end = section.range().end;
        let several = section.into_iter_with_offsets().collect::<Result<Vec<_>, _>>()?;
        let ends: Vec<usize> = several.iter().skip(1).map(|(start, _)| *start).chain([end]).collect();
        for ((start, item), end) in several.into_iter().zip(ends) {
            let bytes = self.component.get(start..end).unwrap_or_default();
            self.items.push(Item { section: self.section, bytes: [&[1], bytes].concat().into(), what: what(item) });
        }
        Ok(())
    }
}
