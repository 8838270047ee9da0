//! Where components are: those that users name by paths, those that are shipped, and those that stored models name by
//! their hashes.
//!
//! A path is followed because the user gave it, on the command line or in a job file. What a model file says is data: its
//! components are found by their hashes, in the cache or among those that the user names, and no path of the file is opened.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{ComponentId, FunctionKind, Limits, hint};
use sandbar_machine::{names_beside, relative_to, write_atomically};
use sha2::{Digest, Sha256};

use crate::function::{Callable, Loaded, Params, callable};
use crate::submit::Origin;
use crate::{Node, NodeError};

/// A component or a crate's folder that is named: at its path, or, where a plain name is at no path, a shipped one.
/// `key` says where it is named, if anywhere but on the command line.
///
/// # Errors
/// Where there is none: what was looked for, and where.
pub(crate) fn find_component(shipped: &[PathBuf], key: &str, path: &Path) -> Result<PathBuf, NodeError> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    let is_name = path.file_name() == Some(path.as_os_str());
    if let Some(name) = path.to_str().filter(|_| is_name) {
        let named = shipped.iter().flat_map(|folder| [folder.join(format!("{name}.wasm")), folder.join(name)]);
        if let Some(found) = named.into_iter().find(|found| is_component(found)) {
            return Ok(found);
        }
    }
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    let mut message = format!("{key}there is no component or crate `{}` {}", path.display(), relative_to(path));
    let mut names = names_beside(path);
    if is_name {
        let all = shipped_names(shipped);
        let folders: Vec<_> = shipped.iter().map(|folder| folder.display().to_string()).collect();
        message += &match &folders[..] {
            [] => ", and this host has no shipped functions".to_owned(),
            _ => format!(", and none of that name is shipped: in {} are {}", folders.join(" and "), all.join(", ")),
        };
        names.extend(all);
    }
    Err(NodeError::NotFound(message + &hint(&path.display().to_string(), &names)))
}

/// The names of shipped components.
fn shipped_names(shipped: &[PathBuf]) -> Vec<String> {
    let entries = shipped.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let found = entries.map(|entry| entry.path()).filter(|path| is_component(path));
    let mut names: Vec<String> =
        found.filter_map(|path| path.file_stem().map(|name| name.to_string_lossy().into_owned())).collect();
    names.sort();
    names.dedup();
    names
}

impl Node {
    /// A component or a crate's folder that is named: see [`find_component`].
    pub(crate) fn find_component(&self, key: &str, path: &Path) -> Result<PathBuf, NodeError> {
        find_component(&self.options.shipped, key, path)
    }

    /// Where the cache keeps a component.
    pub(crate) fn component_path(&self, id: ComponentId) -> PathBuf {
        self.options.cache.join("components").join(format!("{id}.wasm"))
    }

    /// Says where a function came from, and keeps a copy of its component, so that models can be used when it has
    /// been built anew.
    pub(crate) fn remember(&self, callable: &Callable) -> Result<Origin, NodeError> {
        let Loaded { compiled, path, file, .. } = &*callable.component;
        let (id, kept) = (compiled.id(), self.component_path(compiled.id()));
        let bytes = |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|file| file.len());
        // One that is cut is written anew.
        if bytes(&kept).is_none() || bytes(&kept) != bytes(file) {
            let component = fs::read(file).map_err(NodeError::file(file))?;
            if id_of(&component[..]).map_err(NodeError::file(file))? != id {
                return Err(NodeError::file(file)(io::Error::other(
                    "it has changed since the job began; run the job again",
                )));
            }
            let cache = |reason| NodeError::Cache { folder: self.options.cache.clone(), reason };
            write_atomically(&kept, &component).map_err(cache)?;
        }
        Ok(Origin {
            component: id,
            function: callable.function.name.clone(),
            params: callable.binding.params.clone(),
            path: path.clone(),
        })
    }
}

/// Whether it is a component, or the folder of a crate.
fn is_component(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "wasm") && path.is_file() || path.join("Cargo.toml").is_file()
}

