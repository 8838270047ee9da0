//! Functions of stored models.
//!
//! A model file is data: its components are found by their hashes, in the cache or among those that come with it, and no
//! path in the file is opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::{ComponentId, FunctionKind, Limits};

use crate::bound::{BoundFunction, FunctionName, FunctionParams, NamedComponent};
use crate::error::FunctionError;
use crate::loader::{FunctionLoader, LoadedComponent, cached_component};
use crate::origin::{FunctionOrigin, id_of};

/// Components that the models of a file may use.
#[derive(Debug)]
pub struct ModelComponents<'a> {
    /// Model file, for messages.
    models: &'a Path,
    added: Vec<ModelComponent>,
    /// Cache that has further components; `None` if the models may use no others.
    cache: Option<&'a Path>,
}

/// A component for a model file.
#[derive(Debug, Clone)]
pub struct ModelComponent {
    /// The component.
    pub component: ComponentId,
    /// Path for messages: as the user named it, or the start of its id.
    pub shown: PathBuf,
    /// Component file.
    pub file: PathBuf,
}

impl<'a> ModelComponents<'a> {
    /// Creates the set of a cache's components, to which others are [added](ModelComponents::add).
    pub fn cached(models: &'a Path, cache: &'a Path) -> ModelComponents<'a> {
        ModelComponents { models, added: Vec::new(), cache: Some(cache) }
    }

    /// Creates the set of these components alone, which came with the models.
    pub fn only(models: &'a Path, components: &[NamedComponent]) -> ModelComponents<'a> {
        let component = |NamedComponent { found, file, component, .. }: &NamedComponent| ModelComponent {
            component: *component,
            shown: found.clone(),
            file: file.clone(),
        };
        ModelComponents { models, added: components.iter().map(component).collect(), cache: None }
    }

    /// Adds the component `file`, which the user named `shown`.
    ///
    /// # Errors
    /// Fails if the file can't be read.
    pub fn add(&mut self, shown: &Path, file: PathBuf) -> Result<(), FunctionError> {
        let opened = File::open(&file).map_err(FunctionError::file(&file))?;
        let component = id_of(opened).map_err(FunctionError::file(&file))?;
        self.added.push(ModelComponent { component, shown: shown.to_owned(), file });
        Ok(())
    }

    /// Refuses added components that no origin refers to.
    ///
    /// # Errors
    /// Names the first such component, and the components that the models need.
    pub fn check_added(&self, origins: &[&FunctionOrigin]) -> Result<(), FunctionError> {
        let is_unused = |added: &&ModelComponent| origins.iter().all(|origin| origin.component != added.component);
        let Some(ModelComponent { component, shown, .. }) = self.added.iter().find(is_unused) else { return Ok(()) };
        let mut needed: Vec<String> =
            origins.iter().map(|origin| format!("`{}` of {}", origin.function, origin.component)).collect();
        needed.dedup();
        Err(FunctionError::Invalid(format!(
            "--component {}: no model of {} was trained with this component ({component}); the models need {}: build the \
             component that they were trained with, or train again",
            shown.display(),
            self.models.display(),
            needed.join(", "),
        )))
    }

    /// Finds the component of an origin.
    ///
    /// # Errors
    /// Fails if the component is neither added nor cached.
    pub fn find(&self, origin: &FunctionOrigin) -> Result<ModelComponent, FunctionError> {
        let component = origin.component;
        if let Some(added) = self.added.iter().find(|added| added.component == component) {
            return Ok(added.clone());
        }
        let (models, function) = (self.models.display(), &origin.function);
        let Some(cache) = self.cache else {
            return Err(FunctionError::Invalid(format!(
                "{models}: the component {component} of `{function}` did not come with the models"
            )));
        };
        let file = cached_component(cache, component);
        if file.is_file() {
            return Ok(ModelComponent { component, shown: PathBuf::from(component.short()), file });
        }
        Err(FunctionError::Invalid(format!(
            "{models}: the component {component} of `{function}` is not in {}; copy it there, or name it with --component (it \
             was {} where the models were trained)",
            cache.join("components").display(),
            origin.path.display()
        )))
    }
}

/// Functions of the models of a file.
#[derive(Debug)]
pub struct ModelFunctions<'a> {
    loader: &'a FunctionLoader,
    components: ModelComponents<'a>,
    limits: Limits,
    loaded: HashMap<ComponentId, Arc<LoadedComponent>>,
}

impl<'a> ModelFunctions<'a> {
    /// Creates the set of the functions of these components, for calls within `limits`.
    pub fn new(loader: &'a FunctionLoader, components: ModelComponents<'a>, limits: Limits) -> ModelFunctions<'a> {
        ModelFunctions { loader, components, limits, loaded: HashMap::new() }
    }

    /// Binds the function of an origin, with parameters of the model file.
    ///
    /// # Errors
    /// Fails if the component is not found, or lacks the function.
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
        let ModelComponent { shown, file, .. } = self.components.find(origin)?;
        let opened = File::open(&file).map_err(FunctionError::file(&file))?;
        let found = id_of(&opened).map_err(FunctionError::file(&file))?;
        // The hash is checked before the component is compiled, and again for the bytes that were compiled.
        let loaded = match found == id {
            true => {
                let again = File::open(&file).map_err(FunctionError::file(&file))?;
                Some(self.loader.load(again, &shown).await?).filter(|loaded| loaded.compiled.id() == id)
            }
            false => None,
        };
        let loaded = Arc::new(loaded.ok_or_else(|| {
            let reason = format!("it is not component {id}, as its name says, but {found}: remove it, and name the component with --component");
            FunctionError::file(&file)(io::Error::other(reason))
        })?);
        self.loaded.insert(id, loaded.clone());
        Ok(loaded)
    }
}
