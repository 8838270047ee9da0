//! Dry runs of programs: the first task and its arguments, before anything runs.

use std::path::Path;

use serde::Serialize;

use crate::arguments;
use crate::error::ProgramError;
use crate::runner::ProgramSpec;
use crate::runner::{MAIN, ProgramRunner, find};

/// The start of a program.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramPlan {
    /// As it was named.
    pub program: String,
    /// The task that it begins with.
    pub task: String,
    /// Whether its crate has to be built first; its tasks are unknown until then.
    pub is_to_build: bool,
    /// The SHA-256 of its component.
    pub component: Option<String>,
    /// The task's arguments, in their order.
    pub arguments: Option<Vec<ArgumentPlan>>,
}

/// An argument of a program's first task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArgumentPlan {
    /// Its name.
    pub name: String,
    /// Its type, in the words of its task.
    #[serde(rename = "type")]
    pub type_name: String,
    /// As it was given; nothing where it was not.
    pub value: Option<String>,
    /// How many files it stands for, if it stands for some.
    pub files: Option<u64>,
}

impl ProgramRunner {
    /// Finds the first task of a program, as [`ProgramRunner::run`] does, and checks its arguments. Builds no crate, and runs
    /// no task.
    ///
    /// # Errors
    /// When there is no such program or task, and when the arguments are not those of the task.
    pub async fn plan(&self, spec: &ProgramSpec) -> Result<ProgramPlan, ProgramError> {
        let (path, task) = spec.program.rsplit_once('#').unwrap_or((&spec.program, MAIN));
        let path = Path::new(path);
        let is_to_build = self.functions.stale_crate(&self.functions.find("", path)?)?.is_some();
        let (program, task) = (spec.program.clone(), task.to_owned());
        if is_to_build {
            return Ok(ProgramPlan { program, task, is_to_build, component: None, arguments: None });
        }
        let loaded = self.load(path, spec.limits).await?;
        let component = Some(loaded.compiled.id().to_string());
        let (function, given) = (find(&loaded, &task, path)?, spec.arguments.clone());
        // Files may be many, and their disk slow.
        let arguments = tokio::task::spawn_blocking(move || arguments::plan(&loaded.tasks[function], &given));
        Ok(ProgramPlan { program, task, is_to_build, component, arguments: Some(arguments.await??) })
    }
}