/// Hashes as text, in model files.
pub(crate) mod as_text {
    use sandbar_core::ComponentId;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(id: &ComponentId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ComponentId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The SHA-256 of a component, of no more bytes than one may have.
fn id_of(component: impl io::Read) -> io::Result<ComponentId> {
    const BYTES_MAX: u64 = 256 << 20;
    let mut hasher = Sha256::new();
    io::copy(&mut component.take(BYTES_MAX + 1), &mut hasher)?;
    Ok(ComponentId::from_digest(hasher.finalize().into()))
}

/// The components that stored models may name: those in the cache, and those that the user names for them.
pub(crate) struct KnownComponents<'a> {
    node: &'a Node,
    /// The file with the models.
    models: &'a Path,
    limits: Limits,
    /// Those that the user names, with their files.
    given: Vec<(ComponentId, PathBuf, PathBuf)>,
    loaded: HashMap<ComponentId, Arc<Loaded>>,
}

impl<'a> KnownComponents<'a> {
    /// `given` are components, or folders of crates, which are built: since the user has named them.
    pub(crate) async fn new(
        node: &'a Node,
        models: &'a Path,
        given: &[PathBuf],
        limits: Limits,
    ) -> Result<KnownComponents<'a>, NodeError> {
        let mut known = Vec::with_capacity(given.len());
        for path in given {
            let found = node.find_component("--component", path)?;
            let file = node.component_file(&found).await?;
            let opened = File::open(&file).map_err(NodeError::file(&file))?;
            known.push((id_of(opened).map_err(NodeError::file(&file))?, path.clone(), file));
        }
        Ok(KnownComponents { node, models, limits, given: known, loaded: HashMap::new() })
    }

    /// Refuses components that the user names for models which are of none of them.
    pub(crate) fn check_given(&self, origins: &[&Origin]) -> Result<(), NodeError> {
        let is_unused = |id: &ComponentId| origins.iter().all(|origin| origin.component != *id);
        let Some((id, path, _)) = self.given.iter().find(|(id, ..)| is_unused(id)) else { return Ok(()) };
        let mut wanted: Vec<String> =
            origins.iter().map(|origin| format!("`{}` of {}", origin.function, origin.component)).collect();
        wanted.dedup();
        Err(NodeError::Job(format!(
            "--component {}: it is component {id}, and {} has none of it: it needs {}; build the one that it was trained \
             with, or train again",
            path.display(),
            self.models.display(),
            wanted.join(", ")
        )))
    }

    /// The function of an origin, with parameters of the file.
    pub(crate) async fn function(
        &mut self,
        origin: &Origin,
        kinds: &[FunctionKind],
        params: &Params,
    ) -> Result<Callable, NodeError> {
        let component = self.component(origin).await?;
        let label = format!("{}#{}", component.path.display(), origin.function);
        callable(component, (&origin.function, kinds, &label), params, self.limits)
    }

    async fn component(&mut self, origin: &Origin) -> Result<Arc<Loaded>, NodeError> {
        let id = origin.component;
        if let Some(loaded) = self.loaded.get(&id) {
            return Ok(loaded.clone());
        }
        let given = self.given.iter().find(|(given, ..)| *given == id);
        let kept = self.node.component_path(id);
        let (shown, file) = match given {
            Some((_, path, file)) => (path.clone(), file),
            None if kept.is_file() => (PathBuf::from(id.short()), &kept),
            None => return Err(self.missing(origin)),
        };
        let opened = File::open(file).map_err(NodeError::file(file))?;
        let found = id_of(&opened).map_err(NodeError::file(file))?;
        // Before anything is done with it; what is compiled then is looked at again.
        let is_it = found == id;
        let loaded = match is_it {
            true => {
                let again = File::open(file).map_err(NodeError::file(file))?;
                Some(self.node.load(again, &shown).await?).filter(|loaded| loaded.compiled.id() == id)
            }
            false => None,
        };
        let loaded = Arc::new(loaded.ok_or_else(|| {
            let what = format!("it is not component {id}, as its name says, but {found}: remove it, and name the component with --component");
            NodeError::file(file)(io::Error::other(what))
        })?);
        self.loaded.insert(id, loaded.clone());
        Ok(loaded)
    }

    fn missing(&self, origin: &Origin) -> NodeError {
        NodeError::Job(format!(
            "{}: the component {} of `{}` is not in {}; copy it there, or name it with --component (it was {} where the \
             models were trained)",
            self.models.display(),
            origin.component,
            origin.function,
            self.node.options.cache.join("components").display(),
            origin.path.display()
        ))
    }
}
