//! Files that a job or a prediction names: what has to be sent so that another machine can run it.

use std::path::{Path, PathBuf};

use sandbar_dataset::{NamedFile, list_local_files};
use sandbar_functions::{
    BuildReporter, FunctionError, FunctionOrigin, ModelComponent, ModelComponents, build_crate, find_component,
};

use crate::error::TrainError;
use crate::execution::missing_input;
use crate::job::Job;
use crate::metadata::JobMetadata;
use crate::predict::PredictSpec;

/// Files of this machine that a job names.
#[derive(Debug, Clone)]
pub struct NamedJobFiles {
    /// Input files, sorted by name.
    pub inputs: Vec<NamedFile>,
    /// Components of its functions, each once: the path in the job, the path at which it was found, and the component.
    pub components: Vec<FoundComponent>,
}

/// A component of a job's functions.
#[derive(Debug, Clone)]
pub struct FoundComponent {
    /// Path in the job's functions, before the `#`.
    pub name: String,
    /// The component, or the folder of its crate.
    pub found: PathBuf,
    /// The component: `found` itself, or what its crate was built to.
    pub file: PathBuf,
}

impl NamedJobFiles {
    /// Finds what a job names on this machine, and builds stale crates. `shipped` are folders of shipped functions, and
    /// `registered` the components that the job names by `component:`.
    ///
    /// # Errors
    /// Fails if something does not exist, is not on this machine, or a build fails.
    pub async fn find(
        job: &Job,
        registered: &[FoundComponent],
        shipped: &[PathBuf],
        cache: &Path,
        reporter: Option<BuildReporter<'_>>,
    ) -> Result<NamedJobFiles, TrainError> {
        let mut components: Vec<FoundComponent> = Vec::new();
        for (key, udf) in job.functions() {
            let Some((name, _)) = udf.rsplit_once('#') else { continue };
            if components.iter().any(|component| component.name == name) {
                continue;
            }
            if let Some(component) = registered.iter().find(|component| component.name == name) {
                components.push(component.clone());
                continue;
            }
            let found = find_component(shipped, &job.key_label(&key), Path::new(name))?;
            let file = built(&found, cache, reporter).await?;
            components.push(FoundComponent { name: name.to_owned(), found, file });
        }
        let inputs = list_local_files(&job.input.paths).await;
        let label = |i| job.key_label(&format!("input.paths[{i}]"));
        let inputs = inputs.map_err(|error| missing_input(error, &job.input.paths, label))?;
        Ok(NamedJobFiles { inputs, components })
    }
}

/// Files of this machine that a prediction names.
#[derive(Debug, Clone)]
pub struct NamedPredictionFiles {
    /// Input files, sorted by name.
    pub inputs: Vec<NamedFile>,
    /// Components of the models' functions, each once.
    pub components: Vec<ModelComponent>,
}

impl NamedPredictionFiles {
    /// Finds what a prediction names on this machine: its input, and the components of its models, among those that the
    /// user names, which are built if they are stale crates, and in the cache.
    ///
    /// # Errors
    /// Fails if something does not exist, is not on this machine, or a build fails.
    pub async fn find(
        spec: &PredictSpec,
        shipped: &[PathBuf],
        cache: &Path,
        reporter: Option<BuildReporter<'_>>,
    ) -> Result<NamedPredictionFiles, TrainError> {
        let JobMetadata { transforms, trainers, .. } = JobMetadata::read(&spec.models, &spec.models)?;
        let mut usable = ModelComponents::cached(&spec.models, cache);
        for path in &spec.components {
            let found = find_component(shipped, "--component", path)?;
            usable.add(path, built(&found, cache, reporter).await?)?;
        }
        let origins: Vec<&FunctionOrigin> = transforms.iter().chain(trainers.values()).collect();
        usable.check_added(&origins)?;
        let mut components: Vec<ModelComponent> = Vec::new();
        for origin in origins {
            if components.iter().all(|known| known.component != origin.component) {
                components.push(usable.find(origin)?);
            }
        }
        let inputs = list_local_files(&spec.input).await;
        let inputs = inputs.map_err(|error| missing_input(error, &spec.input, |_| "`--input`".to_owned()))?;
        Ok(NamedPredictionFiles { inputs, components })
    }
}

/// Returns the component at a path, or what the crate in this folder is built to.
async fn built(found: &Path, cache: &Path, reporter: Option<BuildReporter<'_>>) -> Result<PathBuf, TrainError> {
    match found.is_dir() {
        true => Ok(build_crate(found, cache, reporter).await.map_err(FunctionError::from)?),
        false => Ok(found.to_owned()),
    }
}
