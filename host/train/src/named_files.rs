//! Files that a job names: what has to be sent so that another machine can run the job.

use std::path::{Path, PathBuf};

use sandbar_dataset::{NamedFile, list_local_files};
use sandbar_functions::{BuildReporter, FunctionError, build_crate, find_component};

use crate::error::TrainError;
use crate::execution::missing_input;
use crate::job::Job;

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
            let file = match found.is_dir() {
                true => build_crate(&found, cache, reporter).await.map_err(FunctionError::from)?,
                false => found.clone(),
            };
            components.push(FoundComponent { name: name.to_owned(), found, file });
        }
        let inputs = list_local_files(&job.input.paths).await;
        let label = |i| job.key_label(&format!("input.paths[{i}]"));
        let inputs = inputs.map_err(|error| missing_input(error, &job.input.paths, label))?;
        Ok(NamedJobFiles { inputs, components })
    }
}
