//! Functions of stored models.
//!
//! A model file is data: its components are found by their hashes, in the cache or among those that the user names for
//! it, and no path in the file is opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{ComponentId, FunctionKind, Limits};

use crate::bound::{BoundFunction, FunctionName, FunctionParams};
use crate::error::FunctionError;
use crate::loader::{FunctionLoader, LoadedComponent};
use crate::origin::{FunctionOrigin, id_of};

/// Functions that the models of a file may use: those of cached components, and of components that the user names.
#[derive(Debug)]
pub struct ModelFunctions<'a> {
    loader: &'a FunctionLoader,
    /// Model file.
    models: &'a Path,
    limits: Limits,
    named: Vec<NamedComponent>,
    loaded: HashMap<ComponentId, Arc<LoadedComponent>>,
}

/// A component that the user named for a model file.
#[derive(Debug)]
struct NamedComponent {
    id: ComponentId,
    /// Path as the user named it.
    path: PathBuf,
    /// Component file.
    file: PathBuf,
}

impl<'a> ModelFunctions<'a> {
    /// Creates the set. `named` are components, or folders of crates, which are built.
    ///
    /// # Errors
    /// Fails if a named component does not exist or its build fails.
    pub async fn new(
        loader: &'a FunctionLoader,
        models: &'a Path,
        named: &[PathBuf],
        limits: Limits,
    ) -> Result<ModelFunctions<'a>, FunctionError> {
        let mut found = Vec::with_capacity(named.len());
        for path in named {
            let component = loader.find("--component", path)?;
            let file = loader.component_file(&component).await?;
            let opened = File::open(&file).map_err(FunctionError::file(&file))?;
            let id = id_of(opened).map_err(FunctionError::file(&file))?;
            found.push(NamedComponent { id, path: path.clone(), file });
        }
        Ok(ModelFunctions { loader, models, limits, named: found, loaded: HashMap::new() })
    }

    /// Refuses named components that no origin refers to.
    ///
    /// # Errors
    /// Names the first such component, and the components that the models need.
    pub fn check_named(&self, origins: &[&FunctionOrigin]) -> Result<(), FunctionError> {
        let is_unused = |named: &&NamedComponent| origins.iter().all(|origin| origin.component != named.id);
        let Some(NamedComponent { id, path, .. }) = self.named.iter().find(is_unused) else { return Ok(()) };
        let mut needed: Vec<String> =
            origins.iter().map(|origin| format!("`{}` of {}", origin.function, origin.component)).collect();
        needed.dedup();
        Err(FunctionError::Invalid(format!(
            "--component {}: no model of {} was trained with this component ({id}); the models need {}: build the \
             component that they were trained with, or train again",
            path.display(),
            self.models.display(),
            needed.join(", "),
        )))
    }

    /// Binds the function of an origin, with parameters of the model file.
    ///
    /// # Errors
    /// Fails if the component is neither named nor cached, or lacks the function.
    pub async fn bind(
        &mut self,
        origin: &FunctionOrigin,
        kinds: &[FunctionKind],
        params: &FunctionParams,
    ) -> Result<BoundFunction, FunctionError> {
        let component = self.component(origin).await?;
        let label = format!("{}#{}", component.path.display(), origin.function);
        let name = FunctionName { name: &origin.function, kinds, label: &label };
        BoundFunction::new(component, &name, params, self.limits)
    }

    async fn component(&mut self, origin: &FunctionOrigin) -> Result<Arc<LoadedComponent>, FunctionError> {
        let id = origin.component;
        if let Some(loaded) = self.loaded.get(&id) {
            return Ok(loaded.clone());
        }
        let cached = self.loader.cached_component(id);
        let (shown, file) = match self.named.iter().find(|named| named.id == id) {
            Some(named) => (named.path.clone(), &named.file),
            None if cached.is_file() => (PathBuf::from(id.short()), &cached),
            None => return Err(self.missing(origin)),
        };
        let opened = File::open(file).map_err(FunctionError::file(file))?;
        let found = id_of(&opened).map_err(FunctionError::file(file))?;
        // The hash is checked before the component is compiled, and again for the bytes that were compiled.
        let loaded = match found == id {
            true => {
                let again = File::open(file).map_err(FunctionError::file(file))?;
                Some(self.loader.load(again, &shown).await?).filter(|loaded| loaded.compiled.id() == id)
            }
            false => None,
        };
        let loaded = Arc::new(loaded.ok_or_else(|| {
            let reason = format!("it is not component {id}, as its name says, but {found}: remove it, and name the component with --component");
            FunctionError::file(file)(io::Error::other(reason))
        })?);
        self.loaded.insert(id, loaded.clone());
        Ok(loaded)
    }

    fn missing(&self, origin: &FunctionOrigin) -> FunctionError {
        FunctionError::Invalid(format!(
            "{}: the component {} of `{}` is not in {}; copy it there, or name it with --component (it was {} where the \
             models were trained)",
            self.models.display(),
            origin.component,
            origin.function,
            self.loader.options().cache.join("components").display(),
            origin.path.display()
        ))
    }
}
