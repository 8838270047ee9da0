//! Parses a component into its definitions.

use std::borrow::Cow;

use wasmparser::{
    BinaryReaderError, CanonicalFunction, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind,
    ComponentTypeRef, ExternalKind, FromReader, Instance, Parser, Payload, SectionLimited,
};

/// One definition of a component, as a section of its own.
pub(super) struct Item<'a> {
    pub(super) section: u8,
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) kind: ItemKind<'a>,
}

pub(super) enum ItemKind<'a> {
    Module,
    Instance(Instance<'a>),
    Alias(ComponentAlias<'a>),
    Canonical(CanonicalFunction),
    /// A function that is imported or exported.
    Function,
    Other,
}

/// Index spaces of definitions, each counted separately.
#[derive(Clone, Copy)]
pub(super) enum IndexSpace {
    Module,
    Instance,
    CoreFunction,
    Memory,
    Table,
    Function,
}

impl<'a> Item<'a> {
    fn space(&self) -> Option<IndexSpace> {
        use ComponentAlias::{CoreInstanceExport, InstanceExport, Outer};
        match &self.kind {
            ItemKind::Module => Some(IndexSpace::Module),
            ItemKind::Instance(_) => Some(IndexSpace::Instance),
            ItemKind::Canonical(CanonicalFunction::Lift { .. }) => Some(IndexSpace::Function),
            ItemKind::Canonical(_) => Some(IndexSpace::CoreFunction),
            ItemKind::Function => Some(IndexSpace::Function),
            ItemKind::Alias(InstanceExport { kind: ComponentExternalKind::Func, .. }) => Some(IndexSpace::Function),
            ItemKind::Alias(InstanceExport { kind: ComponentExternalKind::Module, .. }) => Some(IndexSpace::Module),
            ItemKind::Alias(Outer { kind: ComponentOuterAliasKind::CoreModule, .. }) => Some(IndexSpace::Module),
            ItemKind::Alias(CoreInstanceExport { kind: ExternalKind::Func, .. }) => Some(IndexSpace::CoreFunction),
            ItemKind::Alias(CoreInstanceExport { kind: ExternalKind::Memory, .. }) => Some(IndexSpace::Memory),
            ItemKind::Alias(CoreInstanceExport { kind: ExternalKind::Table, .. }) => Some(IndexSpace::Table),
            ItemKind::Alias(_) | ItemKind::Other => None,
        }
    }

    /// Returns the instantiated module and its arguments: names and instances.
    pub(super) fn instantiates(&self) -> Option<(u32, Vec<(&'a str, u32)>)> {
        let ItemKind::Instance(Instance::Instantiate { module_index, args }) = &self.kind else { return None };
        Some((*module_index, args.iter().map(|arg| (arg.name, arg.index)).collect()))
    }

    /// Returns the name of the alias, if it refers to an export of this instance.
    pub(super) fn exports_of(&self, instance: usize) -> Option<&'a str> {
        match self.kind {
            ItemKind::Alias(ComponentAlias::CoreInstanceExport { instance_index, name, .. }) => {
                (instance_index as usize == instance).then_some(name)
            }
            _ => None,
        }
    }
}

/// All definitions of a component in order, and the positions of each index space.
pub(super) struct ItemTable<'a> {
    all: Vec<Item<'a>>,
    places: [Vec<usize>; 6],
}

impl<'a> ItemTable<'a> {
    pub(super) fn read(component: &'a [u8]) -> Result<ItemTable<'a>, BinaryReaderError> {
        let all = definitions(component)?;
        let mut places = [const { Vec::new() }; 6];
        for (at, item) in all.iter().enumerate() {
            if let Some(space) = item.space() {
                places[space as usize].push(at);
            }
        }
        Ok(ItemTable { all, places })
    }

    pub(super) fn all(&self) -> &[Item<'a>] {
        &self.all
    }

    pub(super) fn get(&self, at: usize) -> Option<&Item<'a>> {
        self.all.get(at)
    }

    /// Returns the positions of an index space's definitions.
    pub(super) fn indices(&self, space: IndexSpace) -> &[usize] {
        &self.places[space as usize]
    }

    /// Returns the position of the definition with an index.
    pub(super) fn at(&self, space: IndexSpace, index: u32) -> Option<usize> {
        self.indices(space).get(index as usize).copied()
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
        let mut each = SectionReader { component, section, items: &mut items };
        match payload {
            Payload::InstanceSection(section_reader) => each.add(section_reader, ItemKind::Instance)?,
            Payload::ComponentAliasSection(section_reader) => each.add(section_reader, ItemKind::Alias)?,
            Payload::ComponentCanonicalSection(section_reader) => each.add(section_reader, ItemKind::Canonical)?,
            Payload::ComponentImportSection(section_reader) => each.add(section_reader, |import| match import.ty {
                ComponentTypeRef::Func(_) => ItemKind::Function,
                ComponentTypeRef::Module(_) => ItemKind::Module,
                _ => ItemKind::Other,
            })?,
            Payload::ComponentExportSection(section_reader) => {
                each.add(section_reader, |export| match export.kind {
                    ComponentExternalKind::Func => ItemKind::Function,
                    ComponentExternalKind::Module => ItemKind::Module,
                    _ => ItemKind::Other,
                })?
            }
            Payload::ModuleSection { .. } => items.push(Item { section, bytes: whole.into(), kind: ItemKind::Module }),
            // Custom sections are dropped: their names refer to indices that may change. Other sections are kept whole:
            // they define nothing that is counted here.
            Payload::CustomSection(_) => {}
            _ => items.push(Item { section, bytes: whole.into(), kind: ItemKind::Other }),
        }
    }
    Ok(items)
}

/// Parses the definitions of one section.
struct SectionReader<'i, 'a> {
    component: &'a [u8],
    section: u8,
    items: &'i mut Vec<Item<'a>>,
}

impl<'a> SectionReader<'_, 'a> {
    fn add<T: FromReader<'a>>(
        &mut self,
        section: SectionLimited<'a, T>,
        kind: impl Fn(T) -> ItemKind<'a>,
    ) -> Result<(), BinaryReaderError> {
        let end = section.range().end;
        let several = section.into_iter_with_offsets().collect::<Result<Vec<_>, _>>()?;
        let ends: Vec<usize> = several.iter().skip(1).map(|(start, _)| *start).chain([end]).collect();
        for ((start, item), end) in several.into_iter().zip(ends) {
            let bytes = self.component.get(start..end).unwrap_or_default();
            self.items.push(Item { section: self.section, bytes: [&[1], bytes].concat().into(), kind: kind(item) });
        }
        Ok(())
    }
}
