//! Origins of functions, as model files store them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sandbar_core::ComponentId;
use sandbar_machine::write_atomically;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bound::BoundFunction;
use crate::error::FunctionError;
use crate::loader::{FunctionLoader, LoadedComponent, cached_component};

/// Maximum bytes of a component.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;

/// Origin of a function, stored with the models that it trained.
#[derive(Debug, Serialize, Deserialize)]
pub struct FunctionOrigin {
    /// Component, by hash.
    #[serde(with = "as_text")]
    pub component: ComponentId,
    /// Name of the function.
    pub function: String,
    /// Parameters as JSON.
    pub params: String,
    /// Path of the component at that time, for messages. Nothing opens it.
    pub path: PathBuf,
}

impl FunctionLoader {
    /// Copies a function's component into the cache, so that its models remain usable after a rebuild, and returns the
    /// function's origin. Components of tenants are not copied: the cache is this node's own.
    ///
    /// # Errors
    /// Fails if the component has changed since it was loaded, or the cache is not writable.
    pub fn keep(&self, bound: &BoundFunction) -> Result<FunctionOrigin, FunctionError> {
        let LoadedComponent { compiled, path, file, .. } = &*bound.component;
        let id = compiled.id();
        if self.is_own() {
            keep_component(&self.options().cache, id, file)?;
        }
        Ok(FunctionOrigin {
            component: id,
            function: bound.function.name.clone(),
            params: bound.binding.params.clone(),
            path: path.clone(),
        })
    }
}

/// Copies the component in `file` into a cache, so that models of its trainers remain usable after a rebuild.
///
/// # Errors
/// Fails if the file is another component, or the cache is not writable.
pub fn keep_component(cache: &Path, component: ComponentId, file: &Path) -> Result<(), FunctionError> {
    let cached = cached_component(cache, component);
    let bytes = |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|file| file.len());
    // A truncated copy is replaced.
    if bytes(&cached).is_some() && bytes(&cached) == bytes(file) {
        return Ok(());
    }
    let content = fs::read(file).map_err(FunctionError::file(file))?;
    if id_of(&content[..]).map_err(FunctionError::file(file))? != component {
        let reason = io::Error::other("it has changed since the job began; run the job again");
        return Err(FunctionError::file(file)(reason));
    }
    let failed = |reason| FunctionError::Cache { folder: cache.to_owned(), reason };
    write_atomically(&cached, &content).map_err(failed)
}

/// Hashes a component with SHA-256, up to its maximum size.
pub(crate) fn id_of(component: impl io::Read) -> io::Result<ComponentId> {
    let mut hasher = Sha256::new();
    io::copy(&mut component.take(COMPONENT_BYTES_MAX + 1), &mut hasher)?;
    Ok(ComponentId::from_digest(hasher.finalize().into()))
}

/// Component ids as text.
mod as_text {
    use sandbar_core::ComponentId;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(id: &ComponentId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ComponentId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
